"""The bench: exact patching is right at the easy end, chance is chance, and a method of one's own is graded."""

from dataclasses import replace

import pytest
import torch

from clearhead.circuits import bench
from clearhead.circuits.bench import (
    SMALL,
    BenchLog,
    BenchReport,
    bench_samples,
    grade,
    make_contrast,
    run_bench,
    shipped_samples,
)
from clearhead.circuits.grammar import generate_samples
from clearhead.errors import RunError
from clearhead.rasp.programs import PROGRAMS


@pytest.fixture(scope="module")
def report():
    samples = list(generate_samples(4, seed=2))
    return run_bench(samples, methods=["exact", "eap", "weights", "random"], axes=["argmax", "softmax 10"], some=2)


@pytest.mark.slow
def test_exact_patching_is_near_right_at_the_easy_end(report):
    exact = report.cell("argmax", "exact", lambda row: row.precision["size"])
    assert exact.mean > 0.95
    assert exact.mean > report.cell("argmax", "random", lambda row: row.precision["size"]).mean + 0.2


@pytest.mark.slow
def test_a_report_has_every_figure(report):
    means = report.as_json()["means"]
    assert {(row["axis"], row["method"]) for row in means} == {
        (axis, method) for axis in ("argmax", "softmax 10") for method in ("exact", "eap", "weights", "random")
    }
    row = next(row for row in means if row["method"] == "eap")
    assert row["programs"] == 4
    assert (row["forwards"], row["backwards"]) == (1, 1)
    assert 0 <= row["roc_size"]["low"] <= row["roc_size"]["high"] <= 1
    assert isinstance(report, BenchReport)


@pytest.mark.slow
def test_a_bench_has_a_seed(report):
    again = run_bench(list(generate_samples(4, seed=2)), methods=["exact"], axes=["argmax"])
    figures = [row.precision for row in report.graded if (row.axis, row.method) == ("argmax", "exact")]
    assert [row.precision for row in again.graded] == figures


def test_pairs_are_of_one_length_and_drawn_with_a_seed():
    [sample] = shipped_samples([replace(PROGRAMS["sort"], length=3)])
    one, two = make_contrast(sample, seed=4), make_contrast(sample, seed=4)
    assert torch.equal(one.clean.tokens["encoder"], two.clean.tokens["encoder"])
    assert len(one) == 32
    assert not torch.equal(one.clean.tokens["encoder"], one.other.tokens["encoder"])


def test_given_programs_are_taken_alone():
    samples = bench_samples(5, programs=[PROGRAMS["sort"]])
    assert [sample.program.name for sample in samples] == ["sort"]
    assert len(samples[0].graph.edges) <= SMALL


def test_a_bench_that_was_cut_goes_on(tmp_path, monkeypatch):
    samples = bench_samples(0, programs=[replace(PROGRAMS["sort"], length=3)])
    wanted = {"methods": ["eap", "weights", "random"], "axes": ["argmax", "constants"]}
    path = tmp_path / "bench.json.rows"

    def run():
        with BenchLog(path, {"seed": 0}) as log:
            return run_bench(samples, **wanted, log=log)

    whole = run()
    assert len(whole.graded) == 6
    path.write_text(path.read_text()[:-30])  # killed while it wrote the last grade
    calls = []
    monkeypatch.setattr(bench, "grade", lambda *given: calls.append(given) or grade(*given))
    again = run()
    assert len(calls) == 1
    assert [row.precision for row in again.graded] == [row.precision for row in whole.graded]
    assert run().graded == again.graded
    assert len(calls) == 1
    with pytest.raises(RunError, match="other settings"):
        BenchLog(path, {"seed": 1})


def test_a_log_that_a_power_cut_has_emptied_is_begun_anew(tmp_path):
    path = tmp_path / "bench.rows"
    path.touch()
    with BenchLog(path, {"seed": 1}) as log:
        assert log.rows == {}
    assert path.read_text(encoding="utf-8") == '{"seed": 1}\n'


def test_two_benches_do_not_write_to_one_file(tmp_path):
    path = tmp_path / "bench.rows"
    with BenchLog(path, {}) as log:
        with pytest.raises(RunError, match="another bench writes to it"):
            BenchLog(path, {})
        log.remove()
    assert not path.exists()
    path.write_text('{}\n{"program": 3}\n', encoding="utf-8")
    with pytest.raises(RunError, match="no rows of a bench"):
        BenchLog(path, {})
    assert path.exists()
