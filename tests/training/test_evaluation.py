"""Evaluating: every number again by another way; references as they stand in the files; the validation set."""

import gzip
import math
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import clearhead as ch
from clearhead.errors import DataError, OptionError
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.evaluation import EvaluationOptions, ValidationSet, assess, evaluate
from clearhead.training.losses import NOTHING
from clearhead.training.scores import FEWEST_BATCHES, score_translations
from clearhead.training.tasks import Classify, Fill, Translate
from clearhead.training.tasks.base import loss_of
from clearhead.training.tasks.fill import with_blank
from clearhead.training.tasks.generate import windows
from tests.training import small_runs
from tests.training.small_runs import CONTEXT, labelled, pairs, sentences, trained, write_lines
from tests.training.tiny import recipe_for, work_on

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


KINDS = [
    small_runs.translating,
    small_runs.documents,
    small_runs.stretch,
    small_runs.filling,
    small_runs.classifying,
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture(scope="module")
def of(tmp_path_factory):
    """A run that is good for something, and records that it has not seen."""

    def found(kind, **how):
        run = trained(kind, tmp_path_factory)
        folder = tmp_path_factory.getbasetemp() / "validation"
        work = work_on(recipe_for(kind, folder / kind.__name__), folder)
        how = {"tokens": 256, "score_records": 4, "samples": 2} | how
        return run, ValidationSet(store=work.prepared.dev, **how)

    return found


def by_hand(run, held):
    """Nats, places, right answers and the commonest target, by torch's own cross-entropy, one record at a time."""
    nats, right, targets = 0.0, 0, []
    for rows in run.task.planner(held.store, 1, 0).in_order():
        batch = run.task.read(held.store, rows, np.random.default_rng(0), filled=False)
        with torch.no_grad():
            logits, wanted = run.task.logits(run.model, batch).flatten(0, -2), batch["wanted"].flatten()
        nats += F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum").item()
        targets.append(wanted[wanted != NOTHING])
        right += int((logits.argmax(-1) == wanted).sum())
    targets = torch.cat(targets)
    return nats, len(targets), right, int(targets.unique(return_counts=True)[1].max())


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind is not small_runs.filling], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("tokens", [1, 100, 100_000])
def test_the_loss_does_not_depend_on_the_batches(kind, tokens, of):
    """Of blanks it does: which ones there are is drawn batch by batch."""
    run, held = of(kind, tokens=tokens)
    nats, places, right, commonest, *_ = loss_of(run.model, run.task, held)
    expected = by_hand(run, held)
    assert nats == pytest.approx(expected[0], rel=1e-5)
    assert (places, right, commonest) == expected[1:]


@kinds
def test_an_assessment_is_whole(kind, of):
    run, held = of(kind)
    found = assess(run.model, run.task, held)
    nats, places, right, _, classes, *_ = loss_of(run.model, run.task, held)
    assert (found.loss, found.places) == (nats / places, places)
    if run.task.name in ("fill", "classify"):
        assert found.scores == {"accuracy": right / places, **classes}
        assert set(classes) == ({"macro_f1", "labels_asked"} if run.task.name == "classify" else set())
    assert len(found.samples) == 2
    assert all(isinstance(text, str) for sample in found.samples for text in sample.values())


@kinds
def test_the_same_twice_and_the_model_as_it_was(kind, of):
    run, held = of(kind)
    run.model.train()
    before = {name: one.clone() for name, one in run.model.state_dict().items()}
    first = assess(run.model, run.task, held)
    torch.manual_seed(99)
    assert assess(run.model, run.task, held) == first
    assert run.model.training
    assert all(torch.equal(one, before[name]) for name, one in run.model.state_dict().items())


def test_translations_are_scored_as_they_read(of):
    run, held = of(small_runs.translating, score_records=100, samples=100)
    found = assess(run.model, run.task, held)
    assert len(found.samples) == len(held.store) == 20
    outputs, references = ([sample[key] for sample in found.samples] for key in ("output", "reference"))
    scores = score_translations(outputs, references)
    assert found.scores == {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}
    said = [" ".join(small_runs.DIGITS[int(digit)] for digit in reference) for reference in references]
    assert [sample["input"] for sample in found.samples] == said
    assert run.translate(said, beam=1) == outputs


@kinds
def test_a_sample_is_some_of_the_batches_and_tells_how_sure_it_is(kind, of):
    """All batches as a sample are all; without one of them the loss is about the same."""
    run, held = of(kind, tokens=16)
    total = loss_of(run.model, run.task, held)
    assert total.batches > 2
    assert loss_of(run.model, run.task, replace(held, sample=total.batches)) == total
    some = loss_of(run.model, run.task, replace(held, sample=total.batches - 1))
    assert (some.batches, some.places < total.places) == (total.batches - 1, True)
    assert some.nats / some.places == pytest.approx(total.nats / total.places, abs=3 * total.standard_error + 0.01)
    assert loss_of(run.model, run.task, replace(held, sample=1)).standard_error is None


@kinds
def test_at_its_deadline_an_evaluation_has_read_the_fewest_batches_that_tell_something(kind, of):
    """What was read is the beginning of the same sample, so that a sample of as many batches has the same loss."""
    run, held = of(kind, tokens=2)
    whole = loss_of(run.model, run.task, held)
    cut = loss_of(run.model, run.task, replace(held, deadline=0.0))
    assert cut.batches == min(FEWEST_BATCHES, whole.batches)
    if cut.batches < whole.batches:
        assert cut == loss_of(run.model, run.task, replace(held, sample=cut.batches))
    scored = assess(run.model, run.task, replace(held, sample=whole.batches, deadline=0.0, score_records=10))
    assert scored.batches == cut.batches


def test_without_records_to_score_there_are_no_scores(of):
    run, held = of(small_runs.translating, score_records=0)
    found = assess(run.model, run.task, held)
    assert (found.scores, found.samples) == ({}, [])


@kinds
def test_without_samples_there_are_none(kind, of):
    run, held = of(kind, samples=0)
    assert assess(run.model, run.task, held).samples == []


@kinds
@pytest.mark.slow
def test_no_sample_comes_twice(kind, of):
    run, held = of(kind, samples=10_000, score_records=10_000)
    samples = assess(run.model, run.task, held).samples
    assert len(samples) <= (held.store.sizes["text"].tokens if kind is small_runs.stretch else 10_000)
    if run.task.name != "generate":
        assert len(samples) == len(held.store)


def test_classes_are_samples_with_their_labels(of):
    run, held = of(small_runs.classifying, samples=15)
    for sample in assess(run.model, run.task, held).samples:
        thing = sample["input"].split()[1]
        assert sample["reference"] == ("fruit" if thing in small_runs.FRUIT else "beast")
        assert sample["output"] == run.classify([sample["input"]])[0].label


def test_blanks_keep_the_spaces_around_them(of):
    run, held = of(small_runs.filling, samples=10)
    for sample in assess(run.model, run.task, held).samples:
        before, after = sample["input"].split("<mask>")
        assert sample["reference"].startswith(before)
        assert sample["reference"].endswith(after)
        assert sample["output"].startswith(before)
        assert sample["output"].endswith(after)


@pytest.mark.parametrize("kind", [small_runs.filling, small_runs.documents], ids=["bpe", "metaspace"])
def test_a_blank_stands_for_a_word_near_the_middle(kind, of):
    tokenizer = of(kind)[0].tokenizer
    for text in ("the cow eats the plum, größer", "the dog", "dog", "plum, größer"):
        row = tokenizer.encode(text)
        middle = len(row) // 2
        shown = with_blank(tokenizer, row)
        assert shown.count("<mask>") == 1
        near = [row[place] for place in (middle, middle - 1, middle + 1) if 0 <= place < len(row)]
        word = next(piece for token in near if (piece := tokenizer.decode([token]).strip()).isalnum())
        assert shown.replace("<mask>", word) == text


def test_a_blank_never_stands_for_a_space_or_a_sign():
    tokenizer = Tokenizer.train(["abc def", "a, b"], kind="char")
    assert with_blank(tokenizer, tokenizer.encode("abc def")) == "ab<mask> def"
    assert with_blank(tokenizer, tokenizer.encode(", b")) == ", <mask>"
    assert with_blank(tokenizer, tokenizer.encode(", ,")) == ",<mask>,"


def test_a_continuation_begins_with_its_space(of):
    run, held = of(small_runs.documents, samples=8)
    samples = assess(run.model, run.task, held).samples
    assert any(sample["output"].startswith(" ") for sample in samples)


@pytest.mark.parametrize(
    ("task", "scores", "expected"),
    [
        (Translate, {"bleu": 3.0, "chrf": 20.0, "exact_match": 0.1}, 20.0),
        (Translate, {"bleu": 3.0}, -2.5),
        (Classify, {"accuracy": 0.7}, 0.7),
        (Classify, {}, -2.5),
        (Fill, {"accuracy": 0.7}, -2.5),
    ],
)
def test_the_goal(task, scores, expected):
    assert task(tokenizers={}, context=8).goal(scores, 2.5) == expected


def test_bfloat16_is_close(of):
    run, held = of(small_runs.stretch)
    plain = loss_of(run.model, run.task, held)
    _, half = of(small_runs.stretch, bfloat16=True)
    found = loss_of(run.model, run.task, half)
    assert found[0] != plain[0]
    assert math.isclose(found[0], plain[0], rel_tol=0.05)
    assert found[1] == plain[1]
