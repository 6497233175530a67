"""`ch.patch` on trained runs: equal to one edit at a time, over texts, runs and tasks."""

from itertools import permutations
from typing import Any

import pytest

import clearhead as ch
from clearhead.circuits.forward import run_graph
from clearhead.errors import OptionError, PlaceError, ShapeError
from clearhead.experiments.patching import contrast_texts, first_difference
from clearhead.experiments.tracing import encode_inputs, with_own_output
from tests.training.small_runs import DIGITS, classifying, documents, filling, trained, translating

TEXTS = {
    documents: ("the cat eats the", "the dog eats the"),
    translating: ("zwei drei", "drei vier"),
    filling: ("the <mask> eats the plum, größer", "the cat eats the <mask>, größer"),
    classifying: ("red plum", "red cow"),
}


@pytest.mark.parametrize("by", ["layer", "head"])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_map_is_one_edit_at_a_time(kind, by, tmp_path_factory):
    run = trained(kind, tmp_path_factory)
    text, source = TEXTS[kind]
    options: dict[str, Any] = {"answer": 1, "other": 0} if run.task.labels else {"answer": 7, "other": 6}
    found = ch.patch(run, text, source, by=by, progress=False, **options)
    base = ch.trace(run, text)
    target = base.sides["decoder"].ids[1:] if kind is translating else None
    assert found.before == pytest.approx(logit_of(base, found, options), abs=1e-5)
    for row in found.patched:
        place = len(found.patched[row]) - 1
        changed = ch.trace(run, text, target, edits=[found.edit(row, place)])
        assert found.patched[row][place].item() == pytest.approx(logit_of(changed, found, options), abs=1e-5)


def logit_of(trace, found, options):
    logits = trace.value(f"{trace.answer_side}.output.logits")
    row = logits[found.place] if len(logits) > 1 else logits[0]
    return (row[options["answer"]] - row[options["other"]]).item()


def test_the_likeliest_answers_of_the_two_texts_are_compared(tmp_path_factory):
    run = trained(classifying, tmp_path_factory)
    found = ch.patch(run, "red plum", "red cow", progress=False)
    assert found.answers == ("beast", "fruit")
    assert found.before < 0 < found.source
    assert found.recovered["encoder.embedding.out"].max() > 0.5
    assert found.best[0].recovered == max(shares.max().item() for shares in found.recovered.values())
    assert "enc" in found.show()._repr_html_() or "e0" in found.show()._repr_html_()
    assert "the logit of 'beast' less that of 'fruit'" in repr(found)


def test_values_of_another_run_can_be_put_in(tmp_path_factory):
    """The same run stands in for it: its stream after the last layer carries all of the difference."""
    run = trained(documents, tmp_path_factory)
    text, source = TEXTS[documents]
    before, after = (ch.trace(run, each).value("decoder.output.logits")[-1] for each in (text, source))
    change = after - before  # the two answers that differ most: between others the difference may be rounding
    answers = {"answer": int(change.argmax()), "other": int(change.argmin())}
    found = ch.patch(run, text, source, source_run=run.folder.path, progress=False, **answers)
    assert found.recovered["decoder.0.feed_forward.residual"][-1].item() == pytest.approx(1, abs=1e-3)
    with pytest.raises(OptionError, match="has another tokenizer than"):
        ch.patch(run, text, source, source_run=trained(classifying, tmp_path_factory), progress=False)


def test_what_cannot_be_compared_is_refused(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    with pytest.raises(OptionError, match="there is no difference to recover"):
        ch.patch(run, "the cat", "the cat", progress=False)
    with pytest.raises(ShapeError, match="both texts need as many tokens"):
        ch.patch(run, "the cat", "the cat eats", answer=7, other=6, progress=False)
    found = ch.patch(run, "the cat", "the dog", answer=7, other=6, progress=False)
    with pytest.raises(OptionError, match="there is no row 'decoder'"):
        found.edit("decoder")


def test_a_bar_is_drawn_on_a_terminal(tmp_path_factory, capsys, monkeypatch):
    run = trained(documents, tmp_path_factory)
    ch.patch(run, "the cat", "the dog", answer=7, other=6)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    ch.patch(run, "the cat", "the dog", answer=7, other=6)
    assert "━ 6/6" in capsys.readouterr().err


def test_the_likeliest_answer_is_taken_apart_where_none_is_named(tmp_path_factory):
    run = trained(documents, tmp_path_factory)
    best = ch.trace(run, "the cat eats").candidates[-1][0]
    found = ch.attribute(run, "the cat eats")
    assert (found.answer, found.names[0], found.place) == (best.id, best.text, 3)
    assert sum(found.parts.values()) == pytest.approx(found.total, abs=1e-4)


def test_answers_are_named_as_a_trace_shows_them(tmp_path_factory):
    run = trained(translating, tmp_path_factory)
    first, second = ch.trace(run, "zwei drei").candidates[0][:2]
    found = ch.attribute(run, "zwei drei", answer=first.text, other=second.text)
    assert (found.place, found.answer, found.other) == (0, first.id, second.id)
    assert found.total > 0
    assert ch.attribute(run, "zwei drei", answer=second.id, other=first.id).total == pytest.approx(-found.total)
    assert f"the logit of {first.text!r} less that of {second.text!r} at place 0" in repr(found)


def test_a_label_and_a_blank_have_their_places(tmp_path_factory):
    run = trained(classifying, tmp_path_factory)
    fruit = ch.attribute(run, "red plum", answer="fruit", other="beast")
    assert fruit.total > 0
    assert sum(fruit.parts.values()) == pytest.approx(fruit.total, abs=1e-4)
    run = trained(filling, tmp_path_factory)
    text = "the <mask> eats the plum, größer"
    place = ch.trace(run, text).sides["encoder"].tokens.index("<mask>")
    assert ch.attribute(run, text).place == place


def test_an_answer_or_place_that_is_not_there_is_refused(tmp_path_factory):
    run = trained(classifying, tmp_path_factory)
    with pytest.raises(OptionError, match=r"there is no answer 'fruits'; the nearest is fruit"):
        ch.attribute(run, "red plum", answer="fruits")
    run = trained(documents, tmp_path_factory)
    with pytest.raises(OptionError, match=r"there is no answer 'cat dog'.*give one token as a trace shows it"):
        ch.attribute(run, "the cat", answer="cat dog")
    with pytest.raises(PlaceError, match="place 99: there are"):
        ch.attribute(run, "the cat", place=99)
    wrong: Any = 0.5
    with pytest.raises(OptionError, match=r"answer.*came 0\.5"):
        ch.attribute(run, "the cat", answer=wrong)


def test_a_translator_is_compared_at_the_first_token_that_differs(translator):
    """The small translator is not good at it: of pairs of its words, one that it translates differently is taken."""
    written = {word: with_own_output(translator, encode_inputs(translator, word), ()).ids["decoder"] for word in DIGITS}
    one, two = next(pair for pair in permutations(DIGITS, 2) if written[pair[0]] != written[pair[1]])
    same = first_difference(written[one], written[two])
    contrast = contrast_texts(translator, [one], [two]).contrast
    assert (
        contrast.clean.tokens["decoder"].tolist() == [written[one][:same]] == contrast.other.tokens["decoder"].tolist()
    )
    assert contrast.metric.place.tolist() == [same - 1]
    assert int(contrast.metric.answer) == written[one][same : same + 1][0]
    assert (contrast.clean_value > 0).all()
    assert (contrast.other_value < 0).all()


def test_a_classifier_is_compared_by_its_label(classifier):
    found = contrast_texts(classifier, ["red plum"], ["red dog"])
    assert found.answers == [("fruit", "beast")]
    assert found.tokens == ("red", "plum") or "plum" in found.tokens
    assert found.contrast.metric.place is None


def test_a_language_model_is_compared_at_its_next_token(documents):
    texts = ["the cat eats the", "the cat"]
    found = contrast_texts(documents, texts[:1], ["cat the the eats"])
    logits = run_graph(found.contrast.graph, found.contrast.clean).logits[0]
    place = found.contrast.metric.place
    assert int(place[0]) == logits.shape[1] - 1
    assert int(found.contrast.metric.answer[0]) == int(logits[0, -1].argmax())


def test_what_cannot_be_compared_is_named(translator, classifier):
    with pytest.raises(OptionError, match="the same answer"):
        contrast_texts(classifier, ["red plum"], ["old plum"])
    with pytest.raises(OptionError, match="as many texts"):
        contrast_texts(classifier, ["red plum"], [])
    with pytest.raises(ShapeError, match="as many tokens"):
        contrast_texts(translator, ["zwei"], ["zwei vier"])


def test_rows_differ_somewhere_or_one_begins_the_other():
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
