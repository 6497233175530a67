"""`clearhead classify --pairs`, and a pair in `embed` and `trace`: two texts with a tab between."""

import json

import numpy as np
import pytest

import clearhead as ch
from clearhead.interop.run import import_model
from tests.interop import saved_models

PAIRS = [("the cat sat", "on the mat"), ("a window", "Der Hund")]
LINES = "".join(f"{first}\t{second}\n" for first, second in PAIRS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("imported")
    saved_models.save("classifier", home / "source")
    return import_model(home / "source", home / "run", device="cpu")


@pytest.fixture(scope="module")
def of_pairs(run):
    home = run.folder.path.parent
    return import_model(home / "source", home / "pairs", task="classify-pairs", device="cpu")


def test_lines_of_two_texts_are_classified(run, of_pairs, command):
    expected = run.classify(PAIRS)
    code, out, err = command("classify", run.folder.path, "--pairs", "--json", stdin=LINES)
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["output"] for one in found] == [one.label for one in expected]
    for line, one in zip(found, expected, strict=True):
        assert line["probabilities"] == pytest.approx(one.probabilities, abs=1e-6)
    alone = command("classify", run.folder.path, "--json", stdin=LINES)[1]
    assert alone != out  # without the option a tab is part of one text
    for option in ((), ("--pairs",)):  # a run whose task is pairs needs no option
        assert command("classify", of_pairs.folder.path, "--json", *option, stdin=LINES)[1] == out


def test_lines_of_two_texts_are_embedded(run, command, tmp_path):
    code, out, _ = command("embed", run.folder.path, "--pairs", stdin=LINES)
    assert code == 0
    expected = run.embed(PAIRS)
    assert np.allclose([json.loads(line) for line in out.splitlines()], expected, atol=1e-6)
    command("embed", run.folder.path, "--pairs", "--output", tmp_path / "v.npy", stdin=LINES)
    assert np.allclose(np.load(tmp_path / "v.npy", allow_pickle=False), expected, atol=1e-6)


def test_a_pair_is_traced(run, of_pairs, command):
    text = "\t".join(PAIRS[0])
    code, out, err = command("trace", run.folder.path, text, "--pairs", "--json")
    assert (code, err) == (0, "")
    tokens = json.loads(out)["sides"]["encoder"]["tokens"]
    assert tokens.count("[SEP]") == 2
    assert tokens == ch.trace(run, PAIRS[0]).sides["encoder"].tokens
    assert json.loads(command("trace", of_pairs.folder.path, text, "--json")[1])["sides"]["encoder"]["tokens"] == tokens


def test_a_line_that_is_no_pair_has_a_blank_answer_and_is_told_by_its_number(run, of_pairs, command, tmp_path):
    odd = LINES + "no tab here\n\na\tb\tc\n" + LINES
    right = command("classify", run.folder.path, "--pairs", stdin=LINES)[1]
    for given in (("classify", run, "--pairs"), ("classify", of_pairs), ("answer", of_pairs)):
        code, out, err = command(given[0], given[1].folder.path, *given[2:], stdin=odd)
        assert (code, out) == (0, f"{right}\n\n\n{right}")
        assert [line.partition(": ")[0] for line in err.splitlines()] == ["stdin:3", "stdin:5"]
        assert "expected two texts with one tab between; came 'no tab here'), so its answer is blank" in err
    code, out, err = command("embed", run.folder.path, "--pairs", "--output", tmp_path / "v.npy", stdin=odd)
    assert (code, len(err.splitlines())) == (0, 2)
    assert np.load(tmp_path / "v.npy", allow_pickle=False).any(1).tolist() == [
        True,
        True,
        False,
        False,
        False,
        True,
        True,
    ]


def test_pairs_are_scored_by_the_task_of_pairs(of_pairs, command, tmp_path):
    lines = ["first\tsecond\tlabel", *(f"{first}\t{second}\tcat" for first, second in PAIRS)]
    (tmp_path / "test.tsv").write_text("\n".join(lines))
    code, out, err = command("evaluate", of_pairs.folder.path, "--table", tmp_path / "test.tsv", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["n"] == 2
