"""The grid on a GPU: the same promise, the same reference."""

import itertools

import pytest
import torch

import clearhead as ch
from clearhead.attention import grid
from clearhead.attention.grid import support
from clearhead.model import presets

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
"""torch warns of its own code while it compiles for a GPU: shown, and no failure."""


SHARES = 4
"""Parts of a kernel's combinations: each is a test, so that several processes can share them."""


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("kernel", support.KERNEL_NAMES)
def test_every_promise_is_kept_on_a_gpu(kernel, share, request):
    if kernel in ("flex", "linear", "argmax") and request.config.getoption("jaxtyping_packages"):
        pytest.skip("it is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
    report = grid.check(list(grid.combinations(kernel, device="cuda"))[share::SHARES])
    assert report.supported > 10
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


@pytest.fixture
def _unchecked(request):
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("compiled code and checked signatures do not go together: run this with --jaxtyping-packages=")
    torch._dynamo.reset()  # it compiles one function again only so many times


def hide(side, lengths):
    """Return keys or values with NaN behind each text's length."""
    hidden = torch.arange(side.shape[2], device="cuda") >= torch.tensor(lengths, device="cuda").view(-1, 1, 1)
    return side.masked_fill(hidden.unsqueeze(-1), float("nan"))


def hold_to_reference(kernel, tensors, upstream, *, compiled, **options):
    """Compare context and gradients with those of the reference in float64."""
    found, dtype = [], upstream.dtype
    for name, precision in (("reference", torch.float64), (kernel, dtype)):
        leaves = [side.detach().to(precision).requires_grad_() for side in tensors]

        def run(query, key, value, name=name):
            return ch.attend(query, key, value, kernel=name, **options)

        context = (torch.compile(run, fullgraph=True) if compiled and name == kernel else run)(*leaves)
        made = torch.autograd.grad(context, leaves, upstream.to(precision), allow_unused=True, materialize_grads=True)
        found.append([context.detach(), *made])
    for wanted, got in zip(*found, strict=True):
        assert got.isfinite().all()
        assert (got.double() - wanted).norm() <= EXACT[dtype] * wanted.norm()


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize(("kernel", "weighting"), [(k, w) for k, ws in GPU_ONLY.items() for w in ws])
def test_long_rows_are_the_reference_in_float64(kernel, weighting, dtype, compiled):
    """Several segments and tiles, heads inside the positions in memory, grouped, padded with NaN."""
    lengths = [700, 0, 391]
    query, upstream = (torch.randn(3, 700, 4, 64, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(2))
    key, value = (torch.randn(3, 700, 2, 64, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(2))
    mask = ch.masks.causal() & ch.masks.padding(torch.tensor(lengths, device="cuda"))
    tensors = query, hide(key, lengths), hide(value, lengths)
    hold_to_reference(kernel, tensors, upstream, compiled=compiled, mask=mask, weighting=weighting)


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize(("kernel", "weighting"), [(k, w) for k, ws in GPU_ONLY.items() for w in ws])
def test_full_tiles_are_the_reference_in_float64(kernel, weighting, dtype, compiled):
    """Rows that fill every chunk, which `linear` has kernels of their own for."""
    tensors = [torch.randn(2, 640, 3, 64, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(4)]
    hold_to_reference(kernel, tensors[:3], tensors[3], compiled=compiled, mask=ch.masks.causal(), weighting=weighting)


def random_with(heads_inside):
    if heads_inside:
        return torch.randn(2, 192, 3, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    return torch.randn(2, 3, 192, 64, device="cuda", dtype=torch.bfloat16)


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("heads_inside", [False, True])
@pytest.mark.parametrize("kernel", ["fused", "argmax"])
def test_a_gradient_may_be_laid_out_otherwise_than_the_one_before(kernel, heads_inside):
    """Torch keeps cuDNN's backward pass by the layouts of query, key and value alone (torch 2.11)."""
    weighting = ch.weighting.Argmax() if kernel == "argmax" else ch.weighting.Softmax()
    for compiled, upstream_inside in itertools.product((False, True, False), (False, True, False)):
        tensors, upstream = [random_with(heads_inside) for _ in range(3)], random_with(upstream_inside)
        options = {"mask": ch.masks.causal(), "weighting": weighting}
        hold_to_reference(kernel, tensors, upstream, compiled=compiled, **options)
        spread = torch.ones((), device="cuda", dtype=torch.bfloat16).expand(upstream.shape)  # as of a sum
        hold_to_reference(kernel, tensors, spread, compiled=compiled, **options)


def kept(n):
    """Return the lengths of three padded texts."""
    return [n, 0, 2 * n // 3]


def documents(n, *ends):
    return ch.masks.causal() & ch.masks.document([sum(i >= end for end in ends) for i in range(n)])


MASKS = {
    "causal": lambda n: ch.masks.causal(),
    "causal padding": lambda n: ch.masks.causal() & ch.masks.padding(kept(n)),
    "equal documents": lambda n: documents(n, n // 3, 2 * n // 3),
    "unequal documents": lambda n: documents(n, n // 8, 2 * n // 3),
    "window": lambda n: ch.masks.causal() & ch.masks.window(40),
    "window padding": lambda n: ch.masks.causal() & ch.masks.window(40) & ch.masks.padding(kept(n)),
}
WEIGHTING_OF = {
    **dict.fromkeys(("fused", "flex", "blockwise"), ch.weighting.Softmax()),
    **dict.fromkeys(("chunked", "recurrent"), ch.weighting.Kernelized("elu")),
}


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", WEIGHTING_OF)
def test_every_kernel_with_real_tiles_is_the_reference(kernel, mask, dtype, compiled):
    """Flex as its compiled kernel; padding, windows and documents from lists; grouped heads; NaN at hidden keys."""
    weighting = WEIGHTING_OF[kernel]
    if isinstance(weighting, ch.weighting.Kernelized) and not mask.startswith("causal"):
        pytest.skip("it serves causal and padding, and refuses other masks: the grid has that")
    n = 24 if kernel == "recurrent" else 300  # compiled, it is one graph of all its steps
    query, upstream = (torch.randn(3, 4, n, 64, device="cuda", dtype=dtype) for _ in range(2))
    key, value = (torch.randn(3, 2, n, 64, device="cuda", dtype=dtype) for _ in range(2))
    if "padding" in mask:
        key, value = hide(key, kept(n)), hide(value, kept(n))
    options = {"mask": MASKS[mask](n), "weighting": weighting}
    hold_to_reference(kernel, (query, key, value), upstream, compiled=compiled, **options)


N_LONG = 1500
"""Long enough for a mask to be compiled into the kernel."""


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("mask", ch.masks.TABLE)
def test_long_masks_are_the_reference_eager_and_compiled(mask, compiled):
    device = torch.device("cuda")
    tensors = [torch.randn(3, heads, N_LONG, 64, device=device, dtype=torch.bfloat16) for heads in (4, 2, 2, 4)]
    made = ch.masks.TABLE[mask](ch.masks.Extent(3, 4, N_LONG, N_LONG, device))
    hold_to_reference("auto", tensors[:3], tensors[3], compiled=compiled, mask=made)


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("inside", [False, True])
def test_documents_expanded_over_the_batch_compile(inside):
    """Flex read the tiles of such a mask in another layout than the compiler had given them: a CUDA error."""
    ids = (torch.arange(4096, device="cuda") // 512).expand(4, 4096)
    tensors = [torch.randn(4, 2, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    mask = ch.masks.document(ids)

    def run(query, key, value):
        return ch.attend(query, key, value, mask=ch.masks.document(ids) if inside else mask, kernel="flex")

    context = torch.compile(run, fullgraph=True)(*tensors)
    one_by_one = torch.nn.functional.scaled_dot_product_attention(
        *(side.unflatten(2, (8, 512)).transpose(1, 2).flatten(0, 1) for side in tensors)
    )
    wanted = one_by_one.unflatten(0, (4, 8)).transpose(1, 2).flatten(2, 3)
    torch.testing.assert_close(context, wanted, rtol=2e-2, atol=2e-2)
    for got, right in zip(*(torch.autograd.grad(side.sum(), tensors) for side in (context, wanted)), strict=True):
        assert (got - right).norm() <= 2e-2 * right.norm()


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("name", ["window", "padding", "prefix", "document", "causal padding", "tensor"])
def test_long_masks_of_any_length_are_compiled_twice_at_most(name):
    """Once for the first length, and once for all others; with gradients."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda q, mask: ch.attend(q, q, q, mask=mask), backend=counter, fullgraph=True)
    for n in (N_LONG, 1700, 2048, 1601):
        query = torch.randn(2, 2, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mask = ch.masks.TABLE[name](ch.masks.Extent(2, 2, n, n, query.device))
        got, wanted = (run(query, mask) for run in (compiled, lambda q, mask: ch.attend(q, q, q, mask=mask)))
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
        got.sum().backward()
    assert counter.frame_count <= 2


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("n", [1100, 1404, 1500])
@pytest.mark.parametrize("mask", ["causal padding", "union", "function", "tensor"])
def test_a_matrix_of_more_than_1024_keys_compiled_is_the_reference(mask, n):
    """Where the compiler keeps a mask in longer rows, the last keys were taken for hidden (torch 2.11)."""
    device = torch.device("cuda")
    tensors = [torch.randn(3, 4, n, 64, device=device, dtype=torch.bfloat16) for _ in range(4)]
    made = ch.masks.TABLE[mask](ch.masks.Extent(3, 4, n, n, device))
    for kernel in ("fused", "flex"):
        hold_to_reference(kernel, tensors[:3], tensors[3], compiled=True, mask=made)
