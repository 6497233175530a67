"""Masks against plain loops: what each says of every batch row, head, query and key, alone and combined."""

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.mask_rules import Mask
from clearhead.attention.score_index import Positions, box

M = ch.masks
some = settings(max_examples=20)


@dataclasses.dataclass(frozen=True)
class Scene:
    """Positions, a list for each batch row, and all the numbers that masks are made of."""

    query: list[list[int]]
    key: list[list[int]]
    reach: tuple[int, int]
    lengths: list[int]
    ids: list[list[int]]
    query_ids: list[list[int]]
    key_ids: list[list[int]]
    table: list[list[list[list[bool]]]]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.query), len(self.table[0]), len(self.query[0]), len(self.key[0])

    def says(self, mask: Mask) -> Tensor:
        batch, n_heads, n_query, n_key = self.shape
        mask.check(Extent(batch, n_heads, n_query, n_key, torch.device("cpu")))
        positions = Positions(torch.tensor(self.query), torch.tensor(self.key))
        return mask.allowed(box(positions, batch=batch, n_heads=n_heads)).expand(self.shape)

    def loop(self, rule: "Rule") -> Tensor:
        places = itertools.product(*map(range, self.shape))
        return torch.tensor([rule(self, *place) for place in places]).view(self.shape)

    def document(self, batch: int, position: int) -> int:
        return self.ids[batch][position] if 0 <= position < len(self.ids[batch]) else -1


Rule = Callable[[Scene, int, int, int, int], bool]


def grid_of(numbers: st.SearchStrategy, *shape: int) -> st.SearchStrategy:
    for size in reversed(shape):
        numbers = st.lists(numbers, min_size=size, max_size=size)
    return numbers


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    batch, n_heads = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    n_query, n_key = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    position, document = st.integers(-3, 7), st.integers(-1, 2)
    return Scene(
        query=draw(grid_of(position, batch, n_query)),
        key=draw(grid_of(position, batch, n_key)),
        reach=draw(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        lengths=draw(grid_of(st.integers(0, 6), batch)),
        ids=draw(grid_of(document, batch, 6)),
        query_ids=draw(grid_of(document, batch, n_query)),
        key_ids=draw(grid_of(document, batch, n_key)),
        table=draw(grid_of(st.booleans(), batch, n_heads, n_query, n_key)),
    )


def in_document(scene: Scene, b: int, h: int, i: int, j: int) -> bool:
    document = scene.document(b, scene.query[b][i])
    return document >= 0 and document == scene.document(b, scene.key[b][j])


RULES: dict[str, tuple[Callable[[Scene], Mask], Rule]] = {
    "everything": (lambda s: M.everything(), lambda s, b, h, i, j: True),
    "causal": (lambda s: M.causal(), lambda s, b, h, i, j: s.key[b][j] <= s.query[b][i]),
    "window": (
        lambda s: M.window(*s.reach),
        lambda s, b, h, i, j: s.query[b][i] - s.reach[0] <= s.key[b][j] <= s.query[b][i] + s.reach[1],
    ),
    "window back": (
        lambda s: M.window(s.reach[0]),
        lambda s, b, h, i, j: s.query[b][i] - s.reach[0] <= s.key[b][j] <= s.query[b][i],
    ),
    "padding": (lambda s: M.padding(s.lengths), lambda s, b, h, i, j: 0 <= s.key[b][j] < s.lengths[b]),
    "prefix": (
        lambda s: M.prefix(torch.tensor(s.lengths)),
        lambda s, b, h, i, j: s.key[b][j] <= s.query[b][i] or s.key[b][j] < s.lengths[b],
    ),
    "one prefix": (
        lambda s: M.prefix(s.reach[0]),
        lambda s, b, h, i, j: s.key[b][j] <= s.query[b][i] or s.key[b][j] < s.reach[0],
    ),
    "document": (lambda s: M.document(torch.tensor(s.ids)), in_document),
    "document cross": (
        lambda s: M.document(torch.tensor(s.query_ids), torch.tensor(s.key_ids)),
        lambda s, b, h, i, j: s.query_ids[b][i] == s.key_ids[b][j] >= 0,
    ),
    "function": (
        lambda s: M.function(lambda query, key: (query + key) % 3 == 0),
        lambda s, b, h, i, j: (s.query[b][i] + s.key[b][j]) % 3 == 0,
    ),
    "tensor": (lambda s: M.tensor(torch.tensor(s.table)), lambda s, b, h, i, j: s.table[b][h][i][j]),
    "tensor of keys": (
        lambda s: M.tensor(torch.tensor(s.table)[:, :1, :1]),
        lambda s, b, h, i, j: s.table[b][0][0][j],
    ),
    "tensor of one row": (lambda s: M.tensor(torch.tensor(s.table)[0, 0]), lambda s, b, h, i, j: s.table[0][0][i][j]),
}


@pytest.mark.parametrize("name", RULES)
@some
@given(scene=scenes())
def test_a_mask_says_what_its_rule_says(name: str, scene: Scene):
    mask, rule = RULES[name]
    assert torch.equal(scene.says(mask(scene)), scene.loop(rule))


@pytest.mark.slow
@settings(max_examples=60)
@given(scene=scenes(), left=st.sampled_from(sorted(RULES)), right=st.sampled_from(sorted(RULES)))
def test_the_operators_are_the_boolean_ones(scene: Scene, left: str, right: str):
    a, b = RULES[left][0](scene), RULES[right][0](scene)
    is_a, is_b = scene.loop(RULES[left][1]), scene.loop(RULES[right][1])
    assert torch.equal(scene.says(a & b), is_a & is_b)
    assert torch.equal(scene.says(a | b), is_a | is_b)
    assert torch.equal(scene.says(~a), ~is_a)
    assert torch.equal(scene.says(~(a & b)), scene.says(~a | ~b))
    assert torch.equal(scene.says(~(a | b)), scene.says(~a & ~b))
    assert torch.equal(scene.says(~~a), is_a)
    assert torch.equal(scene.says((a | b) & ~(a & b)), is_a ^ is_b)


@some
@given(scene=scenes())
def test_attention_goes_where_the_mask_says(scene: Scene):
    batch, n_heads, n_query, n_key = scene.shape
    q, k = torch.zeros(batch, n_heads, n_query, 1), torch.zeros(batch, n_heads, n_key, 1)
    places = {"query_positions": torch.tensor(scene.query), "key_positions": torch.tensor(scene.key)}
    mask = M.causal() & M.padding(scene.lengths)
    assert torch.equal(ch.explain(q, k, k, mask=mask, **places).weight > 0, scene.says(mask))


def test_a_tensor_stands_for_a_mask_beside_another():
    table = torch.tensor([[True, False], [True, True]])
    assert torch.equal(M.show(M.causal() & table, n_query=2, n_key=2)[0], table & torch.ones(2, 2).tril().bool())
    assert torch.equal(M.show(M.causal() | ~table, n_query=2, n_key=2)[0], torch.ones(2, 2).bool())


def shown(mask: Mask, **sizes: int) -> list[list[int]]:
    return M.show(mask, **sizes)[0].int().tolist()


def test_two_new_queries_on_five_cached_keys_see_four_and_five():
    assert shown(M.causal(), n_query=2, n_key=5) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_queries_before_the_first_key_see_nothing_causally():
    assert shown(M.causal(), n_query=3, n_key=2) == [[0, 0], [1, 0], [1, 1]]


def test_a_window_counts_from_the_query():
    assert shown(M.window(1), n_query=4, n_key=4) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert shown(M.window(0, 1), n_query=3, n_key=3) == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert shown(M.window(0), n_query=3, n_key=3) == torch.eye(3).int().tolist()
    assert shown(M.window(1), n_query=2, n_key=5) == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


def test_the_documents_of_new_queries_are_read_at_their_positions():
    ids = [0, 0, 1, 1, 1]
    assert shown(M.document(ids), n_query=2, n_key=5) == [[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert shown(M.document(ids), n_query=4, n_key=4) == shown(M.document(ids[:4]), n_query=4, n_key=4)


def test_the_documents_of_two_sequences_are_read_in_their_order():
    assert shown(M.document([0, 1], [0, 0, 1, 1, 1]), n_query=2, n_key=5) == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]
    assert shown(M.document([2, 0, 1], [1, 2]), n_query=3, n_key=2) == [[0, 1], [0, 0], [1, 0]]


def test_a_negative_id_belongs_to_no_document():
    assert shown(M.document([0, -1, -1, 0]), n_query=4, n_key=4) == [[1, 0, 0, 1], [0] * 4, [0] * 4, [1, 0, 0, 1]]


def test_padding_leaves_out_both_sides():
    """Three tokens after two of padding: the padding stands at negative positions."""
    q = torch.zeros(1, 5, 1)
    positions = torch.arange(5) - 2
    weight = ch.explain(q, q, q, mask=M.padding([3]), query_positions=positions, key_positions=positions).weight
    assert weight[0, 0].tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3])
    assert shown(M.padding([3]), n_query=1, n_key=5) == [[1, 1, 1, 0, 0]]


def test_one_length_serves_every_row_of_the_batch():
    assert torch.equal(M.show(M.padding([2]), batch=3, n_query=1, n_key=3), torch.tensor([[[True, True, False]]] * 3))


def test_show_has_a_row_for_each_of_the_batch():
    assert M.show(M.everything(), batch=2, n_query=3, n_key=4).shape == (2, 3, 4)
    assert M.show(M.padding([1, 3]), batch=2, n_query=1, n_key=3).tolist() == [[[True, False, False]], [[True] * 3]]
