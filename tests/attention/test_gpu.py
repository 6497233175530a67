"""The grid on a GPU: the same promise, the same reference."""

import pytest
import torch

import clearhead as ch
from clearhead.attention import grid
from clearhead.attention.grid import support
from clearhead.model import presets

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernel", support.KERNEL_NAMES)
def test_every_promise_is_kept_on_a_gpu(kernel, request):
    if kernel in ("flex", "linear", "argmax") and request.config.getoption("jaxtyping_packages"):
        pytest.skip("it is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
    report = grid.check(grid.combinations(kernel, device="cuda"))
    assert report.supported > 50
    assert not report.failures, str(report)


LISTED = {
    "padding": lambda: ch.masks.padding([7, 4]),
    "prefix": lambda: ch.masks.prefix([3, 1]),
    "one prefix": lambda: ch.masks.prefix(3),
    "document": lambda: ch.masks.document([0, 0, 0, 1, 1, 1, 1]),
    "document cross": lambda: ch.masks.document([0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0]),
    "causal padding": lambda: ch.masks.causal() & ch.masks.padding([7, 4]),
}


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("weighting", [ch.weighting.Softmax(), ch.weighting.Kernelized()], ids=["softmax", "linear"])
def test_masks_from_lists_go_where_the_query_is(name, weighting):
    q, k, v = torch.randn(3, 2, 3, 7, 8).unbind()
    wanted = ch.attend(q, k, v, mask=LISTED[name](), weighting=weighting)
    mask = LISTED[name]()
    for _ in range(2):
        got = ch.attend(q.cuda(), k.cuda(), v.cuda(), mask=mask, weighting=weighting)
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_lengths_in_a_list_go_where_the_tokens_are():
    model = presets.tiny(vocabulary=30).build().eval()
    source, target = torch.randint(30, (2, 7)), torch.randint(30, (2, 5))
    wanted = model(source, target, source_lengths=[7, 4])
    got = model.cuda()(source.cuda(), target.cuda(), source_lengths=[7, 4])
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-3, atol=1e-4)


def test_a_mask_from_a_list_that_was_used_can_be_captured_in_a_cuda_graph():
    x, mask = torch.randn(2, 3, 7, 8, device="cuda"), ch.masks.causal() & ch.masks.padding([7, 4])
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            wanted = ch.attend(x, x, x, mask=mask)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = ch.attend(x, x, x, mask=mask)
        graph.replay()
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", [None, ch.masks.causal(), ch.masks.window(3)])
@pytest.mark.parametrize("n", [1, 7, 64, 300])
@pytest.mark.parametrize("kernel", ["fused", "flex", "blockwise", "reference"])
def test_a_query_that_is_nan_gives_nan_on_a_gpu(kernel, n, mask, dtype, request):
    if kernel == "flex" and request.config.getoption("jaxtyping_packages"):
        pytest.skip("flex is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
    q, k, v = (torch.randn(2, 2, n, 64, device="cuda", dtype=dtype) for _ in range(3))
    q[0, 1, n // 2, 3] = torch.nan
    context = ch.attend(q, k, v, mask=mask, kernel=kernel)
    wanted = torch.zeros(2, 2, n, 64, device="cuda", dtype=torch.bool)
    wanted[0, 1, n // 2] = True
    assert torch.equal(context.isnan(), wanted)


def test_a_second_derivative_on_a_gpu_names_the_reference():
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (first,) = torch.autograd.grad(ch.attend(q, q, q, kernel="fused").sin().sum(), q, create_graph=True)
    with pytest.raises(ch.ClearheadError, match=r"kernel 'fused' has no second derivative.*kernel=.reference."):
        torch.autograd.grad(first.square().sum(), q)


GPU_ONLY = {
    "linear": [ch.weighting.Kernelized("elu"), ch.weighting.Kernelized("relu", normalised=False)],
    "argmax": [ch.weighting.Argmax(), ch.weighting.Argmax(ties="average"), ch.weighting.Argmax(gradient="none")],
}
EXACT = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize(("kernel", "weighting"), [(k, w) for k, ws in GPU_ONLY.items() for w in ws])
def test_long_rows_are_the_reference_in_float64(kernel, weighting, dtype, compiled, request):
    """Several segments and tiles, heads inside the positions in memory, grouped, padded with NaN."""
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("compiled code and checked signatures do not go together: run this with --jaxtyping-packages=")
    torch._dynamo.reset()  # it compiles one function again only so many times
    lengths = [700, 0, 391]
    query, upstream = (torch.randn(3, 700, 4, 64, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(2))
    key, value = (torch.randn(3, 700, 2, 64, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(2))
    hidden = torch.arange(700, device="cuda") >= torch.tensor(lengths, device="cuda").view(-1, 1, 1)
    key, value = (side.masked_fill(hidden.unsqueeze(-1), float("nan")) for side in (key, value))
    mask, found = ch.masks.causal() & ch.masks.padding(torch.tensor(lengths, device="cuda")), []
    for name, precision in (("reference", torch.float64), (kernel, dtype)):
        leaves = [side.detach().to(precision).requires_grad_() for side in (query, key, value)]

        def run(query, key, value, name=name):
            return ch.attend(query, key, value, weighting=weighting, mask=mask, kernel=name)

        context = (torch.compile(run, fullgraph=True) if compiled and name == kernel else run)(*leaves)
        made = torch.autograd.grad(context, leaves, upstream.to(precision), allow_unused=True, materialize_grads=True)
        found.append([context.detach(), *made])
    for wanted, got in zip(*found, strict=True):
        assert got.isfinite().all()
        assert (got.double() - wanted).norm() <= EXACT[dtype] * wanted.norm()
