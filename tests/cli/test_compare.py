"""`clearhead compare`: lists make arms, one table comes of it, and every wrong request is told before anything runs."""

import json
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from clearhead.attention.heads import SlicedHeads
from clearhead.cli import run
from clearhead.experiments import comparing, probes
from clearhead.experiments.comparing import Arm
from clearhead.experiments.workers import work
from clearhead.model.arrangements import SingleResidualNorm
from clearhead.training.recipe import read_recipe

SMALL = [
    "--size",
    "40k",
    "--batch-tokens",
    "256",
    "--steps",
    "3",
    "--seeds",
    "1,2",
    "--threads",
    "1",
    "--device",
    "cpu",
]
SORT = ["--probe", "sort", "--longest", "8"]


def in_process(jobs, parallel, told):
    """Instead of a process for each, which takes seconds to begin; what it would have logged goes to stderr."""
    with redirect_stdout(sys.stderr):
        for job in jobs:
            work(job)
    return {}


@pytest.fixture
def command(capsys, plain_terminal, monkeypatch):
    """Runs `clearhead compare`: its exit code, what it printed, what it said."""
    monkeypatch.setattr(comparing, "run_all", in_process)
    monkeypatch.setattr(comparing, "prepare_text", lambda jobs, told: None)
    monkeypatch.setattr(probes, "TRAINING_TOKENS", 3000)
    for name, probe in probes.PROBES.items():
        monkeypatch.setitem(probes.PROBES, name, replace(probe, held_out=10))

    def ran(*args):
        capsys.readouterr()
        code = run(["compare", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def asked(monkeypatch):
    """Keeps what `compare` was asked for, and does nothing."""
    found = {}

    def keep(folder, arms, **others):
        found.update(others, arms={arm.name: arm.recipe for arm in arms if isinstance(arm, Arm)}, all=arms)
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.cli.compare.comparison_of", keep)
    return found


@pytest.mark.slow
def test_a_probe_makes_one_table(command, tmp_path):
    code, out, err = command(tmp_path / "c", *SORT, *SMALL, "--attention", "softmax,argmax")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[1].split() == [
        "exact",
        "match",
        "%",
        "dev",
        "loss",
        "tokens/s",
        "peak",
        "MB",
        "parameters",
        "steps",
        "runs",
    ]
    assert [line.split()[0] for line in lines[2:4]] == ["softmax", "argmax"]
    assert "mean ± sample standard deviation over the seeds" in out
    assert f"svg           {tmp_path}/c/comparison.svg" in out
    assert {path.name for path in (tmp_path / "c").iterdir()} >= {
        *("softmax-seed1", "softmax-seed2", "argmax-seed1", "argmax-seed2", "comparison.md", "comparison.svg")
    }


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout_and_holds_every_run(command, tmp_path):
    lists = ["--attention", "softmax,kernelized", "--position", "alibi,rotary"]
    code, out, err = command(tmp_path / "c", *SORT, *SMALL, *lists, "--seeds", 7, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [arm["arm"] for arm in told["arms"]] == ["softmax-alibi", "softmax-rotary", "kernelized-rotary"]
    assert [run["seed"] for run in told["runs"]] == [7, 7, 7]
    assert told["not_possible"][0]["arm"] == "kernelized-alibi"
    assert (
        "kernelized-alibi is not possible: attention with position: Kernelized attention has no score to add a bias to"
        in err
    )
    assert json.loads((tmp_path / "c/comparison.json").read_text()) == told


@pytest.mark.slow
def test_recall_has_a_table_by_distance(command, tmp_path):
    code, out, err = command(
        tmp_path / "c", "--probe", "recall", "--longest", 16, *SMALL, "--attention", "softmax", "--seeds", "5"
    )
    assert code == 0, err
    assert "  accuracy % at    4    8   16" in out.replace("0.0", "  0")
    assert (tmp_path / "c/softmax-40k-seed5/recall.json").exists()


@pytest.mark.slow
def test_a_users_own_text_is_compared_on(command, tmp_path):
    text = tmp_path / "poems.txt"
    text.write_text("the cat sat on the mat and the dog on the log\n" * 100)
    args = ["--task", "generate", "--text", text, "--tokenizer", "char", "--context", 16]
    code, out, err = command(tmp_path / "c", *args, *SMALL, "--position", "learned,rotary", "--seeds", 3)
    assert code == 0, err
    assert "dev loss  bits/byte" in out
    recipe = read_recipe(tmp_path / "c/rotary-seed3/recipe.json")
    assert (recipe.seed, recipe.budget.steps, recipe.budget.patience, recipe.tokenizing.kind) == (3, 3, None, "char")


@pytest.mark.slow
def test_sizes_are_arms_and_one_too_small_is_not_possible(command, asked, tmp_path):
    args = [arg for arg in SMALL if arg not in ("--size", "40k")]
    command(tmp_path / "c", *SORT, *args, "--size", "300k, 1M,1k", "--jobs", 2)
    sizes = {
        name: sum(one.numel() for one in recipe.model.build().parameters()) for name, recipe in asked["arms"].items()
    }
    assert sizes == {"300k": pytest.approx(300_000, rel=0.1), "1M": pytest.approx(1e6, rel=0.1)}
    assert "1,000 parameters are too few" in asked["all"][2].why
    assert (asked["seeds"], asked["parallel"], asked["probe"]) == ([1, 2], 2, "sort")


@pytest.mark.slow
def test_variants_are_rows_of_one_table_and_differ_from_the_base_in_what_they_name(command, tmp_path):
    variants = [
        "base",
        "heads=sliced",
        "block=single-residual",
        "scale=none, feed-forward=none",
        "value-rank=3,d-value=16",
    ]
    options = [arg for variant in variants for arg in ("--variant", variant)]
    code, out, err = command(tmp_path / "c", *SORT, *SMALL, *options, "--seeds", "1")
    assert code == 0, err
    names = ["base", "heads=sliced", "block=single-residual", "scale=none,feed-forward=none", "value-rank=3,d-value=16"]
    assert [line.split()[0] for line in out.splitlines()[2:7]] == names
    sizes = {
        run["arm"]: run["numbers"]["parameters"]
        for run in json.loads((tmp_path / "c/comparison.json").read_text())["runs"]
    }
    assert sizes["heads=sliced"] < sizes["base"]
    assert sizes["scale=none,feed-forward=none"] < sizes["base"]
    recipe = read_recipe(tmp_path / "c/block=single-residual-seed1/recipe.json")
    assert recipe.model.encoder.blocks[0].arrangement == SingleResidualNorm()


def test_lists_of_parts_make_a_grid_whose_names_say_which_none_it_is(command, asked, tmp_path):
    command(tmp_path / "c", *SORT, *SMALL, "--block", "pre,none", "--scale", "sqrt,none", "--heads", "sliced")
    assert set(asked["arms"]) == {
        *("scale=sqrt-block=pre", "scale=sqrt-block=none", "scale=none-block=pre", "scale=none-block=none")
    }
    for recipe in asked["arms"].values():
        assert isinstance(recipe.model.encoder.blocks[0].attention.heads, SlicedHeads)


def test_a_variant_that_cannot_be_is_told_and_the_others_are_compared(command, asked, tmp_path):
    command(
        tmp_path / "c", *SORT, *SMALL, "--variant", "block=single-residual,feed-forward=none", "--variant", "scale=2"
    )
    assert list(asked["arms"]) == ["scale=2"]
    assert "this block has no feed-forward" in asked["all"][0].why


def test_options_override_what_a_probe_has(command, asked, tmp_path):
    options = ["--lr", "0.01", "--warmup", 7, "--batch-tokens", 99, "--context", 50, "--minutes", 2, "--patience", 4]
    command(tmp_path / "c", *SORT, "--attention", "argmax", *options)
    recipe = asked["arms"]["argmax"]
    assert (recipe.optimizer.lr, recipe.optimizer.schedule.warmup) == (0.01, 7)
    assert (recipe.batching.tokens, recipe.batching.context) == (99, 50)
    assert (recipe.budget.minutes, recipe.budget.patience) == (2, 4)
    assert recipe.tokenizing.kind == "word"


WRONG = [
    (["--probe", "sort"], "Missing option --attention: give a list"),
    (["--probe", "spell", "--attention", "softmax"], "--probe: there is no 'spell'; there are copy, sort, recall"),
    (["--attention", "softmax"], "Missing option --task: say what to learn (translate"),
    ([*SORT, "--attention", "softmax,hard"], "--attention: there is no 'hard'; there are softmax, argmax"),
    ([*SORT, "--position", "polar"], "--position: there is no 'polar'"),
    ([*SORT, "--size", "big"], "--size: 'big' is no number of parameters"),
    ([*SORT, "--attention", "softmax", "--seeds", "1,x"], "--seeds: whole numbers below 2^64 with commas between"),
    ([*SORT, "--attention", "softmax", "--seed", "1"], "--seed: a comparison has several: give --seeds"),
    ([*SORT, "--attention", "softmax", "--task", "fill"], "--probe: brings its own task and text: leave out --task"),
    ([*SORT, "--attention", "softmax", "--text", "a"], "--probe: brings its own task and text: leave out --text"),
    ([*SORT, "--attention", "softmax", "--context", "8"], "--context: this probe has rows of 9 tokens; came 8"),
    (["--task", "fill", "--text", "a", "--attention", "softmax", "--longest", "9"], "--longest: is for probes"),
    ([*SORT, "--attention", "softmax", "--steps", "3", "--minutes", "1"], "each says when to stop"),
    ([*SORT, "--attention", "softmax", "--device", "moon"], "--device: there is no 'moon'"),
    ([*SORT, "--variant", "heads"], "--variant: expected base, or PART=VALUE with commas between several"),
    ([*SORT, "--variant", "depth=3"], "each part once; came 'depth=3'. The parts are: attention, scale, heads"),
    ([*SORT, "--variant", "scale=1,scale=2"], "each part once; came 'scale=1,scale=2'"),
    ([*SORT, "--variant", "base", "--variant", "base"], "--variant: 'base' is there twice"),
    ([*SORT, "--variant", "base", "--seed", "1"], "--seed: a comparison has several: give --seeds"),
    ([*SORT, "--variant", "heads=round"], "--heads: there is no 'round'; there are whole, sliced"),
    ([*SORT, "--variant", "base", "--scale", "1,2"], "--variant: is given instead of lists: give --scale one value"),
    ([*SORT, "--scale", "1,zero"], "--scale: expected sqrt, none, or a number above 0"),
    ([*SORT, "--value-rank", "2,0"], "--value-rank: expected a whole number from 1 to 999,999,999; came '0'"),
    (
        [*SORT, "--size", "1k"],
        "there is nothing to compare: expected arms and seeds; 1k: size: 1,000 parameters are too few",
    ),
]


@pytest.mark.parametrize(("args", "message"), WRONG)
def test_what_is_asked_wrongly_is_told(command, tmp_path, args, message):
    code, out, err = command(tmp_path / "c", *args)
    assert code in (1, 2)
    assert message in " ".join(err.split())
    assert out == ""
    assert not list(tmp_path.glob("c/*-seed*"))


def test_where_every_run_fails_so_does_the_command(command, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "run_all", lambda jobs, *_: {job.name: "the loss is nan" for job in jobs})
    code, _, err = command(tmp_path / "c", *SORT, *SMALL, "--attention", "softmax")
    assert code == 1
    assert "every run failed" in err
    assert "softmax-40k-seed1: the loss is nan" in err


def stopped_within_the_second_run(command, folder):
    """Stop the command while its second run trains; return False where that run ended first, on a busy machine."""
    metrics = folder / "argmax-seed1/metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (metrics.exists() and '"step":10,' in metrics.read_text()):
            time.sleep(0.01)
        process.terminate()
        code = process.wait()
    assert (folder / "softmax-seed1/evaluation.json").exists()
    if (folder / "argmax-seed1/evaluation.json").exists():
        return False
    assert code == 128 + signal.SIGTERM
    return True


@pytest.mark.slow
@pytest.mark.thorough  # signals: test_workers.py; going on: test_comparing.py; the same bytes: test_killed.py
def test_stopped_in_the_middle_the_same_command_goes_on(tmp_path):
    """By real processes: the parent is told to stop in the middle of a run, and ends as if it never had been."""
    options = [*SORT, "--size", "40k", "--attention", "softmax,argmax", "--seeds", "1", "--steps", "100"]
    options += ["--batch-tokens", "256", "--log-every", "10", "--evaluate-every", "50"]
    options += ["--threads", "1", "--device", "cpu", "--json"]
    said = [sys.executable, "-m", "clearhead", "compare"]
    folders = (tmp_path / f"stopped-{number}" for number in range(20))
    stopped = next(one for one in folders if stopped_within_the_second_run([*said, str(one), *options], one))
    losses = []
    for folder in (stopped, tmp_path / "whole"):
        done = subprocess.run([*said, str(folder), *options], capture_output=True, text=True, check=True)
        losses.append({run["arm"]: run["numbers"]["loss"] for run in json.loads(done.stdout)["runs"]})
        assert ("1 of 2 runs are there already" in done.stderr) == (folder == stopped)
    assert losses[0] == losses[1]
