"""Laws: what holds for any sizes and numbers. Each is held for every entry of the parts' tables, a new one included.

What is law for one part alone stands with that part: test_similarity, test_weighting, test_positions, test_masks.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clearhead as ch
from clearhead.attention.kernels import KERNELS, blockwise, chunked
from clearhead.attention.mask_numbers import Extent
from tests.covering import covering

DOUBLE = torch.float64
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
few = settings(max_examples=2)


@dataclasses.dataclass(frozen=True)
class Trio:
    """A similarity, a weighting and a position, by their names in the tables."""

    similarity: str = "scaled dot"
    weighting: str = "softmax"
    position: str = "none"

    @property
    def kernelized(self) -> bool:
        return ch.weighting.TABLE[self.weighting].form == "kernelized"

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a trio is a value, and building is slow
    def built(self, shape: ch.HeadShape) -> dict[str, object]:
        """As keywords for `attend`, in float64."""
        torch.manual_seed(0)
        weighting = ch.weighting.TABLE[self.weighting]
        similarity = weighting.similarity if self.kernelized else ch.similarity.TABLE[self.similarity]
        specs = {"similarity": similarity, "weighting": weighting, "position": ch.positions.TABLE[self.position]}
        built = {name: spec.build(shape) for name, spec in specs.items()}
        return {name: part.double() if isinstance(part, nn.Module) else part for name, part in built.items()}

    def __str__(self) -> str:
        usual = dataclasses.asdict(Trio())
        named = [name for axis, name in dataclasses.asdict(self).items() if name != usual[axis]]
        return "+".join(named or ["usual"]).replace(" ", "-")


STAR = list(
    dict.fromkeys(
        [
            *(Trio(similarity=name) for name in ch.similarity.TABLE),
            *(Trio(weighting=name) for name in ch.weighting.TABLE),
            *(Trio(position=name) for name in ch.positions.TABLE),
        ]
    )
)
"""Every part once, beside the usual ones; the grid has them in every combination."""
PLACELESS = [trio for trio in STAR if trio.position == "none"]
KERNELIZED = [trio for trio in STAR if trio.kernelized]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of one attention, and the seed of its numbers."""

    batch: int
    n_kv_heads: int
    group: int
    n_query: int
    n_key: int
    d_head: int
    d_value: int
    seed: int

    @property
    def n_heads(self) -> int:
        return self.n_kv_heads * self.group

    @property
    def extent(self) -> Extent:
        return Extent(self.batch, self.n_heads, self.n_query, self.n_key, torch.device("cpu"))

    def parts(self, trio: Trio) -> dict[str, object]:
        return trio.built(ch.HeadShape(n_heads=self.n_heads, n_kv_heads=self.n_kv_heads, d_head=self.d_head))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, which want gradients."""
        generator = torch.Generator().manual_seed(self.seed)
        query = torch.randn(self.batch, self.n_heads, self.n_query, self.d_head, dtype=DOUBLE, generator=generator)
        key = torch.randn(self.batch, self.n_kv_heads, self.n_key, self.d_head, dtype=DOUBLE, generator=generator)
        value = torch.randn(self.batch, self.n_kv_heads, self.n_key, self.d_value, dtype=DOUBLE, generator=generator)
        return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()

    def table(self) -> Tensor:
        """Truth values for every cell; some rows, and some keys of a batch row, are False throughout."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = (self.batch, self.n_heads, self.n_query, self.n_key)
        cells, rows, keys = (torch.rand(shape, generator=generator) for _ in range(3))
        return (cells < 0.6) & (rows[..., :1] < 0.8) & (keys[:, :1, :1] < 0.8)

    def mask(self, name: str) -> ch.masks.Mask:
        return ch.masks.tensor(self.table()) if name == "table" else ch.masks.TABLE[name](self.extent)


@st.composite
def sizes(draw: st.DrawFn, *, longest: int = 7, self_attention: bool = False) -> Sizes:
    """Small and odd, the telling ones first; widths that rotary can turn; never more queries than keys."""
    n_key = draw(st.sampled_from([5, *range(longest, 0, -1)]))
    return Sizes(
        batch=draw(st.sampled_from([3, 1, 2])),
        n_kv_heads=draw(st.sampled_from([2, 1, 3])),
        group=draw(st.sampled_from([2, 1, 3])),
        n_query=n_key if self_attention else max(1, n_key - draw(st.sampled_from([0, 2, 1, longest]))),
        n_key=n_key,
        d_head=draw(st.sampled_from([4, 6])),
        d_value=draw(st.sampled_from([3, 5, 1, 7])),
        seed=draw(st.integers(0, 1000)),
    )


every_trio = pytest.mark.parametrize("trio", STAR, ids=str)


def every_trio_and_mask(*names: str) -> pytest.MarkDecorator:
    """Every part and every one of these masks, though not every pair: each part meets two, the next one the next.

    `make test` has each part and each mask once.
    """
    pairs = [(trio, names[(2 * index + step) % len(names)]) for index, trio in enumerate(STAR) for step in range(2)]
    pairs = list(dict.fromkeys(pairs))
    once = covering([{"trio": trio, "mask": name} for trio, name in pairs], 1)
    cases = [pytest.param(*one, marks=() if i in once else pytest.mark.thorough) for i, one in enumerate(pairs)]
    return pytest.mark.parametrize(("trio", "mask"), cases, ids=lambda part: str(part).replace(" ", "-"))


ALL_MASKS = (*ch.masks.TABLE, "table")
BY_POSITION = tuple(name for name in ch.masks.TABLE if name not in ("tensor", "document cross"))
"""The others are made for each place in a sequence: a caller gives new ones for new queries."""
CAUSAL = tuple(name for name in ch.masks.TABLE if name.startswith("causal"))


def outcomes(*tensors: Tensor, **parts) -> Iterator[Tensor]:
    """The context by `auto` and by every other kernel that does not refuse."""
    choice = ch.which_kernel(*tensors, **parts)
    for name in ("auto", *(set(KERNELS) - set(choice.refused) - {choice.kernel})):
        yield ch.attend(*tensors, **parts, kernel=name)


def gradients(context: Tensor, *tensors: Tensor, **parts) -> list[Tensor]:
    """Of a fixed sum of the context: for the tensors, then for whatever the parts learn."""
    learned = [weight for part in parts.values() if isinstance(part, nn.Module) for weight in part.parameters()]
    target = torch.linspace(-1, 1, context.numel(), dtype=DOUBLE).view_as(context)
    return list(torch.autograd.grad((context * target).sum(), [*tensors, *learned], materialize_grads=True))


def assert_all_close(came: list[Tensor], wanted: list[Tensor]) -> None:
    for ours, theirs in zip(came, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@every_trio
@few
@given(size=sizes())
def test_weights_are_never_negative_and_sum_to_one_or_zero(trio: Trio, size: Sizes):
    parts, allowed = size.parts(trio), size.table()
    made = ch.explain(*size.tensors(), **parts, mask=allowed)
    assert (made.weight >= 0).all()
    assert not made.weight[~allowed].any()
    if parts["weighting"].sums_to_one:
        nothing = (made.masked == parts["weighting"].blocked).all(-1)
        torch.testing.assert_close(made.weight.sum(-1), (~nothing).to(DOUBLE), **CLOSE)


@every_trio
@few
@given(size=sizes(), data=st.data())
def test_nothing_comes_from_the_future(trio: Trio, size: Sizes, data: st.DataObject):
    query, key, value = size.tensors()
    row = data.draw(st.integers(0, size.n_query - 1))
    future = size.n_key - size.n_query + row + 1
    for context in outcomes(query, key, value, **size.parts(trio), mask=ch.masks.causal()):
        of_query, of_key, of_value = gradients(context[:, :, row], query, key, value)
        assert not of_key[:, :, future:].any()
        assert not of_value[:, :, future:].any()
        assert not of_query[:, :, :row].any()
        assert not of_query[:, :, row + 1 :].any()


@pytest.mark.parametrize("trio", PLACELESS, ids=str)
@few
@given(size=sizes(), data=st.data())
def test_permuting_the_queries_permutes_the_contexts(trio: Trio, size: Sizes, data: st.DataObject):
    query, key, value = size.tensors()
    parts, allowed = size.parts(trio), size.table()
    order = data.draw(st.permutations(range(size.n_query)))
    before = ch.attend(query, key, value, **parts, mask=allowed)
    after = ch.attend(query[:, :, order], key, value, **parts, mask=allowed[:, :, order])
    torch.testing.assert_close(after, before[:, :, order], **CLOSE)


UNORDERED = [t for t in PLACELESS if getattr(ch.weighting.TABLE[t.weighting], "ties", "average") == "average"]
"""Which of several equal keys is the first or the last depends on their order."""


@pytest.mark.parametrize("trio", UNORDERED, ids=str)
@few
@given(size=sizes(), data=st.data())
def test_permuting_keys_and_values_together_changes_nothing(trio: Trio, size: Sizes, data: st.DataObject):
    query, key, value = size.tensors()
    some_equal = data.draw(st.lists(st.integers(0, size.n_key - 1), min_size=size.n_key, max_size=size.n_key))
    order = data.draw(st.permutations(range(size.n_key)))
    parts, allowed, key = size.parts(trio), size.table(), key[:, :, some_equal]
    before = ch.attend(query, key, value, **parts, mask=allowed)
    after = ch.attend(query, key[:, :, order], value[:, :, order], **parts, mask=allowed[..., order])
    torch.testing.assert_close(after, before, **CLOSE)


@settings(max_examples=15)
@given(size=sizes())
def test_softmax_grows_into_averaged_argmax_as_the_temperature_falls(size: Sizes):
    """With whole numbers there are exact ties, and other scores are at least 1 away."""
    query, key, value = (tensor.round() for tensor in size.tensors())
    same = {"similarity": ch.similarity.Dot(), "mask": size.table()}
    hard = ch.explain(query, key, value, **same, weighting=ch.weighting.Argmax(ties="average"))
    distances = []
    for temperature in (3.0, 1.0, 0.3, 0.1, 0.03):
        soft = ch.explain(query, key, value, **same, weighting=ch.weighting.Softmax(temperature=temperature))
        distances.append((soft.weight - hard.weight).abs().sum(-1))
    assert all((colder <= warmer + 1e-14).all() for warmer, colder in itertools.pairwise(distances))
    torch.testing.assert_close(soft.weight, hard.weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(soft.context, hard.context, **CLOSE)


def intersection(size: Sizes, draw: Callable[[st.SearchStrategy], Any]) -> ch.masks.Mask:
    """Of some of the masks that the linear forms serve."""
    reach = st.integers(0, size.n_key)
    each_row = st.lists(reach, min_size=size.batch, max_size=size.batch)
    terms = {
        "causal": ch.masks.causal(),
        "window": ch.masks.window(draw(reach), draw(reach)),
        "prefix": ch.masks.prefix(draw(each_row)),
        "padding": ch.masks.padding(draw(each_row)),
        "document": ch.masks.document(torch.arange(size.n_key) // draw(st.integers(1, 9)) - draw(st.integers(0, 1))),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(terms))))
    return functools.reduce(lambda mask, name: mask & terms[name], sorted(chosen), ch.masks.everything())


@pytest.mark.parametrize("kernel", ["chunked", "recurrent", "blockwise"])
@pytest.mark.parametrize("trio", KERNELIZED, ids=str)
@settings(max_examples=8)
@given(size=sizes(longest=13), data=st.data(), chunk=st.sampled_from([1, 2, 3, 64]))
def test_every_form_of_kernelized_attention_is_the_quadratic_one(
    kernel: str, trio: Trio, size: Sizes, data: st.DataObject, chunk: int
):
    """Over the borders of chunks, for as many queries as keys or fewer, and wherever nobody looks."""
    parts = size.parts(dataclasses.replace(trio, position=data.draw(st.sampled_from(["none", "rotary"]))))
    parts = {**parts, "mask": intersection(size, data.draw)}
    tensors = size.tensors()
    if kernel in ch.which_kernel(*tensors, **parts).refused:
        return
    with patch.object(chunked, "CHUNK", chunk):
        came = ch.attend(*tensors, **parts, kernel=kernel)
    wanted = ch.attend(*tensors, **parts, kernel="reference")
    torch.testing.assert_close(came, wanted, **CLOSE)
    assert_all_close(gradients(came, *tensors, **parts), gradients(wanted, *tensors, **parts))


@every_trio_and_mask(*BY_POSITION)
@few
@given(size=sizes(self_attention=True), n_new=st.sampled_from([2, 1, 3, 5]))
def test_new_queries_on_cached_keys_get_the_rows_of_the_whole(trio: Trio, mask: str, size: Sizes, n_new: int):
    query, key, value = size.tensors()
    parts, last = {**size.parts(trio), "mask": size.mask(mask)}, slice(-n_new, None)
    whole = ch.attend(query, key, value, **parts)
    for new in outcomes(query[:, :, last], key, value, **parts):
        torch.testing.assert_close(new, whole[:, :, last], **CLOSE)


@every_trio_and_mask(*CAUSAL)
@few
@given(size=sizes(longest=5, self_attention=True))
def test_one_query_at_a_time_on_a_growing_cache_gives_the_same(trio: Trio, mask: str, size: Sizes):
    query, key, value = size.tensors()
    parts = {**size.parts(trio), "mask": size.mask(mask)}
    whole = ch.attend(query, key, value, **parts)
    for now in range(size.n_query):
        one = ch.attend(query[:, :, now : now + 1], key[:, :, : now + 1], value[:, :, : now + 1], **parts)
        torch.testing.assert_close(one, whole[:, :, now : now + 1], **CLOSE)


@every_trio
@few
@given(
    size=sizes(longest=5, self_attention=True),
    rule=st.sampled_from([ch.masks.causal(), ch.masks.window(2, 1), ch.masks.prefix(2), ch.masks.everything()]),
    lengths=st.permutations([2, 5, 1]),
)
def test_a_row_of_a_left_padded_batch_gets_what_it_gets_alone(
    trio: Trio, size: Sizes, rule: ch.masks.Mask, lengths: list[int]
):
    query, key, value = (tensor.detach() for tensor in size.tensors())
    parts, n = size.parts(trio), size.n_key
    lengths = [min(length, n) for length in lengths[: size.batch]]
    positions = torch.arange(n) - torch.tensor([[n - length] for length in lengths])
    padding = positions[:, None, :, None] < 0
    places = {"query_positions": positions, "key_positions": positions}
    filled = (query, key.masked_fill(padding, torch.nan), value.masked_fill(padding, torch.inf))
    for context in outcomes(*filled, **parts, **places, mask=rule & ch.masks.padding(lengths)):
        for row, length in enumerate(lengths):
            alone = ch.attend(*(side[[row], :, n - length :] for side in (query, key, value)), **parts, mask=rule)
            torch.testing.assert_close(context[[row], :, n - length :], alone, **CLOSE)


@every_trio_and_mask(*ALL_MASKS)
@few
@given(size=sizes())
def test_weights_asked_for_or_not_the_context_is_the_same(trio: Trio, mask: str, size: Sizes):
    tensors, parts = size.tensors(), {**size.parts(trio), "mask": size.mask(mask)}
    made = ch.explain(*tensors, **parts)
    torch.testing.assert_close(made.context, made.weight @ made.value, **CLOSE)
    for context in outcomes(*tensors, **parts):
        torch.testing.assert_close(context, made.context, **CLOSE)


@every_trio_and_mask(
    "table", "padding", "causal padding", "causal window padding", "union", "document cross", "negation"
)
@few
@given(size=sizes(), poison=st.sampled_from([torch.nan, torch.inf, -torch.inf]))
def test_what_stands_where_nobody_looks_leaks_nowhere(trio: Trio, mask: str, size: Sizes, poison: float):
    """Neither from keys and values no query may attend, nor from queries that may attend nothing."""
    tensors, parts = size.tensors(), {**size.parts(trio), "mask": size.mask(mask)}
    allowed = ch.explain(*tensors, mask=parts["mask"]).masked > -torch.inf
    blind = ~allowed.any(-1, keepdim=True)
    unseen = ~allowed.any(-2).unflatten(1, (size.n_kv_heads, size.group)).any(2).unsqueeze(-1)
    nowhere = (blind, unseen, unseen)
    poisoned = [
        tensor.detach().masked_fill(place, poison).requires_grad_()
        for tensor, place in zip(tensors, nowhere, strict=True)
    ]
    clean = ch.attend(*tensors, **parts, kernel="reference")
    wanted = gradients(clean, *tensors, **parts)
    for context in outcomes(*poisoned, **parts):
        torch.testing.assert_close(context, clean, **CLOSE)
        assert not context[blind.expand_as(context)].any()
        came = gradients(context, *poisoned, **parts)
        assert_all_close(came, wanted)
        for gradient, place in zip(came, nowhere, strict=False):
            assert not gradient[place.expand_as(gradient)].any()


@every_trio_and_mask("none", "causal", "padding", "causal padding", "table", "document")
@few
@given(size=sizes(), data=st.data())
def test_a_query_that_is_nan_gives_nan_and_no_other_query_notices(
    trio: Trio, mask: str, size: Sizes, data: st.DataObject
):
    """On every kernel; torch's own gives 0 for it, or NaN, by the number of keys."""
    (query, key, value), parts = size.tensors(), {**size.parts(trio), "mask": size.mask(mask)}
    row = data.draw(st.integers(0, size.n_query - 1))
    seeing = (ch.explain(query, key, value, mask=parts["mask"]).masked > -torch.inf).any(-1, keepdim=True)
    clean = ch.attend(query, key, value, **parts, kernel="reference")
    poisoned = query.detach().clone()
    poisoned[:, :, row, 1] = torch.nan
    hit = torch.zeros_like(seeing)
    hit[:, :, row] = seeing[:, :, row]
    for context in outcomes(poisoned, key, value, **parts):
        assert context[hit.expand_as(context)].isnan().all()
        torch.testing.assert_close(context.masked_fill(hit, 0), clean.masked_fill(hit, 0), **CLOSE)


@every_trio
@few
@given(size=sizes())
def test_where_no_query_may_attend_anything_all_is_zero(trio: Trio, size: Sizes):
    tensors, parts = size.tensors(), {**size.parts(trio), "mask": ~ch.masks.everything()}
    assert not ch.explain(*tensors, **parts).weight.any()
    for context in outcomes(*tensors, **parts):
        assert not context.any()
        assert not any(gradient.any() for gradient in gradients(context, *tensors, **parts))


@every_trio_and_mask(*ALL_MASKS)
@settings(max_examples=1)
@given(size=sizes(longest=5))
def test_a_block_of_one_row_is_as_good_as_any(trio: Trio, mask: str, size: Sizes):
    tensors, parts = size.tensors(), {**size.parts(trio), "mask": size.mask(mask)}
    with patch.object(blockwise, "BLOCK_NUMBERS", 1):
        by_row = ch.attend(*tensors, **parts, kernel="blockwise")
        came = gradients(by_row, *tensors, **parts)
    whole = ch.attend(*tensors, **parts, kernel="reference")
    assert_all_close([by_row, *came], [whole, *gradients(whole, *tensors, **parts)])


@pytest.mark.parametrize("trio", [trio for trio in STAR if trio.weighting == "softmax"], ids=str)
@few
@given(size=sizes(), shift=st.integers(-50, 50))
def test_only_the_distance_between_positions_matters(trio: Trio, size: Sizes, shift: int):
    tensors, parts = size.tensors(), {**size.parts(trio), "mask": ch.masks.causal()}
    key = torch.arange(size.n_key)
    query = key[-size.n_query :]
    here = ch.explain(*tensors, **parts)
    there = ch.explain(*tensors, **parts, query_positions=query + shift, key_positions=key + shift)
    torch.testing.assert_close(there.masked, here.masked, **CLOSE)
