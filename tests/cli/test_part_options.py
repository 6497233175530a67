"""Parts of a user's own on the command line: trained, resumed, used, traced, compared; refused where none is named."""

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

import clearhead as ch
from clearhead.cli import explain_error, run
from clearhead.errors import RunError, TraceError
from clearhead.training.recipe import own_modules
from tests.registering import registry_restored, write_module

TEXT = ["--task", "translate", "--source", "s.txt", "--target", "t.txt", "--tokenizer", "char"]
SMALL = ["--size", "20k", "--device", "cpu", "--log-every", "9"]
OWN = ["--attention", "mine:TopK(count=2)", "--norm", "mine:Centred", "--feed-forward", "mine:Squared"]
MORE = ["--position", "mine:Near(slope=0.2)", "--schedule", "mine:Stairs(factor=0.3)"]


def command(*args):
    """Run a verb without the modules that another one imported, as a new process would; its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    with registry_restored("mine"), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(arg) for arg in args])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of the user's: two texts, a module with parts, and a run that has them."""
    folder = tmp_path_factory.mktemp("user")
    write_module(folder)
    for name, line in (("s", "a b {}"), ("t", "x {}")):
        (folder / f"{name}.txt").write_text("".join(line.format(i % 7) + "\n" for i in range(30)))
    with contextlib.chdir(folder):
        code, _, said = command("train", "run", *TEXT, *SMALL, *OWN, *MORE, "--steps", "2")
        assert code == 0, said
    return folder


@pytest.fixture(autouse=True)
def inside(home, monkeypatch):
    monkeypatch.chdir(home)


@pytest.mark.slow
def test_the_recipe_names_them_with_their_fields():
    recipe = json.loads(Path("run/recipe.json").read_text(encoding="utf-8"))
    block = recipe["model"]["decoder"]["blocks"][0]
    assert block["attention"]["weighting"] == block["cross"]["weighting"] == {"is": "mine:TopK", "count": 2}
    assert block["attention"]["position"] == {"is": "mine:Near", "slope": 0.2}
    assert block["arrangement"]["norm"] == {"is": "mine:Centred", "gain": 1.0}
    assert block["feed_forward"]["is"] == "mine:Squared"
    assert recipe["optimizer"]["schedule"]["is"] == "mine:Stairs"


def test_without_parts_every_verb_says_which_module_to_name():
    for verb in (["translate", "run", "s.txt"], ["trace", "run", "a b 3"], ["train", "run", "--resume"]):
        code, _, said = command(*verb)
        assert code == 1
        assert "uses mine:" in said
        assert "--parts mine" in said
        assert "Traceback" not in said
    with pytest.raises(RunError, match=r"recipe\.json: .* uses mine:.*parts='mine' in load"):
        ch.load("run")
    assert "mine" not in sys.modules


@pytest.mark.slow
def test_with_parts_it_translates_is_scored_and_listed():
    code, out, said = command("translate", "run", "s.txt", "--parts", "mine", "--beam", "1")
    assert code == 0, said
    assert out.count("\n") == 30
    code, out, _ = command("evaluate", "run", "--source", "s.txt", "--target", "t.txt", "--parts", "mine", "--json")
    assert code == 0
    assert json.loads(out)["parameters"] > 1000
    code, out, _ = command("runs", ".", "--parts", "mine", "--json")
    assert [one["task"] for one in json.loads(out)["runs"]] == ["translate"]


@pytest.mark.slow
def test_it_is_traced_shown_and_saved_with_its_own_words(tmp_path):
    code, out, said = command("trace", "run", "a b 3", "--parts", "mine", "--json", "--html", tmp_path / "page.html")
    assert code == 0, said
    assert json.loads(out)["kind"] == "encoder-decoder"
    assert '"top k"' in (tmp_path / "page.html").read_text(encoding="utf-8")
    with registry_restored("mine"):
        sys.path.insert(0, os.getcwd())
        try:
            traced = ch.trace(ch.load("run", device="cpu", parts="mine"), "a b 3")
        finally:
            sys.path.remove(os.getcwd())
        traced.save(tmp_path / "trace.safetensors")
        module = sys.modules["mine"]
        again = ch.Trace.load(tmp_path / "trace.safetensors", parts=module)
        site = again["decoder.0.cross"]
        assert type(site.weighting) is module.TopK
        assert int((site.head[0].weight > 0).sum(-1).max()) <= 2
    with pytest.raises(TraceError, match=r"trace\.safetensors: uses mine:.* a part of your own"):
        ch.Trace.load(tmp_path / "trace.safetensors")


@pytest.mark.slow
def test_it_is_resumed_where_its_module_is_named():
    code, _, said = command("train", "run", "--resume", "--steps", "3", "--parts", "mine", "--json")
    assert code == 0, said
    assert json.loads(Path("run/recipe.json").read_text(encoding="utf-8"))["budget"]["steps"] == 3
    code, out, said = command("train", "run", "--resume", "--steps", "3", "--parts", "mine")
    assert code == 0, said
    assert "clearhead translate run --parts mine" in out


@pytest.mark.slow
def test_values_that_a_part_learns_are_in_the_checkpoint():
    code, _, said = command("train", "warm", *TEXT, *SMALL, "--attention", "mine:Warm(start=2.0)", "--steps", "2")
    assert code == 0, said
    with registry_restored("mine"):
        sys.path.insert(0, os.getcwd())
        try:
            loaded = ch.load("warm", device="cpu", parts=["mine"])
        finally:
            sys.path.remove(os.getcwd())
        warmth = [value for name, value in loaded.model.state_dict().items() if name.endswith("weighting.warmth")]
        assert len(warmth) == 3 * len(loaded.model.spec.encoder.blocks)
        assert all(float((one - 2).abs().max()) > 0 for one in warmth)
        assert own_modules(loaded.folder.recipe()) == ["mine"]


@pytest.mark.slow
@pytest.mark.thorough  # docs/your-own-weighting.md compares such a part too
def test_a_comparison_hands_its_modules_to_its_workers():
    args = ["compare", "compared", *TEXT, *SMALL, "--steps", "1", "--seeds", "1"]
    code, out, said = command(*args, "--attention", "mine:TopK(count=1)", "--json")
    assert code == 0, said
    found = json.loads(out)
    assert [arm["arm"] for arm in found["arms"]] == ["mine.TopK(count=1)-20k"]
    assert Path("compared/mine.TopK(count=1)-20k-seed1/job.json").exists()
    again, _, said = command(*args, "--attention", "mine:TopK(count=1)", "--json")
    assert again == 0
    assert "1 of 1 runs are there already" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--attention", "mine:Best"], r"--attention: 'mine:Best' is not registered"),
        (["--attention", "mine:Centred"], "--attention: mine:Centred is a norm; expected a weighting"),
        (["--attention", "absent:TopK"], "--attention: there is no module absent in"),
        (["--parts", "absent"], "--parts: there is no module absent in"),
        (["--norm", "mine:Centred", "--block", "none"], "--norm: .*has no norm that could be another"),
        (["--schedule", "mine:Stairs(factor='x')"], "--schedule: mine:Stairs: factor: expected a number"),
        (["--feed-forward", "mine:Squared(d_ff=0)"], "d_ff must be 1 or more"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_written(args, message):
    code, _, said = command("train", "never", *TEXT, *SMALL, *args)
    assert code == 2, said
    assert re.search(message, said), said
    assert not Path("never").exists()


BROKEN = """
from dataclasses import dataclass

import clearhead as ch


@ch.register
@dataclass(frozen=True)
class Broken(ch.weighting.Weighting):
    def weigh(self, masked, allowed):
        return masked + "x"
"""


def test_an_error_in_a_part_of_ones_own_is_told_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    named = ["train", "run", "--attention", "broken:Broken"]
    with registry_restored("broken"):
        ch.registry.import_parts("broken")
        part = sys.modules["broken"].Broken()
        for call, told in (
            (lambda: part.weigh(1, None), f"your own: {tmp_path}/broken.py, line 11, in weigh."),
            (part.weigh, "(broken:Broken): clearhead.check_part tests it"),
        ):
            with pytest.raises(TypeError) as caught:
                call()
            said = explain_error(caught.value, named)
            assert said.startswith("clearhead: TypeError: ")
            assert told in said
            assert "should not happen" in explain_error(caught.value, ["train", "run"])
        assert told in explain_error(caught.value, ["generate", "run", "--parts=broken"])
