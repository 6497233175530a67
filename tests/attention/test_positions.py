"""Positions: the formulas by hand, and what each of them promises about order and distance."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clearhead as ch
from clearhead.attention.parts import MadeFor
from clearhead.attention.positions import ALiBi, Learned, Position, Rotary, Sinusoidal, T5Bias
from clearhead.attention.weighting import Weighting, softmax_rows
from clearhead.errors import OptionError, ShapeError
from clearhead.model import Embedding, presets
from tests.rounding import assert_equal_but_rounding

DOUBLE = torch.float64
LAYOUTS = ("interleaved", "halves")


def frequencies(d_model: int, base: float = 10_000.0) -> list[float]:
    return [base ** (-2 * pair / d_model) for pair in range(d_model // 2)]


def step_matrix(k: int, d_model: int, layout: str) -> Tensor:
    """sin(a + kω) = cos kω sin a + sin kω cos a; cos(a + kω) = cos kω cos a - sin kω sin a: a block for each pair."""
    matrix = torch.zeros(d_model, d_model, dtype=DOUBLE)
    for pair, frequency in enumerate(frequencies(d_model)):
        sine, cosine = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, pair + d_model // 2)
        matrix[sine, sine] = matrix[cosine, cosine] = math.cos(k * frequency)
        matrix[sine, cosine], matrix[cosine, sine] = math.sin(k * frequency), -math.sin(k * frequency)
    return matrix


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=15)
@given(k=st.integers(-40, 2000), half=st.integers(1, 12), start=st.integers(40, 3000))
def test_a_step_of_k_is_one_linear_map_wherever_it_starts(layout: str, k: int, half: int, start: int):
    encoding = Sinusoidal(layout=layout).embed(2 * half).double()
    positions = torch.tensor([40, 41, 97, start, 5 * start])
    moved = encoding.at(positions) @ step_matrix(k, 2 * half, layout).T
    torch.testing.assert_close(encoding.at(positions + k), moved, rtol=0, atol=1e-9)


def test_the_encoding_is_the_papers_formula():
    table = Sinusoidal().embed(6)(8)
    for position in range(8):
        for pair, frequency in enumerate(frequencies(6)):
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(position * frequency), abs=1e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(position * frequency), abs=1e-6)


def test_the_layouts_hold_the_same_numbers():
    interleaved, halves = (Sinusoidal(layout=layout).embed(8)(5) for layout in LAYOUTS)
    assert torch.equal(halves, torch.cat([interleaved[:, ::2], interleaved[:, 1::2]], -1))


def test_early_dimensions_oscillate_faster():
    table = Sinusoidal().embed(16)(3000)
    swings = (table[1:, ::2].sign() != table[:-1, ::2].sign()).sum(0).tolist()
    assert swings == sorted(swings, reverse=True)
    assert swings[0] > 50 * swings[4] > 0


def test_the_table_grows_and_what_was_there_stays():
    encoding = Sinusoidal().embed(8)
    first = encoding(5).clone()
    longer = encoding(1000)
    assert_equal_but_rounding(longer[:5], first)
    assert torch.equal(encoding(3, start=2), longer[2:5])
    assert torch.equal(encoding(5), longer[:5])
    assert torch.equal(encoding(7, start=500), longer[500:507])


def test_the_table_is_made_once_and_is_not_saved():
    encoding = Sinusoidal().embed(8)
    encoding(50)
    assert encoding(20).data_ptr() == encoding(30).data_ptr()
    assert not encoding.state_dict()
    assert not list(encoding.parameters())


def test_any_positions_can_be_asked_for():
    encoding, positions = Sinusoidal().embed(8), torch.tensor([[3, 0, 7], [7, 7, 1]])
    assert_equal_but_rounding(encoding.at(positions), encoding(8)[positions])


def test_a_table_brought_to_another_dtype_is_as_good_as_one_made_in_it():
    used, fresh = Sinusoidal().embed(8), Sinusoidal().embed(8).double()
    used(10)
    assert_equal_but_rounding(used.double()(10), fresh(10))


def test_learned_positions_are_rows_of_a_table():
    encoding = Learned(6).embed(4)
    (table,) = encoding.parameters()
    assert torch.equal(encoding(6), table)
    assert torch.equal(encoding(2, start=3), table[3:5])
    assert torch.equal(encoding.at(torch.tensor([[5, 0], [1, 1]])), table[torch.tensor([[5, 0], [1, 1]])])
    encoding(3).sum().backward()
    assert table.grad.any(-1).tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (lambda table: table(7), "0 to 6"),
        (lambda table: table(2, start=5), "5 to 6"),
        (lambda table: table(2, start=-1), "-1 to 0"),
        (lambda table: table.at(torch.tensor([0, 6])), "0 to 6"),
        (lambda table: table.at(torch.tensor([-1, 2])), "-1 to 2"),
    ],
)
def test_past_their_length_learned_positions_raise(ask, asked: str):
    with pytest.raises(ShapeError, match=f"has positions 0 to 5, and {asked} were asked for; shorten the text"):
        ask(Learned(6).embed(4))


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
def test_rotary_turns_a_pair_by_its_position(pairing: str):
    turned = Rotary(pairing=pairing).turn(torch.tensor([[[[1.0, 0.0]] * 3]]), torch.tensor([0, 1, -2]))
    wanted = [[1.0, 0.0], [math.cos(1), math.sin(1)], [math.cos(2), -math.sin(2)]]
    torch.testing.assert_close(turned[0, 0], torch.tensor(wanted))


@settings(max_examples=15)
@given(
    spec=st.builds(
        Rotary,
        pairing=st.sampled_from(["interleaved", "halves"]),
        base=st.sampled_from([10_000.0, 7.0]),
        width=st.sampled_from([None, 2, 6]),
    ),
    positions=st.lists(st.integers(-500, 500), min_size=3, max_size=3),
    shift=st.integers(-500, 500),
)
def test_rotary_keeps_lengths_and_sees_only_distances(spec: Rotary, positions: list[int], shift: int):
    q, k = torch.randn(2, 1, 2, 3, 8, dtype=DOUBLE)
    here, there = torch.tensor(positions), torch.tensor(positions) + shift
    torch.testing.assert_close(spec.turn(q, here).norm(dim=-1), q.norm(dim=-1))
    scores = [spec.turn(q, where) @ spec.turn(k, where).mT for where in (here, there)]
    torch.testing.assert_close(*scores, rtol=1e-9, atol=1e-9)
    assert torch.equal(spec.turn(q, torch.zeros(3, dtype=torch.long)), q)


def test_partial_rotary_leaves_the_rest_as_it_is():
    q, positions = torch.randn(2, 3, 5, 8), torch.randint(-9, 9, (2, 5))
    turned = Rotary(width=6).turn(q, positions)
    assert torch.equal(turned[..., 6:], q[..., 6:])
    torch.testing.assert_close(turned[..., :6], Rotary().turn(q[..., :6], positions))


def test_the_pairings_differ_by_the_order_of_the_entries():
    q, positions = torch.randn(1, 2, 5, 8), torch.arange(5)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    by_halves = Rotary(pairing="halves").turn(q[..., order], positions)
    torch.testing.assert_close(by_halves, Rotary().turn(q, positions)[..., order])


def test_rotary_comes_before_the_features_of_kernelized_attention():
    q, k = torch.randn(2, 1, 2, 5, 4, dtype=DOUBLE)
    turn = Rotary().turn
    made = ch.explain(q, k, k, position=Rotary(), weighting=ch.weighting.Kernelized("elu"))
    query, key = (torch.nn.functional.elu(turn(side, torch.arange(5))) + 1 for side in (q, k))
    torch.testing.assert_close(made.score, query @ key.mT)


def bias(position, n_heads: int, n_query: int, n_key: int) -> Tensor:
    """What is added to the scores of `(head, query, key)`."""
    q, k = torch.zeros(n_heads, n_query, 4), torch.zeros(n_heads, n_key, 4)
    return ch.explain(q, k, k, position=position).masked


def slopes(n_heads: int) -> list[float]:
    return bias(ALiBi(), n_heads=n_heads, n_query=1, n_key=2)[:, 0, 0].neg().tolist()


def test_alibis_slopes_for_eight_heads_are_a_half_to_a_256th():
    assert slopes(8) == [1 / 2**power for power in range(1, 9)]


@pytest.mark.parametrize("n_heads", [1, 2, 3, 5, 12, 16, 20])
def test_alibis_slopes_are_distinct_and_between_0_and_1(n_heads: int):
    assert len(set(slopes(n_heads))) == n_heads
    assert all(0 < slope < 1 for slope in slopes(n_heads))


def test_alibi_falls_with_the_distance_on_both_sides():
    made = bias(ALiBi(), n_heads=2, n_query=2, n_key=4)
    distances = torch.tensor([[2.0, 1, 0, 1], [3, 2, 1, 0]])
    assert torch.equal(made, torch.stack([-distances / 2**4, -distances / 2**8]))


@pytest.mark.parametrize("two_sided", [True, False])
@settings(max_examples=20)
@given(half=st.integers(2, 20), further=st.integers(1, 300))
def test_t5_buckets_never_fall_with_the_distance(two_sided: bool, half: int, further: int):
    spec = T5Bias(buckets=2 * half, reach=half + further, two_sided=two_sided)
    distance = torch.arange(3 * spec.reach)
    back, ahead = spec.bucket(-distance), spec.bucket(distance[1:])
    side = half if two_sided else 2 * half
    exact = side // 2
    assert torch.equal(back[:exact], distance[:exact])
    assert (back.diff() >= 0).all()
    assert (back[spec.reach :] == side - 1).all()
    assert torch.equal(ahead, back[1:] + side if two_sided else torch.zeros_like(ahead))


def test_t5_buckets_are_the_papers():
    """32 on two sides: 8 exact, then wider up to 128."""
    distance = torch.tensor([0, 1, 7, 8, 11, 12, 16, 32, 64, 127, 128, 10_000])
    assert T5Bias().bucket(-distance).tolist() == [0, 1, 7, 8, 8, 9, 10, 12, 14, 15, 15, 15]


def test_t5_adds_a_learned_number_for_each_head_and_bucket():
    spec = T5Bias(buckets=8, reach=20)
    built = spec.build(ch.HeadShape(n_heads=3, n_kv_heads=3, d_head=4))
    (table,) = built.parameters()
    assert table.shape == (8, 3)
    made = bias(built, n_heads=3, n_query=2, n_key=5)
    ahead = torch.arange(5) - torch.tensor([[3], [4]])
    assert torch.equal(made, table[spec.bucket(ahead)].permute(2, 0, 1))
    made.sum().backward()
    assert torch.equal(table.grad[:, 0], torch.bincount(spec.bucket(ahead).flatten(), minlength=8).float())


def test_a_built_position_builds_into_itself():
    heads = ch.HeadShape(n_heads=2, n_kv_heads=2, d_head=4)
    for spec in ch.positions.TABLE.values():
        built = spec.build(heads)
        assert built.build(heads) is built


def test_learned_positions_may_begin_in_a_later_row():
    encoding = Learned(6, first=2).embed(4)
    assert encoding.table.shape == (8, 4)
    assert encoding.length == 6
    assert torch.equal(encoding(3, start=1), encoding.table[3:6])
    assert torch.equal(encoding.at(torch.tensor([0, 5])), encoding.table[[2, 7]])
    with pytest.raises(ShapeError, match="has positions 0 to 5, and 0 to 6 were asked for"):
        encoding(7)
    with pytest.raises(OptionError, match="Learned: first must be 0 or more; came -1"):
        Learned(6, first=-1)


@pytest.mark.parametrize("spec", [Learned(6, first=2, skips=7), Sinusoidal(first=2, skips=7)], ids=["learned", "sines"])
def test_a_token_that_takes_no_position(spec):
    """The tokens after it count on, and it has the row before the first, or zeros."""
    encoding, every = spec.embed(4), replace(spec, skips=None).embed(4)
    every.load_state_dict(encoding.state_dict())
    tokens = torch.tensor([[7, 3, 7, 7, 5], [3, 5, 4, 3, 7]])
    assert encoding.count(tokens).tolist() == [[-1, 0, -1, -1, 1], [0, 1, 2, 3, -1]]
    assert every.count(tokens) is None
    vectors = encoding.at(encoding.count(tokens))
    assert torch.equal(vectors[0, [1, 4]], every(2))
    assert torch.equal(vectors[1, :4], every(4))
    none = encoding.table[1] if isinstance(spec, Learned) else torch.zeros(4)
    assert torch.equal(vectors[0, [0, 2, 3]], none.expand(3, 4))


def test_where_no_token_can_be_skipped():
    with pytest.raises(OptionError, match="gets the row before the first"):
        Learned(6, skips=1)
    with pytest.raises(OptionError, match="first must be 0 or more; came -1"):
        Sinusoidal(first=-1)
    embedding = Embedding(position=Sinusoidal(skips=1))
    with pytest.raises(OptionError, match="a decoder gives every token a position"):
        replace(presets.gpt2("tiny"), embedding=embedding)


class Turning(nn.Module, Position):
    """A user's own rotation, by learned frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.made_for = MadeFor(d_head=4)
        self.frequency = nn.Parameter(torch.tensor([1.0, 0.1], dtype=DOUBLE))

    def angles(self, positions, d_head):
        angle = positions[..., None, :, None] * self.frequency
        return angle.cos(), angle.sin()

    def turn_by(self, vectors, angles):
        (cos, sin), a, b = angles, vectors[..., ::2], vectors[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


@pytest.mark.parametrize("kernel", ["auto", "blockwise", "reference"])
def test_hidden_nan_does_not_reach_the_gradient_of_a_learned_rotation(kernel):
    position, mask = Turning(), ch.masks.padding([3])
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=DOUBLE) for _ in range(3))
    found = []
    for hidden in (0.0, torch.nan):
        k[:, :, 3:] = v[:, :, 3:] = hidden
        context = ch.attend(q, k, v, position=position, mask=mask, kernel=kernel)
        found.append((context, *torch.autograd.grad(context.sin().sum(), position.frequency)))
    torch.testing.assert_close(*found)
    assert found[1][1].abs().min() > 0


class ByHead(nn.Module, Weighting):
    def __init__(self) -> None:
        super().__init__()
        self.made_for = MadeFor(n_heads=4)

    def weigh(self, masked, allowed):
        return softmax_rows(masked, allowed)


def test_a_weighting_that_was_built_for_other_heads_is_refused():
    x = torch.randn(1, 2, 5, 4)
    with pytest.raises(ShapeError, match="weighting: this ByHead was built for 4 heads, and there are 2"):
        ch.attend(x, x, x, weighting=ByHead())
