"""oneDNN's products are torch's own, with their gradients; where something else looks on, torch multiplies."""

import sys
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from clearhead.attention import cpu_matmul
from clearhead.attention.cpu_matmul import (
    FEW,
    FEWEST,
    MANY,
    SHARE,
    BlockedMatrix,
    PackedMatrix,
    can_pack,
    few_rows,
    find_matrix,
    find_order,
    find_packed,
    is_large,
    multiply,
    through,
)
from clearhead.attention.heads import apply_linear
from clearhead.attention.strips import Strips, has_strips
from tests.rounding import assert_equal_but_rounding

OPERATOR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let oneDNN multiply whatever the processor, and small matrices too; count its calls."""
    if OPERATOR is None or not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    counted = list[int]()

    def count(*given: Any) -> Tensor:
        counted.append(1)
        assert OPERATOR is not None
        return OPERATOR.default(*given)

    monkeypatch.setattr(cpu_matmul, "ONEDNN", count)
    monkeypatch.setattr(cpu_matmul, "LEAST", 1)
    return counted


def inputs(shape: tuple[int, ...], d_out: int, layout: str) -> list[Tensor]:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(d_out, shape[-1]), torch.randn(d_out)
    if layout == "expanded":
        x = x[:1].expand(shape)
    if layout == "transposed":
        x, weight = x.transpose(0, -2).contiguous().transpose(0, -2), weight.t().contiguous().t()
    return [one.requires_grad_() for one in (x, weight, bias)]


@pytest.mark.parametrize("layout", ["contiguous", "expanded", "transposed"])
@pytest.mark.parametrize(("shape", "d_out"), [((5, 7), 3), ((2, 9, 33), 65), ((1, 16), 1), ((3, 1, 4, 8), 24)])
def test_products_and_gradients_are_those_of_torch(
    shape: tuple[int, ...], d_out: int, layout: str, calls: list[int]
) -> None:
    given = inputs(shape, d_out, layout)
    exact = [one.detach().double().requires_grad_() for one in given]
    ours, theirs = multiply(*given), F.linear(*exact)
    # The sum's gradient is one number for all places: a tensor without strides.
    for seed in (torch.ones(()).expand_as(ours), torch.randn(ours.shape)):
        found = torch.autograd.grad(ours, given, seed, retain_graph=True)
        wanted = torch.autograd.grad(theirs, exact, seed.double(), retain_graph=True)
        for one, other in zip((ours, *found), (theirs, *wanted), strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    assert len(calls) == 5  # one product forward, and two backward for each


def test_only_what_is_asked_for_is_multiplied(calls: list[int]) -> None:
    x, weight, _ = inputs((4, 6), 5, "contiguous")
    multiply(x.detach(), weight).sum().backward()
    assert weight.grad is not None
    assert len(calls) == 2


def test_gradients_of_gradients_are_those_of_torch(calls: list[int]) -> None:
    def penalty(product: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        x, weight, bias = (one.detach().to(dtype).requires_grad_() for one in inputs((4, 6), 5, "contiguous"))
        first = torch.autograd.grad(product(x, weight, bias).tanh().sum(), (x, weight, bias), create_graph=True)
        return list(torch.autograd.grad(sum(one.square().sum() for one in first), (x, weight, bias)))  # type: ignore[arg-type]

    for one, other in zip(penalty(multiply, torch.float32), penalty(F.linear, torch.float64), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    assert len(calls) > 3


def test_torch_multiplies_where_something_else_looks_on(calls: list[int]) -> None:
    x, weight, bias = (one.detach() for one in inputs((4, 6), 5, "contiguous"))
    wanted = F.linear(x, weight, bias)
    assert_equal_but_rounding(torch.func.vmap(lambda row: multiply(row, weight, bias))(x), wanted)
    assert_equal_but_rounding(torch.func.jvp(lambda one: multiply(one, weight, bias), (x,), (x,))[0], wanted)
    assert multiply(x.double(), weight.double()).dtype is torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert multiply(x, weight).dtype is torch.bfloat16
    assert multiply(x.to("meta"), weight.to("meta")).shape == (4, 5)
    assert multiply(x[0], weight).shape == (5,)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert torch.autograd.forward_ad.unpack_dual(multiply(dual, weight)).tangent is not None
    with FlopCounterMode(display=False) as counter:
        multiply(x, weight)
    assert counter.get_total_flops() == 2 * 4 * 6 * 5
    assert not calls


def test_a_hook_sees_the_module_run_and_a_subclass_is_called(calls: list[int]) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    x, plain, doubled = torch.randn(4, 6), nn.Linear(6, 5), Doubled(6, 5)
    assert_equal_but_rounding(apply_linear(plain, x), plain(x))
    assert len(calls) == 1
    assert_equal_but_rounding(apply_linear(doubled, x), 2 * F.linear(x, doubled.weight, doubled.bias))
    seen = list[Tensor]()
    plain.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    apply_linear(plain, x)
    assert len(seen) == 1
    assert len(calls) == 1


def test_the_processor_decides(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(name: str, capability: str) -> bool:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name})
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        return cpu_matmul.find_onednn() is not None

    assert chosen("AMD EPYC 9755", "AVX512")
    assert not chosen("AMD EPYC 7763", "AVX2")
    assert not chosen("Intel(R) Xeon(R) 6980P", "AVX512")


def test_what_multiplies_is_said_with_its_reason(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "oneDNN, since MKL leaves AVX-512 unused" in cpu_matmul.which_product()
    monkeypatch.setattr(cpu_matmul, "ONEDNN", None)
    assert "MKL" in cpu_matmul.which_product()


@pytest.fixture
def by_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch multiply, as on a processor of Intel's."""
    monkeypatch.setattr(cpu_matmul, "ONEDNN", None)


ROWS = [1, 2, FEWEST, FEWEST + 1, FEW, FEW + 1, MANY, MANY + 1]


def drawn(d_out: int, d_in: int, bias: bool) -> tuple[Tensor, Tensor | None]:
    return torch.randn(d_out, d_in, dtype=torch.float64), torch.randn(d_out, dtype=torch.float64) if bias else None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5), (5, 7)])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.pairs
def test_few_rows_is_a_linear_map(by_mkl: None, rows: int, shape: tuple[int, int], bias: bool) -> None:
    weight, offset = drawn(*shape, bias)
    x = torch.randn(rows, shape[1], dtype=torch.float64)
    found = few_rows(x, weight, offset)
    torch.testing.assert_close(found, F.linear(x, weight, offset), rtol=0, atol=1e-12)
    assert found.is_contiguous()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_through_is_two_maps_and_what_stands_between(by_mkl: None, rows: int, bias: bool) -> None:
    up, down = drawn(12, 5, bias), drawn(5, 12, bias)
    x = torch.randn(rows, 5, dtype=torch.float64)
    wanted = F.linear(F.gelu(F.linear(x, *up)), *down)
    torch.testing.assert_close(through(x, up, F.gelu, down), wanted, rtol=0, atol=1e-12)


def test_what_is_large() -> None:
    assert is_large(torch.empty(2048, 512))
    assert not is_large(torch.empty(9712, 128))
    assert not is_large(torch.empty(256, 256))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("processor", ["calls", "by_mkl"])
@pytest.mark.pairs
def test_packed_matrices_are_linear_maps_below_each_other(
    request: pytest.FixtureRequest, processor: str, rows: int, bias: bool, dtype: torch.dtype
) -> None:
    request.getfixturevalue(processor)
    torch.manual_seed(0)
    x, weights = torch.randn(rows, 40).to(dtype), [torch.randn(n, 40).to(dtype) for n in (24, 8)]
    offset = torch.randn(32).to(dtype) if bias else None
    matrix = PackedMatrix(weights)
    found = [matrix(x, offset) for _ in range(2)]
    wanted = F.linear(x.double(), torch.cat(weights).double(), None if offset is None else offset.double())
    assert found[0].dtype is dtype
    assert torch.equal(*found)  # the same call twice
    torch.testing.assert_close(found[0].double(), wanted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-4)


def test_a_copy_is_made_when_it_is_first_needed(calls: list[int]) -> None:
    matrix = PackedMatrix([torch.randn(24, 40)])
    assert not matrix.copies
    for rows, made in ((2, {BlockedMatrix}), (1, {BlockedMatrix, Strips}), (8, {BlockedMatrix, Strips})):
        matrix(torch.randn(rows, 40))
        assert set(matrix.copies) <= made
    before = dict(matrix.copies)
    matrix(torch.randn(1, 40))
    assert matrix.copies == before
    assert BlockedMatrix in before
    assert (Strips in before) == has_strips(torch.float32)


@pytest.mark.parametrize("rows", [1, 2])
def test_copies_keep_to_their_share_of_memory(rows: int, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weights = torch.randn(rows, 40), [torch.randn(24, 40) for _ in range(2)]
    owners = [nn.Identity() for _ in weights]
    monkeypatch.setattr(cpu_matmul, "MATRICES", WeakKeyDictionary())
    monkeypatch.setattr(cpu_matmul, "machine_memory", lambda: 1.5 * weights[0].nbytes / SHARE)  # room for one of them
    for owner, weight, room in zip(owners, weights, (True, False), strict=True):
        matrix = find_matrix(owner, [weight], PackedMatrix, lambda weight=weight: PackedMatrix([weight]))
        torch.testing.assert_close(matrix(x), F.linear(x, weight), rtol=1e-5, atol=1e-5)
        assert [copy is not None for copy in matrix.copies.values()] == [room]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_matrix_is_made_anew_when_its_weight_changes(rows: int, calls: list[int]) -> None:
    owner, weight, x = nn.Identity(), torch.randn(24, 40), torch.randn(rows, 40)
    first = find_matrix(owner, [weight], PackedMatrix, lambda: PackedMatrix([weight]))
    first(x)
    assert find_matrix(owner, [weight], PackedMatrix, lambda: PackedMatrix([weight])) is first
    weight.mul_(2)
    second = find_matrix(owner, [weight], PackedMatrix, lambda: PackedMatrix([weight]))
    torch.testing.assert_close(second(x), F.linear(x, weight), rtol=1e-5, atol=1e-4)


def write_by_data(weight: Tensor) -> None:
    weight.data.mul_(2)


def write_by_numpy(weight: Tensor) -> None:
    weight.detach().numpy()[3, 5] += 1


def write_by_a_fused_optimizer(weight: Tensor) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], fused=True).step()


def exchange_rows(weight: Tensor) -> None:
    weight.data.copy_(weight.data.flip(0))


@pytest.mark.parametrize("write", [write_by_data, write_by_numpy, write_by_a_fused_optimizer, exchange_rows])
@pytest.mark.parametrize("d_in", [40, 41])
def test_a_write_that_torch_does_not_count_is_noticed(
    calls: list[int], write: Callable[[Tensor], None], d_in: int
) -> None:
    owner, weights, x = nn.Identity(), [nn.Parameter(torch.randn(24, d_in)) for _ in range(2)], torch.randn(3, d_in)
    find_packed(owner, weights)(x)
    assert find_packed(owner, weights) is find_packed(owner, weights)
    versions = [weight._version for weight in weights]
    write(weights[1])
    assert [weight._version for weight in weights] == versions
    wanted = F.linear(x, torch.cat(weights))
    torch.testing.assert_close(find_packed(owner, weights)(x), wanted, rtol=1e-5, atol=1e-4)


def test_in_inference_mode_writes_are_noticed(calls: list[int]) -> None:
    with torch.inference_mode():
        owner, weight, x = nn.Identity(), torch.randn(24, 40), torch.randn(3, 40)
        find_packed(owner, [weight])(x)
        weight.mul_(2)
        torch.testing.assert_close(find_packed(owner, [weight])(x), F.linear(x, weight), rtol=1e-5, atol=1e-4)


def test_models_are_packed_in_several_threads(calls: list[int]) -> None:
    weight, x, problems, over = torch.randn(24, 40), torch.randn(2, 40), list[Exception](), threading.Event()
    owners = [nn.Identity() for _ in range(200)]  # a long dictionary, which another thread makes longer

    def add() -> None:
        while not over.is_set():
            others = [nn.Identity() for _ in range(50)]
            for owner in others:
                find_packed(owner, [weight])

    def pack() -> None:
        try:
            for owner in owners:
                find_packed(owner, [weight])(x)
        except Exception as error:
            problems.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    adding = threading.Thread(target=add)
    packing = [threading.Thread(target=pack) for _ in range(3)]
    try:
        for thread in (adding, *packing):
            thread.start()
        for thread in packing:
            thread.join()
    finally:
        over.set()
        adding.join()
        sys.setswitchinterval(interval)
    assert problems == []


def test_matrices_side_by_side_are_not_kept_once_they_are_packed(calls: list[int]) -> None:
    matrix = PackedMatrix([torch.randn(24, 40), torch.randn(8, 40)])
    for rows in (1, 2):
        matrix(torch.randn(rows, 40))
    assert "weight" not in vars(matrix)


def test_the_order_follows_from_rows_dtype_and_processor(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    one = Strips if has_strips(torch.float32) else BlockedMatrix
    assert [find_order(torch.float32, rows) for rows in (1, 2, 8)] == [one, BlockedMatrix, BlockedMatrix]
    assert find_order(torch.float64, 1) is find_order(torch.float64, 8) is None
    assert find_order(torch.int8, 2) is None
    monkeypatch.setattr(cpu_matmul, "ONEDNN", None)
    assert find_order(torch.float32, 8) is None
    monkeypatch.setattr(cpu_matmul, "has_strips", lambda dtype: False)
    assert find_order(torch.float32, 1) is None
    for bfloat16 in (True, False):
        monkeypatch.setattr(cpu_matmul, "BF16", bfloat16)
        assert (find_order(torch.bfloat16, 1) is BlockedMatrix) == bfloat16


def test_what_is_packed(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_pack(torch.empty(1024, 1024))
    assert can_pack(*[torch.empty(256, 256)] * 2)  # beside each other
    assert not can_pack(torch.empty(256, 256))
    assert not can_pack(torch.empty(1024, 1024, dtype=torch.float64))
    assert not can_pack(torch.empty(1024, 1024, dtype=torch.int8))
    assert not can_pack(torch.empty(1024, 1024, device="meta"))
    assert not can_pack(nn.Buffer(torch.empty(1024, 1024)).as_subclass(Rounded))
    monkeypatch.setattr(cpu_matmul, "ONEDNN", None)
    assert can_pack(torch.empty(1024, 1024)) == has_strips(torch.float32)
    monkeypatch.setattr(cpu_matmul, "has_strips", lambda dtype: False)
    assert not can_pack(torch.empty(1024, 1024))


class Rounded(Tensor):
    """A tensor with products of its own."""
