"""`clearhead translate`, `generate`, `classify` and `fill`: one line out for each line in, whatever comes in."""

import gzip
import importlib
import json
import math
import os
import sys

import pytest

from clearhead.cli import line_io
from clearhead.decoding import Greedy, Sample
from clearhead.experiments.tracing import align
from clearhead.training.run import load
from tests.training import small_runs
from tests.training.small_runs import CONTEXT, trained

ODD = ["eins", "", "  ", "zwei drei", "🙂 vier", "eins " * 50, "vier\ufeff", "\u2028", "null", "eins\tzwei"]
VERBS = {
    "translate": small_runs.translating,
    "generate": small_runs.documents,
    "classify": small_runs.classifying,
    "fill": small_runs.filling,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs by verb, and `stretch`, which writes one long text in bytes."""
    found = {verb: trained(kind, tmp_path_factory) for verb, kind in VERBS.items()}
    return found | {"stretch": trained(small_runs.stretch, tmp_path_factory)}


def lines_of(text):
    assert text.endswith("\n")
    return text.removesuffix("\n").split("\n")


def written(lines, end="\n"):
    return "".join(f"{line}{end}" for line in lines).encode()


@pytest.mark.slow
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "generate"])
def test_answer_serves_any_task_as_its_own_verb_does(runs, command, verb):
    path, lines = runs[verb].folder.path, written(["the cat eats the <mask>", "", "eins", "eins " * 50])
    assert command("answer", path, stdin=lines) == command(verb, path, stdin=lines)
    assert command("answer", path, "--json", stdin=lines) == command(verb, path, "--json", stdin=lines)


def test_answer_continues_a_line_the_same_whatever_is_beside_it(runs, command):
    path = runs["generate"].folder.path
    _, out, _ = command("answer", path, stdin=written(["the dog", "", "the cat"]))
    _, alone, _ = command("answer", path, stdin=written(["the cat"]))
    found = lines_of(out)
    assert found[1] == ""
    assert found[2] == lines_of(alone)[0] != ""


@pytest.mark.parametrize("dtype", ["int8", "int8-dynamic", "bfloat16"])
def test_weights_are_kept_as_asked(runs, command, dtype):
    path, lines = runs["translate"].folder.path, ["eins zwei", "", "drei"]
    code, out, err = command("translate", path, "--dtype", dtype, stdin=written(lines))
    assert (code, err) == (0, "")
    assert lines_of(out) == load(path, dtype=dtype).translate(lines)
    code, out, _ = command("generate", runs["generate"].folder.path, "--greedy", "--dtype", dtype, stdin=b"the cat\n")
    assert (code, lines_of(out) != [""]) == (0, True)


@pytest.mark.parametrize("verb", ["translate", "answer", "generate", "evaluate", "serve"])
def test_a_dtype_that_is_not_there_is_told(runs, command, verb):
    code, out, err = command(verb, runs["translate"].folder.path, "--dtype", "int4")
    assert (code, out) == (2, "")
    assert (
        "dtype: there is no 'int4'. Did you mean 'int8'? There are float32, bfloat16, int8, int8-dynamic"
        in " ".join(err.split())
    )
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_one_line_out_for_each_line_in_and_blank_for_blank(runs, command, verb, end):
    options = ["--max-tokens", "5"] if verb == "generate" else []
    code, out, _ = command(verb, runs[verb].folder.path, *options, stdin=written(ODD, end))
    found = lines_of(out)
    assert code == 0
    assert len(found) == len(ODD)
    assert [bool(line) for line in found if not line.strip()] == [False] * sum(not line.strip() for line in ODD)
    assert [i for i, line in enumerate(found) if line == ""] == [1, 2, 7]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.slow
def test_a_line_is_answered_the_same_alone_and_whatever_the_chunks_are(runs, command, verb, monkeypatch):
    lines = ["zwei drei", "red cat", "the <mask> eats", "eins", "old plum " * 3]
    options = ["--greedy", "--max-tokens", "6"] if verb == "generate" else []
    together = command(verb, runs[verb].folder.path, *options, stdin=written(lines))[1]
    monkeypatch.setattr(line_io, "CHUNK", 2)
    assert command(verb, runs[verb].folder.path, *options, stdin=written(lines))[1] == together
    alone = [command(verb, runs[verb].folder.path, *options, stdin=written([line]))[1] for line in lines]
    assert "".join(alone) == together


@pytest.mark.slow
def test_a_file_is_read_plain_gzipped_or_from_stdin_without_its_last_line_end(runs, command, tmp_path):
    text = b"eins zwei\r\ndrei"
    (tmp_path / "a").write_bytes(text)
    (tmp_path / "b").write_bytes(gzip.compress(text))
    path = runs["translate"].folder.path
    answers = [
        command("translate", path, tmp_path / "a"),
        command("translate", path, tmp_path / "b"),
        command("translate", path, "-", stdin=text),
    ]
    assert answers[0] == answers[1] == answers[2]
    assert lines_of(answers[0][1]) == runs["translate"].translate(["eins zwei", "drei"])


def test_a_pipe_that_pauses_gets_its_answer(monkeypatch):
    read, write = os.pipe()
    with open(read, encoding="utf-8") as stdin, open(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        pipe.write(b"eins\nzwei")
        chunks = line_io.read_chunks("-")
        assert [line.text for line in next(chunks)] == ["eins"]
        pipe.write(b"\n\ndrei\n")
        assert next(line.text for line in next(chunks)) == "zwei"
        pipe.close()
        assert [line.text for chunk in chunks for line in chunk][-1] == "drei"


def test_json_of_translations(runs, command):
    path, lines = runs["translate"].folder.path, ["eins zwei", "", "drei"]
    code, out, _ = command("translate", path, "--json", "--n-best", "3", "--beam", "4", stdin=written(lines))
    found = [json.loads(line) for line in lines_of(out)]
    assert code == 0
    assert [one["input"] for one in found] == lines
    assert found[1] == {"input": "", "output": ""}
    expected = runs["translate"].scored_translations(lines, beam=4, n_best=3)
    for one, best in zip(found[::2], expected[::2], strict=True):
        scores = [each["score"] for each in one["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert [each["output"] for each in one["n_best"]] == [each.text for each in best]
        assert {name: one[name] for name in ("output", "score", "log_prob")} == one["n_best"][0]


@pytest.mark.slow
def test_alignments_stand_line_by_line_in_a_file_of_their_own(runs, command, tmp_path):
    run, path, texts = runs["translate"], tmp_path / "out.align", ["eins zwei", "", "null drei vier"]
    options = ["--alignments", path, "--align-layer", "0", "--align-tokens"]
    code, out, _ = command("translate", run.folder.path, *options, stdin=written(texts))
    assert code == 0
    pairs = [*zip(texts, lines_of(out), strict=True)]
    made = ["" if not text else str(align(run, text, answer, layer=0, by="tokens")) for text, answer in pairs]
    assert lines_of(path.read_text()) == made
    code, _, err = command("translate", run.folder.path, "--align-head", "1", stdin=written(texts))
    assert code == 2
    assert "--alignments" in err


def test_several_translations_stand_on_one_line(runs, command):
    path, lines = runs["translate"].folder.path, ["eins zwei", "", "drei"]
    code, out, _ = command("translate", path, "--n-best", "2", stdin=written(lines))
    best = runs["translate"].translations(lines, n_best=2)
    assert code == 0
    assert lines_of(out) == ["\t".join(best[0]), "", "\t".join(best[2])]


def test_more_translations_than_the_beam_are_refused(runs, command):
    code, out, err = command("translate", runs["translate"].folder.path, "--n-best", "9")
    assert (code, out) == (2, "")
    assert "--n-best: it cannot be more than the beam, 5" in err


@pytest.mark.slow
def test_what_was_never_seen_is_told_once(runs, command):
    lines = ["🙂 eins", "Ω🙂", "eins"]
    code, out, err = command("translate", runs["translate"].folder.path, stdin=written(lines))
    assert (code, len(lines_of(out))) == (0, 3)
    assert err == "2 characters were never seen in training and were read as unknown: 🙂 Ω\n"
    _, _, err = command("classify", runs["classify"].folder.path, stdin=written(["blue cat"]))
    assert err == "1 word was never seen in training and was read as unknown: blue\n"
    assert command("translate", runs["translate"].folder.path, stdin=b"eins\n")[2] == ""
    assert command("fill", runs["fill"].folder.path, stdin=written(["🙂 <mask>"]))[2] == ""


def test_what_was_never_seen_is_told_so_that_it_can_be_read(runs, command):
    many = "".join(chr(place) for place in range(0x400, 0x450))
    _, _, err = command("translate", runs["translate"].folder.path, stdin=written([f"\x07{many}"]))
    assert err.count("\n") >= 1
    last = err.splitlines()[-1]
    assert last.startswith("81 characters were never seen")
    assert ": \\x07 Ѐ Ё" in last
    assert last.endswith(" …")


@pytest.mark.parametrize(("verb", "takes"), [("translate", CONTEXT - 1), ("classify", CONTEXT - 1)])
def test_a_line_that_is_cut_is_told_by_its_number(runs, command, tmp_path, verb, takes):
    (tmp_path / "in").write_bytes(written(["eins", "eins " * 40, "zwei"]))
    code, out, err = command(verb, runs[verb].folder.path, tmp_path / "in")
    tokens = len(runs[verb].tokenizer.encode("eins " * 40))
    assert (code, len(lines_of(out))) == (0, 3)
    expected = f"{tmp_path / 'in'}:2: {tokens} tokens, and the model takes {takes} of them: the rest was not read"
    assert err.splitlines()[0] == expected


def test_of_many_lines_that_are_cut_the_first_are_told(runs, command):
    _, out, err = command("translate", runs["translate"].folder.path, "--beam", "1", stdin=written(["eins " * 9] * 13))
    assert len(lines_of(out)) == 13
    assert [line.partition(" ")[0] for line in err.splitlines()] == [*(f"stdin:{n}:" for n in range(1, 11)), "and"]
    assert err.splitlines()[-1] == "and 3 more lines like these"


def test_a_line_that_cannot_be_read_has_a_blank_answer_and_is_told(runs, command):
    code, out, err = command("translate", runs["translate"].folder.path, stdin=b"eins\n\xff\nzwei\nnu\0ll\n")
    assert code == 0
    assert [bool(line) for line in lines_of(out)] == [True, False, True, False]
    assert err.splitlines() == [
        "stdin:2: the line cannot be read (invalid UTF-8), so its answer is blank",
        "stdin:4: the line cannot be read (NUL character), so its answer is blank",
    ]
    _, out, _ = command("translate", runs["translate"].folder.path, "--json", stdin=b"\xff\n")
    assert json.loads(out) == {"input": None, "output": ""}


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_of_another_task_is_refused(runs, command, verb):
    other = "generate" if verb != "generate" else "fill"
    code, out, err = command(verb, runs[other].folder.path, stdin=b"eins\n")
    assert (code, out) == (1, "")
    assert f"was trained to {other}, and was asked to {verb}; use `clearhead {other} " in err


def test_what_is_no_run_and_what_is_no_file_are_told(runs, command, tmp_path):
    code, out, err = command("translate", tmp_path)
    assert (code, out) == (1, "")
    assert "is not a run folder" in err
    code, out, err = command("translate", runs["translate"].folder.path, tmp_path / "none")
    assert (code, out) == (1, "")
    assert "none: there is no such file" in err


def test_labels_and_their_probabilities(runs, command):
    path, lines = runs["classify"].folder.path, ["red plum", "", "old cow"]
    expected = runs["classify"].classify([lines[0], lines[2]])
    assert command("classify", path, stdin=written(lines))[1] == "fruit\n\nbeast\n"
    found = lines_of(command("classify", path, "--probabilities", stdin=written(lines))[1])
    for line, one in zip(found[::2], expected, strict=True):
        label, *rest = line.split("\t")
        assert label == rest[0] == one.label
        assert {name: float(share) for name, share in zip(rest[::2], rest[1::2], strict=True)} == pytest.approx(
            one.probabilities, abs=1e-6
        )
        assert float(rest[1]) > float(rest[3])
    objects = [json.loads(line) for line in lines_of(command("classify", path, "--json", stdin=written(lines))[1])]
    assert [one["output"] for one in objects] == ["fruit", "", "beast"]
    assert objects[0]["score"] == pytest.approx(math.log(objects[0]["probability"]))
    assert objects[0]["probabilities"] == pytest.approx(expected[0].probabilities)


def test_blanks_are_filled_and_candidates_shown(runs, command):
    path = runs["fill"].folder.path
    lines = ["the cow <mask> the plum, größer", "nothing to fill", "the <mask> eats the <mask>"]
    filled = runs["fill"].fill([lines[0], lines[2]])
    assert lines_of(command("fill", path, stdin=written(lines))[1]) == [filled[0].text, lines[1], filled[1].text]
    found = lines_of(command("fill", path, "--top", "2", stdin=written(lines))[1])
    text, *blanks = found[2].split("\t")
    assert text == filled[1].text
    assert [blank.split(" ")[::2] for blank in blanks] == [[piece for piece, _ in one[:2]] for one in filled[1].blanks]
    assert found[1] == lines[1]
    objects = [json.loads(line) for line in lines_of(command("fill", path, "--json", stdin=written(lines))[1])]
    assert [len(one["blanks"]) for one in objects] == [1, 0, 2]
    assert objects[2]["score"] == pytest.approx(
        sum(math.log(blank[0]["probability"]) for blank in objects[2]["blanks"])
    )


def test_a_blank_past_the_context_stays_and_is_told(runs, command):
    text = "the <mask> eats" + " the plum" * CONTEXT + " <mask>"
    _, out, err = command("fill", runs["fill"].folder.path, stdin=written([text]))
    assert out.endswith(" the plum <mask>\n")
    assert err.startswith("stdin:1: ")
    assert f"and the model takes {CONTEXT - 2} of them: the rest was not read" in err


@pytest.mark.slow
def test_a_prompt_is_gone_on_from_as_it_is_written(runs, command):
    stretch = runs["stretch"]
    code, out, err = command(
        "generate", stretch.folder.path, "--prompt", "the cow", "--max-tokens", "100", "--seed", "5"
    )
    expected = stretch.generate(["the cow"], max_new=100, method=Sample(temperature=0.8, seeds=5))[0]
    assert (code, err) == (0, "")
    assert out == f"the cow{expected}\n"
    assert "\n" in expected
    _, out, _ = command("generate", stretch.folder.path, "--prompt", "", "--greedy", "--max-tokens", "9")
    assert out == stretch.generate([""], max_new=9, method=Greedy())[0] + "\n"


def test_a_prompt_is_printed_in_whole_characters(runs, command, monkeypatch):
    printed = []
    importlib.import_module("clearhead.cli.generate")  # or it would import, and keep, what stands in for `write` here
    monkeypatch.setattr("clearhead.cli.screen.write", printed.append)
    command(
        "generate",
        runs["stretch"].folder.path,
        "--prompt",
        "the cow eats the plum, gr",
        "--greedy",
        "--max-tokens",
        "9",
    )
    assert "".join(printed).startswith("the cow eats the plum, größer")
    assert "\ufffd" not in "".join(printed)
    assert len(printed) > 5
    assert "ö" in printed


def test_several_continuations_differ_and_the_same_seed_gives_the_same(runs, command):
    path = runs["generate"].folder.path
    args = ["generate", path, "--prompt", "the", "--temperature", "2", "--max-tokens", "8", "--seed", "4"]
    _, out, _ = command(*args, "--count", "3")
    texts = out.removesuffix("\n").split("\n---\n")
    assert len({*texts}) == 3
    assert all(text.startswith("the") for text in texts)
    assert command(*args, "--count", "3")[1] == out
    assert command(*args)[1] == texts[0] + "\n"
    found = json.loads(command(*args, "--count", "3", "--json")[1])
    assert [found["input"] + one["output"] for one in found["samples"]] == texts
    assert found["output"] == found["samples"][0]["output"]


def test_every_line_draws_from_its_own_seed(runs, command):
    path = runs["generate"].folder.path
    options = ["--temperature", "2", "--max-tokens", "6", "--top-k", "50", "--top-p", "0.99", "--min-p", "0.001"]
    _, out, _ = command("generate", path, *options, "--seed", "4", "--count", "2", stdin=written(["the", "", "the"]))
    found = lines_of(out)
    method = Sample(temperature=2.0, top_k=50, top_p=0.99, min_p=0.001, seeds=(4, 5, 8, 9))
    texts = runs["generate"].generate(["the"] * 4, max_new=6, method=method)
    assert found == ["\t".join(texts[:2]), "", "\t".join(texts[2:])]


def test_of_a_line_too_long_to_go_on_from_the_end_is_read(runs, command):
    line = "the cat eats the plum, größer " * 9
    _, out, err = command(
        "generate", runs["generate"].folder.path, "--greedy", "--max-tokens", "4", stdin=written([line])
    )
    assert len(lines_of(out)) == 1
    assert err.startswith("stdin:1: ")
    assert err.endswith("the model takes 28 of them: the beginning was not read\n")
    assert lines_of(out) == runs["generate"].generate([line], max_new=4, method=Greedy())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--greedy", "--temperature", "1"], "--temperature: is for drawing tokens, and --greedy draws none"),
        (["--prompt", "a", "file"], "--prompt: is instead of a file, and there is file"),
    ],
)
def test_options_that_do_not_go_together_are_told_before_anything_is_loaded(command, args, said, tmp_path):
    code, out, err = command("generate", tmp_path, *args)
    assert (code, out) == (2, "")
    assert said in err


def test_numbers_that_cannot_be_are_told(command, tmp_path):
    code, out, err = command("generate", tmp_path, "--temperature", "0")
    assert (code, out) == (1, "")
    assert "temperature must be above 0 and finite; came 0.0" in err


@pytest.mark.parametrize("verb", [*VERBS, "evaluate"])
def test_help_has_examples_and_fits_the_page(command, verb):
    code, out, err = command(verb, "--help")
    assert (code, err) == (0, "")
    assert f"\n    clearhead {verb} " in out[out.index("Examples") :]
    assert max(len(line) for line in out.splitlines()) <= 80
