"""Comparing: an arm for each choice, a run for each seed, nothing done twice, and what cannot be is told."""

import json
import shutil
import statistics
from dataclasses import replace

import pytest

from clearhead.errors import DataError, OptionError, RunError
from clearhead.experiments import comparing
from clearhead.experiments.comparing import Arm, compare, grid, varied
from clearhead.experiments.comparison import Impossible
from clearhead.experiments.probes import PROBES, Amount, probe_recipe
from clearhead.experiments.workers import work
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.training.recipe import Budget, Checkpointing, Machine
from clearhead.training.reporting import read_metrics
from clearhead.training.tasks.learning import decoder
from tests.training.tiny import without_times

pytestmark = pytest.mark.slow

AMOUNT = Amount(longest=8, examples=60, held_out=10)
SIZE = Size(1, 16, 2, 2, 32)
KINDS = {"attention": ("softmax", "cosine")}


def small(home, name="copy", steps=3):
    """A recipe for a probe in the folder, as small as can be."""
    recipe = probe_recipe(PROBES[name], home / "probe", AMOUNT, Machine(device="cpu", threads=1))
    model = presets.classic(64, size=SIZE, dropout=0.0)
    if name == "recall":
        model = decoder(SIZE, recipe.batching.context, 0.0)
    return replace(
        recipe,
        model=model,
        batching=replace(recipe.batching, tokens=256),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(log=1, evaluate=1, save=1, checkpoints=9, score_records=5, samples=0),
    )


def arms_of(home, name="copy", steps=3, lists=KINDS):
    recipe = small(home, name, steps)
    return grid(lists, lambda choice: varied(recipe, choice))


@pytest.fixture
def worked(monkeypatch):
    """Does the work in this process, and keeps the names of the jobs: a process takes seconds to begin."""
    names = []

    def run_all(jobs, parallel, told):
        for job in jobs:
            names.append(job.name)
            work(job)
        return {}

    monkeypatch.setattr(comparing, "run_all", run_all)
    monkeypatch.setattr(comparing, "prepare_text", lambda jobs, told: None)
    return names


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison that has ended, and what it found."""
    home = tmp_path_factory.mktemp("comparison")
    patch = pytest.MonkeyPatch()
    patch.setattr(comparing, "run_all", lambda jobs, parallel, told: {job.name: "" for job in jobs if not work(job)})
    patch.setattr(comparing, "prepare_text", lambda jobs, told: None)
    try:
        found = compare(home, arms_of(home), seeds=(1, 2), probe="copy", log=lambda _: None)
    finally:
        patch.undo()
    return home, found


@pytest.fixture
def again(finished, worked):
    """The same comparison, to be spoiled and gone on with: the run folders are put back afterwards."""
    home, _ = finished
    kept = home.with_name("kept")
    shutil.copytree(home, kept)
    yield home
    shutil.rmtree(home)
    kept.rename(home)


def test_runs_of_another_text_are_not_compared_with_those_to_come(tmp_path, worked):
    arms = arms_of(tmp_path, steps=1)
    compare(tmp_path / "all", arms, seeds=(1,), log=lambda _: None)
    path = arms[0].recipe.corpus.train.files[0]
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n")
    compare(tmp_path / "all", arms, seeds=(1,), log=lambda _: None)  # nothing is left to train
    with pytest.raises(DataError, match=r"-seed1: has learned another text .*: .* was changed\. Put the text back"):
        compare(tmp_path / "all", arms, seeds=(1, 2), log=lambda _: None)
    assert not [path for path in (tmp_path / "all").iterdir() if path.name.endswith("seed2")]


def test_lists_make_a_grid(tmp_path):
    arms = arms_of(tmp_path, lists={"attention": ("softmax", "cosine"), "position": ("learned", "rotary")})
    names = ["softmax-learned", "softmax-rotary", "cosine-learned", "cosine-rotary"]
    assert [arm.name for arm in arms] == names
    specs = [arm.recipe.model for arm in arms]
    assert len({str(spec) for spec in specs}) == 4
    assert specs[3] == varied(small(tmp_path), {"attention": "cosine", "position": "rotary"}).model


def test_an_arm_is_called_by_what_varies(tmp_path):
    lists = {"attention": ("cosine",), "position": ("learned", "rotary")}
    assert [arm.name for arm in arms_of(tmp_path, lists=lists)] == ["learned", "rotary"]
    alone = {"attention": ("cosine",), "position": ("rotary",)}
    assert [arm.name for arm in arms_of(tmp_path, lists=alone)] == ["cosine-rotary"]


def test_an_arm_that_cannot_be_built_is_listed_and_the_others_are_there(tmp_path):
    lists = {"attention": ("softmax", "kernelized"), "position": ("alibi", "rotary")}
    arms = arms_of(tmp_path, lists=lists)
    [impossible] = [arm for arm in arms if isinstance(arm, Impossible)]
    assert impossible.arm == "kernelized-alibi"
    assert "has no score to add a bias to" in impossible.why
    assert sum(isinstance(arm, Arm) for arm in arms) == 3


def test_another_thing_does_not_vary(tmp_path):
    with pytest.raises(OptionError, match="a model's 'depth' cannot be varied; there are attention, scale, heads"):
        varied(small(tmp_path), {"depth": "3"})


def test_every_arm_is_run_with_every_seed_on_the_same_ids(finished):
    home, found = finished
    runs = {"softmax-seed1", "cosine-seed1", "softmax-seed2", "cosine-seed2"}
    assert {path.name for path in home.iterdir()} == runs | {
        *("probe", "data", "comparison.json", "comparison.md", "comparison.svg")
    }
    assert {(one.arm, one.seed) for one in found.outcomes} == {(a, s) for a in KINDS["attention"] for s in (1, 2)}
    assert len(list((home / "data").iterdir())) == 1
    assert not any((home / run / "data").exists() for run in runs)


def test_what_is_written_is_what_the_runs_say(finished):
    home, _ = finished
    told = json.loads((home / "comparison.json").read_text())
    assert told["measures"] == ["exact_match", "loss"]
    assert told["budget"] == {"steps": 3}
    for arm in told["arms"]:
        losses = [json.loads((home / f"{arm['arm']}-seed{k}/evaluation.json").read_text())["loss"] for k in (1, 2)]
        assert arm["loss"]["mean"] == pytest.approx(statistics.mean(losses))
        assert arm["loss"]["spread"] == pytest.approx(statistics.stdev(losses))
        assert arm["steps"]["mean"] == 3
    assert [(run["arm"], run["seed"]) for run in told["runs"]] == [
        *(("softmax", 1), ("cosine", 1), ("softmax", 2), ("cosine", 2))
    ]
    assert told["arms"][0]["loss"] != told["arms"][1]["loss"]


def test_the_same_again_runs_nothing(again, worked, finished):
    assert compare(again, arms_of(again), seeds=(1, 2), probe="copy") == finished[1]
    assert worked == []


def test_what_was_stopped_in_the_middle_goes_on_from_there(again, worked, finished):
    before = without_times(read_metrics(again / "cosine-seed1/metrics.jsonl"))
    (again / "cosine-seed1/evaluation.json").unlink()
    for step in (2, 3):
        shutil.rmtree(again / f"cosine-seed1/checkpoints/step-0000000{step}")
    shutil.rmtree(again / "softmax-seed2")
    found = compare(again, arms_of(again), seeds=(1, 2), probe="copy")
    assert worked == ["cosine-seed1", "softmax-seed2"]
    assert without_times(read_metrics(again / "cosine-seed1/metrics.jsonl")) == before
    losses = [{one.run: one.numbers["loss"] for one in every.outcomes} for every in (found, finished[1])]
    assert losses[0] == losses[1]


def test_more_seeds_and_arms_are_added_to_what_is_there(again, worked):
    arms = arms_of(again, lists={"attention": ("softmax", "sigmoid")})
    found = compare(again, arms, seeds=(1, 3), probe="copy")
    assert worked == ["sigmoid-seed1", "softmax-seed3", "sigmoid-seed3"]
    assert [row.arm for row in found.rows] == ["softmax", "sigmoid"]


def test_runs_that_were_begun_in_another_way_are_not_mixed_in(again, worked):
    with pytest.raises(RunError, match="softmax-seed1: was begun with another budget; give the same options as then"):
        compare(again, arms_of(again, steps=4), seeds=(1,), probe="copy")
    assert worked == []


def test_a_run_that_fails_is_reported_beside_the_others(again, worked, monkeypatch):
    shutil.rmtree(again / "cosine-seed2")
    monkeypatch.setattr(comparing, "run_all", lambda jobs, parallel, told: {"cosine-seed2": "the loss is nan"})
    found = compare(again, arms_of(again), seeds=(1, 2), probe="copy")
    assert [(one.arm, one.seed, one.problem) for one in found.failures] == [("cosine", 2, "the loss is nan")]
    assert [row.runs for row in found.rows] == [2, 1]
    assert "cosine, seed 2, failed: the loss is nan" in (again / "comparison.md").read_text()
    assert json.loads((again / "comparison.json").read_text())["failed"][0]["problem"] == "the loss is nan"


def test_an_impossible_arm_is_told_first_and_stops_nothing(again, worked):
    told = []
    arms = [*arms_of(again), Impossible(arm="kernelized", why="it has no score")]
    found = compare(again, arms, seeds=(1,), probe="copy", log=told.append)
    assert told == ["kernelized is not possible: it has no score", "2 of 2 runs are there already"]
    assert found.impossible == (arms[-1],)
    assert json.loads((again / "comparison.json").read_text())["not_possible"][0]["arm"] == "kernelized"


def test_recall_is_asked_of_every_run(tmp_path, worked):
    found = compare(tmp_path, arms_of(tmp_path, "recall"), seeds=(1,), probe="recall", log=lambda _: None)
    assert found.distances == [4, 8]
    for one in found.outcomes:
        assert one.numbers["accuracy"] == pytest.approx(statistics.mean((one.by_distance or {}).values()))
        assert (tmp_path / f"{one.arm}-seed1/recall.json").exists()
    (tmp_path / "softmax-seed1/recall.json").unlink()
    assert compare(tmp_path, arms_of(tmp_path, "recall"), seeds=(1,), probe="recall", log=lambda _: None) == found
    assert worked == ["softmax-seed1", "cosine-seed1", "softmax-seed1"]


def test_recall_is_not_asked_of_another_task(tmp_path):
    with pytest.raises(
        OptionError, match=r"recall is asked of a model that generates, in held-out texts; came one to tr"
    ):
        compare(tmp_path, arms_of(tmp_path), probe="recall")


@pytest.mark.parametrize("seeds", [(), (1, 1)])
def test_seeds_that_cannot_be_are_told(tmp_path, seeds):
    with pytest.raises(OptionError, match=r"expected arms and seeds|must differ from each other"):
        compare(tmp_path, arms_of(tmp_path), seeds=seeds)


def test_nothing_that_is_possible_is_nothing_to_compare(tmp_path):
    with pytest.raises(OptionError, match="there is nothing to compare: expected arms and seeds; x: too small"):
        compare(tmp_path, [Impossible(arm="x", why="too small")])


@pytest.mark.parametrize("arms", [1, pytest.param(None, marks=pytest.mark.thorough)])  # a process each
def test_processes_do_the_same_as_this_one(tmp_path, finished, arms):
    told = []
    found = compare(tmp_path, arms_of(tmp_path)[:arms], seeds=(1,), probe="copy", parallel=2, log=told.append)
    assert len(found.outcomes) == len(arms_of(tmp_path)[:arms])
    here = {(one.arm, one.seed): one.numbers["loss"] for one in finished[1].outcomes}
    assert {(one.arm, one.seed): one.numbers["loss"] for one in found.outcomes}.items() <= here.items()
    assert told[0].startswith("60 records")
    assert "step 3/3" in (tmp_path / "softmax-seed1/log.txt").read_text()
