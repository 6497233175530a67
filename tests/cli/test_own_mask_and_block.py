"""A mask and an arrangement of a user's own: in recipes, trained, resumed, used and traced; refused where not named."""

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead.errors import RunError, TraceError
from clearhead.training.recipe import own_modules, read_recipe
from tests.cli.test_part_options import SMALL, TEXT, command
from tests.registering import registry_restored, write_module

pytestmark = pytest.mark.slow

MODULE = '''
from dataclasses import dataclass

import clearhead as ch
from clearhead.attention.mask_rules import Mask
from clearhead.model.arrangements import Arrangement, BranchConnection, ConnectionStep
from clearhead.model.norms import LayerNorm, Norm


@ch.register
@dataclass(frozen=True)
class Strided(Mask):
    """Every so many positions back from the query, and no key after it."""

    every: int = 2

    def allowed(self, cells):
        back = cells.query - cells.key
        return (back >= 0) & (back % self.every == 0)


@ch.register
@dataclass(frozen=True)
class Sandwich(Arrangement):
    """x + share · norm(f(norm(x)))."""

    norm: Norm = LayerNorm()
    share: float = 1.0

    def around(self, branch, d_model, dropout):
        return Between(dropout, self.norm.build(d_model), self.norm.build(d_model), self.share)

    def final(self, d_model):
        return self.norm.build(d_model)


class Between(BranchConnection):
    steps = (
        ConnectionStep("norm", "normed", "norm"),
        ConnectionStep("branch"),
        ConnectionStep("norm", "damped", "second"),
        ConnectionStep("add", "residual"),
    )

    def __init__(self, dropout, norm, second, share):
        super().__init__(dropout, norm)
        self.second, self.share = second, share

    def forward(self, x, branch):
        damped = self.tap("damped", self.second(branch(self.tap("normed", self.norm(x)))))
        return self.tap("residual", x + self.drop(self.share * damped))
'''
NAMED = ["--parts", "mine"]


@contextlib.contextmanager
def module():
    """The user's module, imported from the current folder and forgotten again."""
    with registry_restored("mine"):
        sys.path.insert(0, os.getcwd())
        try:
            ch.registry.import_parts("mine")
            yield sys.modules["mine"]
        finally:
            sys.path.remove(os.getcwd())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of the user's, with a run that has the arrangement and the mask."""
    folder = tmp_path_factory.mktemp("user")
    write_module(folder, text=MODULE)
    for name, line in (("s", "a b {}"), ("t", "x {}")):
        (folder / f"{name}.txt").write_text("".join(line.format(i % 7) + "\n" for i in range(30)))
    with contextlib.chdir(folder):
        own = ["--block", "mine:Sandwich(share=0.5)", "--mask", "mine:Strided(every=2)"]
        code, _, said = command("train", "run", *TEXT, *SMALL, *own, "--steps", "2")
        assert code == 0, said
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


def test_the_recipe_names_them_with_their_fields():
    recipe = json.loads(Path("run/recipe.json").read_text(encoding="utf-8"))
    for block in recipe["model"]["decoder"]["blocks"]:
        assert block["attention"]["mask"] == {"is": "mine:Strided", "every": 2}
        assert block["arrangement"] == {"is": "mine:Sandwich", "norm": block["arrangement"]["norm"], "share": 0.5}
    assert {block["arrangement"]["is"] for block in recipe["model"]["encoder"]["blocks"]} == {"mine:Sandwich"}
    with module():
        assert own_modules(read_recipe(Path("run/recipe.json"))) == ["mine"]


@pytest.mark.parametrize(
    "verb", [["translate", "run", "s.txt"], ["trace", "run", "a b 3"], ["train", "run", "--resume"]], ids=lambda v: v[0]
)
def test_without_parts_they_are_refused(verb):
    code, _, said = command(*verb)
    assert code == 1
    assert "uses mine:" in said
    assert "--parts mine" in said
    assert "Traceback" not in said
    with pytest.raises(RunError, match=r"recipe\.json: .* uses mine:.*parts='mine' in load"):
        ch.load("run")
    assert "mine" not in sys.modules


def test_with_parts_it_translates_and_what_is_cached_changes_nothing():
    code, out, said = command("translate", "run", "s.txt", *NAMED, "--beam", "1")
    assert code == 0, said
    assert out.count("\n") == 30
    with module():
        loaded = ch.load("run", device="cpu", parts="mine")
        lines = Path("s.txt").read_text().splitlines()[:5]
        assert loaded.translate(lines, beam=1) == out.splitlines()[:5]
        # A trace is one pass over the whole target, without a cache: at each place it has the token that came next.
        traced = ch.trace(loaded, lines[0])
        written = traced.sides["decoder"].ids[1:]
        assert [best[0].id for best in traced.candidates][: len(written)] == written


def test_a_trace_has_the_masks_pattern_and_the_arrangements_places(tmp_path):
    code, out, said = command("trace", "run", "a b 3", *NAMED, "--json", "--html", tmp_path / "page.html")
    assert code == 0, said
    assert json.loads(out)["kind"] == "encoder-decoder"
    with module() as mine:
        traced = ch.trace(ch.load("run", device="cpu", parts="mine"), "a b 3")
        weight = traced["decoder.0.attention"].head[0].weight
        query, key = torch.meshgrid(*map(torch.arange, weight.shape), indexing="ij")
        assert ((weight > 0) == ((query >= key) & ((query - key) % 2 == 0))).all()
        damped, before = traced.value("decoder.0.attention.damped"), traced.value("decoder.embedding.out")
        torch.testing.assert_close(traced.value("decoder.0.attention.residual"), before + 0.5 * damped)
        traced.save(tmp_path / "trace.safetensors")
        again = ch.Trace.load(tmp_path / "trace.safetensors", parts=mine)
        assert mine.Strided(every=2) in again["decoder.0.attention"].mask.terms
    with pytest.raises(TraceError, match=r"trace\.safetensors: uses mine:Strided.* a part of your own"):
        ch.Trace.load(tmp_path / "trace.safetensors")


def test_it_is_resumed_where_its_module_is_named():
    code, _, said = command("train", "run", "--resume", "--steps", "3", *NAMED)
    assert code == 0, said
    recipe = json.loads(Path("run/recipe.json").read_text(encoding="utf-8"))
    assert recipe["budget"]["steps"] == 3
    assert recipe["model"]["decoder"]["blocks"][0]["attention"]["mask"]["is"] == "mine:Strided"
