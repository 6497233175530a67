"""The linear forms of kernelized attention equal the quadratic one: outputs, gradients, edges; in linear memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import clearhead as ch
from clearhead.attention.kernels import KERNELS, chunked
from clearhead.attention.kernels.linear import State
from clearhead.attention.mask_rules import Mask
from clearhead.attention.similarity import DotForm
from clearhead.attention.weighting import Features, Kernelized, LogFeatures, RandomFeatures
from clearhead.attention.weighting.features import FEATURES

causal, document, padding = ch.masks.causal, ch.masks.document, ch.masks.padding
prefix, window = ch.masks.prefix, ch.masks.window

LINEAR = ("chunked", "recurrent")
ONE_ROW = torch.tensor([0] * 3 + [1] * 6 + [2] * 1 + [3] * 30)
TWO_ROWS = torch.stack([ONE_ROW, torch.tensor([7] * 10 + [-1] * 3 + [2] * 27)])

MASKS: dict[str, Callable[[int], Mask | None]] = {
    "none": lambda n: None,
    "padding": lambda n: padding([n // 2, n]),
    "padding, a row empty": lambda n: padding([0, n]),
    "causal": lambda n: causal(),
    "causal, padding": lambda n: causal() & padding([0, n - 1]),
    "prefix": lambda n: prefix([0, 11]),
    "prefix of all rows": lambda n: prefix(6),
    "prefix, padding": lambda n: prefix([n, 3]) & padding([n // 2, n]),
    "prefix, causal": lambda n: prefix(6) & causal(),
    "prefix, document": lambda n: prefix([5, 13]) & document(TWO_ROWS),
    "two prefixes": lambda n: prefix([2, 12]) & prefix(8),
    "window of one": lambda n: window(0),
    "window back": lambda n: window(2),
    "window ahead": lambda n: window(0, 5),
    "window": lambda n: window(3, 2),
    "window of chunks": lambda n: window(9, 13),
    "window of whole chunks": lambda n: window(7, 11),
    "window of everything": lambda n: window(100, 100),
    "two windows": lambda n: window(9, 2) & window(5, 7),
    "window, padding": lambda n: window(2, 1) & padding([1, n - 5]),
    "window, prefix": lambda n: window(9, 9) & prefix([4, 12]),
    "window, causal": lambda n: window(6, 3) & causal(),
    "document": lambda n: document(ONE_ROW),
    "document of each row": lambda n: document(TWO_ROWS),
    "two documents": lambda n: document(TWO_ROWS) & document(ONE_ROW),
    "document, padding": lambda n: document(TWO_ROWS) & padding([n // 2, n - 1]),
    "document, causal": lambda n: document(TWO_ROWS) & causal(),
    "document, causal, padding": lambda n: document(TWO_ROWS) & causal() & padding([n, 2]),
    "document, causal, window": lambda n: document(ONE_ROW) & causal() & window(11),
    "document, window": lambda n: document(TWO_ROWS) & window(13, 9),
    "everything at once": lambda n: document(TWO_ROWS) & prefix(9) & padding([n, n - 2]) & window(14, 13),
}
EDGES = [name for name in MASKS if name not in ("none", "causal", "prefix", "window")]

SHAPES = [(17, 17), (16, 16), (6, 17), (17, 6), (1, 13)]


@pytest.fixture(autouse=True)
def short_chunks(request, monkeypatch):
    """Chunks of four positions, so that few positions make many; `true_chunks` keeps them as they are."""
    if "true_chunks" not in request.fixturenames:
        monkeypatch.setattr(chunked, "CHUNK", 4)


@pytest.fixture
def true_chunks():
    """Chunks as long as they are in use."""


def inputs(n_query: int, n_key: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Four query heads on two key heads, and values wider than keys."""
    shapes = ((2, 4, n_query, 3), (2, 2, n_key, 3), (2, 2, n_key, 5))
    query, key, value = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return query, key, value


def outcome(kernel: str, tensors, mask, weighting: Kernelized = Kernelized()) -> tuple[Tensor, ...]:
    """The context and the gradients of query, key and value."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    context = ch.attend(*leaves, weighting=weighting, mask=mask, kernel=kernel)
    ramp = torch.arange(context.numel(), dtype=context.dtype).view_as(context).sin()
    return (context.detach(), *torch.autograd.grad(context, leaves, ramp))


def refuses(kernel: str, tensors, mask) -> bool:
    return kernel in ch.which_kernel(*tensors, weighting=Kernelized(), mask=mask).refused


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.pairs(1)
def test_every_mask_is_as_in_the_reference(name, shape):
    tensors, mask = inputs(*shape), MASKS[name](shape[1])
    expected = outcome("reference", tensors, mask)
    assert not refuses("chunked", tensors, mask)
    for kernel in [kernel for kernel in LINEAR if not refuses(kernel, tensors, mask)]:
        torch.testing.assert_close(outcome(kernel, tensors, mask), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 64])
def test_the_length_of_a_chunk_changes_nothing(length, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", length)
    for name, n in (("causal", 17), ("causal", 1), ("window of chunks", 17), ("document, causal", 17), ("prefix", 17)):
        tensors, mask = inputs(n, n), MASKS[name](n)
        expected = outcome("reference", tensors, mask)
        torch.testing.assert_close(outcome("chunked", tensors, mask), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_few_heads_at_a_time_change_nothing(heads, monkeypatch):
    tensors, mask = inputs(17, 17), MASKS["everything at once"](17)
    monkeypatch.setattr(chunked, "NUMBERS", heads * 2 * 17 * 4)
    expected = outcome("reference", tensors, mask)
    torch.testing.assert_close(outcome("chunked", tensors, mask), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel", LINEAR)
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.pairs
def test_every_feature_map_is_as_in_the_reference(features, normalised, kernel):
    weighting = Kernelized(features=features, normalised=normalised)
    tensors = inputs(11, 13)
    for mask in (None, causal() & padding([0, 12]), document(TWO_ROWS) & causal()):
        expected = outcome("reference", tensors, mask, weighting)
        torch.testing.assert_close(outcome(kernel, tensors, mask, weighting), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel", LINEAR)
def test_causal_is_a_running_sum_of_outer_products(kernel):
    query, key, value = torch.randn(3, 1, 2, 19, 4, dtype=torch.float64)
    features_q, features_k = F.elu(query) + 1, F.elu(key) + 1
    total = (features_k.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(2)
    amount = (features_q.unsqueeze(-2) @ total).squeeze(-2)
    expected = amount / (features_q * features_k.cumsum(2)).sum(-1, keepdim=True)
    context = ch.attend(query, key, value, weighting=Kernelized(), mask=causal(), kernel=kernel)
    torch.testing.assert_close(context, expected)


@pytest.mark.parametrize("kernel", LINEAR)
def test_padding_goes_by_the_positions_that_are_given(kernel):
    tensors = inputs(5, 9)
    order = torch.stack([torch.randperm(9), torch.randperm(9)])
    mask, weighting = padding([4, 7]), Kernelized()
    contexts = [
        ch.attend(*tensors, weighting=weighting, mask=mask, key_positions=order, kernel=name)
        for name in (kernel, "reference")
    ]
    torch.testing.assert_close(*contexts)


@pytest.mark.parametrize("kernel", LINEAR)
def test_a_scale_of_the_score_counts_where_rows_are_not_normalised(kernel):
    class Tripled(DotForm):
        form = "features"

        def prepare(self, query, key):
            return query.square(), key.square()

        def scale(self, d_head):
            return 3.0

    tensors, weighting = inputs(6, 6), Kernelized(normalised=False)
    contexts = [
        ch.attend(*tensors, similarity=Tripled(), weighting=weighting, mask=causal(), kernel=name)
        for name in (kernel, "reference")
    ]
    torch.testing.assert_close(*contexts)


@pytest.mark.parametrize("kernel", LINEAR)
@pytest.mark.parametrize("shape", [(5, 13), (13, 5)], ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("name", EDGES)
@pytest.mark.pairs
def test_what_nobody_sees_touches_nothing(name, shape, kernel):
    query, key, value = inputs(*shape)
    mask = MASKS[name](shape[1])
    if refuses(kernel, (query, key, value), mask):
        return
    allowed = ch.masks.show(mask, batch=2, n_query=shape[0], n_key=shape[1])
    dead, blind = ~allowed.any(1)[:, None, :, None], ~allowed.any(2)[:, None, :, None]
    soiled = query.masked_fill(blind, torch.nan), key.masked_fill(dead, torch.nan), value.masked_fill(dead, torch.inf)
    got = outcome(kernel, soiled, mask)
    torch.testing.assert_close(got, outcome("reference", (query, key, value), mask), rtol=1e-9, atol=1e-11)
    context, of_query, of_key, of_value = got
    assert not context.masked_select(blind).any()
    assert not of_query.masked_select(blind).any()
    assert not of_key.masked_select(dead).any()
    assert not of_value.masked_select(dead).any()


@pytest.mark.parametrize("mask", [window(6), document(torch.arange(24) // 6) & causal(), window(9, 5)], ids=str)
def test_what_is_out_of_sight_costs_no_precision(mask):
    query, key, value = torch.randn(3, 1, 1, 24, 4)
    value[:, :, :6] *= 1e12
    contexts = [
        ch.attend(query, key, value, weighting=Kernelized(), mask=mask, kernel=kernel)[:, :, 18:]
        for kernel in ("chunked", "reference")
    ]
    torch.testing.assert_close(*contexts)


@pytest.mark.parametrize("name", ["none", "causal", "prefix, padding", "document, causal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_near_float32(dtype, name, true_chunks):
    query, key, value = inputs(40, 40, torch.float32)
    tensors, mask = (query.to(dtype), key.to(dtype), value.to(dtype)), MASKS[name](40)
    expected = outcome("reference", [tensor.float() for tensor in tensors], mask)
    for kernel in [kernel for kernel in LINEAR if not refuses(kernel, tensors, mask)]:
        got = outcome(kernel, tensors, mask)
        assert all(tensor.dtype == dtype for tensor in got)
        torch.testing.assert_close(got[0].float(), expected[0], rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", [None, causal()], ids=["none", "causal"])
def test_a_long_sum_neither_overflows_nor_stands_still(mask, dtype, true_chunks):
    n = 4096
    query, key, value = torch.rand(3, 1, 1, n, 4).mul(20).to(dtype)
    assert (key.float() + 1).sum(2).min() > torch.finfo(torch.float16).max / 2
    expected = ch.attend(query.double(), key.double(), value.double(), weighting=Kernelized(), mask=mask)
    context = ch.attend(query, key, value, weighting=Kernelized(), mask=mask, kernel="chunked")
    torch.testing.assert_close(context.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)


@dataclass
class Largest(TorchDispatchMode):
    """The largest tensor made while it is on, in numbers held."""

    numel: int = field(default=0, init=False)

    def __post_init__(self):
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [tensor for tensor in torch.utils._pytree.tree_leaves(made) if isinstance(tensor, Tensor)]
        self.numel = max([self.numel, *(tensor.untyped_storage().nbytes() // 4 for tensor in tensors)])
        return made


def largest_tensor(kernel: str, n: int, mask: Mask) -> int:
    leaves = [torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3)]
    with Largest() as made:
        context = ch.attend(*leaves, weighting=Kernelized(), mask=mask, kernel=kernel)
        torch.autograd.grad(context.sum(), leaves)
    return made.numel


LONG = {
    "causal": lambda n: causal() & padding([n - 3]),
    "prefix": lambda n: prefix(n // 3),
    "window": lambda n: window(500, 300),
    "document": lambda n: document(torch.arange(n) // 700),
}


@pytest.mark.parametrize("name", LONG)
def test_no_tensor_grows_faster_than_n(name, true_chunks):
    short, long = (largest_tensor("chunked", n, LONG[name](n)) for n in (1024, 2048))
    assert long <= 2.1 * short
    assert long <= 2048 * chunked.CHUNK
    assert largest_tensor("reference", 1024, LONG[name](1024)) >= 1024**2


def test_a_state_may_be_fed_in_pieces_of_any_size():
    key, value, query = torch.rand(2, 3, 10, 4), torch.randn(2, 3, 10, 5), torch.rand(2, 3, 1, 4)
    whole = State.empty(key, value).add(key, value)
    state = State.empty(key, value)
    for piece_k, piece_v in zip(key.split([1, 6, 3], 2), value.split([1, 6, 3], 2), strict=True):
        state = state.add(piece_k, piece_v)
    torch.testing.assert_close(state.read(query, Kernelized()), whole.read(query, Kernelized()))


def test_a_state_of_halves_is_held_in_float32():
    key, value = torch.rand(1, 1, 3, 4).half(), torch.randn(1, 1, 3, 5).half()
    state = State.empty(key, value).add(key, value)
    assert state.total.dtype == state.normaliser.dtype == torch.float32
    assert state.read(key, Kernelized()).dtype == torch.float32


def test_an_empty_state_reads_as_zeros():
    key, value = torch.rand(1, 1, 3, 4), torch.randn(1, 1, 3, 5)
    assert not State.empty(key, value).read(key, Kernelized()).any()


def test_a_state_is_forgotten_by_batch_row():
    key, value = torch.rand(2, 1, 3, 4), torch.randn(2, 1, 3, 5)
    kept = State.empty(key, value).add(key, value).keep_rows(torch.tensor([True, False]))
    assert kept.total[0].any()
    assert kept.normaliser[0].any()
    assert not kept.total[1].any()
    assert not kept.normaliser[1].any()


RANDOM = Kernelized("random")
SIZES = [1e-3, 1.0, 6.0, 30.0, 100.0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "name", ["none", "causal, padding", "prefix", "window", "document, causal", "everything at once"]
)
@pytest.mark.pairs(1)
def test_random_features_of_any_size_are_as_in_the_reference(name, size):
    query, key, value = inputs(17, 17)
    tensors, mask = (query * size, key * size, value), MASKS[name](17)
    expected = outcome("reference", tensors, mask, RANDOM)
    assert all(part.isfinite().all() for part in expected)
    for kernel in [kernel for kernel in (*LINEAR, "blockwise") if not refuses(kernel, tensors, mask)]:
        torch.testing.assert_close(outcome(kernel, tensors, mask, RANDOM), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", ["reference", "blockwise", *LINEAR])
@pytest.mark.parametrize("size", [5.0, 6.0, 20.0, 60.0])
def test_random_features_lose_no_row_in_float32(size, kernel):
    """At d = 64 rows were zeros from a standard deviation of 5 on, and all of them from 6."""
    query, key = (
        (torch.randn(1, 2, 40, 64) * size).requires_grad_(),
        (torch.randn(1, 2, 40, 64) * size).requires_grad_(),
    )
    context = ch.attend(query, key, torch.ones(1, 2, 40, 1), weighting=RANDOM, mask=causal(), kernel=kernel)
    torch.testing.assert_close(context, torch.ones_like(context))  # rows of weights sum to 1
    context = ch.attend(query, key, torch.randn(1, 2, 40, 3), weighting=RANDOM, mask=causal(), kernel=kernel)
    assert all(part.isfinite().all() for part in torch.autograd.grad(context.sum(), (query, key)))


@pytest.mark.parametrize("kernel", ["reference", "blockwise", *LINEAR])
def test_a_later_key_of_another_size_changes_no_bit_of_earlier_rows(kernel):
    query, key, value = torch.randn(1, 2, 17, 8) * 5, torch.randn(1, 2, 17, 8) * 5, torch.randn(1, 2, 17, 3)
    before = ch.attend(query, key, value, weighting=RANDOM, mask=causal(), kernel=kernel)
    for size in (0.0, 40.0):  # a key of 0 has the greatest features of all, and a long one the least
        changed = key.clone()
        changed[:, :, 9] *= size
        after = ch.attend(query, changed, value, weighting=RANDOM, mask=causal(), kernel=kernel)
        assert torch.equal(after[:, :, :9], before[:, :, :9])
        if size == 0:
            assert not torch.allclose(after[:, :, 9:], before[:, :, 9:])


@pytest.mark.slow
def test_random_features_pass_gradcheck_twice():
    query, key, value = (torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    part = Kernelized(RandomFeatures(3))
    for kernel in ("reference", *LINEAR):

        def run(*tensors, kernel=kernel):
            return ch.attend(*tensors, weighting=part, mask=causal(), kernel=kernel)

        assert torch.autograd.gradcheck(run, (query, key, value))
        assert torch.autograd.gradgradcheck(run, (query, key, value))


def test_a_state_of_logarithms_may_be_fed_in_pieces_of_any_size():
    key, value, query = torch.randn(2, 3, 10, 4) * 300, torch.randn(2, 3, 10, 5), torch.randn(2, 3, 1, 4) * 300
    whole = State.empty(key, value, logarithms=True).add(key, value)
    state = State.empty(key, value, logarithms=True)
    assert not state.read(query, RANDOM).any()
    for piece_k, piece_v in zip(key.split([1, 6, 3], 2), value.split([1, 6, 3], 2), strict=True):
        state = state.add(piece_k, piece_v)
    torch.testing.assert_close(state.peak, key.amax(2))
    torch.testing.assert_close(state.read(query, RANDOM), whole.read(query, RANDOM))
    forgotten = state.keep_rows(torch.tensor([True, False]))
    torch.testing.assert_close(forgotten.read(query, RANDOM)[0], whole.read(query, RANDOM)[0])
    assert not forgotten.read(query, RANDOM)[1].any()


@final
class OwnExponentials(LogFeatures):
    """exp(x) and exp(-x), as a user might write them."""

    def log_map(self, vectors):
        return torch.cat([vectors, -vectors], -1)


def test_a_users_own_features_may_be_logarithms():
    query, key, value = inputs(17, 17)
    small = (query, key, value)
    plain = outcome("reference", small, causal(), Kernelized(Plainly(OwnExponentials())))
    for kernel in ("reference", "blockwise", *LINEAR):
        torch.testing.assert_close(outcome(kernel, small, causal(), Kernelized(OwnExponentials())), plain)
        large = outcome(kernel, (query * 400, key * 400, value), causal(), Kernelized(OwnExponentials()))
        assert all(part.isfinite().all() for part in large)


@final
class Plainly(Features):
    """The same features, given as they are."""

    def __init__(self, features):
        self.features = features

    def map(self, vectors):
        return self.features.map(vectors)


def test_a_similarity_of_other_features_is_refused():
    q = torch.randn(1, 3, 4)
    with pytest.raises(
        ch.errors.OptionError, match="another similarity, on logarithms of features: leave similarity out"
    ):
        ch.attend(q, q, q, weighting=RANDOM, similarity=Kernelized("elu").similarity)
    with pytest.raises(ch.errors.OptionError, match="another similarity, on products of features"):
        ch.attend(q, q, q, weighting=Kernelized("elu"), similarity=RANDOM.similarity)


SCATTERED = document([0, 1, 0, 1, 0])
FORWARD = torch.arange(5)

REFUSED = [
    ("chunked", {"weighting": ch.weighting.Softmax()}, "only in kernelized attention"),
    ("chunked", {"dropout": 0.1}, "never formed"),
    ("chunked", {"mask": ~causal()}, "negation"),
    ("chunked", {"mask": SCATTERED & causal()}, "scattered documents"),
    ("chunked", {"mask": causal(), "key_positions": FORWARD}, "positions were given"),
    ("recurrent", {"weighting": ch.weighting.Softmax()}, "only in kernelized attention"),
    ("recurrent", {"dropout": 0.1}, "never formed"),
    ("recurrent", {"mask": window(2)}, "window"),
    ("recurrent", {"mask": prefix(2)}, "prefix"),
    ("recurrent", {"mask": document([0, 0, 1, 1, 1])}, "no later key"),
    ("recurrent", {"mask": causal(), "query_positions": FORWARD}, "positions were given"),
]


@pytest.mark.parametrize(("kernel", "options", "why"), REFUSED)
def test_what_they_cannot_do_they_refuse(kernel, options, why):
    tensors = torch.randn(3, 5, 4)
    with pytest.raises(ch.ClearheadError, match=why):
        ch.attend(*tensors, **{"weighting": Kernelized()} | options, kernel=kernel)


@pytest.mark.parametrize("name", MASKS)
def test_auto_takes_the_chunked_form(name):
    tensors = inputs(17, 17)
    assert ch.which_kernel(*tensors, weighting=Kernelized(), mask=MASKS[name](17)).kernel == "chunked"


def test_auto_never_asks_the_recurrent_form():
    names = list(KERNELS)
    assert names.index("recurrent") > names.index("reference")
