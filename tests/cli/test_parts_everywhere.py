"""Every verb that names a part, or reads a file that does, takes --parts and a part of the user's own."""

import contextlib
import inspect
import io
import json
import sys
from pathlib import Path

import pytest

from clearhead.cli import VERBS, load_verb, run
from clearhead.model import presets
from clearhead.model.sizes import spec_to_json
from tests.registering import registry_restored, write_module

WITHOUT = {"demo", "import", "kernels", "craft", "circuits", "learn", "help", "completion"}
"""The verbs that neither take a part nor read a run; of `craft` and `circuits` their own verbs are asked."""


def command(*args):
    """Run a verb without the modules that another one imported, as a new process would; its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    with registry_restored("mine"), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(arg) for arg in args])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    write_module(tmp_path)
    monkeypatch.chdir(tmp_path)


def flags(verb):
    return {flag for option in verb.params for flag in option.opts}


def test_every_verb_that_names_a_part_takes_parts():
    assert {name for name in VERBS if "--parts" not in flags(load_verb(name))} == WITHOUT
    craft = load_verb("craft").commands
    for name, verb in craft.items():
        assert ("--parts" in flags(verb)) == ("--weighting" in flags(verb)), name


@pytest.mark.parametrize("options", [[], ["--parts", "mine"]])
def test_steps_shows_a_weighting_of_the_users_own(options):
    code, out, said = command("steps", "--weighting", "mine:TopK(count=2)", *options, "--json")
    assert code == 0, said
    found = json.loads(out)
    assert found["weighting"] == "mine:TopK(count=2)"
    for scores, weights in zip(found["steps"]["masked"], found["steps"]["weight"], strict=True):
        second = sorted(scores)[-2]
        assert [weight > 0 for weight in weights] == [score > second - 1e-4 for score in scores]  # ties are kept
        assert sum(weights) == pytest.approx(1)
    assert "mine" not in sys.modules


def test_steps_draws_and_prints_it(tmp_path):
    code, out, said = command("steps", "--weighting", "mine:TopK(count=2)", "--svg", "own.svg")
    assert code == 0, said
    assert "TopK(count=2)" in out
    assert Path("own.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mine:Nothing", "'mine:Nothing' is not registered"),
        ("nowhere:Part", "nowhere"),
        ("mine:Near", "mine:Near is a position; expected a weighting"),
        ("mine:TopK(many=2)", "has no field 'many'"),
        ("mine:TopK(count=0)", "count"),
        ("mine:TopK(count=", "plain values"),
    ],
)
@pytest.mark.parametrize("verb", [["steps"], ["craft", "run", "reverse", "abc"]])
def test_what_is_no_weighting_is_told_with_the_option(verb, name, why):
    code, out, said = command(*verb, "--weighting", name)
    assert (code, out) == (2, "")
    assert "--weighting" in said
    assert why in said
    assert "Traceback" not in said


def test_craft_runs_a_program_with_it():
    code, out, said = command("craft", "run", "reverse", "abc", "--weighting", "mine:TopK(count=1)", "--json")
    assert code == 0, said
    assert json.loads(out)["answers"] == ["c", "b", "a"]


def test_craft_refuses_weights_that_are_no_average():
    code, out, said = command("craft", "run", "reverse", "abc", "--weighting", "sigmoid")
    assert (code, out) == (1, "")
    assert "weights on the best keys alone that sum to one" in said


def test_describe_needs_the_module_of_a_part_in_a_file():
    with registry_restored("mine"):
        sys.path.insert(0, ".")
        try:
            from mine import Squared
        finally:
            sys.path.remove(".")
        spec = spec_to_json(presets.tiny(vocabulary=50).decoder)
        for block in spec["blocks"]:
            block["feed_forward"] = {
                "is": "mine:Squared",
                **dict.fromkeys(inspect.signature(Squared).parameters, 8),
            }
    Path("spec.json").write_text(json.dumps(spec), encoding="utf-8")
    code, _, said = command("describe", "spec.json")
    assert code == 1
    assert "mine:Squared" in said
    code, out, said = command("describe", "spec.json", "--parts", "mine")
    assert code == 0, said
    assert "Squared(" in out
