"""The attention grid, traced: on every kernel, every pair of parts, what is rebuilt is what the kernel gave."""

import pytest
import torch

from clearhead.attention.grid import combinations, reasons, small_kernels
from clearhead.attention.grid.case import Case
from clearhead.attention.grid.support import KERNEL_NAMES
from clearhead.attention.kernels import run
from clearhead.attention.request import AttentionOptions
from clearhead.tracing.recording import RecordedAttention
from clearhead.tracing.site import Site
from tests.covering import covering

pytestmark = pytest.mark.slow


def served(kernel):
    """The combinations this kernel runs; dropped weights are left out of a trace."""
    return [one for one in combinations(kernel) if not reasons(one) and one.parts["dropout"] == "0"]


KERNELS = [name for name in KERNEL_NAMES if name not in ("linear", "argmax")]


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", KERNELS)
def test_rebuilt_is_what_the_kernel_gave(kernel):
    found = served(kernel)
    assert len(found) > 50
    check_all(found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_rebuilt_is_what_the_kernel_gave_for_every_part(kernel):
    """Each part once, and for flex each position, as it is traced anew for each: `make test-all` has every pair."""
    found = served(kernel)
    axes = ("position",) if kernel == "flex" else tuple(found[0].parts)
    chosen = covering([{axis: one.parts[axis] for axis in axes} for one in found], 1)
    assert len(chosen) > 5
    check_all([found[place] for place in sorted(chosen)])


def check_all(found):
    with small_kernels():
        for seed, combination in enumerate(found):
            check(combination, seed)


def check(combination, seed):
    case = Case(combination, seed)
    options = dict(case.options)
    positions = options.pop("query_positions", None), options.pop("key_positions", None)
    with torch.no_grad():
        call = AttentionOptions(**options).inputs(case.tensors, positions)
        context = run(combination.kernel, call)
    for row in range(call.query.shape[0]):
        site = Site(
            "decoder.0.attention", RecordedAttention(call=call, context=context, kernel=combination.kernel), row
        )
        for head in site.head:
            steps = head.rows()  # raises where it is not the kernel's
            assert steps.weight.isfinite().all(), str(combination)
            assert head.cell(0, 0).weight == pytest.approx(steps.weight[0, 0].item(), rel=1e-5, abs=1e-7), str(
                combination
            )
