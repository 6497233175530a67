"""What a run says of itself, printed and in a notebook: task, size, score and how to use it."""

import html
import json
import re
import shutil

import pytest

import clearhead as ch
from tests.training import small_runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_runs.trained(small_runs.translating, tmp_path_factory)


def test_print_says_task_size_score_and_use(run):
    lines = str(run).splitlines()
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    assert lines[0] == f"Run {run.folder.path}"
    assert lines[1] == "  task    translate, with an encoder-decoder"
    assert lines[2].startswith(f"  size    {parameters:,} parameters: 1 + 1 blocks, ")
    assert lines[3] == f"  weights trained for {run.step} steps"
    assert re.fullmatch(r"  score   .*dev loss \d+\.\d{3} on held-out text", lines[4])
    assert re.fullmatch(r"  use     run\.translate\(\[.*\]\)", lines[5])
    assert lines[-1] == f"          clearhead translate {run.folder.path}"
    assert repr(run) == f"Run({str(run.folder.path)!r}, task='translate', step={run.step})"


def test_what_it_says_to_write_works(run):
    used, traced = (line.removeprefix("  use").strip() for line in str(run).splitlines()[5:7])
    assert len(eval(used, {"run": run})) == 1
    assert eval(traced, {"run": run, "ch": ch}).task == "translate"


def test_a_notebook_shows_the_same(run):
    shown = run._repr_html_()
    for line in str(run).splitlines()[1:]:
        assert html.escape(line[10:]) in shown
    assert "<script" not in shown


@pytest.mark.parametrize("kind", ["classifying", "documents", "filling"])
def test_other_tasks(kind, tmp_path_factory):
    run = small_runs.trained(getattr(small_runs, kind), tmp_path_factory)
    verb = {"classifying": "classify", "documents": "generate", "filling": "fill"}[kind]
    assert f"run.{verb}([" in str(run)
    assert " on held-out text" in str(run)


def test_a_damaged_file_is_said_and_does_not_stop_it(run, tmp_path):
    path = shutil.copytree(run.folder.path, tmp_path / "run", symlinks=True)
    run = ch.load(path, device="cpu")
    (path / "evaluation.json").write_text(json.dumps({"scores": {}}), encoding="utf-8")
    said = str(run)
    assert "evaluation.json" in said
    assert "score" not in said
    assert f"clearhead translate {path}" in said
    shutil.rmtree(path)
    assert "is not a run folder" in str(run)
