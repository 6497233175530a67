"""Numbers of a mask: a list follows the query to its device, a tensor stays; ids are read by position."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.mask_numbers import EqualDocuments, Extent, at_position, cut_runs, read_runs, row_numbers
from clearhead.attention.mask_rules import Mask
from clearhead.attention.score_index import Positions, box

M = ch.masks

LISTED: dict[str, Callable[[], Mask]] = {
    "padding": lambda: M.padding([2, 4]),
    "prefix": lambda: M.prefix([1, 2]),
    "one prefix": lambda: M.prefix(2),
    "document": lambda: M.document([0, 0, 1, 1]),
    "document cross": lambda: M.document([0, 1, 1], [0, 0, 1, 1]),
    "all of them": lambda: M.causal() & (M.padding([2, 4]) | ~M.prefix(1)) & M.document([[0, 0, 1, 1], [0, 1, 1, 1]]),
}


def allowed_on(mask: Mask, device: str) -> Tensor:
    where = torch.device(device)
    mask.check(Extent(2, 1, 3, 4, where))
    return mask.allowed(box(Positions.aligned(3, 4, where), batch=2, n_heads=1))


@pytest.mark.parametrize("name", LISTED)
def test_numbers_in_a_list_follow_the_query_to_its_device(name: str):
    mask = LISTED[name]()
    before = allowed_on(mask, "cpu")
    assert allowed_on(mask, "meta").device.type == "meta"
    assert torch.equal(allowed_on(mask, "cpu"), before)


def test_a_list_is_copied_to_a_device_once():
    mask = M.padding([2, 4])
    first = mask.lengths.on(torch.device("meta"))
    assert mask.lengths.on(torch.device("meta")) is first
    assert len(mask.lengths.copies) == 2


def test_a_list_stays_a_list_of_numbers_whatever_the_default_device_is():
    with torch.device("meta"):
        mask = M.padding([2, 4])
    assert torch.equal(allowed_on(mask, "cpu"), allowed_on(M.padding([2, 4]), "cpu"))


def test_a_list_first_used_under_a_transform_can_be_used_after_it():
    mask = M.padding([2, 4])

    def total(x: Tensor) -> Tensor:
        allowed_on(mask, "meta")
        return x.sum()

    torch.func.grad(total)(torch.ones(2))
    assert allowed_on(mask, "meta").device.type == "meta"
    assert not torch._C._functorch.is_functorch_wrapped_tensor(mask.lengths.copies[1])


def test_a_tensor_stays_where_its_owner_put_it():
    with pytest.raises(ch.errors.DeviceError, match="padding lengths: on cpu, but the query is on meta; move it there"):
        allowed_on(M.padding(torch.tensor([2, 4])), "meta")


@pytest.mark.parametrize(
    ("ids", "packed"),
    [([[0, 0, 1, 1]], True), ([[5, 5, 5]], True), ([[0, 1, 0]], False), ([[0, 0, 1], [2, 1, 2]], False)],
)
def test_packed_documents_are_runs(ids: list[list[int]], packed: bool):
    runs = read_runs(torch.tensor(ids))
    assert runs is not None
    assert runs.packed is packed


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ([[4, 4, 1, 1, 2]], [[EqualDocuments(2, 2, True), EqualDocuments(1, 1, True)]]),
        (
            [[-1, 0, 0, 1, 1, -1]],
            [[EqualDocuments(1, 1, False), EqualDocuments(2, 2, True), EqualDocuments(1, 1, False)]],
        ),
        ([[0, 0, 1, 1], [5, 5, 4, 4]], [[EqualDocuments(2, 2, True)]]),
        (
            [[0, 0, 1, 1], [1, 1, 1, 0]],
            [[EqualDocuments(2, 2, True)], [EqualDocuments(1, 3, True), EqualDocuments(1, 1, True)]],
        ),
        ([[0, 1, 0]], None),
    ],
)
def test_documents_of_one_length_are_counted_together(ids: list[list[int]], rows: list[list[EqualDocuments]] | None):
    runs = read_runs(torch.tensor(ids))
    assert runs is not None
    assert runs.rows == (rows if rows is None else tuple(map(tuple, rows)))


def test_lengths_that_change_too_often_are_not_kept():
    ids = torch.repeat_interleave(torch.arange(1200), torch.arange(1200) % 2 + 1)
    runs = read_runs(ids[None])
    assert runs is not None
    assert runs.packed
    assert runs.rows is None


@pytest.mark.parametrize("n", range(1, 10))
def test_runs_of_the_first_positions(n: int):
    ids = torch.tensor([[0, 0, 1, 1, -1, 2, 2, 2, 3]])
    whole, first = read_runs(ids), read_runs(ids[:, :n])
    assert whole is not None
    assert whole.rows is not None
    assert first is not None
    assert first.rows is not None
    assert lengths(cut_runs(whole.rows[0], n)) == lengths(first.rows[0])


def lengths(runs: tuple[EqualDocuments, ...]) -> list[tuple[int, bool]]:
    return [(run.length, run.document) for run in runs for _ in range(run.repeats)]


def test_a_position_outside_the_ids_belongs_to_no_document():
    cells = box(Positions(query=torch.tensor([[-1, 0, 2, 3]]), key=torch.tensor([[0]])), batch=1, n_heads=1)
    assert at_position(torch.tensor([[7, 8, 9]]), cells, cells.query).flatten().tolist() == [-1, 7, 9, -1]


def test_one_row_of_ids_serves_every_row_of_the_batch():
    cells = box(Positions.aligned(3, 3, torch.device("cpu")), batch=2, n_heads=1)
    one = at_position(torch.tensor([[7, 8, 9]]), cells, cells.key)
    each = at_position(torch.tensor([[7, 8, 9], [7, 8, 9]]), cells, cells.key)
    assert torch.equal(one.expand_as(each), each)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (torch.tensor([1.5, 2.0]), ch.errors.DtypeError, "lengths: expected whole numbers, came torch.float32"),
        ([[1, 2], [3]], ch.errors.ShapeError, "lengths: expected whole numbers, in rows of one length"),
        ([], ch.errors.ShapeError, "lengths: expected 1 axes, not empty"),
        (torch.ones(2, 2, dtype=torch.long), ch.errors.ShapeError, r"expected 1 axes, not empty; came \(2, 2\)"),
    ],
)
def test_what_are_no_numbers_for_each_row_is_refused(values, error, message):
    with pytest.raises(error, match=message):
        row_numbers("lengths", values)
