"""The grid on a GPU: the same promise, the same reference."""

import pytest
import torch

import clearhead as ch
from clearhead.attention import grid, support
from clearhead.model import presets

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernel", support.KERNEL_NAMES)
def test_every_promise_is_kept_on_a_gpu(kernel, request):
    if kernel == "flex" and request.config.getoption("jaxtyping_packages"):
        pytest.skip("flex is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
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
