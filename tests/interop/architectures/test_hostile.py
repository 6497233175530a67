"""Configurations that were changed at random: each field of each architecture takes values that make no sense.

Whatever comes of it is a model or an OptionError, and never a crash or memory beyond what the tensors are of.
"""

import json
import random

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from tests.covering import share_of
from tests.interop.architectures import test_bert, test_gpt2, test_llama, test_marian, test_t5
from tests.interop.peers import NO_TOKENS, save
from tests.peers import late
from tests.rounding import assert_equal_but_rounding

CONFIGS = dict(zip(("gpt2", "llama"), late("transformers", "GPT2Config", "LlamaConfig"), strict=True))
CLASSES = dict(zip(("gpt2", "llama"), late("transformers", "GPT2LMHeadModel", "LlamaForCausalLM"), strict=True))
DRAWN = {
    "gpt2": lambda: test_gpt2.draw(0),
    **{kind: lambda kind=kind: test_llama.draw(kind, 0) for kind in test_llama.KINDS},
    **{
        f"{kind} {task}": lambda kind=kind, task=task: test_bert.draw(kind, task, 0)
        for kind in ("bert", "roberta", "distilbert")
        for task in ("fill", "classify")
    },
    **{kind: lambda kind=kind: test_marian.draw(kind, 0) for kind in test_marian.KINDS},
    "t5": lambda: test_t5.draw(0),
}
VALUES = [
    None,
    "x",
    "",
    -1,
    0,
    1,
    3,
    0.5,
    -2.0,
    1e300,
    2**31 - 1,
    2**40,
    True,
    False,
    [],
    [1],
    ["x"],
    {},
    {"a": 1},
    {"0": "x"},
]


ONE_OF_EACH_FILE = ("gpt2", "llama", "bert fill", "marian", "t5")
"""The others are read by the same lines, but for a name or a field."""


@pytest.fixture(
    scope="module",
    params=[name if name in ONE_OF_EACH_FILE else pytest.param(name, marks=pytest.mark.thorough) for name in DRAWN],
)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    save(DRAWN[request.param](), folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


@pytest.mark.slow
def test_a_changed_configuration_is_a_model_or_an_error_that_says_so(folder):
    path = folder / "config.json"
    whole, rng = json.loads(path.read_text()), random.Random(folder.name)
    for name in whole:
        for value in rng.sample(VALUES, share_of(4)):
            path.write_text(json.dumps({**whole, name: value}))
            try:
                read_hugging_face(folder)
            except OptionError as error:
                assert len(str(error)) < 600  # noqa: PT017 - most of them are read or refused, and both are right
    path.write_text(json.dumps(whole))
    read_hugging_face(folder)


@pytest.mark.slow
def test_more_layers_than_any_model_has_are_refused_before_they_take_memory(folder):
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    for name in ("n_layer", "num_hidden_layers", "n_layers", "encoder_layers", "num_layers"):
        if name in whole:
            path.write_text(json.dumps({**whole, name: 2**31 - 1}))
            with pytest.raises(OptionError, match=f"{name}: expected at most 10,000; came 2,147,483,647"):
                read_hugging_face(folder)
    path.write_text(json.dumps(whole))


YARN = {"rope_type": "yarn", "factor": 4.0}
FOLLOWED = {
    "of two ways to scale, the older": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "the length before YaRN, at the top": ("llama", {"rope_scaling": YARN, "original_max_position_embeddings": 20}),
    "heads by a second name": ("gpt2", {"n_head": None, "num_attention_heads": 2}),
    "heads by two names": ("gpt2", {"n_head": 1, "num_attention_heads": 2}),
}
"""Fields of config.json that change what `transformers` computes, by what they say."""


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_changed_field_changes_what_it_changes_in_transformers(name, tmp_path):
    kind, change = FOLLOWED[name]
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    peer = CLASSES[kind](CONFIGS[kind](**sizes, max_position_embeddings=40, **NO_TOKENS))
    save(peer, tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | change
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    tokens = torch.randint(11, (2, 30))
    with torch.no_grad():
        theirs, before = CLASSES[kind].from_pretrained(tmp_path)(tokens).logits, peer(tokens).logits
        assert_equal_but_rounding(read_hugging_face(tmp_path).model(tokens), theirs)
    assert name.startswith("heads") or not torch.allclose(theirs, before)


def test_a_window_that_is_not_said_is_that_of_mistral(tmp_path):
    save(test_llama.draw("mistral", 0), tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    for said, window in ((values | {"sliding_window": None}, None), (values, 4096)):
        if window is not None:
            del said["sliding_window"]
        path.write_text(json.dumps(said))
        mask = read_hugging_face(tmp_path).spec.blocks[0].attention.mask
        assert (mask is None) if window is None else mask.left == window - 1


def test_a_decoder_that_sees_later_tokens_is_refused(tmp_path):
    save(test_gpt2.draw(0), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_causal": False}))
    with pytest.raises(OptionError, match="is_causal: False is not supported yet; expected True"):
        read_hugging_face(tmp_path)
