"""Ready heads do what their names say: on every short text and on random long ones, held to plain Python."""

import itertools
import random
from collections import Counter

import pytest
import torch

import clearhead as ch
from clearhead.craft import ready
from clearhead.craft.inputs import inputs
from clearhead.craft.ready import model_of
from clearhead.model.blocks import FromSelf, KVSources
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.tracing.head_metrics import readings
from clearhead.tracing.trace import trace_model

WORDS = ["a", "b", "c"]
LONG = 24
HARD = ch.weighting.Argmax(ties="average")
SOFT = ch.weighting.Softmax()


def texts(n_words=3, short=4, count=30, longest=LONG):
    chance = random.Random(0)
    every = (list(text) for n in range(1, short + 1) for text in itertools.product(range(n_words), repeat=n))
    return [*every, *([chance.randrange(n_words) for _ in range(chance.randint(6, longest))] for _ in range(count))]


def spread(places, n):
    """A row of weights that is even over these places."""
    return [1 / len(places) if j in places else 0.0 for j in range(n)]


def back(ids, i, count):
    return [i - count] if i >= count else range(len(ids))


def elsewhere(ids, i):
    return [j for j in range(len(ids)) if j != i and ids[j] == ids[i]] or range(len(ids))


HEADS = {
    "previous": (ready.previous_token, lambda ids, i: back(ids, i, 1)),
    "three back": (lambda read: ready.tokens_back(read, 3), lambda ids, i: back(ids, i, 3)),
    "itself": (lambda read: ready.tokens_back(read, 0), lambda ids, i: [i]),
    "first": (ready.first_token, lambda ids, i: [0]),
    "same": (ready.same_token, elsewhere),
}


@pytest.mark.parametrize("weighting", [HARD, SOFT], ids=["argmax", "softmax"])
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.pairs(1)
def test_a_head_looks_where_it_should(name, weighting):
    make, plain = HEADS[name]
    head = make(inputs(WORDS, LONG))
    layer = head.layer(weighting)
    for ids in texts():
        expected = torch.tensor([spread(plain(ids, i), len(ids)) for i in range(len(ids))])
        found = layer.explain(head.inputs.vectors(ids)).weight[0]
        assert torch.allclose(found, expected, atol=0 if weighting is HARD else 2e-3)


def seen(model, every):
    """Each text with what a model of two layers answers and with the weights of its second, a batch for each length."""
    for _, group in itertools.groupby(sorted(every, key=len), key=len):
        rows = list(group)
        with torch.no_grad():
            x = model.embedding(torch.tensor(rows))
            weight = (
                model.stack.blocks[1].attention.explain(model.stack.blocks[0](x, KVSources(FromSelf()))).weight[:, 0]
            )
            yield from zip(rows, model(torch.tensor(rows)).argmax(-1).tolist(), weight, strict=True)


def matching(ids):
    """Of each bracket the one it closes; itself, if it closes none."""
    waiting, found = [], []
    for i, bracket in enumerate(ids):
        closes = bracket == 1 and waiting
        found.append(waiting.pop() if closes else i)
        if bracket == 0:
            waiting.append(i)
    return found


@pytest.mark.parametrize("weighting", [HARD, SOFT], ids=["argmax", "softmax"])
@pytest.mark.slow
def test_brackets_are_matched_balanced_or_not(weighting):
    model = ready.bracket_model(16, weighting=weighting)
    for ids, _, found in seen(model, texts(2, short=6, longest=16)):
        expected = torch.eye(len(ids))[matching(ids)]
        closing = [i for i, place in enumerate(matching(ids)) if place != i] if weighting is SOFT else range(len(ids))
        assert torch.allclose(found[closing], expected[closing], atol=1e-3)
    trace = trace_model(model, torch.tensor([ids]))
    assert torch.allclose(trace.decoder[1].attention.head[0].weight, found, atol=1e-5)
    level = trace.value("decoder.0.feed_forward.residual")[:, ready.bracket_inputs(16)["level"].at]
    assert torch.allclose(level.sum(-1), torch.ones(len(ids)), atol=1e-4)  # one depth each, and one only
    assert torch.allclose(level.amax(-1), torch.ones(len(ids)), atol=1e-4)


def test_matching_brackets_needs_depths_in_its_inputs():
    with pytest.raises(ch.ClearheadError, match="no block 'level'"):
        ready.matching_bracket(inputs(["(", ")"], 4))
    with pytest.raises(ch.ClearheadError, match="labels of bracket_levels"):
        ready.matching_bracket(inputs(["(", ")"], 4, room={"level": ["( 0", ") 0"]}))
    read = ready.bracket_inputs(4)
    found = ready.matching_bracket(read).weights(list("(())"), labels={"level": ["( 0", "( 1", ") 1", ") 0"]})
    assert found.argmax(-1).tolist() == [0, 1, 1, 0]
    assert ready.matching_bracket(read).sharpness(4).margin == pytest.approx(1 / 4)


@pytest.mark.parametrize("weighting", [HARD, SOFT], ids=["argmax", "softmax"])
def test_induction_looks_at_what_followed_and_answers_with_it(weighting):
    model = ready.induction_model(WORDS, LONG, weighting=weighting)
    for ids, answers, weight in seen(model, texts()):
        for i in range(len(ids)):
            followed = [j for j in range(1, i + 1) if ids[j - 1] == ids[i]]
            expected = torch.tensor(spread(followed or range(i + 1), len(ids)))
            assert torch.allclose(weight[i], expected, atol=1e-6 if weighting is HARD else 2e-2)
            counts = Counter(ids[j] for j in followed).most_common()
            if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]):
                assert answers[i] == counts[0][0]


def test_readings_say_what_the_heads_are():
    read = inputs(WORDS, LONG)
    ids = torch.tensor([texts()[-1]])

    def reading(*designs):
        trace = trace_model(model_of(designs, causal=False, weighting=HARD), ids)
        return readings(trace, trace["encoder.0.attention"])

    previous, three, itself, first, same = reading(*(make(read) for make, _ in HEADS.values()))
    assert previous.previous == 1
    assert same.same == 1
    assert itself.distance == itself.entropy == first.entropy == 0
    assert first.distance == pytest.approx((ids.shape[1] - 1) / 2)
    assert three.previous < 0.2

    trace = trace_model(ready.induction_model(WORDS, LONG, weighting=HARD), ids)
    (before,), (after,) = (readings(trace, layer.attention) for layer in trace.decoder)
    assert before.previous == 1
    assert after.induction == pytest.approx(1)


def test_a_model_of_designs_is_saved_and_decoded_as_any_other():
    model = ready.induction_model(WORDS, LONG)
    again = spec_from_json(spec_to_json(model.spec)).build().eval()
    again.load_state_dict(model.state_dict())
    ids = torch.tensor([[0, 1, 2, 0]])
    assert torch.equal(again(ids), model(ids))
    written = ch.generate(model, ids.tolist(), ch.Greedy(), rules=ch.Rules(max_new=6))[0][0]
    assert list(written.tokens) == [1, 2, 0, 1, 2, 0]


def test_ready_heads_need_positions():
    for make in (ready.previous_token, ready.first_token, ready.same_token):
        with pytest.raises(ch.ClearheadError, match="positions"):
            make(inputs(WORDS))
    with pytest.raises(ch.ClearheadError, match="from 0 to 4 here; came 5"):
        ready.tokens_back(inputs(WORDS, 5), 5)
