"""`ch.patch` on trained runs: equal to one edit at a time, over texts, runs and tasks."""

from typing import Any

import pytest

import clearhead as ch
from clearhead.errors import OptionError, ShapeError
from tests.training.small_runs import classifying, documents, filling, trained, translating

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
    found = ch.patch(run, text, source, source_run=run.folder.path, answer=7, other=6, progress=False)
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
