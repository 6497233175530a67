"""GGUF files of runs: transformers reads them to the run's numbers, gguf reads the tokeniser, the rest is refused."""

from dataclasses import replace

import gguf
import pytest
import torch

from clearhead.attention.positions import Rotary
from clearhead.errors import OptionError
from clearhead.interop.export import export
from clearhead.interop.export.gguf import Gguf
from clearhead.interop.gguf import read_gguf
from clearhead.interop.gguf_file import GGUF, tokenizer_json
from clearhead.model import presets
from clearhead.model.feedforward import GELU
from clearhead.model.presets import Size
from clearhead.text.tokenizer import Tokenizer
from tests.interop.export.random_runs import CONTEXT, run_of
from tests.peers import late, transformers

[load_gguf_checkpoint] = late("transformers.modeling_gguf_pytorch_utils", "load_gguf_checkpoint")

TEXTS = ["the cat eats the plum", "the dog eats, größer 123", "a b c d e f g 12345 don't"] * 3
BPE = Tokenizer.train(TEXTS, kind="bpe", size=300)
SPECS = {
    "llama": presets.llama(Size(2, 64, 4, 2, 96)),
    "llama tied": presets.llama(Size(1, 64, 4, 4, 96), tied=True, rotary_base=500.0),
    "gpt2": presets.gpt2(Size(2, 64, 4, 4, 96), length=CONTEXT),
}


def load_theirs(folder):
    """Load a file by transformers' own reading of GGUF; `from_pretrained` would do so too, and needs accelerate."""
    said = load_gguf_checkpoint(folder / "model.gguf")["config"]
    if said["model_type"] == "gpt2":  # it does not read these two, and takes those of GPT-2 itself
        said |= {"n_positions": CONTEXT, "n_inner": 96}
    config = transformers.AutoConfig.for_model(**said)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tensors = load_gguf_checkpoint(folder / "model.gguf", return_tensors=True, model_to_load=model)["tensors"]
    missing, strange = model.load_state_dict(tensors, strict=False)
    assert strange == []
    assert missing in ([], ["lm_head.weight"])
    model.tie_weights()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("quantization", ["f32", "q8_0"])
def test_transformers_reads_the_numbers_of_the_run(kind, quantization, tmp_path):
    run = run_of(SPECS[kind], tmp_path, BPE)
    made = export(run, to="gguf", path=tmp_path / "out", quantization=quantization)
    assert made.figures.difference < 1e-4
    theirs = load_theirs(tmp_path / "out")
    tokens = torch.randint(run.tokenizer.vocabulary, (3, 11))
    again = run.model if quantization == "f32" else read_gguf(tmp_path / "out" / "model.gguf").model
    with torch.no_grad():
        assert torch.allclose(theirs(tokens).logits, again(tokens), atol=1e-4)


@pytest.mark.parametrize("kind", SPECS)
def test_f32_comes_back_bit_by_bit(kind, tmp_path):
    run = run_of(SPECS[kind], tmp_path, BPE)
    Gguf().write(run, tmp_path, "f32")
    again = read_gguf(tmp_path / "model.gguf")
    ours = dict(run.model.named_parameters())
    assert {name: one.equal(ours[name]) for name, one in again.model.named_parameters()} == dict.fromkeys(ours, True)
    assert again.context == CONTEXT
    assert again.end == (run.tokenizer.end,)


def test_the_tokeniser_in_it_gives_the_same_ids(tmp_path):
    run = run_of(SPECS["gpt2"], tmp_path, BPE)
    Gguf().write(run, tmp_path, "f16")
    with GGUF(tmp_path / "model.gguf") as file:
        again = Tokenizer(tokenizer_json(file.metadata, "model.gguf"))
    for text in (*TEXTS, "  two  spaces\n\nand lines", "größer als 99.99 €", "don't 🙂"):
        assert again.encode(text) == run.tokenizer.encode(text)
        assert again.decode(again.encode(text)) == text


def test_matrices_are_quantised_and_vectors_are_not(tmp_path):
    Gguf().write(run_of(SPECS["llama"], tmp_path, BPE), tmp_path, "q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q8_0"
    assert kinds["output_norm.weight"] == "F32"


def with_block(spec, **changes):
    return replace(spec, blocks=tuple(replace(block, **changes) for block in spec.blocks))


@pytest.mark.parametrize(
    ("spec", "task", "tokenizers", "named"),
    [
        (SPECS["llama"], "generate", ("metaspace",), "tokenisers of kind metaspace"),
        (presets.tiny(50), "translate", ("bpe",), "models that translate"),
        (with_block(SPECS["gpt2"], feed_forward=GELU(96)), "generate", ("bpe",), "activation_function gelu_new"),
        (
            with_block(
                SPECS["llama"],
                attention=replace(SPECS["llama"].blocks[0].attention, position=Rotary()),
            ),
            "generate",
            ("bpe",),
            "pairing",
        ),
    ],
)
def test_what_it_cannot_express_is_named(spec, task, tokenizers, named):
    assert any(named in one for one in Gguf().blocks(spec, task, tokenizers))


def test_a_tokeniser_that_llama_cpp_does_not_have_is_refused(tmp_path):
    run = run_of(SPECS["llama"], tmp_path / "run")  # characters
    with pytest.raises(OptionError, match="no tokenisers of kind char"):
        export(run, to="gguf", path=tmp_path / "out")
    assert not list(tmp_path.iterdir())
