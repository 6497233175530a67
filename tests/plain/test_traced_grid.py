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


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(name, marks=pytest.mark.thorough if name == "flex" else ())
        for name in KERNEL_NAMES
        if name not in ("linear", "argmax")
    ],
)
def test_rebuilt_is_what_the_kernel_gave(kernel):
    found = served(kernel)
    assert len(found) > 50
    check_all(found)


def test_rebuilt_is_what_flex_gave():
    """For every position once, as flex is traced anew for each: `make test-all` has every pair."""
    found = served("flex")
    check_all([found[place] for place in sorted(covering([{"position": one.parts["position"]} for one in found], 1))])


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
