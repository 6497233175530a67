"""Frozen parts by name, and the files of a fine-tuned run: what is wrong with them is told."""

import pytest

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.lora import Lora, is_adapter
from clearhead.model.presets import Size
from clearhead.training.pretrained import list_parts, prepare_parameters, trained_tensors
from clearhead.training.recipe import FineTuning

SIZE = Size(3, 16, 2, 2, 32)


def tuning(**changed):
    return FineTuning(**{"source": "runs/x", "run": "a", "step": 1, "sha256": "0", **changed})


def frozen(spec, *patterns):
    """The names of what is not trained."""
    model = prepare_parameters(spec.build(), tuning(freeze=patterns))
    return {name for name, one in model.named_parameters() if not one.requires_grad}


BERT, CLASSIC = presets.bert(SIZE, vocabulary=20), presets.classic(20, size=SIZE)


def test_parts_are_frozen_by_their_names():
    every = {name for name, _ in BERT.build().named_parameters()}
    blocks = {f"stack.blocks.{i}." for i in range(3)}
    assert frozen(BERT, "embedding") == {name for name in every if name.startswith("embedding.")}
    assert frozen(BERT, "blocks.0-1") == {
        name for name in every if name[: len("stack.blocks.0.")] in sorted(blocks)[:2]
    }
    assert frozen(BERT, "stack") == {name for name in every if name.startswith("stack.")}
    assert frozen(BERT, "blocks.*.attention") == {name for name in every if ".attention." in name}
    assert frozen(BERT, "blocks.2.attention.query", "output") == {
        name for name in every if name.startswith(("stack.blocks.2.attention.query.", "output."))
    } | {"embedding.table"}  # which the output shares
    assert all(name.startswith("encoder.") or name == "decoder.embedding.table" for name in frozen(CLASSIC, "encoder"))


@pytest.mark.parametrize(
    ("spec", "pattern", "why"),
    [
        (BERT, "encoder", r"no parameter is called 'encoder'; there are embedding, blocks\.0-2, output"),
        (BERT, "blocks.3", r"'blocks\.3'"),
        (CLASSIC, "blocks", r"there are encoder\.embedding, encoder\.blocks\.0-2, .*decoder\.blocks\.0-2"),
        (BERT, "*", r"\* is the whole model: nothing is left to train"),
    ],
)
def test_a_name_that_there_is_not_is_refused_with_what_there_is(spec, pattern, why):
    with pytest.raises(OptionError, match=why):
        frozen(spec, pattern)


def test_what_is_listed_can_be_frozen():
    for spec in (BERT, CLASSIC, presets.gpt2(SIZE._replace(n_layers=1), vocabulary=20)):
        for name in list_parts(spec.build()):
            assert frozen(spec, name)


def test_lora_trains_adapters_and_a_new_output_alone():
    model = prepare_parameters(BERT.build(), tuning(lora=Lora(rank=2)))
    assert all(map(is_adapter, trained_tensors(model)))
    model = prepare_parameters(BERT.build(), tuning(lora=Lora(rank=2), new_output=True))
    others = {name for name in trained_tensors(model) if not is_adapter(name)}
    assert others == {name for name, _ in model.named_parameters() if name.startswith("output.")}
    model = prepare_parameters(BERT.build(), tuning(lora=Lora(rank=2), new_output=True, freeze=("output",)))
    assert all(map(is_adapter, trained_tensors(model)))
