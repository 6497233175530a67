"""`clearhead evaluate`: the options, the page and the JSON object. The numbers are tested with the module's."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from clearhead.cli import run
from clearhead.text.sources import Aligned
from tests.training.small_runs import labelled, pairs, sentences, write_lines


@pytest.fixture
def command(capsys, monkeypatch, plain_terminal):
    def ran(loaded, *args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(["evaluate", str(loaded.folder.path), *map(str, args)])
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def files(tmp_path):
    rows = pairs(6, seed=9)
    return [write_lines(tmp_path / name, [row[i] for row in rows]) for i, name in enumerate(("a", "b"))]


def test_json_holds_what_the_module_finds(translator, command, files, tmp_path):
    args = ["--source", files[0], "--target", files[1], "--beam", "2", "--length-penalty", "0.5", "--tokenize", "char"]
    code, out, err = command(translator, *args, "--ignore-case", "--output", tmp_path / "out", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    source = Aligned(source=(files[0],), target=(files[1],))
    expected = translator.evaluate(source, beam=2, length_penalty=0.5, tokenize="char", lower=True)
    timed = ("seconds", "sentences_per_second", "output")
    assert {name: found[name] for name in expected if name not in timed} == {
        name: value for name, value in expected.items() if name not in timed
    }
    assert found["output"] == str(tmp_path / "out")
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == 6


def test_the_output_is_never_an_input_nor_a_file_of_the_run(translator, command, files):
    home = translator.folder.path
    kept = {Path(name): Path(name).read_bytes() for name in (*files, home / "recipe.json")}
    for output in (*kept, home / "checkpoints" / "x"):
        code, out, err = command(translator, "--source", files[0], "--target", files[1], "--output", output)
        assert (code, out) == (2, "")
        assert "name another file" in err
    assert {path: path.read_bytes() for path in kept} == kept
    assert not (home / "checkpoints" / "x").exists()


def test_the_page_has_the_scores_and_sacrebleus_signature(translator, command, files):
    code, out, err = command(translator, "--source", files[0], "--target", files[1])
    assert (code, err) == (0, "")
    found = translator.evaluate(Aligned(source=(files[0],), target=(files[1],)))
    assert f"BLEU                  {found['bleu']:.4f}\n" in out
    assert f"exact match           {found['exact_match']:.4f}\n" in out
    assert found["bleu_signature"] in out
    assert found["chrf_signature"] in out
    assert "\x1b" not in out


def test_short_and_long_sources_are_scored_apart(translator, command, tmp_path):
    """One short record among many long ones hardly moves the mean, and has a row of its own."""
    rows = [("a", "nothing like it"), *pairs(6, seed=9)]
    files = [write_lines(tmp_path / name, [row[i] for row in rows]) for i, name in enumerate(("a", "b"))]
    found = translator.evaluate(Aligned(source=(files[0],), target=(files[1],)))["by_length"]
    lengths = sorted({1 << (len(source) - 1).bit_length() for source, _ in rows})
    assert [row["up_to"] for row in found] == lengths
    assert sum(row["n"] for row in found) == len(rows)
    assert (found[0]["up_to"], found[0]["n"], found[0]["exact_match"]) == (1, 1, 0.0)
    _, out, _ = command(translator, "--source", files[0], "--target", files[1])
    assert re.search(r"characters of source +records +exact match +chrF\n  up to 1 +1 +0\.0 %", out)


def test_the_weights_that_were_scored_are_named(classifier, command, tmp_path):
    path = write_lines(tmp_path / "t.tsv", ["\t".join(row) for row in [("text", "label"), *labelled(6, seed=3)]])
    for name in ("float32", "bfloat16", "int8", "int8-dynamic"):
        assert json.loads(command(classifier, "--table", path, "--dtype", name, "--json")[1])["dtype"] == name
    assert json.loads(command(classifier, "--table", path, "--json")[1])["dtype"] == "float32"
    assert "int8-dynamic\n" in command(classifier, "--table", path, "--dtype", "int8-dynamic")[1]


@pytest.mark.slow
def test_stdin_can_be_one_side(translator, command, files):
    with open(files[0], "rb") as file:
        typed = file.read()
    plain = command(translator, "--source", files[0], "--target", files[1], "--json")
    piped = command(translator, "--source", "-", "--target", files[1], "--json", stdin=typed)
    for name in ("bleu", "chrf", "loss", "n"):
        assert json.loads(piped[1])[name] == json.loads(plain[1])[name]


def test_text_by_documents_and_with_a_stride(documents, command, tmp_path):
    path = write_lines(tmp_path / "t", sentences(5, seed=2))
    as_file = json.loads(command(documents, "--text", path, "--json")[1])
    as_lines = json.loads(command(documents, "--text", path, "--documents", "line", "--stride", "4", "--json")[1])
    assert (as_file["n"], as_lines["n"]) == (1, 5)
    assert as_file["bytes"] == as_lines["bytes"] + 5
    assert as_lines["stride"] == 4
    code, out, _ = command(documents, "--text", path)
    assert code == 0
    for title in ("perplexity", "bits per byte", "tokens a second"):
        assert title in out


def test_blanks_and_classes_have_their_scores(filler, classifier, command, tmp_path):
    path = write_lines(tmp_path / "t", sentences(5, seed=2))
    shown = command(filler, "--text", path)[1]
    assert re.search(r"accuracy +0\.\d{4}\n  always the commonest +0\.\d{4}\n", shown)
    rows = ["\t".join(row) for row in [("what", "is"), *labelled(9, seed=2), ("red cat", "fruit")]]
    table = write_lines(tmp_path / "t.tsv", rows)
    code, out, _ = command(classifier, "--table", table, "--columns", "what,is")
    assert code == 0
    found = json.loads(command(classifier, "--table", table, "--columns", "what,is", "--json")[1])
    assert f"macro F1              {found['macro_f1']:.4f}\n" in out
    for name, row in zip(found["labels"], found["confusion"], strict=True):
        assert f"  {name:<22}{sum(row):>8}{found['f1'][name]:>8.4f}  {row[0]:>7} {row[1]:>7}\n" in out
    one = write_lines(tmp_path / "one.tsv", ["what\tis", "red cat\tbeast", "old dog\tbeast"])
    out = command(classifier, "--table", one, "--columns", "what,is")[1]
    assert re.search(r"fruit +0 +–", out), "no F1 of a label that is not there"
    assert "All records have the same label: accuracy says nothing about the others." in out


def test_bad_lines_are_told_by_their_place_or_left_out(translator, command, tmp_path):
    one, other = write_lines(tmp_path / "a", ["eins", "", "zwei"]), write_lines(tmp_path / "b", ["1", "2", "2"])
    code, out, err = command(translator, "--source", one, "--target", other)
    assert (code, out) == (1, "")
    assert "a:2: the line is empty" in err
    code, out, _ = command(translator, "--source", one, "--target", other, "--skip-bad")
    assert code == 0
    assert "Left out: 1 empty line." in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "translate takes --source with --target or --table"),
        (["--text", "t"], "--text: translate takes --source with --target or --table"),
        (["--source", "t"], "Missing option --target: --source needs its other side"),
        (["--source", "t", "--target", "t", "--stride", "3"], "--stride: is for generate"),
        (["--source", "t", "--target", "t", "--tokenize", "words"], "--tokenize: there is no 'words'; there are 13a"),
    ],
)
def test_what_is_asked_wrongly_is_told(translator, command, args, said):
    code, out, err = command(translator, *args)
    assert (code, out) == (2, "")
    assert said in err
