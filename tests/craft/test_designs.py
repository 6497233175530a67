"""Heads designed by content and by position do what they were asked, and say so when they cannot."""

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.craft.design import layer
from clearhead.craft.designs import by_content, by_position, combine
from clearhead.craft.inputs import inputs
from clearhead.craft.ready import model_of
from clearhead.errors import ShapeError

WORDS = ["the", "blue", "creature", "sees"]
SENTENCE = ["the", "blue", "creature", "sees", "the", "blue"]
HARD = ch.weighting.Argmax(ties="average")


@pytest.fixture
def read():
    return inputs(WORDS, 6)


def one_hot(columns, n=6):
    return torch.eye(n)[columns]


def test_directions_have_names_and_hold_what_they_say():
    made = inputs(["a", "b"], 3, room={"before": ["a", "b"]})
    assert made.names == ("token:a", "token:b", "position:0", "position:1", "position:2", "before:a", "before:b")
    filled = made.vectors(["b", "a", "a"], {"before": ["a", "b", "b"]})
    assert filled.tolist() == [[0, 1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 1, 0, 1]]
    assert torch.equal(made.vectors(torch.tensor([1, 0])), made.vectors(["b", "a"]))


def test_waves_are_those_of_sinusoidal_positions():
    made = inputs(["a"], 7, waves=8)
    assert torch.equal(made.vectors(["a"] * 7)[:, 1:], ch.positions.Sinusoidal().embed(8)(7))
    assert made.names[1:4] == ("position:sin 0", "position:cos 0", "position:sin 1")


@pytest.mark.parametrize("offset", [-3, 0, 5])
def test_a_rotation_shifts_waves(offset):
    table = ch.positions.Sinusoidal().embed(16)
    turn = inputs(["a"], 12, waves=16)["position"].turn(offset)
    assert torch.allclose(table(12) @ turn, table.at(torch.arange(12) + offset), atol=1e-5)
    assert torch.allclose(turn @ turn.T, torch.eye(16), atol=1e-6)


def test_by_content_shares_the_weight_among_repeated_elements(read):
    head = by_content(read, {"creature": ["blue"], "sees": "creature"}, scale=30.0)
    found = head.weights(SENTENCE)
    assert torch.allclose(found[2], torch.tensor([0, 0.5, 0, 0, 0, 0.5]), atol=1e-6)
    assert torch.allclose(found[3], one_hot([2])[0], atol=1e-6)
    assert torch.allclose(found[0], torch.full((6,), 1 / 6))  # it asks for nothing
    assert torch.equal(head.weights(SENTENCE, HARD)[2], torch.tensor([0, 0.5, 0, 0, 0, 0.5]))


def test_what_is_asked_can_be_a_list_a_function_or_a_table(read):
    table = torch.zeros(4, 4)
    table[2, 1] = 1
    made = [
        by_content(read, {"creature": ["blue"]}),
        by_content(read, lambda one, other: float((one, other) == ("creature", "blue"))),
        by_content(read, table),
        by_content(WORDS, {"creature": ["blue"]}),
    ]
    first, *others = [head.weights(SENTENCE) for head in made]
    assert all(torch.equal(first, other) for other in others)


def test_scores_are_what_was_asked(read):
    table = torch.tensor([[0.0, 2.0, 1.0, 0.0]] * 4)
    steps = by_content(read, table).explain(SENTENCE)
    assert torch.equal(steps.score[0], table[0][[0, 1, 2, 3, 0, 1]].expand(6, 6))


def test_keys_that_are_not_orthogonal_leave_a_smaller_margin(read):
    asks = {"creature": ["blue"]}
    keys = torch.eye(4) + 0.9
    head = by_content(read, asks, keys=keys)
    cosine = torch.nn.functional.cosine_similarity(keys[0], keys[1], dim=0).item()
    assert head.sharpness(6).margin == pytest.approx(1 - cosine, abs=1e-6)
    solved = by_content(read, asks, keys=keys, queries=by_content(read, asks).w_q[:4] @ torch.linalg.inv(keys).T)
    assert solved.sharpness(6).margin == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("waves", [None, 32])
@pytest.mark.parametrize(
    ("asks", "columns"),
    [
        ({"offset": -1}, [None, 0, 1, 2, 3, 4]),
        ({"offset": 2}, [2, 3, 4, 5, None, None]),
        ({"absolute": 3}, [3] * 6),
        ({"function": lambda i, n: n - 1 - i}, [5, 4, 3, 2, 1, 0]),
        ({"function": lambda i, n: None if i == 2 else [i]}, [0, 1, None, 3, 4, 5]),
    ],
)
def test_by_position(waves, asks, columns):
    read = inputs(WORDS, 6, waves=waves)
    head = by_position(read, **asks)
    has = [i for i, column in enumerate(columns) if column is not None]
    expected = one_hot([columns[i] for i in has])
    assert torch.equal(head.weights(SENTENCE, HARD)[has], expected)
    assert torch.allclose(head.sharpened(6, 1e-4).weights(SENTENCE)[has], expected, atol=2e-4)
    assert torch.equal(head.targets(SENTENCE)[has], expected.bool())
    assert not head.targets(SENTENCE)[[i for i in range(6) if i not in has]].any()


def test_by_position_takes_a_number_for_every_pair(read):
    scores = by_position(read, scores=lambda i, j: -abs(i - j)).explain(SENTENCE).score[0]
    assert torch.equal(scores, -(torch.arange(6).unsqueeze(1) - torch.arange(6)).abs().float())


def test_a_function_may_name_several_places(read):
    head = by_position(read, function=lambda i, n: [i - 1, i - 2])
    assert head.weights(SENTENCE, HARD)[4].tolist() == [0, 0, 0.5, 0.5, 0, 0]


def test_combined_scores_are_the_sum(read):
    one, other = by_content(read, {"blue": ["the"]}, scale=3.0), by_position(read, offset=-1, scale=2.0)
    both = combine(one, other, weights=[1.0, 0.5])
    expected = one.explain(SENTENCE).score + 0.5 * other.explain(SENTENCE).score
    assert torch.allclose(both.explain(SENTENCE).score, expected)
    assert both.weights(SENTENCE, HARD)[5].tolist() == [0, 0, 0, 0, 1, 0]
    assert both.sharpness(6).margin == pytest.approx(1)  # content and place 4, content 3, place 1


def test_what_is_carried_and_where_it_goes():
    read = inputs(["a", "b"], 4, room={"found": ["a", "b"], "place": list("0123")})
    head = by_position(read, offset=-1, scale=50.0)
    text = ["a", "b", "b", "a"]
    out = head.carrying("token", to="found").layer()(read.vectors(text))
    assert torch.allclose(out[1:], read.vectors(text, {"found": ["a", "a", "b", "b"]})[1:] - read.vectors(text)[1:])
    out = head.carrying("position", to="place").layer()(read.vectors(text))
    assert out[3].argmax() == read.names.index("place:2")
    twice = head.carrying(2 * torch.eye(read.d_model)[:, :2], to="found").layer()(read.vectors(text))
    assert twice[1].max() == 2


def test_a_layer_of_several_heads_is_the_sum_of_them(read):
    one = by_content(read, {"creature": ["blue"]}, scale=5.0)
    other = by_position(read, offset=-1, scale=5.0).carrying("position", to="position")
    x = read.vectors(SENTENCE)
    both = layer(one, other)
    assert both.shape.n_heads == 2
    assert torch.allclose(both(x), one.layer()(x) + other.layer()(x), atol=1e-6)
    assert torch.allclose(both.explain(x).weight[1], other.weights(SENTENCE))


@pytest.mark.parametrize("causal", [True, False])
def test_a_model_of_designs_answers_with_what_was_carried(causal):
    read = inputs(["a", "b", "c"], 5, room={"found": ["a", "b", "c"]})
    head = by_position(read, offset=-1, scale=30.0).carrying("token", to="found")
    model = model_of(head, answer="found", causal=causal)
    assert model(torch.tensor([[2, 0, 1, 1, 0]])).argmax(-1)[0, 1:].tolist() == [2, 0, 1, 1]


WRONG = [
    (lambda read: by_content(read, {"creature": ["red"]}), "'creature' asks for 'red'"),
    (lambda read: by_content(read, {}, keys=torch.zeros(4, 2)), "a key other than 0 for each of the 4"),
    (lambda read: by_content(read, {}, queries=torch.zeros(4, 3)), r"expected queries of shape \(4, 4\)"),
    (lambda read: by_content(read, torch.zeros(3, 4)), r"expected asks of shape \(4, 4\); came \(3, 4\)"),
    (lambda read: by_content(read, {}, key="before"), "have no block 'before'; there are token, position"),
    (lambda read: by_content(read, {}, scale=0.0), "scale must be above 0"),
    (by_position, "give one of offset, absolute, function, scores; came none"),
    (lambda read: by_position(read, offset=1, absolute=0), "came offset, absolute"),
    (lambda read: by_position(read, absolute=6), "one of the 6 positions; came 6"),
    (lambda read: by_position(inputs(WORDS), offset=1), "holds no positions"),
    (lambda read: combine(by_content(read, {})), "two designs or more"),
    (lambda read: combine(by_content(read, {}), by_position(inputs(WORDS, 6), offset=1)), "the same inputs"),
    (lambda read: by_content(read, {}).carrying("token", to="position"), r"came \(10, 4\) and \(6, 10\)"),
    (lambda read: by_content(read, {}).weights(["red"]), "there is no 'red' among the, blue"),
    (lambda read: by_content(read, {}).weights([4]), "ids go from 0 to 3"),
    (lambda read: by_content(read, {}).weights(["the"] * 7), "1 to 6 tokens; came 7"),
    (lambda read: layer(by_content(read, {}), by_content(read, {}).seeing(ch.masks.causal())), "one mask"),
    (lambda read: model_of(by_content(read, {}), answer="position"), "'position' has 6 labels"),
    (lambda read: inputs(["a", "a"]), "a list of different labels"),
    (lambda read: inputs(["a"], waves=4), "say how many there are by length"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_what_cannot_be_is_refused(read, wrong, said):
    with pytest.raises(ch.ClearheadError, match=said):
        wrong(read)


def test_designs_by_content_of_different_blocks_do_not_go_into_one_head():
    read = inputs(["a"], 3, room={"before": ["a"]})
    with pytest.raises(ch.ClearheadError, match="must read the same blocks"):
        combine(by_content(read, {}), by_content(read, {}, key="before"))


def test_values_are_designed_as_keys_and_queries_are():
    """What each word says is written where it is asked for; numpy adds it up by the weights."""
    read = inputs(WORDS, 6, room={"meaning": ["colour", "life"]})
    values = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, -1.0]])
    head = by_content(read, {"creature": ["blue"]}, scale=3.0).saying(torch.tensor(values), to="meaning")
    said = values[[WORDS.index(word) for word in SENTENCE]]
    np.testing.assert_allclose(head.explain(SENTENCE).value[0].numpy(), said, atol=1e-6)
    out = head.layer()(read.vectors(SENTENCE)).detach().numpy()[:, read["meaning"].at]
    np.testing.assert_allclose(out, head.weights(SENTENCE).numpy() @ said, atol=1e-5)
    with pytest.raises(ShapeError, match=r"each of the 4 labels of token, as wide as meaning: \(4, 2\); came \(4, 3\)"):
        head.saying(torch.zeros(4, 3), to="meaning")
