"""Traces of trained runs, of every task."""

import pytest
import torch

import clearhead as ch
from clearhead.decoding import Beam, Greedy, Sample
from clearhead.errors import OptionError, TraceError

STEPS = ("query", "key", "value", "score", "scaled", "masked", "weight", "context")


def test_a_translation_is_its_own_greedy_output(translator):
    run = translator
    text = "vier zwei"
    trace = ch.trace(run, text)
    assert trace.notes == ("the target is its own greedy output",)
    assert trace.task == "translate"
    written = run.translate([text], beam=1)[0]
    end = run.task.tokenizers["target"].end
    chosen = [row[0] for row in trace.candidates]
    assert run.task.tokenizers["target"].decode([one.id for one in chosen if one.id != end]) == written
    assert trace.sides["encoder"].tokens[-1] == "</s>"
    assert trace.sides["decoder"].tokens[0] == "<s>"
    weight = trace.decoder[0].cross.head[0].weight
    assert weight.shape == (len(trace.sides["decoder"].ids), len(trace.sides["encoder"].ids))
    torch.testing.assert_close(weight.sum(-1), torch.ones(len(weight)))


def test_a_run_may_be_given_by_its_folder(translator):
    expected = ch.trace(translator, "vier zwei")
    for path in (translator.folder.path, str(translator.folder.path)):
        assert ch.trace(path, "vier zwei").sides == expected.sides


def test_a_given_target_is_read_as_it_is(translator):
    run = translator
    trace = ch.trace(run, "vier zwei", "42")
    assert trace.notes == ()
    ids = trace.sides["decoder"].ids
    assert run.task.tokenizers["target"].decode(ids[1:]) == "42"
    assert ch.trace(run, "vier zwei", ids[1:]).sides == trace.sides


@pytest.mark.parametrize("method", [Greedy(), Sample(temperature=0.7), Beam(width=3, n_best=3)])
def test_what_was_written_with_a_cache(translator, method):
    run = translator
    trace = ch.trace(run, "vier zwei", method=method)
    assert trace.notes == ("written with a cache, token by token",)
    assert len(trace.beams) == (3 if isinstance(method, Beam) else 0)
    for one in trace.beams or (trace,):
        for site in one.sites.values():
            for head in site.head:
                assert head.weight.shape == (site.n_query, site.n_key)
    if isinstance(method, Beam):
        best = [run.task.tokenizers["target"].decode(one.sides["decoder"].ids[1:]) for one in trace.beams]
        assert best == run.translations(["vier zwei"], beam=3, n_best=3)[0]


def test_an_edited_translation_is_the_edited_model_s_own(translator):
    run = translator
    sites = ch.trace(run, "vier zwei").sites
    off = [ch.Edit(at=name, step="context", times=0.0) for name in sites if name.endswith(".cross")]
    changed = ch.trace(run, "vier zwei", edits=off)
    assert changed.notes == ("the target is its own greedy output, as changed",)
    blind = ch.trace(run, "null", edits=off)
    assert changed.sides["decoder"] == blind.sides["decoder"]  # without cross-attention the source says nothing


def test_an_edit_of_a_place_not_written_yet_waits_for_it(translator):
    run = translator
    own = ch.trace(run, "vier zwei")
    name = next(name for name in own.sites if name.startswith("decoder") and name.endswith("attention"))
    late = ch.Edit(at=name, step="score", head=0, query=1, key=1, to=9.0)
    trace = ch.trace(run, "vier zwei", edits=[late])
    assert trace[name].head[0].score[1, 1] == 9


def test_a_language_model_reads_its_text(documents):
    run = documents
    trace = ch.trace(run, "the cat")
    assert trace.kind == "decoder"
    assert trace.sides["decoder"].tokens[0] == "</s>"  # documents begin after an end
    longer = ch.trace(run, "the cat", " eats")
    assert longer.sides["decoder"].ids[: len(trace.sides["decoder"].ids) - 1] == trace.sides["decoder"].ids[:-1]
    written = ch.trace(run, "the cat", method=Greedy())
    assert len(written.sides["decoder"].ids) > len(trace.sides["decoder"].ids)


def test_a_classifier_answers_with_its_labels(classifier):
    run = classifier
    text = "the cat"
    trace = ch.trace(run, text)
    assert trace.kind == "encoder"
    [row] = trace.candidates
    assert {one.text for one in row} == set(run.task.labels)
    assert row[0].text == run.classify([text])[0].label


def test_blanks_are_shown_as_blanks(filler):
    run = filler
    trace = ch.trace(run, "the <mask> eats")
    assert "<mask>" in trace.sides["encoder"].tokens


def test_what_cannot_be_traced_is_told(translator, classifier, documents):
    run = translator
    with pytest.raises(OptionError, match="there is no text to trace"):
        ch.trace(run, "  ")
    with pytest.raises(OptionError, match=r"the source has [0-9]+ tokens, and the model reads"):
        ch.trace(run, "vier " * 500)
    with pytest.raises(OptionError, match="a method writes the target itself"):
        ch.trace(run, "vier", "four", method=Greedy())
    with pytest.raises(OptionError, match="was trained to classify: its text has no target"):
        ch.trace(classifier, "one", "two")
    with pytest.raises(OptionError, match="was trained to classify, and writes nothing"):
        ch.trace(classifier, "one", method=Greedy())
    with pytest.raises(OptionError, match=r"there is no attention called 'encoder\.9\.attention'"):
        ch.trace(run, "vier")["encoder.9.attention"]
    with pytest.raises(OptionError, match="it has no encoder"):
        _ = ch.trace(documents, "one").encoder


def test_a_trace_opens_without_its_run_and_refuses_another(translator, documents, tmp_path):
    run = translator
    trace = ch.trace(run, "vier zwei")
    trace.save(tmp_path / "a.trace")
    again = ch.Trace.load(tmp_path / "a.trace")
    for name, site in trace.sites.items():
        for step in STEPS:
            torch.testing.assert_close(getattr(site.head[0], step), getattr(again[name].head[0], step))
    assert again.candidates == trace.candidates
    ch.Trace.load(tmp_path / "a.trace", run.model)
    with pytest.raises(TraceError, match="was not made from this model"):
        ch.Trace.load(tmp_path / "a.trace", documents.model)
