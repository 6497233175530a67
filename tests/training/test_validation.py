"""How good a model is: its loss against one computed record by record, its scores, and samples that read well."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clearhead.text.tokenizer import Tokenizer
from clearhead.training.losses import NOTHING
from clearhead.training.scores import score_translations
from clearhead.training.tasks import Classify, Fill, Translate
from clearhead.training.tasks.base import loss_of
from clearhead.training.tasks.fill import with_blank
from clearhead.training.tasks.measures import FEWEST_BATCHES
from clearhead.training.validation import ValidationSet, assess
from tests.training import small_runs
from tests.training.small_runs import trained
from tests.training.tiny import recipe_for, work_on

pytestmark = pytest.mark.usefixtures("one_thread")

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
