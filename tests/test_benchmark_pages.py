"""The page of GPU benchmarks is what its generator makes of the runs kept, and compares with the fastest peer."""

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import RESULTS, STATIC, load_runs, merge, page, stored_runs

PAGE = Path(__file__).parents[1] / "benchmarks/results/gpu.md"
DECODING = "decoding base, batch 1, greedy"


def figure(work: str, number: float, unit: str = "tok/s", peer_of: str = "") -> dict[str, Any]:
    return {"work": work, "figure": number, "unit": unit, "note": "", "peer_of": peer_of}


def run_of(*figures: dict[str, Any]) -> dict[str, Any]:
    return {"machine": "a machine", "date": "2031-02-03", "figures": list(figures), "points": []}


RUN = run_of(
    figure(DECODING, 2000.0),
    figure("Hugging Face by default", 100.0, peer_of=DECODING),
    figure(STATIC, 800.0, peer_of=DECODING),
    figure("linear attention forward, 16 x 4,096 (linear)", 0.4, "ms"),
    figure("theirs", 0.2, "ms", peer_of="linear attention forward, 16 x 4,096"),
)


def row_of(text: str, work: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {work}"))


def test_the_page_is_made_of_the_runs_that_are_kept():
    found = merge(load_runs(stored_runs()))
    plots = {plot: f"growth-{plot.replace(' ', '-')}.svg" for plot in dict.fromkeys(p["plot"] for p in found["points"])}
    assert page(found, plots) == PAGE.read_text(encoding="utf-8"), "run `python -m benchmarks report`"
    assert stored_runs()[0] == RESULTS / "gpu.json"


def test_the_fastest_peer_comes_first_and_leads_the_page():
    text = page(merge([RUN]), {})
    said = f"2.5 x as fast as {STATIC} (800); 20.0 x as fast as Hugging Face by default (100)"
    assert said in row_of(text, DECODING)
    assert f"- {DECODING}: 2.5 x as fast as {STATIC} (800)\n" in text


def test_a_slower_row_says_how_much_longer_it_takes_and_a_missed_target_is_said_in_words():
    text = page(merge([RUN]), {})
    assert "2.00 x the time of theirs (0.2); target 0.35 ms: missed |" in row_of(text, "linear attention forward")
    assert "Targets missed: linear attention forward, 16 x 4,096 (target 0.35 ms: missed)." in text
    assert "target 10 x Hugging Face by default: reached" in row_of(text, DECODING)


def test_a_peer_of_another_run_is_marked_with_the_ratio_within_its_own():
    later = run_of(figure(DECODING, 1600.0))
    text = row_of(page(merge([RUN, later]), {}), DECODING)
    assert f"2.0 x as fast as {STATIC} (800, in another run; within that run 2.5 x)" in text


def test_a_fastest_peer_that_was_not_measured_is_named():
    without = copy.deepcopy(RUN)
    without["figures"] = [one for one in without["figures"] if one["work"] != STATIC]
    assert f"{STATIC} was not measured" in row_of(page(merge([without]), {}), DECODING)


@pytest.mark.parametrize("word", ["mark ", "beside"])
def test_the_page_says_target_and_compared(word):
    assert word not in PAGE.read_text(encoding="utf-8")
