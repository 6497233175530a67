"""The grid: every *yes* of the promise held to the reference, every refusal to its error.

Here because the check of shapes makes it three times slower; the tests beside the package have it on.
"""

import functools
from itertools import combinations as pairs_of
from itertools import islice

import pytest
import torch

from clearhead.attention import grid, masks, positions, similarity, weighting
from clearhead.attention.grid import support
from clearhead.attention.grid.case import Combination, form_of
from clearhead.attention.kernels import KERNELS
from clearhead.attention.kernels.fused import Fused
from tests.covering import covering

pytestmark = pytest.mark.slow

FOUND: dict[str, grid.Report] = {}
THOROUGH = (pytest.mark.slow, pytest.mark.thorough)


@functools.cache
def combinations(kernel):
    """Those of the package's own parts, which are drawn for a second."""
    return list(grid.combinations(kernel))


def some(kernel):
    """Enough of the grid to find what is wrong everywhere."""
    return islice(grid.combinations(kernel), 80)


@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=THOROUGH if name == "flex" else ()) for name in support.KERNEL_NAMES]
)
def test_every_promise_is_kept(kernel):
    FOUND[kernel] = grid.check(combinations(kernel))
    assert not FOUND[kernel].failures, str(FOUND[kernel])


@pytest.mark.slow
def test_flex_keeps_its_promise_of_every_part():
    """Each of its combinations is traced anew, which takes half a second: `make test-all` has every pair.

    So not every mask is among them: to flex they are all one function of the positions.
    """
    served = [one for one in combinations("flex") if not grid.reasons(one)]
    others = [{axis: part for axis, part in one.parts.items() if axis != "mask"} for one in served]
    chosen = [served[place] for place in sorted(covering(others, 1))]
    refused = [one for one in combinations("flex") if grid.reasons(one)]
    found = grid.check([*chosen, *refused])
    assert not found.failures, str(found)
    assert found.supported > 5


def test_the_grid_has_a_thousand_combinations_and_says_so(capsys):
    if not FOUND:
        pytest.skip("the grid did not run in this session")
    supported, refused = (sum(getattr(found, name) for found in FOUND.values()) for name in ("supported", "refused"))
    with capsys.disabled():
        print("\ngrid: kernel      supported  refused")
        for kernel, found in FOUND.items():
            print(f"grid: {kernel:12}{found.supported:9}{found.refused:9}")
        print(f"grid: {supported} supported, {refused} refused, {supported + refused} run, in all")
    if set(FOUND) == set(support.KERNEL_NAMES):  # the whole of flex is left to `make test-all`
        assert supported + refused >= 1000


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(name, marks=() if name in ("fused", "recurrent") else pytest.mark.thorough)
        for name in support.KERNEL_NAMES
    ],
)
def test_every_pair_of_parts_is_there(kernel):
    """Whatever pair a kernel serves together is in a combination that it serves."""
    shown = {
        pair
        for found in combinations(kernel)
        if not grid.reasons(found)
        for pair in pairs_of(sorted(f"{axis} {part}" for axis, part in found.parts.items()), 2)
    }
    base = {
        "similarity": "default",
        "weighting": {
            "chunked": "linear elu",
            "recurrent": "linear elu",
            "linear": "linear elu",
            "argmax": "argmax",
        }.get(kernel, "softmax"),
        "position": "none",
        "mask": "none",
        "heads": "equal",
        "lengths": "square",
        "dtype": "float32",
        "gradients": "not needed",
        "dropout": "0",
        "positions": "default",
    }
    choices = grid.axes()
    for one, other in pairs_of(base, 2):
        for first in choices[one]:
            for second in choices[other]:
                parts = base | {one: first, other: second}
                if not grid.reasons(Combination(kernel, parts)):
                    assert tuple(sorted((f"{one} {first}", f"{other} {second}"))) in shown


def test_a_kernel_off_by_a_thousandth_is_caught(monkeypatch):
    class Off(Fused):
        def run(self, call):
            return super().run(call) * 1.001

    monkeypatch.setitem(KERNELS, "fused", Off())
    report = grid.check(some("fused"))
    assert len(report.failures) > 20


def test_a_gradient_off_by_a_thousandth_is_caught(monkeypatch):
    class Off(Fused):
        def run(self, call):
            context = super().run(call)
            extra = call.query.nan_to_num().sum()
            return context * (1 + 0.001 * (extra - extra.detach()))

    monkeypatch.setitem(KERNELS, "fused", Off())
    report = grid.check(some("fused"))
    assert any("query is off" in failure.problem for failure in report.failures)


def test_a_refusal_that_is_not_promised_is_caught(monkeypatch):
    class Shy(Fused):
        def refusal(self, facts):
            return "not today" if "prefix" in facts.masks else super().refusal(facts)

    monkeypatch.setitem(KERNELS, "fused", Shy())
    assert any("not today" in failure.problem for failure in grid.check(some("fused")).failures)


def test_a_promise_of_refusal_that_runs_is_caught(monkeypatch):
    monkeypatch.setitem(support.ROWS["mask tensor"], "fused", "m")
    found = [one for one in grid.combinations("fused") if one.parts["mask"] == "tensor"]
    assert any("but it ran" in failure.problem for failure in grid.check(found).failures)


def test_a_new_part_is_covered_without_touching_a_test(monkeypatch):
    monkeypatch.setitem(weighting.TABLE.parts, "tepid softmax", weighting.Softmax(temperature=1.5))
    monkeypatch.setitem(similarity.TABLE.parts, "halved dot", similarity.ScaledDot(0.5))
    monkeypatch.setitem(positions.TABLE.parts, "slow rotary", positions.Rotary(base=100.0))
    monkeypatch.setitem(masks.TABLE, "far window", lambda box: masks.window(5))
    monkeypatch.setitem(support.ROWS, "mask far window", support.ROWS["mask window"])
    found = list(grid.combinations("fused"))
    new = []
    for name in ("weighting tepid softmax", "similarity halved dot", "position slow rotary", "mask far window"):
        axis, part = name.split(" ", 1)
        with_it = [one for one in found if one.parts[axis] == part]
        assert any(not grid.reasons(one) for one in with_it), name
        new += with_it[:15]
    assert not grid.check(new).failures


def test_every_part_has_a_promise_and_every_promise_a_part():
    tables = {"similarity": similarity.TABLE, "weighting": weighting.TABLE, "position": positions.TABLE}
    for axis, table in tables.items():
        rows = {row.removeprefix(f"{axis} ") for row in support.ROWS if row.startswith(f"{axis} ") and "(" not in row}
        assert rows - {"default"} <= set(table)
        for part in table:  # by its own row, or by its form's
            assert support.cell(axis, part, form_of(axis, part), "blockwise") == "yes"
    rows = {row.removeprefix("mask ") for row in support.ROWS if row.startswith("mask ")}
    assert rows - {"(ordered)", "(unordered)"} == set(masks.TABLE)  # those two are for masks of one's own


def test_check_part_refuses_what_is_no_part():
    with pytest.raises(ValueError, match="expected a similarity, a weighting, a position or a mask"):
        grid.check_part(torch.nn.Linear(2, 2))
