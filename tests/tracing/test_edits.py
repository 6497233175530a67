"""Changes by name: each does what it says and nothing else, and the trace is of the changed run."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError, ShapeError
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import trace_model
from tests.model.small import both_spec, built, decoder_spec, words

SITE = "decoder.1.attention"


@pytest.fixture
def model():
    return built(decoder_spec())


@pytest.fixture
def tokens():
    return words(1)


def logits(model, tokens, *changes):
    with torch.no_grad(), recording(model, changes):
        return model(tokens)


def test_a_head_off_is_its_part_of_the_output_map_set_to_zero(model, tokens):
    got = logits(model, tokens, ch.Edit(at=SITE, step="context", head=1, times=0.0))
    with torch.no_grad():
        model.stack.blocks[1].attention.output.weight[:, 4:8] = 0
        torch.testing.assert_close(got, model(tokens))


def test_answers_are_those_of_a_changed_output(model, tokens):
    change = ch.Edit(at="decoder.output", step="logits", query=2, unit=7, to=100.0)
    answers = trace_model(model, tokens, changes=[change]).candidates
    plain = trace_model(model, tokens).candidates
    assert (answers[2][0].id, answers[2][0].log_prob) == (7, pytest.approx(0))
    assert answers[:2] + answers[3:] == plain[:2] + plain[3:]


def test_a_score_set_is_the_weight_it_makes(model, tokens):
    change = ch.Edit(at=SITE, step="score", head=2, query=3, key=1, to=50.0)
    trace = trace_model(model, tokens, changes=[change])
    site, plain = trace[SITE], trace_model(model, tokens)[SITE]
    assert site.kernel == "reference"
    assert site.why == "an edit changes score, which only the reference computes"
    assert trace.notes == (f"{SITE} ran the reference: {site.why}",)
    assert site.head[2].score[3, 1] == 50
    assert site.head[2].weight[3, 1] > 0.999
    torch.testing.assert_close(site.head[2].context[3], site.head[2].value[1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(site.head[0].weight, plain.head[0].weight)
    others = [0, 1, 2, 4]
    torch.testing.assert_close(site.head[2].weight[others], plain.head[2].weight[others])


def test_a_cell_of_the_mask_opens_and_closes(model, tokens):
    opened = trace_model(model, tokens, changes=[ch.Edit(at=SITE, step="allowed", query=0, key=4, to=True)])
    closed = trace_model(model, tokens, changes=[ch.Edit(at=SITE, step="allowed", head=1, query=3, key=2, to=False)])
    assert (opened[SITE].head[0].weight[0] > 0).tolist() == [True, False, False, False, True]
    assert (closed[SITE].head[1].weight[3] > 0).tolist() == [True, True, False, True, False]
    assert (closed[SITE].head[0].weight[3] > 0).tolist() == [True, True, True, True, False]
    assert not closed[SITE].head[1].cell(3, 2).allowed


def test_a_temperature_is_the_softmax_of_that_temperature(model, tokens):
    hot = logits(model, tokens, ch.Edit(at=SITE, step="scaled", times=0.5))
    swapped = logits(model, tokens, ch.Swap(at=SITE, weighting=ch.weighting.Softmax(temperature=2.0)))
    torch.testing.assert_close(hot, swapped)


def test_another_weighting_runs_on_its_own_kernel(model, tokens):
    trace = trace_model(model, tokens, changes=[ch.Swap(at=SITE, weighting=ch.weighting.Argmax())])
    assert trace[SITE].kernel == "blockwise"
    weight = trace[SITE].head[0].weight
    assert set(weight.flatten().tolist()) == {0.0, 1.0}
    linear = trace_model(model, tokens, changes=[ch.Swap(at=SITE, weighting=ch.weighting.Kernelized())])
    assert linear[SITE].kernel == "chunked"


def test_a_value_carried_over_from_another_run_gives_that_run_s_answer(model, tokens):
    other = trace_model(model, words(1))
    name = "decoder.1.feed_forward.residual"
    change = ch.Edit(at="decoder.1.feed_forward", step="residual", to=other.value(name))
    trace = trace_model(model, tokens, changes=[change])
    assert [row[0].id for row in trace.candidates] == [row[0].id for row in other.candidates]
    torch.testing.assert_close(trace.value("decoder.normed"), other.value("decoder.normed"))
    contexts = ch.Edit(at=SITE, step="context", to=other[SITE].context)
    assert torch.equal(trace_model(model, tokens, changes=[contexts])[SITE].context, other[SITE].context)


def test_queries_keys_and_values_are_changed_before_the_kernel(model, tokens):
    change = ch.Edit(at=SITE, step="key", head=0, key=2, to=0.0)
    trace = trace_model(model, tokens, changes=[change])
    assert trace[SITE].kernel == "fused"
    assert (trace[SITE].head[0].score[:, 2] == 0).all()


def test_nothing_is_left_behind(model, tokens):
    before = model(tokens)
    logits(model, tokens, ch.Edit(at=SITE, step="context", times=0.0))
    assert torch.equal(model(tokens), before)
    with pytest.raises(ZeroDivisionError), recording(model):
        raise ZeroDivisionError
    assert all(block.attention.runner is None for block in model.stack.blocks)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"at": "decoder.7.attention", "step": "score", "to": 1.0}, r"there is no attention called 'decoder\.7\.att"),
        (
            {"at": SITE, "step": "scores", "to": 1.0},
            r"there is no 'decoder\.1\.attention\.scores'; the nearest is score",
        ),
        ({"at": SITE, "step": "projected_key", "to": 1.0}, "'decoder.1.attention.projected_key' is not in this model"),
        ({"at": SITE, "step": "score", "head": 3, "to": 1.0}, "head 3 is changed, and there are 3"),
        ({"at": SITE, "step": "score", "query": 9, "to": 1.0}, "query 9 is changed, and there are 5"),
        ({"at": SITE, "step": "score", "key": -1, "to": 1.0}, "key is counted from 0, in whole numbers; came -1"),
        ({"at": SITE, "step": "value", "key": 5, "to": 1.0}, "key 5 is changed, and there are 5"),
    ],
)
def test_what_is_not_there_is_told(model, tokens, change, match):
    with pytest.raises(OptionError, match=match):
        trace_model(model, tokens, changes=[ch.Edit(**change)])


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (
            {"at": SITE, "step": "contxt", "to": 1.0},
            r"there is no '.*\.contxt'; the nearest is context",
        ),
        ({"at": SITE, "step": "context", "head": "3", "to": 1.0}, "head is counted from 0, in whole numbers; came '3'"),
        ({"at": SITE, "step": "context", "unit": 1.5, "to": 1.0}, "unit is counted from 0, in whole numbers; came 1.5"),
        ({"at": SITE, "step": "context", "times": "0"}, "`times` must be a number or a tensor; came '0'"),
        ({"at": SITE, "step": "context", "to": [1.0]}, r"`to` must be a number or a tensor; came \[1\.0\]"),
        ({"at": 3, "step": "context", "to": 1.0}, "at and step are names, as"),
    ],
)
@pytest.mark.plain
def test_an_edit_that_cannot_be_is_refused_when_it_is_made(fields, match):
    with pytest.raises(OptionError, match=match):
        ch.Edit(**fields)


@pytest.mark.plain
def test_a_swap_that_cannot_be_is_refused_when_it_is_made():
    with pytest.raises(OptionError, match="weighting must be a part such as"):
        ch.Swap(at=SITE, weighting="argmax")


def test_an_edit_says_what_it_lacks(model, tokens):
    with pytest.raises(OptionError, match="either `to`, a new value, or `times`"):
        ch.Edit(at=SITE, step="score")
    with pytest.raises(OptionError, match="either `to`, a new value, or `times`"):
        ch.Edit(at=SITE, step="score", to=1.0, times=2.0)
    with pytest.raises(OptionError, match=r"is set `to` True or False; came 2\.0"):
        ch.Edit(at=SITE, step="allowed", to=2.0)
    with pytest.raises(ShapeError, match=r"has shape \(3,\), and what it replaces \(1, 5, 4\)"):
        trace_model(model, tokens, changes=[ch.Edit(at=SITE, step="value", head=0, to=torch.ones(3))])


def test_cross_attention_is_changed_too():
    model = built(both_spec())
    source, target = words(1, 7), words(1, 5)
    change = ch.Edit(at="decoder.0.cross", step="weight", head=0, query=1, key=6, to=1.0)
    trace = trace_model(model, source, target, changes=[change])
    assert trace.decoder[0].cross.head[0].weight[1, 6] == 1
