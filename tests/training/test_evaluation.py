"""Evaluating: every number again by another way; references as they stand in the files."""

import gzip
import math
from dataclasses import replace

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.errors import DataError, OptionError
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.evaluation import EvaluationOptions, evaluate
from clearhead.training.tasks.generate import windows
from tests.training.small_runs import CONTEXT, labelled, pairs, sentences, write_lines

ODD = [("🙂 eins", "?1"), ("  zwei  ", " 2 "), ("vier " * 12, "4" * 40), ("eins zwei", "12.")]


def aligned(folder, rows):
    files = [write_lines(folder / name, [row[i] for row in rows]) for i, name in enumerate(("a", "b"))]
    return Aligned(source=(files[0],), target=(files[1],))


def table(folder, rows):
    path = write_lines(folder / "t.tsv", ["\t".join(row) for row in [("text", "label"), *rows]])
    return Table(paths=(path,), columns=("text", "label"), fields=("text", "label"))


@pytest.mark.parametrize(("tokenize", "lower"), [("13a", False), ("none", True), ("char", False)])
def test_bleu_and_chrf_are_sacrebleus_on_the_two_files(translator, tmp_path, tokenize, lower):
    source = aligned(tmp_path, [*pairs(20, seed=5), *ODD])
    how = EvaluationOptions(beam=2, tokenize=tokenize, lower=lower)
    found = evaluate(translator, source, how, output=tmp_path / "out")
    outputs, references = (read_as_sacrebleu(path) for path in (tmp_path / "out", source.target[0]))
    bleu = sacrebleu.metrics.BLEU(tokenize=tokenize, lowercase=lower, force=True)
    chrf = sacrebleu.metrics.CHRF(lowercase=lower)
    assert found["bleu"] == pytest.approx(bleu.corpus_score(outputs, [references]).score, abs=1e-9)
    assert found["chrf"] == pytest.approx(chrf.corpus_score(outputs, [references]).score, abs=1e-9)
    assert found["bleu_signature"] == str(bleu.get_signature())
    same = [out == reference.strip() for out, reference in zip(outputs, references, strict=True)]
    assert found["exact_match"] == sum(same) / len(same)
    assert (found["n"], found["beam"], found["output"]) == (24, 2, str(tmp_path / "out"))
    assert found["cut"] == 1
    assert found["chrf"] > 0


def read_as_sacrebleu(path):
    """As its command line does: universal ends of line, white space off the end."""
    with open(path, encoding="utf-8") as file:
        return [line.rstrip() for line in file]


@pytest.mark.slow
def test_the_outputs_are_the_translations_of_the_raw_lines(translator, tmp_path):
    rows = [*pairs(8, seed=6), *ODD]
    evaluate(translator, aligned(tmp_path, rows), EvaluationOptions(beam=3), output=tmp_path / "out")
    written = (tmp_path / "out").read_text(encoding="utf-8").split("\n")
    assert written == [*translator.translate([source for source, _ in rows], beam=3), ""]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


def test_the_loss_of_translations_is_that_of_teacher_forcing(translator, tmp_path):
    rows = pairs(15, seed=7)
    found = evaluate(translator, aligned(tmp_path, rows), EvaluationOptions(beam=1))
    source, target = (translator.task.tokenizers[name] for name in ("source", "target"))
    told = ch.score(
        translator.model,
        [[*source.encode(one), source.end] for one, _ in rows],
        [[*target.encode(other), target.end] for _, other in rows],
        prefix=[[target.start]],
    )
    tokens = sum(len(one.log_probs) for one in told)
    assert found["tokens"] == tokens
    assert found["loss"] == pytest.approx(-sum(one.total for one in told) / tokens, abs=1e-4)


def forced(run, text, *, opened):
    """Nats of every token of a text that fits the context, the first of them after an end token."""
    ids, end = run.tokenizer.encode(text), run.tokenizer.end
    if opened:
        [told] = ch.score(run.model, [[end]], [ids])
        return [-nats for nats in told.log_probs]
    [first], [rest] = ch.score(run.model, [[end]], [ids[:1]]), ch.score(run.model, [ids[:1]], [ids[1:]])
    return [-nats for nats in (*first.log_probs, *rest.log_probs)]


def test_bits_per_byte_of_documents_by_hand(documents, tmp_path):
    lines = ["the cat eats", "größer 😀", "", "the plum, the cow"]
    source = Documents(paths=(write_lines(tmp_path / "t", lines),), unit="line")
    found = evaluate(documents, source)
    nats = [one for line in lines if line for one in forced(documents, line, opened=True)]
    n_bytes = sum(len(line.encode()) for line in lines)
    assert (found["n"], found["tokens"], found["bytes"]) == (3, len(nats), n_bytes)
    assert found["loss"] == pytest.approx(sum(nats) / len(nats), abs=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / n_bytes, abs=1e-4)


@pytest.mark.parametrize("stride", [None, 1, 7])
def test_a_long_text_is_scored_once_in_windows(stretch, tmp_path, stride):
    text = "\n".join(sentences(4, seed=3))
    (tmp_path / "t").write_text(text, encoding="utf-8")
    found = evaluate(stretch, Documents(paths=(str(tmp_path / "t"),)), EvaluationOptions(stride=stride))
    ids = stretch.tokenizer.encode(text)
    assert found["tokens"] == found["bytes"] == len(ids) == len(text.encode())
    nats = forced(stretch, text[: CONTEXT - 2], opened=False)  # ö and ß are two bytes each: the context is not passed
    for place in range(len(nats), len(ids)):
        [told] = ch.score(stretch.model, [ids[first_seen(place, stride or CONTEXT) : place]], [[ids[place]]])
        nats.append(-told.total)
    assert found["loss"] == pytest.approx(sum(nats) / len(nats), abs=1e-4)
    assert found["bits_per_byte"] == pytest.approx(sum(nats) / len(nats) / math.log(2), abs=1e-4)


def first_seen(place, stride):
    """Where the window begins in which a place is new: the first has a context, each later one `stride` more."""
    return 0 if place <= CONTEXT else stride * -(-(place - CONTEXT) // stride)


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=3), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
)
def test_windows_ask_for_every_id_once(shapes, context, stride, opened):
    stride = min(stride, context)
    end, n = -1, 0
    pieces, expected = [], []
    for shape in shapes:
        document = list(range(n, n + sum(shape)))
        n += len(document)
        expected += document
        for i, size in enumerate(shape):
            pieces.append((document[sum(shape[:i]) : sum(shape[:i]) + size], i == len(shape) - 1))
    made = list(windows(pieces, [end], context=context, stride=stride, opened=opened))
    assert [token for window in made for token in window.ids[-window.new :]] == expected
    assert all(len(window.ids) <= context + 1 and window.new < len(window.ids) for window in made)
    assert all(
        window.ids == list(range(window.ids[1] - 1, window.ids[-1] + 1)) for window in made if -1 not in window.ids
    )
    assert all(-1 not in window.ids[1:] for window in made)


def test_a_narrow_stride_sees_more_and_is_better(stretch, tmp_path):
    source = Documents(paths=(write_lines(tmp_path / "t", sentences(10, seed=9)),))
    wide, narrow = (evaluate(stretch, source, EvaluationOptions(stride=stride)) for stride in (None, 4))
    assert narrow["loss"] < wide["loss"]
    assert (wide["stride"], narrow["stride"]) == (CONTEXT, 4)


def test_blanks_are_the_same_each_time_and_accuracy_counts_them(filler, tmp_path):
    source = Documents(paths=(write_lines(tmp_path / "t", sentences(30, seed=9)),), unit="line")
    found, again = evaluate(filler, source), evaluate(filler, source)
    assert {name: found[name] for name in ("loss", "accuracy", "blanks")} == {
        name: again[name] for name in ("loss", "accuracy", "blanks")
    }
    assert found["n"] == 30
    assert 30 <= found["blanks"] < found["tokens"]
    assert 0 < found["accuracy"] < 1
    assert found["accuracy"] * found["blanks"] == pytest.approx(round(found["accuracy"] * found["blanks"]))
    assert found["loss"] < math.log(filler.tokenizer.vocabulary)


def test_class_scores_are_those_of_the_answers(classifier, tmp_path):
    rows = [*labelled(30, seed=8), ("red cat", "fruit"), ("old old plum", "beast"), ("blue whale", "beast")]
    found = evaluate(classifier, table(tmp_path, rows), output=tmp_path / "labels")
    answers = classifier.classify([text for text, _ in rows])
    named = [one.label for one in answers]
    truths = [label for _, label in rows]
    right = [answer == truth for answer, truth in zip(named, truths, strict=True)]
    assert found["accuracy"] == sum(right) / len(right) < 1
    assert found["labels"] == ["beast", "fruit"]
    pairs_of = list(zip(truths, named, strict=True))
    assert found["confusion"] == [
        [pairs_of.count((truth, one)) for one in found["labels"]] for truth in found["labels"]
    ]
    for label in found["labels"]:
        hit = pairs_of.count((label, label))
        precision, recall = hit / named.count(label), hit / truths.count(label)
        assert found["f1"][label] == pytest.approx(2 * precision * recall / (precision + recall))
    assert found["macro_f1"] == pytest.approx(sum(found["f1"].values()) / 2)
    lost = [-math.log(one.probabilities[truth]) for one, truth in zip(answers, truths, strict=True)]
    assert found["loss"] == pytest.approx(sum(lost) / len(lost), abs=1e-6)
    assert (tmp_path / "labels").read_text(encoding="utf-8").split() == named


def test_what_it_was_made_of_is_told(classifier, tmp_path):
    found = evaluate(classifier, table(tmp_path, labelled(3)))
    assert found["run"] == str(classifier.folder.path)
    assert (found["task"], found["step"], found["n"], found["skipped"]) == ("classify", 60, 3, {})
    assert found["files"] == [str(tmp_path / "t.tsv")]
    assert found["parameters"] == sum(one.numel() for one in classifier.model.parameters())
    assert found["seconds"] >= 0
    assert found["sentences_per_second"] > 0


def test_bad_records_are_told_or_left_out(classifier, translator, tmp_path):
    source = table(tmp_path, [("red cat", "beast"), ("red cat", "fish"), ("old plum", "fruit")])
    with pytest.raises(DataError, match=r"t.tsv:3: the label 'fish' never occurs in the training files"):
        evaluate(classifier, source)
    found = evaluate(classifier, source, EvaluationOptions(skip_bad=True))
    assert (found["n"], found["skipped"]) == (2, {"unknown label": 1})
    blank = aligned(tmp_path, [("eins", "1"), ("", "2"), ("zwei", "2")])
    with pytest.raises(DataError, match="a:2: the line is empty"):
        evaluate(translator, blank)
    found = evaluate(translator, blank, EvaluationOptions(skip_bad=True), output=tmp_path / "out")
    assert found["n"] == len((tmp_path / "out").read_text().splitlines()) == 2


def test_gzipped_files_of_any_form_will_do(translator, tmp_path):
    rows = pairs(4, seed=3)
    with gzip.open(tmp_path / "t.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(f'{{"a": "{one}", "b": "{other}"}}\n' for one, other in rows)
    source = Table(paths=(str(tmp_path / "t.jsonl.gz"),), columns=("a", "b"), fields=("source", "target"))
    plain = evaluate(translator, aligned(tmp_path, rows))
    found = evaluate(translator, source)
    assert (found["loss"], found["chrf"]) == (pytest.approx(plain["loss"]), plain["chrf"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"beam": 0}, "beam must be 1 or more; came 0"),
        ({"tokenize": "words"}, "tokenize: there is no 'words'; there are 13a, char, intl, none, zh"),
    ],
)
def test_options_that_cannot_be(how, message):
    with pytest.raises(OptionError, match=message):
        replace(EvaluationOptions(), **how)


def test_what_does_not_fit_the_run_is_refused(documents, translator, tmp_path):
    text = Documents(paths=(write_lines(tmp_path / "t", ["the cat"]),))
    with pytest.raises(OptionError, match="evaluated on records of source and target; these have text"):
        evaluate(translator, text)
    with pytest.raises(OptionError, match="stride: between 1 and the model's context, 32, tokens; came 33"):
        evaluate(documents, text, EvaluationOptions(stride=33))
    with pytest.raises(OptionError, match="to generate is scored without outputs"):
        evaluate(documents, text, output=tmp_path / "out")
    with pytest.raises(OptionError, match="there is no folder"):
        evaluate(translator, aligned(tmp_path, pairs(2)), output=tmp_path / "none" / "out")
    with pytest.raises(OptionError, match="it is a folder"):
        evaluate(translator, aligned(tmp_path, pairs(2)), output=tmp_path)
