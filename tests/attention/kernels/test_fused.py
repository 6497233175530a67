"""Torch's fused attention: gradients reach it in one layout, whatever layout they come in. On a GPU: test_gpu.py."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import clearhead as ch
from clearhead.attention.inputs import SCORES_SAVED, AttentionInputs
from clearhead.attention.kernels import choose, fused
from clearhead.attention.kernels.fused import FixGradientLayout, attend_documents, by_document, restride_first
from clearhead.attention.request import AttentionOptions
from clearhead.attention.similarity import LearnedCosine
from clearhead.errors import UnsupportedError
from clearhead.training.keyed_dropout import KeyedDropout

INSIDE = (3 * 5 * 2, 2, 3 * 2, 1)
"""Strides of (batch, head, position, d) = (4, 3, 5, 2) with heads inside the positions."""


def outside():
    return torch.randn(4, 3, 5, 2, dtype=torch.float64)


def inside():
    return torch.randn(4, 5, 3, 2, dtype=torch.float64).transpose(1, 2)


def test_a_gradient_is_laid_out_as_the_context():
    grad, other = outside(), outside()
    laid_out, same = restride_first(INSIDE, (grad, other))
    assert laid_out.stride() == INSIDE
    assert torch.equal(laid_out, grad)
    assert same is other


def test_a_gradient_in_the_layout_of_the_context_is_left_alone():
    assert restride_first(INSIDE, (inside(),)) is None
    assert restride_first((7, 99, 2, 1), (torch.randn(1, 1, 5, 2),)) is None  # an axis of one has any stride


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own compiler does
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("heads_inside", [False, True])
@pytest.mark.parametrize("make_grad", [inside, outside])
def test_a_compiled_gradient_has_one_layout(make_grad, heads_inside, compiled, request):
    if compiled and request.config.getoption("jaxtyping_packages"):
        pytest.skip("compiled code and checked signatures do not go together: run this with --jaxtyping-packages=")

    def run(x):
        return FixGradientLayout.apply(x, heads_inside)

    run = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    x, grad = outside().requires_grad_(), make_grad()
    (laid_out,) = torch.autograd.grad(run(x), x, grad)
    assert torch.equal(laid_out, grad)
    assert laid_out.stride() == (INSIDE if heads_inside else x.stride())


N = 90
causal, document = ch.masks.causal, ch.masks.document


def ids_of(*lengths: int) -> list[int]:
    """Return ids of runs of these lengths; a negative length belongs to no document."""
    return [i if n > 0 else -1 - i for i, n in enumerate(lengths) for _ in range(abs(n))]


PACKED: dict[str, list[int] | list[list[int]]] = {
    "equal": ids_of(*[30] * 3),
    "ragged": ids_of(7, 40, 1, 1, 1, 40),
    "one": ids_of(90),
    "negative": ids_of(-5, 40, -10, 35),
    "the same negative at both ends": [-1, *[3] * 45, *[4] * 43, -1],
    "each row": [ids_of(45, 45), ids_of(80, 10)],
    "each row, of which one is empty": [ids_of(50, -40), ids_of(-90)],
    "each row the same": [ids_of(45, 45), ids_of(45, 45)],
    "longer than the sequence": ids_of(40, 40, 40),
}
HEADS = {"equal": (4, 4, 8), "grouped": (4, 2, 8), "wide value": (4, 4, 12), "narrow value": (4, 1, 4)}


def draw(heads: str = "equal", layout: str = "heads inside", dtype: torch.dtype = torch.float64) -> list[Tensor]:
    n_heads, n_kv_heads, d_value = HEADS[heads]
    generator = torch.Generator().manual_seed(0)
    shapes = ((n_heads, 8), (n_kv_heads, 8), (n_kv_heads, d_value))
    if layout == "heads inside":
        drawn = [torch.randn(2, N, h, d, generator=generator, dtype=dtype).transpose(1, 2) for h, d in shapes]
    else:
        drawn = [torch.randn(2, h, N, d, generator=generator, dtype=dtype) for h, d in shapes]
    return [one.requires_grad_() for one in drawn]


def inputs_of(tensors: list[Tensor], mask, **options) -> AttentionInputs:
    query, key, value = tensors
    parts = (None, ch.weighting.Softmax(), ch.positions.NoPosition(), mask)
    return AttentionOptions(*parts, options.pop("dropout", 0.0)).inputs((query, key, value), **options)


def check(tensors: list[Tensor], mask, leaves: Sequence[Tensor] = (), **options) -> None:
    """Hold context and gradients of the kernel, which must go by documents, to the reference."""
    notes = ch.which_kernel(*tensors, mask=mask, kernel="fused", **options).notes
    assert any(note.startswith("each document") for note in notes)
    assert not any("truth values" in note for note in notes)
    found, wanted = (ch.attend(*tensors, mask=mask, kernel=kernel, **options) for kernel in ("fused", "reference"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    ahead = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=wanted.dtype)
    grads = (torch.autograd.grad(one, [*tensors, *leaves], ahead) for one in (found, wanted))
    for own, right in zip(*grads, strict=True):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["heads inside", "heads outside"])
@pytest.mark.parametrize("mask", [document, lambda ids: document(ids) & causal()], ids=["whole", "causal"])
@pytest.mark.parametrize("name", PACKED)
def test_context_and_gradients_are_the_references(name, mask, layout, monkeypatch):
    monkeypatch.setattr("clearhead.attention.inputs.SCORES_SAVED", 1)
    for heads in HEADS if layout == "heads inside" else ["grouped"]:
        check(draw(heads, layout), mask(torch.tensor(PACKED[name])))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [2, 60, 50], ids=["of no document", "of a long document", "of a short document"])
def test_what_is_not_finite_stays_in_its_document(where, bad, monkeypatch):
    monkeypatch.setattr("clearhead.attention.inputs.SCORES_SAVED", 1)
    ids = torch.tensor(ids_of(-5, 40, 10, 35))
    for causally in (False, True):
        mask = document(ids) & causal() if causally else document(ids)
        for side in range(3):
            tensors = [one.detach().clone() for one in draw()]
            tensors[side][:, :, where] = bad
            tensors = [one.requires_grad_() for one in tensors]
            inside = ids == ids[where]
            context = ch.attend(*tensors, mask=mask, kernel="fused")
            alone = [one.detach()[:, :, inside] for one in tensors]
            if ids[where] >= 0:  # the reference multiplies a weight of 0 by what another document holds
                wanted = ch.attend(*alone, mask=causal() if causally else None, kernel="reference")
                torch.testing.assert_close(context[:, :, inside], wanted, rtol=0, atol=1e-12, equal_nan=True)
            grads = torch.autograd.grad(context.nan_to_num(0, 0, 0).sum(), tensors)
            for one in (context, *grads):
                assert one[:, :, ~inside].isfinite().all()
                assert ids[where] >= 0 or (one[:, :, inside] == 0).all()


def test_a_learned_scale_has_its_gradient_whatever_stands_outside_of_documents():
    tensors = [one.detach().clone() for one in draw()]
    for one in tensors:
        one[:, :, :5] = float("nan")
    part = LearnedCosine(2.0, 4).double()
    check(
        [one.requires_grad_() for one in tensors], document(ids_of(-5, 40, 45)), [part.log_temperature], similarity=part
    )


@pytest.mark.slow
def test_dropout_leaves_out_weights_within_documents():
    mask = document(ids_of(30, -10, 50)) & causal()
    tensors = draw(dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        mean = sum(ch.attend(*tensors, mask=mask, dropout=0.3, kernel="fused") for _ in range(400)) / 400
        wanted = ch.attend(*tensors, mask=mask, kernel="reference")
    assert (mean - wanted).abs().max() < 0.35
    assert (mean - wanted).abs().mean() < 0.04
    assert not mean[:, :, 30:40].any()
    dropped = ch.attend(*tensors, mask=mask, dropout=0.3, kernel="fused")
    grads = torch.autograd.grad(dropped[:, :, 40:].sum(), tensors)
    assert not any(one[:, :, :40].any() for one in grads)


def test_keyed_dropout_sees_the_whole_matrix():
    tensors = draw()
    whole = causal() & document(torch.tensor(ids_of(45, 45)))
    table = ch.masks.tensor(ch.masks.show(whole, n_query=N, n_key=N)[0])
    keys = torch.tensor([5, 6])
    with KeyedDropout(keys):
        assert inputs_of(tensors, whole, dropout=0.5).document_runs() is None
        found = ch.attend(*tensors, mask=whole, dropout=0.5, kernel="fused")
    with KeyedDropout(keys):
        wanted = ch.attend(*tensors, mask=table, dropout=0.5, kernel="fused")
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ids_that_change_after_the_mask_was_made(dtype):
    """A mask reads int64 ids where they are, and has a copy of others."""
    ids = torch.tensor(ids_of(45, 45), dtype=dtype)
    mask = causal() & document(ids)
    ids[:20] = 7
    tensors = draw()
    assert (inputs_of(tensors, mask).document_runs() is None) == (dtype == torch.int64)
    found, wanted = (ch.attend(*tensors, mask=mask, kernel=kernel) for kernel in ("auto", "reference"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_ids_that_do_not_count_their_changes_are_not_relied_on():
    with torch.inference_mode():
        ids = torch.tensor(ids_of(45, 45))
    tensors = draw()
    assert inputs_of(tensors, document(ids)).document_runs() is None
    with torch.inference_mode():
        assert inputs_of(tensors, document(ids_of(45, 45))).document_runs() is not None
        found, wanted = (
            ch.attend(*tensors, mask=document(ids_of(45, 45)), kernel=kernel) for kernel in ("fused", "reference")
        )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


OTHERWISE = {
    "another mask beside it": (document(ids_of(45, 45)) & ch.masks.window(5), {}),
    "two of them": (document(ids_of(45, 45)) & document(ids_of(30, 60)), {}),
    "scattered": (document([0, 1] * 45), {}),
    "no document": (document([-1] * 90), {}),
    "positions given": (document(ids_of(45, 45)), {"positions": (torch.arange(N), None)}),
    "too short and too many": (document(ids_of(*([1, 2] * 30))), {}),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_built_as_a_matrix_as_before(name):
    mask, options = OTHERWISE[name]
    assert inputs_of(draw(), mask, **options).document_runs() is None


def test_queries_that_are_fewer_than_keys_are_masked_as_before():
    query, key, value = draw()
    mask = causal() & document(torch.tensor(ids_of(45, 45)))
    found, wanted = (ch.attend(query[:, :, 60:], key, value, mask=mask, kernel=k) for k in ("fused", "reference"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_a_long_text_builds_nothing_of_n_by_n():
    """16,384 tokens in documents of 256: what a call makes is as large as the values, not as the mask."""
    n = 16_384
    query, key, value = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
    mask = causal() & document(torch.arange(n) // 256)

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, Tensor):
                    self.numbers = max(self.numbers, one.numel())
            return made

    with Largest() as seen:
        ch.attend(query, key, value, mask=mask).sum().backward()
    assert n * 8 <= seen.numbers <= n * 16


def test_documents_of_one_length_are_views_where_heads_are_within_positions():
    seen = []

    tensors = draw()
    call = inputs_of(tensors, document(ids_of(45, 45)))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.append(query)
        return by_document(call, rows)(query, key, value)

    rows = call.document_runs()
    assert rows is not None
    context = attend_documents((call.query, call.key, call.value), rows, attend)
    assert [one.shape for one in seen] == [(4, 4, 45, 8)]
    assert seen[0].data_ptr() == tensors[0].data_ptr()
    assert context.transpose(1, 2).is_contiguous()


def test_the_second_derivative_is_refused_by_name():
    tensors = draw()
    for ids in (ids_of(45, 45), ids_of(40, 50)):
        context = ch.attend(*tensors, mask=document(ids), kernel="fused")
        (first,) = torch.autograd.grad(context.sin().sum(), tensors[0], create_graph=True)
        with pytest.raises(ch.ClearheadError, match="kernel 'fused' has no second derivative"):
            first.sum().backward()


def test_a_call_a_document_must_be_worth_it():
    lengths = list(itertools.islice(itertools.cycle([3, 4, 5]), 300))
    ids = torch.repeat_interleave(torch.arange(300), torch.tensor(lengths))[:1024]
    for batch, expected in ((1, False), (64, True)):
        x = torch.empty(batch, 8, 1024, 1)
        calls = len(set(ids.tolist()))
        assert (batch * 8 * 1024**2 >= calls * SCORES_SAVED) == expected
        assert (inputs_of([x, x, x], document(ids)).document_runs() is not None) == expected


@pytest.mark.parametrize(("by_document", "expected"), [(True, "fused"), (False, "flex")])
def test_on_a_gpu_documents_are_attended_to_one_by_one_and_others_compiled(by_document, expected):
    facts = inputs_of(draw(dtype=torch.float32), causal() & document(ids_of(45, 45))).facts()
    assert facts.by_document
    assert choose(facts._replace(device="cuda", long=True, by_document=by_document)) == expected


@pytest.mark.parametrize(("offset", "gradients", "expected"), [(1, 1, "flex"), (1, 0, "fused"), (0, 1, "fused")])
def test_on_a_gpu_a_long_block_of_a_sequence_is_trained_without_a_matrix(offset, gradients, expected):
    facts = inputs_of(draw(dtype=torch.float32), causal()).facts()
    facts = facts._replace(device="cuda", long=True, offset=bool(offset), gradients=bool(gradients))
    assert choose(facts) == expected


CASES = {
    "plain": {},
    "one key": {"n_key": 1},
    "causal": {"mask": ch.masks.causal()},
    "more queries than keys": {"n_query": 40, "n_key": 31},
    "padding": {"mask": ch.masks.padding(torch.tensor([3, 7]))},
    "a row that sees nothing": {"mask": ch.masks.padding(torch.tensor([0, 7]))},
    "both": {"mask": ch.masks.causal() & ch.masks.padding(torch.tensor([2, 7]))},
    "bias": {"position": ch.positions.ALiBi()},
    "wider values": {"d_value": 9},
}


def make(n_query: int = 7, n_key: int = 7, d_value: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(5)
    shapes = (2, 3, n_query, 4), (2, 3, n_key, 4), (2, 3, n_key, d_value)
    # As a layer makes them: heads are the third axis in memory.
    return [torch.randn(b, n, h, d, dtype=torch.float64).transpose(1, 2).requires_grad_() for b, h, n, d in shapes]


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls that are computed here."""
    seen, attend_short = [], fused.attend_short
    monkeypatch.setattr(
        fused, "attend_short", lambda *args, **options: seen.append(1) or attend_short(*args, **options)
    )
    return seen


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_references(name, calls):
    options = dict(CASES[name])
    sizes = {size: options.pop(size) for size in ("n_query", "n_key", "d_value") if size in options}
    found = []
    for kernel in ("fused", "reference"):
        sources = make(**sizes)
        context = ch.attend(*sources, kernel=kernel, **options)
        torch.manual_seed(6)
        context.backward(torch.randn_like(context))
        found.append([context, *(source.grad for source in sources)])
    assert len(calls) == 1
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_nan_goes_where_the_reference_has_it(calls):
    sources = make()
    with torch.no_grad():
        sources[1][0, 0, 5] = float("nan")
        sources[2][1, 2, 6] = float("nan")
    found = [ch.attend(*sources, kernel=kernel, mask=ch.masks.causal()).isnan() for kernel in ("fused", "reference")]
    assert calls
    assert torch.equal(*found)


def test_without_gradients_with_dropout_or_with_many_keys_torch_computes_it(calls):
    sources = make()
    with torch.no_grad():
        ch.attend(*sources, kernel="fused")
    ch.attend(*sources, kernel="fused", dropout=0.5)
    ch.attend(*make(n_key=32), kernel="fused")
    ch.attend(*(source.to(torch.bfloat16) for source in sources), kernel="fused")
    assert not calls


def test_its_second_derivative_is_refused_by_name(calls):
    sources = make()
    (first,) = torch.autograd.grad(ch.attend(*sources, kernel="fused").sum(), sources[0], create_graph=True)
    assert calls
    with pytest.raises(UnsupportedError, match="kernel 'fused' has no second derivative"):
        torch.autograd.grad(first.sum(), sources[0])
