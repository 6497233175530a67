"""The choice of cases for `make test`: nothing that a pair could show is lost, and it is the same each time."""

from collections import Counter
from itertools import combinations, product
from types import SimpleNamespace

import pytest

from tests.covering import covering, mark_quick, mark_thorough

AXES = {"similarity": "abcd", "weighting": "abcdefg", "mask": "abc", "heads": "abc", "dtype": "ab"}


def cases(**axes):
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def groups(chosen, strength):
    return {group for case in chosen for group in combinations(sorted(case.items()), strength)}


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_group_of_values_is_in_a_chosen_case(strength):
    whole = cases(**AXES)
    chosen = [whole[place] for place in covering(whole, strength)]
    assert groups(chosen, strength) == groups(whole, strength)


def test_pairs_are_few_and_values_fewer():
    """No fewer can do than the two longest axes have pairs; greedy choice takes a few more."""
    whole = cases(**AXES)
    assert len(whole) == 504
    assert 28 <= len(covering(whole)) <= 36
    assert len(covering(whole, 1)) == 7


def test_only_what_occurs_is_asked_for():
    """Of a product with holes, as where a kernel does not serve a mask."""
    whole = [case for case in cases(**AXES) if not (case["mask"] == "b" and case["heads"] == "c")]
    chosen = [whole[place] for place in covering(whole)]
    assert groups(chosen, 2) == groups(whole, 2)


@pytest.mark.parametrize(("found", "wanted"), [([], 0), ([{}], 1), ([{"a": 1}, {"a": 2}], 2)])
def test_less_than_a_pair_is_kept_whole(found, wanted):
    assert len(covering(found)) == wanted


class Item:
    """As much of a collected test as the choice looks at."""

    def __init__(self, name, marker, marks=(), **params):
        self.parent, self.originalname, self.marks, self.given = "module", name, [], marks
        self.nodeid = f"tests/model/test_it.py::{name}"
        self.callspec = SimpleNamespace(params=params) if params else None
        self.pairs = marker

    def get_closest_marker(self, name):
        return self.pairs if name == "pairs" else name in self.given

    def add_marker(self, marker):
        self.marks.append(marker)


def test_this_session_has_cases_that_are_thorough(request):
    """As pytest collects them, and not as they are imitated below."""
    test = "tests/test_covering.py::test_of_three_axes"
    found = [bool(item.get_closest_marker("thorough")) for item in request.session.items if test in item.nodeid]
    if not found or request.config.option.markexpr in ("brief", "shapes"):
        pytest.skip("`-k` has left them out, or `-m` all but a few")
    assert found.count(False) == 9
    assert len(found) in (9, 18)  # `make test` has left out the others


@pytest.mark.pairs
@pytest.mark.parametrize("one", [[1], [2], [3]])
@pytest.mark.parametrize("two", "abc")
@pytest.mark.parametrize("three", [3.5, None])
def test_of_three_axes(one, two, three):
    assert (len(one), len(two)) == (1, 1)
    assert three in (3.5, None)


def test_the_marker_leaves_pairs_to_make_test_and_the_rest_to_test_all():
    both, one = pytest.mark.pairs.mark, pytest.mark.pairs(1).mark
    items = [Item("product", both, **case) for case in cases(a=range(3), b=range(3), c=range(2))]
    items += [Item("values", one, **case) for case in cases(a=range(3), b=range(4))]
    items += [Item("unmarked", None, **case) for case in cases(a=range(3), b=range(4), c=range(5))]
    items += [Item("alone", both)]
    mark_thorough(items)
    left = Counter(item.originalname for item in items if not item.marks)
    assert left == {"product": 9, "values": 4, "unmarked": 60, "alone": 1}
    assert all(item.marks in ([], [pytest.mark.thorough]) for item in items)


def test_three_cases_of_each_quick_test_are_brief_and_shapes_are_checked_in_the_first():
    items = [Item("product", None, **case) for case in cases(a=range(3), b=range(3))]
    items += [Item("slow", None, marks=["slow"]), Item("half", None, marks=["thorough"], a=1), Item("half", None, a=2)]
    mark_quick(items, ("attention/", "model/"))
    brief = [place for place, item in enumerate(items) if pytest.mark.brief in item.marks]
    assert brief == [0, 4, 8, 11]
    assert [place for place, item in enumerate(items) if pytest.mark.shapes in item.marks] == [0, 11]
    for of_shapes, but in ((("serve/",), ()), (("model/",), ("model/test_it.py::page",))):
        elsewhere = [Item("page", None)]
        mark_quick(elsewhere, of_shapes, but)
        assert elsewhere[0].marks == [pytest.mark.brief]
