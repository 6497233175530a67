"""The grid on a GPU: the same promise, the same reference."""

import pytest

from clearhead.attention import grid, support

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernel", support.KERNEL_NAMES)
def test_every_promise_is_kept_on_a_gpu(kernel, request):
    if kernel == "flex" and request.config.getoption("jaxtyping_packages"):
        pytest.skip("flex is traced, and checked signatures cannot be: run this with --jaxtyping-packages=")
    report = grid.check(grid.combinations(kernel, device="cuda"))
    assert report.supported > 50
    assert not report.failures, str(report)
