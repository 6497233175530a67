"""Attacks on the run folder: moved, unreachable, linked, mixed up, half there. Nothing of the user's is ever lost."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clearhead.errors import ClearheadError, RunError
from clearhead.files import FORMAT, checksum, seal, write_sealed
from clearhead.training.checkpoints import Checkpoints
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Checkpointing, Machine, Optimizer
from clearhead.training.reporting import LossWatch, read_metrics
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.schedules import CosineDecay
from clearhead.training.train import train
from clearhead.training.train_step import TrainState
from tests.training import small_runs
from tests.training.tiny import assert_same_run, quiet, recipe_for

pytestmark = pytest.mark.slow

LONGER = Budget(steps=12)
KEEPING = Checkpointing(log=2, evaluate=4, save=2, checkpoints=2, score_records=0, samples=0)


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Folders are looked at: there is not even a sketch of the curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearhead.training.loop.draw_curves", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def recipe(home):
    """Of a classifier, the quickest to train, in eight steps."""
    return recipe_for(
        small_runs.classifying,
        home / "text",
        budget=Budget(steps=8),
        checkpointing=KEEPING,
        optimizer=Optimizer(lr=1e-2, schedule=CosineDecay(warmup=2)),
    )


@pytest.fixture(scope="module")
def trained(home, recipe):
    """Two runs that differ in their seed."""
    return {
        seed: train(home / f"seed-{seed}", replace(recipe, seed=seed), log=quiet, data=home / "data").folder
        for seed in (1, 2)
    }


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the first one: a run folder like any other."""
    return RunFolder(shutil.copytree(trained[1].path, tmp_path / "run"))


@pytest.fixture
def go_on(home):
    """Resumes a run for a few steps more, and returns what was told, but for how the linear model does beside it."""

    def resumed(run, **named):
        told = []
        resume(run.path, log=told.append, data=home / "data", **{"budget": LONGER, **named})
        return [line for line in told if "the linear model" not in line]

    return resumed


def tree(folder):
    """Everything in a folder: the bytes of files, where links lead, and the folders."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def refused(act, match, *folders):
    """Raises, with these words, and every byte in the folders is as it was."""
    before = [tree(folder) for folder in folders]
    with pytest.raises(ClearheadError, match=match):
        act()
    assert [tree(folder) for folder in folders] == before


def steps(run):
    return [one.step for one in run.checkpoints.all()]


# 1. Checkpoints that cannot be reached.


def unmounted(checkpoints):
    """What is left of a mount point."""
    checkpoints.rename(checkpoints.with_name("moved"))
    checkpoints.mkdir()


def moved_away(checkpoints):
    checkpoints.rename(checkpoints.parent.parent / "elsewhere")


def dangling(checkpoints):
    moved_away(checkpoints)
    checkpoints.symlink_to(checkpoints.parent.parent / "not-mounted")


def another_run(checkpoints):
    moved_away(checkpoints)
    checkpoints.mkdir()
    write_sealed(checkpoints / "run.json", {"run": "f" * 16})


def steps_removed(checkpoints):
    for path in checkpoints.glob("step-*"):
        shutil.rmtree(path)


@pytest.mark.parametrize("attack", [unmounted, moved_away, dangling, another_run, steps_removed])
def test_a_resume_without_its_checkpoints_is_refused_and_changes_nothing(run, go_on, attack):
    attack(run.path / "checkpoints")
    refused(lambda: go_on(run), "cannot be reached|there is no checkpoint, and evaluation.json shows", run.path)
    run.evaluation.unlink()
    refused(lambda: go_on(run), "cannot be reached|there is no checkpoint, and metrics.jsonl shows", run.path)


def test_a_resume_of_checkpoints_that_may_not_be_read_is_refused(run, go_on, monkeypatch):
    """Root may read anything, so the system is made to say no."""
    listdir = os.listdir

    def refuse(path="."):
        if Path(path).name == "checkpoints":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    refused(lambda: go_on(run), r"cannot be reached there \(Permission denied\)")
    monkeypatch.undo()
    assert go_on(run) == ["from step 8"]


@pytest.mark.parametrize("attack", [unmounted, moved_away])
def test_after_the_checkpoints_are_back_it_goes_on_as_if_nothing_had_been(run, go_on, trained, attack, tmp_path):
    other = RunFolder(shutil.copytree(trained[1].path, tmp_path / "undisturbed"))
    go_on(other)
    checkpoints = run.path / "checkpoints"
    attack(checkpoints)
    with pytest.raises(RunError):
        go_on(run)
    if checkpoints.exists():
        checkpoints.rmdir()
    away = [path for path in (run.path / "moved", tmp_path / "elsewhere") if path.exists()]
    away[0].rename(checkpoints)
    assert go_on(run) == ["from step 8"]
    assert_same_run(run, other)


def test_other_uses_say_that_the_checkpoints_cannot_be_reached(run):
    dangling(run.path / "checkpoints")
    with pytest.raises(RunError, match="checkpoints of this run cannot be reached there"):
        load(run.path, device="cpu")


def test_where_nothing_was_ever_saved_it_begins_again_and_the_log_is_set_aside(recipe, home, tmp_path, go_on):
    def watcher(line):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        train(tmp_path / "run", recipe, log=quiet, data=home / "data", watcher=watcher)
    run = RunFolder(tmp_path / "run")
    log = run.metrics.read_bytes()
    assert log
    told = go_on(run, budget=None)
    assert told[0] == "from the start: there is no checkpoint yet"
    assert (run.path / "metrics.1.jsonl").read_bytes() == log
    assert steps(run)[0] == 8


def test_a_kill_within_the_first_save_begins_again(recipe, home, tmp_path, go_on, monkeypatch):
    """Its evaluation is in the log, and no checkpoint there: yet none was ever saved, so nothing is lost."""

    def killed(*given):
        raise KeyboardInterrupt

    only = replace(recipe, checkpointing=replace(KEEPING, save=4))
    monkeypatch.setattr(Checkpoints, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", only, log=quiet, data=home / "data")
    monkeypatch.undo()
    run = RunFolder(tmp_path / "run")
    assert [line["kind"] for line in read_metrics(run.metrics)] == ["step", "step", "evaluation"]
    assert go_on(run)[0] == "from the start: there is no checkpoint yet"
    assert steps(run)[0] == 12


# 2. Folders that hold other things.

FOREIGN = {
    "step-00000004/thesis.txt": "mine",
    "step-mine": "mine",
    "checkpoints/step-00000002/thesis.txt": "mine",
    "model.json": "{}",
    "metrics.jsonl": "{}\n",
    "metrics.3.jsonl": "{}\n",
    "evaluation.json": "{}",
    "curves.svg": "<svg/>",
    "tokenizer.json": "{}",
    "tokenizer.source.json": "{}",
    "data/corpus.txt": "mine",
    "tensorboard/events": "mine",
    "recipe.json": "{}",
    "run.json": "{}",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_that_holds_a_name_of_ours_is_not_trained_in(name, recipe, home, tmp_path):
    place = tmp_path / "mine"
    (place / name).parent.mkdir(parents=True)
    (place / name).write_text(FOREIGN[name])
    said = "is no run of Clearhead's; nothing was touched|there is a run already|has no format version"
    refused(lambda: train(place, recipe, log=quiet, data=home / "data"), said, place)


def test_a_folder_with_other_things_is_trained_in_and_they_stay(recipe, home, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".metrics.jsonl.partial.mine").write_text("mine")
    (tmp_path / "plots").mkdir()
    train(tmp_path, recipe, log=quiet, data=home / "data")
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / ".metrics.jsonl.partial.mine").read_text() == "mine"
    assert (tmp_path / "plots").is_dir()


@pytest.mark.parametrize("last", ["run.json", "data", "model.json", "checkpoints"])
def test_a_run_that_was_killed_before_its_recipe_is_begun_again(last, run, recipe, home, trained):
    """In the order they are written; `last` is the last that was."""
    order = ["run.json", "data", "model.json", "checkpoints"]
    (run.path / "data").mkdir()
    for name in order[order.index(last) + 1 :]:
        path = run.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (run.recipe_file, run.metrics, run.evaluation):
        path.unlink()
    shutil.rmtree(run.path / "film")
    if last == "checkpoints":
        steps_removed(run.path / "checkpoints")
    before = run.id()
    train(run.path, recipe, log=quiet, data=home / "data")
    assert run.id() == before
    assert_same_run(run, trained[1])


def test_a_run_that_has_lost_its_recipe_is_not_begun_again(run, recipe, home):
    run.recipe_file.unlink()
    refused(lambda: train(run.path, recipe, log=quiet, data=home / "data"), r"whose recipe\.json is missing", run.path)
    for path in (run.metrics, run.evaluation):
        path.unlink()
    shutil.rmtree(run.path / "film")
    said = r"holds step-\d+, .* of a run whose recipe\.json is missing"
    refused(lambda: train(run.path, recipe, log=quiet, data=home / "data"), said, run.path)


def test_checkpoints_of_others_stay_while_it_trains(run, go_on, trained, tmp_path):
    """One is in the way of a step that is still to come, too."""
    mine = run.path / "checkpoints" / "step-00000003"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    for step in (4, 10):
        place = run.path / "checkpoints" / f"step-{step:08d}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(trained[2].checkpoints.folder / "step-00000008", place)
    other = tree(trained[2].checkpoints.folder / "step-00000008")
    told = go_on(run)
    assert sum("is a checkpoint of another run" in line for line in told) == 2
    assert told[-1] == "from step 8"
    assert (mine / "thesis.txt").read_text() == "mine"
    assert tree(run.path / "checkpoints" / "step-00000004") == other
    assert tree(run.path / "checkpoints" / "step-00000010.1") == other
    assert steps(run)[:2] == [12, 10]


# 3. Folders that are moved while the run trains.


def at_step(step, act):
    """A watcher that does something once, when this step is saved."""
    left = [act]

    def watcher(line):
        if line["kind"] == "saved" and line["step"] == step and left:
            left.pop()()

    return watcher


def test_a_run_that_is_moved_stops_and_is_whole_where_it_went(recipe, home, tmp_path, trained, go_on):
    path, went = tmp_path / "run", tmp_path / "went"
    with pytest.raises(RunError, match=r"was moved to .*/went while the run was in training") as caught:
        train(path, recipe, log=quiet, data=home / "data", watcher=at_step(4, lambda: path.rename(went)))
    assert f"The last whole checkpoint is {went}/checkpoints/step-00000004" in str(caught.value)
    assert f"clearhead train {went} --resume" in str(caught.value)
    assert not path.exists()
    assert go_on(RunFolder(went), budget=None) == ["from step 4"]
    assert_same_run(RunFolder(went), trained[1])


def test_a_run_that_is_replaced_by_another_stops_and_the_other_is_left_alone(recipe, home, tmp_path, trained):
    path, went = tmp_path / "run", tmp_path / "went"

    def swap():
        path.rename(went)
        shutil.copytree(trained[2].path, path)

    with pytest.raises(RunError, match=f"was moved to {went}"):
        train(path, recipe, log=quiet, data=home / "data", watcher=at_step(4, swap))
    assert tree(path) == tree(trained[2].path)
    assert steps(RunFolder(went))[0] == 4


def test_a_run_that_is_removed_stops_and_is_not_made_again(recipe, home, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunError, match="was moved, removed or replaced while the run was in training"):
        train(path, recipe, log=quiet, data=home / "data", watcher=at_step(4, lambda: shutil.rmtree(path)))
    assert not path.exists()


def test_checkpoints_that_are_moved_stop_it(recipe, home, tmp_path, trained, go_on):
    path, went = tmp_path / "run", tmp_path / "went"
    with pytest.raises(RunError, match=r"checkpoints: was moved to .*/went") as caught:
        train(
            path,
            recipe,
            log=quiet,
            data=home / "data",
            watcher=at_step(4, lambda: (path / "checkpoints").rename(went)),
        )
    assert f"clearhead train {path} --resume --checkpoints {went}" in str(caught.value)
    run = RunFolder(path)
    assert not (path / "checkpoints").exists()
    refused(lambda: go_on(run), "cannot be reached", path)
    assert go_on(run, checkpoints=went, budget=None) == ["from step 4"]
    assert run.checkpoints.folder == went
    assert_same_run(run, trained[1])


@pytest.mark.parametrize("when", ["tokenising", "before the scores"])
def test_a_run_that_is_moved_while_nothing_is_saved_stops_too(recipe, home, tmp_path, monkeypatch, when):
    path, went = tmp_path / "run", tmp_path / "went"
    if when == "tokenising":

        def told(line):
            if path.exists():
                path.rename(went)

        act = lambda: train(path, recipe, log=told, data=tmp_path / "data")  # noqa: E731
    else:
        watcher = at_step(8, lambda: path.rename(went))
        act = lambda: train(path, recipe, log=quiet, data=home / "data", watcher=watcher)  # noqa: E731
    with pytest.raises(RunError, match=f"was moved to {went}"):
        act()
    assert not path.exists()
    assert not (went / "evaluation.json").exists()


# 4. Links.


@pytest.fixture
def mine(tmp_path):
    """The user's own files, outside of the run."""
    folder = tmp_path / "mine"
    (folder / "step-00000003").mkdir(parents=True)
    (folder / "step-00000003" / "thesis.txt").write_text("mine")
    (folder / "diary.txt").write_text("mine, all of it\n")
    return folder


LINKED = (".lock", "metrics.jsonl", "checkpoints", "tensorboard")


@pytest.mark.parametrize("name", LINKED)
def test_a_resume_writes_through_no_link(run, go_on, mine, name):
    path = run.path / name
    if name == "checkpoints":
        for one in path.iterdir():
            shutil.move(one, mine)
        path.rmdir()
        path.symlink_to(mine)
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(mine / "diary.txt")
    refused(lambda: go_on(run), "is a link", run.path, mine)


def test_a_link_to_checkpoints_on_another_disk_is_asked_for_by_an_option(run, go_on, tmp_path):
    place = tmp_path / "disk"
    (run.path / "checkpoints").rename(place)
    (run.path / "checkpoints").symlink_to(place)
    load(run.path, device="cpu")
    refused(lambda: go_on(run), f"is a link.*--checkpoints {place}", run.path, place)
    assert go_on(run, checkpoints=place, budget=Budget(steps=12))[-1].startswith("from step")
    assert run.checkpoints.folder == place
    assert load(run.path, device="cpu").step
    (run.path / "checkpoints").unlink()
    place.rename(run.path / "checkpoints")
    run.checkpoints_file.unlink()


HALF = ".recipe.json.0a1b2c3d.partial"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("recipe.json", "evaluation.json", "model.json") for kind in ("link", "dangling")),
        *((HALF, kind) for kind in ("link", "dangling", "folder", "pipe")),
    ],
)
def test_no_other_file_is_written_through_a_link_either(run, go_on, mine, name, kind):
    path, kept = run.path / name, run.path.with_name("kept")
    there = path.exists()
    if there:
        path.rename(kept)
    before = tree(mine)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to((kept if there else mine / "diary.txt") if kind == "link" else mine / "none")
    content = kept.read_bytes() if there else b""
    try:
        go_on(run)
    except ClearheadError:
        assert kind == "dangling"
    assert tree(mine) == before
    assert not there or kept.read_bytes() == content


def test_a_half_begun_run_with_links_inside_is_not_trained_in(tmp_path, recipe, mine):
    place = tmp_path / "run"
    for name in ("data", "data/0a1b2c", "checkpoints", "model.json"):
        shutil.rmtree(place, ignore_errors=True)
        (place / name).parent.mkdir(parents=True)
        write_sealed(place / "run.json", {"run": "0" * 16})
        (place / name).symlink_to(mine)
        refused(lambda: train(place, recipe, log=quiet), "is a link, and nothing is written", place, mine)


def test_a_lock_that_is_no_file_is_refused(run, go_on):
    (run.path / ".lock").unlink()
    os.mkfifo(run.path / ".lock")
    with pytest.raises(RunError, match=r"\.lock: is no regular file; remove it"):
        go_on(run)


def test_a_run_that_is_reached_through_a_link_is_fine(run, go_on, tmp_path):
    latest = tmp_path / "latest"
    latest.symlink_to(run.path)
    assert go_on(RunFolder(latest)) == ["from step 8"]
    assert load(latest, device="cpu").folder.path == latest
    assert latest.is_symlink()


@pytest.mark.parametrize("name", ["../tokenizer.json", "/etc/passwd", "a/b", "..", "", 3, None, "a\\b"])
def test_a_tokeniser_is_a_plain_name(run, name):
    found = json.loads(run.model_file.read_text())
    changed = {**found, "tokenizers": {"text": name}}
    run.model_file.write_text(json.dumps(seal(changed)))
    with pytest.raises(RunError, match="is no name of a file beside it"):
        load(run.path, device="cpu")


# Checkpoints in another folder.


def test_checkpoints_may_lie_in_another_folder(recipe, home, tmp_path, trained, go_on):
    path, disk = tmp_path / "run", tmp_path / "disk" / "checkpoints"
    train(path, recipe, log=quiet, data=home / "data", checkpoints=disk)
    run = RunFolder(path)
    assert not (path / "checkpoints").exists()
    assert json.loads((disk / "run.json").read_text())["run"] == run.id()
    assert_same_run(run, trained[1])
    assert go_on(run) == ["from step 8"]
    assert load(path, device="cpu", step=12).step == 12
    disk.rename(tmp_path / "unmounted")
    refused(lambda: go_on(run, budget=Budget(steps=16)), "cannot be reached there .*there is no such folder", path)
    disk.mkdir()
    refused(lambda: go_on(run, budget=Budget(steps=16)), "cannot be reached there .*it is empty", path, disk)


def test_a_folder_for_checkpoints_that_holds_other_things_is_refused(recipe, home, tmp_path, mine, trained):
    for place in (mine, trained[2].checkpoints.folder):
        refused(
            lambda: train(tmp_path / "run", recipe, log=quiet, data=home / "data", checkpoints=place),  # noqa: B023
            "is not the folder of this run's checkpoints|its run.json is of another run",
            place,
        )
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="is a link"):
        train(tmp_path / "run", recipe, log=quiet, data=home / "data", checkpoints=tmp_path / "link")
    train(tmp_path / "run", recipe, log=quiet, data=home / "data", checkpoints=tmp_path / "empty")


def test_checkpoints_of_another_run_are_not_gone_on_with(run, go_on, trained, tmp_path):
    refused(lambda: go_on(run, checkpoints=trained[2].checkpoints.folder), "is of another run", run.path)


def test_two_copies_of_a_run_do_not_write_to_the_same_checkpoints(recipe, home, tmp_path, go_on):
    run = train(tmp_path / "one", recipe, log=quiet, data=home / "data", checkpoints=tmp_path / "disk").folder
    two = RunFolder(shutil.copytree(run.path, tmp_path / "two"))
    with run.lock() as held:
        held.add(run.checkpoints.folder)
        with pytest.raises(RunError, match=rf"disk: is in use by process {os.getpid()}"):
            go_on(two)


# 6. A checkpoint, a model and tokenisers are bound to their run.


def copy_in(run, other):
    """The best and last weights of another run, in place of this one's."""
    for path in run.checkpoints.folders():
        shutil.rmtree(path)
        shutil.copytree(other.checkpoints.folders()[0], path)


def test_weights_of_another_seed_are_refused_by_name(run, trained, go_on):
    newest = run.checkpoints.folders()[0]
    shutil.rmtree(newest)
    shutil.copytree(trained[2].checkpoints.folder / newest.name, newest)
    told = []
    assert load(run.path, device="cpu", log=told.append).step < 8
    assert told == [f"{newest}: is a checkpoint of another run ({trained[2].id()}); the checkpoint is passed over"]
    with pytest.raises(RunError, match="step-00000008: is a checkpoint of another run"):
        load(run.path, device="cpu", step=8)
    assert go_on(run)[0] == told[0]
    copy_in(run, trained[2])
    with pytest.raises(RunError, match="there is no whole checkpoint"):
        load(run.path, device="cpu", log=quiet)
    refused(lambda: go_on(run), "none of the checkpoints is whole", run.path)


def test_another_runs_files_are_refused_by_name(run, trained, go_on):
    for name in ("model.json", "recipe.json", "evaluation.json", "run.json"):
        kept = (run.path / name).read_bytes()
        shutil.copy(trained[2].path / name, run.path / name)
        with pytest.raises(RunError, match="is of another run"):
            run.read_evaluation() if name == "evaluation.json" else load(run.path, device="cpu")
        if name != "evaluation.json":
            refused(lambda: go_on(run), "is of another run", run.path)
        (run.path / name).write_bytes(kept)
    load(run.path, device="cpu")


@pytest.mark.parametrize("sealed", [False, True])
def test_another_number_of_heads_is_refused(run, go_on, sealed):
    """With a checksum that was made to fit, the checkpoints still say which model.json they are of."""
    text = run.model_file.read_text()
    changed = re.sub(r'("is": "Heads",\s+"count": )2', r"\g<1>1", text)
    assert changed != text
    run.model_file.write_text(json.dumps(seal(json.loads(changed))) if sealed else changed)
    told = []
    with pytest.raises(RunError, match="no whole checkpoint" if sealed else "its checksum is wrong"):
        load(run.path, device="cpu", log=told.append)
    assert all("was saved with another model.json" in line for line in told)
    refused(lambda: go_on(run), "is whole|its checksum is wrong", run.path)


def test_a_tokeniser_that_was_changed_is_refused(run, go_on):
    path = run.path / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("plum", "pulm"), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    with pytest.raises(RunError, match=r"tokenizer\.json: was changed since the run began: its checksum is wrong"):
        load(run.path, device="cpu")
    refused(lambda: go_on(run), "its checksum is wrong", run.path)


def test_weights_that_are_no_numbers_are_passed_over(run, go_on):
    best = load(run.path, device="cpu").step
    for step in (best, 8):
        saved = run.checkpoints.at(step)
        weights = {name: torch.full_like(one, float("nan")) for name, one in saved.model().items()}
        run.checkpoints.save(step, weights, saved.training(), saved.state)
        told = []
        with pytest.raises(RunError, match="no numbers"):
            load(run.path, device="cpu", step=step)
        if step == 8:
            break
        assert load(run.path, device="cpu", log=told.append).step != best
        assert "has values that are no numbers" in told[0]
    assert "has values that are no numbers" in go_on(run)[0]


def test_a_missing_field_is_named(run):
    whole = json.loads(run.model_file.read_text())
    for field in ("task", "context", "tokenizers", "files", "labels", "documents", "data", "spec"):
        content = {name: value for name, value in whole.items() if name != field}
        run.model_file.write_text(json.dumps(seal(content)))
        with pytest.raises(RunError, match=rf"model\.json: the field '{field}' is missing"):
            run.task()


# Runs of other formats.


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (FORMAT - 1, f"was written in format {FORMAT - 1}, and this .* reads format {FORMAT}; install the one that"),
        (FORMAT + 1, f"was written in format {FORMAT + 1}, .* install a newer one"),
        (None, "has no format version, so Clearhead did not write it"),
    ],
)
@pytest.mark.parametrize("name", ["run.json", "model.json", "recipe.json"])
def test_a_run_of_another_format_is_refused_and_changed_in_nothing(run, go_on, name, version, words):
    content = json.loads((run.path / name).read_text())
    content = {key: value for key, value in content.items() if key not in ("format", "sha256")}
    other = content if version is None else {"format": version, **content}
    (run.path / name).write_text(json.dumps({**other, "sha256": checksum(other)}))
    refused(lambda: load(run.path, device="cpu"), words, run.path)
    refused(lambda: go_on(run), words, run.path)


# 8. What is lost may be lost alone.


def test_only_the_log_is_lost(run, go_on, trained, tmp_path):
    other = RunFolder(shutil.copytree(trained[1].path, tmp_path / "undisturbed"))
    go_on(other)
    run.metrics.unlink()
    told = go_on(run)
    assert told == ["from step 8", f"{run.metrics}: the log of what came before is lost, and a new log begins"]
    assert [line["step"] for line in read_metrics(run.metrics)] == [10, 12, 12]
    assert read_metrics(run.metrics)[0]["loss"] == read_metrics(other.metrics)[-3]["loss"]
    assert go_on(run, budget=Budget(steps=14)) == ["from step 12"]
    run.metrics.unlink()
    go_on(run, budget=Budget(steps=14))
    assert read_metrics(run.metrics) == []


def test_a_log_that_does_not_fit_is_set_aside(run, go_on):
    text = run.metrics.read_bytes()[:-20]
    run.metrics.write_bytes(text)
    assert "it is set aside as metrics.1.jsonl, and a new log begins" in go_on(run)[1]
    assert (run.path / "metrics.1.jsonl").read_bytes() == text


def test_litter_of_killed_processes_is_cleared_and_nothing_else(run, go_on):
    litter = [".recipe.json.0a1b2c3d.partial", ".model.json.partial", "curves.svg.partial", "tokenizer.json.17.partial"]
    mine = ["thesis.partial", ".thesis.0a1b2c3d.partial", "checkpoints/thesis.partial"]
    for name in (*litter, *mine):
        (run.path / name).write_text("half")
    (run.path / "checkpoints" / ".step-00000009.partial").mkdir()
    go_on(run, budget=None)
    assert not [name for name in (*litter, "checkpoints/.step-00000009.partial") if (run.path / name).exists()]
    assert all((run.path / name).read_text() == "half" for name in mine)


def test_a_resume_takes_another_rate_and_machine_and_writes_them_down(run, go_on):
    before = run.recipe()
    machine = Machine(device="cpu", precision="bfloat16", threads=1, graphs=False, deterministic=False)
    go_on(run, lr=1e-3, machine=machine)
    after = run.recipe()
    assert after == replace(before, budget=LONGER, optimizer=replace(before.optimizer, lr=1e-3), machine=machine)
    rates = [line["lr"] for line in read_metrics(run.metrics) if line["kind"] == "step"]
    assert rates[-1] < 1e-3 < rates[0]
    go_on(run, budget=Budget(steps=14))
    assert run.recipe() == replace(after, budget=Budget(steps=14))


def test_a_loss_that_grows_tenfold_is_told_each_time_and_once(recipe, home, tmp_path, monkeypatch):
    """It is high from step 10, low again from 16, and high from 22; stopped at 12 and gone on with."""
    checkpointing = Checkpointing(log=1, evaluate=100, score_records=0, samples=0)
    wild = replace(recipe, checkpointing=checkpointing, budget=Budget(steps=12))
    totals, told, lines = TrainState.totals, [], []

    def grown(self):
        found = totals(self)
        return found._replace(nll=found.places * (20.0 if 10 <= len(lines) + 1 < 16 or len(lines) + 1 >= 22 else 0.5))

    def watcher(line):
        if line["kind"] == "step":
            lines.append(line)

    monkeypatch.setattr(TrainState, "totals", grown)
    train(tmp_path / "run", wild, log=told.append, data=home / "data", watcher=watcher)
    go_on = {"log": told.append, "data": home / "data", "watcher": watcher}
    resume(tmp_path / "run", budget=Budget(steps=30), **go_on)
    told = [line for line in told if "loss has grown" in line]
    assert told == [
        f"step {step}: the training loss has grown to {times} times its best (20 now): training may be diverging. A "
        "lower --lr (it is 0.01) or a longer --warmup helps most"
        for step, times in ((10, 14), (22, 14))
    ]


def test_a_loss_of_nearly_nothing_is_never_too_high():
    watch = LossWatch(warmup=0)
    assert [watch.see(step, loss) for step, loss in enumerate([1e-5] * 5 + [9e-2] * 5)] == [None] * 10


def test_a_loss_of_the_warm_up_is_no_best():
    watch = LossWatch(warmup=5)
    assert [watch.see(step, loss) for step, loss in enumerate([0.1] * 6 + [2.0] * 5)] == [None] * 11
