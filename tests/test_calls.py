"""Specs print as the expression that makes them: evaluated in a namespace of the public names, it is the spec again."""

import copy
import pickle
from dataclasses import MISSING, dataclass, field, fields, replace

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead import calls, registry
from clearhead.attention import masks
from clearhead.attention.parts import HeadShape
from clearhead.attention.similarity import Similarity
from clearhead.calls import CodeRepr
from clearhead.model import presets
from clearhead.model.lora import Lora
from clearhead.model.outputs import NgramLogits
from clearhead.model.sizes import PRESETS, named
from clearhead.serialization import hints_of
from clearhead.training import Aligned, Budget, Corpus, default_recipe
from clearhead.training.recipe import CLASSES, Plan, Recipe
from tests.model.test_spec_json import (
    EMBEDDED,
    FEATURES,
    FEED_FORWARD,
    HEADS,
    POSITIONS,
    SCALINGS,
    SIMILARITIES,
    WEIGHTINGS,
)
from tests.model.test_spec_json import MASKS as SAVED_MASKS

NAMESPACES = ch, ch.circuits, ch.masks, ch.positions, ch.similarity, ch.weighting, ch.model, ch.training
PUBLIC = {name: getattr(module, name) for module in NAMESPACES for name in module.__all__} | {"torch": torch}

COMBINED = [
    masks.causal() & masks.window(3, 1),
    masks.causal() | masks.window(2),
    ~masks.causal(),
    ~(masks.causal() & masks.window(2)) | masks.causal(),
    (masks.causal() | masks.window(2)) & ~masks.window(1, 2) & masks.causal(),
    masks.causal() | (masks.window(1) | ~~masks.window(2)),
]
CHANGED = [*SIMILARITIES, *FEATURES, *WEIGHTINGS, *SCALINGS, *POSITIONS, *SAVED_MASKS, *COMBINED]
CHANGED += [part for part in (*HEADS, *EMBEDDED, *FEED_FORWARD) if isinstance(part, CodeRepr)]


def example_of(part):
    """Return a part of a class, with a small number in each field that has no default."""
    if part.__name__ in (combined := {"Both": COMBINED[0], "Either": COMBINED[1], "Not": COMBINED[2]}):
        return combined[part.__name__]
    hints = hints_of(part)
    return part(**{name: hints[name](number) for number, name in enumerate(registry.needed_fields(part), 4)})


SAVED = [part for part in registry.CLASSES.values() if registry.BASES[registry.kind_of(part)].saved]


@pytest.mark.parametrize("part", SAVED, ids=lambda part: part.__name__)
def test_every_registered_part_is_what_its_repr_says(part):
    for made in (example_of(part), *(one for one in CHANGED if type(one) is part)):
        assert eval(repr(made), PUBLIC) == made
        assert eval(str(made), PUBLIC) == made


def test_the_public_names_of_parts_are_one_class_each():
    for name, part in registry.CLASSES.items():
        assert PUBLIC.get(name, part) is part, f"{name} is public as {PUBLIC[name]}"


@pytest.mark.parametrize("part", [part for part in CHANGED if part not in COMBINED], ids=repr)
def test_what_is_not_written_is_the_default(part):
    unwritten = [one for one in fields(part) if f"{one.name}=" not in repr(part) and one.default is not MISSING]
    assert [getattr(part, one.name) for one in unwritten] == [one.default for one in unwritten]


@pytest.mark.parametrize(
    ("made", "expression"),
    [
        (masks.causal() & masks.padding([3, 5]), "causal() & padding([3, 5])"),
        (masks.everything(), "everything()"),
        (masks.window(2), "window(2)"),
        (masks.window(1, 2), "window(1, right=2)"),
        (masks.prefix(3), "prefix([3])"),
        (masks.document([0, 0, 1]), "document([0, 0, 1])"),
        (masks.document([[0, 1], [1, 1]]), "document([[0, 1], [1, 1]])"),
        (masks.document([0, 1], [1, 1, 0]), "document([0, 1], key_ids=[1, 1, 0])"),
        (masks.padding(torch.tensor([1, 2])), "padding(torch.tensor([1, 2]))"),
        (masks.tensor(torch.eye(2) > 0), "tensor(torch.tensor([[[[ True, False], [False, True]]]]))"),
        (~(masks.causal() | masks.window(2)) & masks.padding([2]), "~(causal() | window(2)) & padding([2])"),
    ],
)
def test_a_mask_prints_as_it_is_written(made, expression):
    assert repr(made) == str(made) == expression
    n_key = 3 if "key_ids" in expression else 2
    assert torch.equal(*(masks.show(one, batch=2, n_query=2, n_key=n_key) for one in (made, eval(expression, PUBLIC))))


def test_a_mask_of_a_function_prints_its_name():
    def even(query, key):
        return (query - key) % 2 == 0

    assert repr(masks.causal() & masks.function(even)) == "causal() & function(even)"


@pytest.mark.parametrize(
    ("part", "expression"),
    [
        (ch.positions.Rotary(), "Rotary()"),
        (ch.positions.Rotary(pairing="halves", scaling=ch.positions.LinearScaling(4.0)),
         "Rotary(pairing='halves', scaling=LinearScaling(4.0))"),
        (ch.Heads(4, kv=2), "Heads(4, kv=2)"),
        (ch.model.PreNorm(ch.model.RMSNorm()), "PreNorm(norm=RMSNorm())"),
        (ch.weighting.Kernelized(ch.weighting.RandomFeatures(7)), "Kernelized(features=RandomFeatures(count=7))"),
        (ch.Sample(temperature=0.8), "Sample(temperature=0.8)"),
        (ch.Edit(at="decoder.0.cross", step="context", head=2, times=0.0),
         "Edit(at='decoder.0.cross', step='context', head=2, times=0.0)"),
        (Lora(rank=4), "Lora(rank=4)"),
        (NgramLogits(), "NgramLogits()"),
    ],
)  # fmt: skip
def test_the_forms_of_an_expression(part, expression):
    assert repr(part) == expression


@pytest.mark.parametrize("preset", PRESETS)
def test_a_model_s_spec_prints_in_lines_that_make_it_again(preset):
    spec = named(preset, 60)
    assert eval(repr(spec), PUBLIC) == eval(str(spec), PUBLIC) == spec
    assert "\n" not in repr(spec)
    assert max(map(len, str(spec).splitlines())) <= calls.WIDTH
    assert len(str(spec).splitlines()) > 10


def test_blocks_that_differ_stand_apart_and_equal_ones_together():
    spec = presets.gpt2("tiny", vocabulary=50)
    [first, second] = (replace(spec.blocks[0], dropout=dropout) for dropout in (0.25, 0.5))
    mixed = replace(spec, blocks=(first, second, second, second, first))
    assert eval(repr(mixed), PUBLIC) == eval(str(mixed), PUBLIC) == mixed
    assert str(mixed).count("BlockSpec(") == 3
    assert ") * 3,\n" in str(mixed)
    assert repr(replace(spec, blocks=(first,)).blocks) == f"({first!r},)"
    assert ", blocks=()" in repr(replace(spec, blocks=()))


def test_a_recipe_prints_in_lines_that_make_it_again(tmp_path):
    for name in ("train.de", "train.en"):
        (tmp_path / name).write_text("eins\nzwei\n")
    files = Aligned(source=(str(tmp_path / "train.de"),), target=(str(tmp_path / "train.en"),))
    recipe = replace(default_recipe("translate", Corpus(train=files)), budget=Budget(minutes=2.0))
    recipe = replace(recipe, plan=Plan(steps=70, step_seconds=0.5))
    names = PUBLIC | {"Plan": Plan}
    assert eval(repr(recipe), names) == eval(str(recipe), names) == recipe
    lines = str(recipe).splitlines()
    assert lines[:2] == ["Recipe(", "    task='translate',"]
    assert "    plan=Plan(steps=70, step_seconds=0.5)," in lines
    assert "adapt_threads=False" not in str(recipe)
    assert Recipe.__repr__ is CodeRepr.__repr__


def test_all_that_files_hold_prints_so():
    tasks = {part for part in registry.CLASSES.values() if registry.kind_of(part) == "task"}
    assert [part for part in CLASSES.values() if not issubclass(part, CodeRepr) and part not in tasks] == []


@dataclass(frozen=True)
class Mine(CodeRepr):
    """A user's own, with a tensor, a list made for each, and a field that is not shown."""

    table: torch.Tensor | None = None
    names: list[str] = field(default_factory=list)
    kept: int = field(default=3, repr=False)


@dataclass(frozen=True)
class OwnRepr(CodeRepr):
    number: int

    def __repr__(self):
        return f"<{self.number}>"


class Built(Similarity, nn.Module):
    """A built part that names its bases the other way round."""

    def score(self, query, key):
        return query @ key.mT


def test_a_class_of_the_user_s_own():
    assert repr(Mine()) == repr(Mine(kept=4)) == "Mine()"
    assert repr(Mine(names=["a"])) == "Mine(names=['a'])"
    assert repr(Mine(torch.zeros(2))) == "Mine(table=torch.tensor([0., 0.]))"
    assert repr((OwnRepr(1),)) == "(<1>,)"
    assert str(OwnRepr(1)) == "<1>"
    assert repr(Built()) == str(Built()) == "Built()"
    assert str(ch.similarity.Cosine().build(HeadShape(n_heads=2, n_kv_heads=2, d_head=4))).startswith("LearnedCosine(")


def test_a_notebook_shows_what_print_shows():
    class Printer(list):
        text = list.append

    printer = Printer()
    spec = presets.tiny(vocabulary=50)
    spec._repr_pretty_(printer, cycle=False)
    assert printer == [str(spec)]


def test_copies_and_pickles_are_as_before():
    spec = presets.tiny(vocabulary=50)
    assert copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec)) == spec
    assert hash(copy.deepcopy(spec)) == hash(spec)
