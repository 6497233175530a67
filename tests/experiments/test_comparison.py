"""A comparison: means and spreads as statistics has them, tables that say them, JSON without a NaN, and the picture."""

import json
import math
import shutil
import statistics
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import RunError
from clearhead.experiments.comparison import (
    OF_PROBES,
    Comparison,
    FailedRun,
    FinishedRun,
    Impossible,
    Measure,
    draw_comparison,
    figure_of,
    mean_of,
    outcome_of,
)
from clearhead.experiments.probes import PROBES
from clearhead.training.folder import RunFolder
from clearhead.training.tasks import TASKS, Generate
from tests.covering import few
from tests.training.small_runs import documents, stretch, trained

EXACT = {("softmax", 1): 0.98, ("softmax", 2): 0.96, ("argmax", 1): 0.5, ("argmax", 2): 0.7}


def outcome(arm: str, seed: int, exact: float, far: dict[int, float] | None = None) -> FinishedRun:
    numbers = {"exact_match": exact, "accuracy": exact, "loss": 1 - exact, "tokens_per_second": 1000 * seed}
    return FinishedRun(
        arm=arm,
        seed=seed,
        run=f"runs/{arm}-seed{seed}",
        best_step=20,
        training_seconds=2.5,
        numbers={**numbers, "memory_mb": 300, "parameters": 12_345, "steps": 20},
        evaluations=tuple({"step": step, "loss": 1 / step, "exact_match": exact * step / 20} for step in (10, 20)),
        by_distance=far,
    )


COPY = Comparison(
    folder="runs",
    task="translate",
    probe="copy",
    parallel=1,
    budget={"steps": 20},
    outcomes=tuple(outcome(*key, value) for key, value in EXACT.items()),
)
RECALL = replace(
    COPY,
    task="generate",
    probe="recall",
    outcomes=tuple(outcome(*key, value, {4: value, 256: value / 2}) for key, value in EXACT.items()),
)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
def test_mean_and_spread_are_those_of_statistics(values):
    found = mean_of(values)
    assert (found.mean, found.least, found.most) == (statistics.fmean(values), min(values), max(values))
    assert found.spread == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_of_one_run_there_is_no_spread():
    assert mean_of([3.0]).spread is None
    assert Measure("loss", "loss", digits=2).shown(3.0) == "3.00"
    assert Measure("loss", "loss", digits=2).shown(math.nan) == "–"


def test_the_table_has_quality_with_spread_and_cost_without():
    head, rows = COPY.table()
    assert head == ["", "exact match %", "dev loss", "tokens/s", "peak MB", "parameters", "steps", "runs"]
    assert rows == [
        ["softmax", "97.0 ± 1.4", "0.030 ± 0.014", "1,500", "300", "12,345", "20", "2"],
        ["argmax", "60.0 ± 14.1", "0.400 ± 0.141", "1,500", "300", "12,345", "20", "2"],
    ]


def test_recall_has_a_table_by_distance():
    head, rows = RECALL.distance_table()
    assert head == ["accuracy % at", "4", "256"]
    assert rows == [["softmax", "97.0 ± 1.4", "48.5 ± 0.7"], ["argmax", "60.0 ± 14.1", "30.0 ± 7.1"]]
    assert COPY.distances == []


def test_the_page_has_every_run_and_every_note():
    failed = FailedRun(arm="argmax", seed=3, run="runs/argmax-seed3", problem="the loss is nan")
    impossible = Impossible(arm="kernelized", why="no score")
    page = replace(RECALL, parallel=2, failures=(failed,), impossible=(impossible,)).markdown()
    assert page.startswith("# recall: 20 steps\n\n|  | accuracy % | dev loss |")
    assert "| softmax | 97.0 ± 1.4 | 48.5 ± 0.7 |" in page
    assert "- mean ± sample standard deviation over the seeds\n- 2 runs shared the machine" in page
    assert "- argmax, seed 3, failed: the loss is nan\n- kernelized is not possible: no score\n" in page
    for (arm, seed), exact in EXACT.items():
        assert f"| {arm} | {seed} | {100 * exact:.1f} |" in page


def test_json_has_every_run_and_no_number_that_json_has_not():
    broken = replace(COPY.outcomes[0], numbers={**COPY.outcomes[0].numbers, "loss": math.nan})
    told = replace(COPY, outcomes=(broken, *COPY.outcomes[1:])).to_json()
    back = json.loads(json.dumps(told, allow_nan=False))
    assert [(run["arm"], run["seed"]) for run in back["runs"]] == list(EXACT)
    assert back["runs"][0]["numbers"]["loss"] is None
    assert back["arms"][0]["loss"]["mean"] is None
    assert back["arms"][0]["exact_match"]["mean"] == pytest.approx(0.97)
    assert back["arms"][1]["exact_match"]["spread"] == pytest.approx(0.2 / math.sqrt(2))
    assert json.loads(json.dumps(RECALL.to_json()))["arms"][1]["by_distance"]["256"]["mean"] == pytest.approx(0.3)


def test_every_task_and_probe_has_its_measures():
    assert set(OF_PROBES) == set(PROBES)
    assert {name: task.measures[0].key for name, task in TASKS.items()} == {
        "translate": "bleu",
        "generate": "loss",
        "fill": "accuracy",
        "classify": "accuracy",
        "classify-pairs": "accuracy",
        "label": "micro_f1",
        "tag": "accuracy",
    }
    assert [measure.key for measure in replace(COPY, probe=None).quality] == ["bleu", "chrf", "exact_match", "loss"]
    assert replace(COPY, probe=None).table()[1][0][1] == "–"


def test_a_run_folder_says_all_there_is_in_the_table(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    found = outcome_of(run.folder, arm="softmax", data=run.folder.data)
    evaluation = json.loads(run.folder.evaluation.read_text())
    assert (found.arm, found.seed, found.numbers["steps"]) == ("softmax", 1, 60)
    assert found.numbers["loss"] == evaluation["loss"]
    assert found.numbers["parameters"] == sum(one.numel() for one in run.model.parameters())
    assert {"loss", "bits_per_byte", "tokens_per_second", "memory_mb", "parameters", "steps"} == found.numbers.keys()
    assert found.evaluations[-1]["step"] == 60


@pytest.mark.slow
def test_bits_per_byte_of_single_bytes_are_bits_per_token(tmp_path_factory):
    run = trained(stretch, tmp_path_factory)
    held_out = run.folder.data / run.folder.read_description()["data"] / "dev"
    assert Generate.derived_scores(math.log(2), held_out)["bits_per_byte"] == pytest.approx(1.0, rel=0.01)


def test_a_run_that_has_lost_its_log_has_its_scores_still(tmp_path_factory, tmp_path):
    run = trained(documents, tmp_path_factory)
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "run"))
    folder.metrics.write_text("")
    found = outcome_of(folder, arm="a", data=run.folder.data)
    assert found.numbers["steps"] == run.folder.checkpoints.all()[0].step
    assert "tokens_per_second" not in found.numbers
    assert found.evaluations == ()


def test_a_run_without_an_evaluation_is_told(tmp_path_factory, tmp_path):
    run = trained(documents, tmp_path_factory)
    folder = replace(run.folder, path=tmp_path)
    with pytest.raises(RunError, match=r"evaluation\.json: is not there; the run has not ended"):
        outcome_of(folder, arm="x", data=tmp_path)


@pytest.mark.parametrize("comparison", few([COPY, replace(COPY, outcomes=COPY.outcomes[:1]), RECALL], 2))
@pytest.mark.slow
def test_the_picture_is_the_same_bytes_twice(comparison, tmp_path):
    for name in ("one.svg", "other.svg"):
        draw_comparison(comparison, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert ET.parse(tmp_path / "one.svg").getroot().tag.endswith("svg")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_the_panels_show_what_was_found():
    panels = {axes.get_xlabel(): axes for axes in figure_of(RECALL).axes}
    assert list(panels) == [
        *("accuracy %", "tokens/s", "peak MB", "step", "tokens from a key to where it is asked again (up to)")
    ]
    runs, mean, *_ = (list(line.get_xdata()) for line in panels["accuracy %"].get_lines())
    assert runs == pytest.approx([98, 96])
    assert mean == pytest.approx([97])
    assert [bar.get_width() for bar in panels["tokens/s"].patches] == [1500, 1500]
    far = panels["tokens from a key to where it is asked again (up to)"].get_lines()
    assert [list(line.get_ydata()) for line in far] == [pytest.approx([97, 48.5]), pytest.approx([60, 30])]
    assert panels["step"].get_ylabel() == "dev loss"
    words = [text.get_text() for text in panels["step"].texts]
    assert sorted(words) == ["argmax", "softmax"]


@pytest.mark.slow
def test_the_way_is_shown_by_the_main_score_where_evaluations_have_it():
    [axes] = [axes for axes in figure_of(COPY).axes if axes.get_xlabel() == "step"]
    assert axes.get_ylabel() == "exact match %"
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([48.5, 97])


def test_a_picture_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(RunError, match="the picture cannot be written there"):
        draw_comparison(COPY, tmp_path / "missing" / "comparison.svg")
