"""Workers: as many processes at a time as asked, every failure told, signals passed on, jobs back from their files."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest

from clearhead.errors import DataError, OptionError, RunError
from clearhead.experiments import workers
from clearhead.experiments.probes import PROBES, Amount, probe_recipe
from clearhead.experiments.workers import Interrupted, TrainingJob, begin, main, prepare_text, read_job, run_all
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.training.recipe import Budget, Checkpointing, Machine

AMOUNT = Amount(longest=8, examples=40, held_out=8)


@pytest.fixture
def job(tmp_path):
    recipe = probe_recipe(PROBES["copy"], tmp_path / "probe", AMOUNT, Machine(device="cpu", threads=1))
    recipe = replace(
        recipe,
        model=presets.classic(64, size=Size(1, 16, 2, 2, 32)),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(score_records=0, samples=0),
    )
    job = TrainingJob(arm="a", recipe=recipe, run=f"{tmp_path}/a", data=f"{tmp_path}/data")
    begin([job])
    return job


@pytest.fixture
def jobs(job, tmp_path):
    made = [replace(job, arm=name, run=str(tmp_path / name)) for name in "abcd"]
    begin(made)
    return made


@pytest.fixture
def scripts(monkeypatch):
    """Has a few lines of Python do the work instead, by the name of the job."""

    def put(**by_name):
        monkeypatch.setattr(workers, "command", lambda verb, job: [sys.executable, "-c", by_name[job.name]])

    return put


def test_a_job_comes_back_from_its_file(job):
    assert read_job(job.folder.path / "job.json") == job


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ('{"is": "Unaveraged"}', "has no format version")])
def test_a_file_that_holds_no_job_is_told(tmp_path, text, message):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(RunError, match=message):
        read_job(tmp_path / "job.json")


def test_a_job_is_bound_to_its_run(job, jobs):
    path = job.folder.path / "job.json"
    path.write_bytes((jobs[1].folder.path / "job.json").read_bytes())
    with pytest.raises(RunError, match=r"job\.json: is of another run"):
        read_job(path)


def test_a_folder_of_other_things_is_not_made_a_run(job, tmp_path):
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    with pytest.raises(RunError, match="mine: holds checkpoints, and is no run of Clearhead's; nothing was touched"):
        begin([replace(job, run=f"{tmp_path}/mine")])
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["checkpoints"]


def test_a_workers_log_is_not_written_through_a_link(job, scripts, tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    (job.folder.path / "log.txt").symlink_to(tmp_path / "diary.txt")
    scripts(a="print('step 1')")
    with pytest.raises(RunError, match=r"log\.txt: could not be written"):
        run_all([job], 1, lambda _: None)
    assert (tmp_path / "diary.txt").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 3])
def test_as_many_run_at_a_time_as_were_asked_for(jobs, scripts, tmp_path, parallel):
    script = f"""
import pathlib, time
mine = pathlib.Path({str(tmp_path)!r}) / f"here-{{time.monotonic_ns()}}"
mine.touch()
time.sleep(0.3)
print(len(list(mine.parent.glob("here-*"))))
mine.unlink()
"""
    scripts(**dict.fromkeys("abcd", script))
    told = []
    assert run_all(jobs, parallel, told.append) == {}
    seen = [int((job.folder.path / "log.txt").read_text()) for job in jobs]
    assert max(seen) <= parallel
    assert told == [f"{number}/4  {job.name}: see {job.run}/log.txt" for number, job in enumerate(jobs, 1)]


def test_a_failure_is_told_by_its_last_line_and_the_others_go_on(jobs, scripts):
    scripts(a="pass", b="import sys; print('step 1'); print('the loss is nan'); sys.exit(1)", c="1 / 0", d="pass")
    told = []
    assert run_all(jobs, 1, told.append) == {"b": "the loss is nan", "c": "ZeroDivisionError: division by zero"}
    assert "b failed: the loss is nan" in told
    assert told[-1].startswith("4/4")


def test_one_that_leaves_no_word_is_told_too(jobs, scripts):
    scripts(a="import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run_all(jobs[:1], 1, print) == {"a": f"it left nothing in {jobs[0].run}/log.txt"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_waited_for(jobs, scripts, number):
    script = """
import signal, sys, time
def leave(number, frame):
    time.sleep(0.3)
    print("saved")
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(1000)
"""
    scripts(**dict.fromkeys("abcd", script))
    log = jobs[0].folder.path / "log.txt"

    def stop():
        while not (log.exists() and "ready" in log.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop).start()
    with pytest.raises(Interrupted, match="stopped, and saved; the same command goes on from here") as caught:
        run_all(jobs, 1, lambda _: None)
    assert caught.value.exit_code == 128 + number
    assert log.read_text() == "ready\nsaved\n"
    assert not (jobs[1].folder.path / "log.txt").exists()


def test_none_at_a_time_is_refused(jobs):
    with pytest.raises(OptionError, match="parallel: one run at a time or more; came 0"):
        run_all(jobs, 0, print)


def test_text_that_cannot_be_read_is_told_before_anything_runs(jobs, scripts):
    scripts(d="import sys; print('40 records'); sys.exit('de.txt:3: not UTF-8')")
    told = []
    with pytest.raises(DataError, match=r"de\.txt:3: not UTF-8"):
        prepare_text(jobs, told.append)
    assert told == ["40 records"]


def test_text_that_differs_is_prepared_for_each(jobs, scripts):
    other = replace(jobs[3], recipe=replace(jobs[3].recipe, batching=replace(jobs[3].recipe.batching, context=64)))
    scripts(c="print('for a, b and c')", d="print('for d')")
    told = []
    prepare_text([*jobs[:3], other], told.append)
    assert told == ["for a, b and c", "for d"]


@pytest.mark.slow
def test_a_worker_makes_its_run_and_tells_what_is_wrong(job, capsys):
    path = str(job.folder.path / "job.json")
    assert main(["prepare", path]) == 0
    assert main(["run", path]) == 0
    assert "dev at step 2  loss" in capsys.readouterr().out
    assert job.folder.evaluation.exists()
    job.folder.model_file.unlink()
    assert main(["run", path]) == 1
    assert "there is no model yet" in capsys.readouterr().err
