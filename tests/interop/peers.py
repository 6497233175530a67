"""Models that `transformers` saved, and what must hold of every one of them once it is read.

Logits and hidden states are its own, every tensor goes back bit-equal, and the configuration that is written gives the
same model in `transformers`.

Numbers are compared in float64: an odd configuration can enlarge float32's rounding past any fair tolerance, more on
one processor than on another.
"""

import json
from unittest import mock

import torch
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode

from clearhead import Rules, generate
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.interop.huggingface import table_rows
from clearhead.interop.tables import Config, gather
from clearhead.taps import watching
from tests.model.copying import randomised
from tests.peers import late
from tests.rounding import assert_equal_but_rounding

[AutoConfig] = late("transformers", "AutoConfig")

NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def save(peer, folder):
    """Give the peer random weights, and save it."""
    peer = randomised(peer, torch.float32)
    for parameter in peer.parameters():
        parameter.requires_grad_(False)
    peer.save_pretrained(folder)
    return peer


class InFloat64(TorchFunctionMode):
    """Compute in float64 what a model computes in float32 whatever the dtype of its weights: norms, angles."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        given = {name: self.widen(value) for name, value in (kwargs or {}).items()}
        return function(*map(self.widen, args), **given)

    def widen(self, value):
        return torch.float64 if value is torch.float32 else value


def in_float64(peer):
    """Return the peer built anew: constants that it makes from its configuration are float64 too."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64(), mock.patch.object(torch, "FloatTensor", torch.DoubleTensor):
            wide = type(peer)(peer.config).eval()
    finally:
        torch.set_default_dtype(usual)
    # What it made is kept where it rounds to what the peer has, as with tables of sines.
    made, weights = wide.state_dict(), peer.state_dict()
    wide.load_state_dict(
        {name: made[name] if torch.equal(made[name].to(held.dtype), held) else held for name, held in weights.items()}
    )
    return wide.requires_grad_(False)


def tapped(model, *inputs, **options):
    """Return what a model answers, and every value that it taps on the way."""
    values = {}
    with watching(model, values.setdefault), torch.no_grad():
        return model(*inputs, **options), values


def same_states(values, states, side=""):
    """Hidden states between the blocks are the peer's; its last one is past the last norm, where there is one."""
    stack = f"{side}stack"
    names = [f"{side}embedding.out", *(f"{stack}.blocks.{i}.out" for i in range(len(states) - 1))]
    if f"{stack}.normed" in values:
        names[-1] = f"{stack}.normed"
    for name, vectors in zip(names, states, strict=True):
        assert_equal_but_rounding(values[name], vectors, name)


def goes_back(peer, folder):
    """Every tensor is written as it was read, and the written configuration is one that the peer builds itself from."""
    imported = read_hugging_face(folder)
    architecture = ARCHITECTURES[imported.config.get("model_type")]
    written = architecture.config_of(imported.spec, context=imported.context)
    again = Config(json.loads(json.dumps(written)), "again")
    there = load_file(folder / "model.safetensors")
    mine = gather(dict(imported.model.named_parameters()), table_rows(architecture, again, there))
    assert mine.keys() == {name for name in there if name in mine or not name.endswith(architecture.ignored)}
    for name, tensor in mine.items():
        assert torch.equal(tensor, there[name]), name
    config = AutoConfig.for_model(**{**NO_TOKENS, **written})
    assert written["architectures"] == [type(peer).__name__]
    built = type(peer)(config).eval()
    # GPT-NeoX has another name for its output in files than in memory.
    loaded = {name.replace("embed_out", "lm_head"): tensor for name, tensor in mine.items()}
    missing, extra = built.load_state_dict(loaded, strict=False)
    built.tie_weights()
    assert not extra
    assert set(missing) <= built.state_dict().keys() - loaded.keys()
    return imported, built


def decoder_is_read(peer, folder, n=11):
    """All of it for a model that goes on with a text."""
    peer = save(peer, folder)
    imported, built = goes_back(peer, folder)
    assert imported.task == "generate"
    tokens = torch.randint(peer.config.vocab_size, (2, n))
    wide = in_float64(peer)
    with InFloat64():
        theirs = wide(tokens, output_hidden_states=True, use_cache=False)
    mine, values = tapped(imported.model.double(), tokens)
    assert_equal_but_rounding(mine, theirs.logits)
    same_states(values, theirs.hidden_states)
    with torch.no_grad():
        assert torch.equal(built(tokens, use_cache=False).logits, peer(tokens, use_cache=False).logits)


def same_greedy(peer, folder, count=200):
    """In float64, where no tie is decided by rounding; Llama's own norms and angles are float32 all the same."""
    peer = save(peer, folder).double()
    model = read_hugging_face(folder).model.double()
    prompt = torch.tensor([[3, 1, 4]])
    made = peer.generate(prompt, max_new_tokens=count, do_sample=False, use_cache=True)
    [[mine]] = generate(model, prompt.tolist(), rules=Rules(max_new=count))
    assert list(mine.tokens) == made[0, 3:].tolist()


def translator_is_read(peer, folder):
    """All of it for an encoder-decoder."""
    peer = save(peer, folder)
    imported, built = goes_back(peer, folder)
    config = peer.config
    assert (imported.task, imported.start) == ("translate", config.decoder_start_token_id)
    source = torch.randint(imported.spec.encoder.vocabulary, (3, 11))
    target = torch.randint(imported.spec.decoder.vocabulary, (3, 7))
    # M2M100 counts no padding in a target either, but only without its cache: no output has any.
    target[target == getattr(config, "pad_token_id", None)] = config.decoder_start_token_id
    lengths = torch.tensor([11, 4, 1])
    real = torch.arange(11) < lengths[:, None]
    asked = {"attention_mask": real.long(), "decoder_input_ids": target, "use_cache": False}
    wide = in_float64(peer)
    with InFloat64():
        theirs = wide(source, **asked, output_hidden_states=True)
    mine, values = tapped(imported.model.double(), source, target, source_lengths=lengths)
    assert_equal_but_rounding(mine, theirs.logits)
    same_states(values, theirs.decoder_hidden_states, "decoder.")
    own = {
        name: one[real] for name, one in values.items() if name.startswith("encoder.") and one.shape[:2] == real.shape
    }
    same_states(own, [one[real] for one in theirs.encoder_hidden_states], "encoder.")
    with torch.no_grad():
        assert torch.equal(built(source, **asked).logits, peer(source, **asked).logits)


def same_translation(peer, folder, count=200):
    """Greedy translations in float64, without an end: they are as long as they may be."""
    peer = save(peer, folder).double()
    imported = read_hugging_face(folder)
    source = torch.randint(imported.spec.encoder.vocabulary, (2, 9))
    padding = [] if peer.config.pad_token_id is None else [peer.config.pad_token_id]
    asked = {"attention_mask": torch.ones_like(source), "suppress_tokens": padding or None}
    made = peer.generate(source, **asked, max_new_tokens=count, do_sample=False, num_beams=1)
    rules = Rules(max_new=count, never=tuple(padding))
    found = generate(imported.model.double(), source.tolist(), rules=rules, prefix=[[imported.start]] * 2)
    assert [list(one.tokens) for [one] in found] == made[:, 1:].tolist()
