"""Tables from names to names: the same rows read a model and write it."""

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop.tables import TensorRow, expand, fill, gather

ROWS = [
    TensorRow("table", ("embedding.table",)),
    TensorRow("h.{i}.joint", ("b.{i}.query", "b.{i}.key"), transposed=True),
    TensorRow("bias", ("output.bias",), leading=True, optional=True),
]


def ours():
    made = {"embedding.table": torch.randn(5, 4), "output.bias": torch.randn(5)}
    for i in range(2):
        made |= {f"b.{i}.query": torch.randn(6, 4), f"b.{i}.key": torch.randn(2, 4)}
    return made


def test_what_is_written_is_what_is_read():
    rows, first, second = list(expand(ROWS, 2)), ours(), ours()
    theirs = gather(first, rows)
    assert {name: tuple(one.shape) for name, one in theirs.items()} == {
        "table": (5, 4),
        "h.0.joint": (4, 8),
        "h.1.joint": (4, 8),
        "bias": (1, 5),
    }
    assert fill(second, rows, theirs, "x") == theirs.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_optional_tensor_that_is_missing_is_zeros():
    rows, made = list(expand(ROWS, 2)), ours()
    theirs = gather(made, rows)
    del theirs["bias"]
    fill(made, rows, theirs, "x")
    assert not made["output.bias"].any()


def test_a_bias_that_ours_lacks_is_written_as_zeros():
    have = {"map.weight": torch.ones(3, 2), "norm.gamma": torch.ones(4), "embedding.table": torch.ones(5, 2)}
    rows = [TensorRow("a", ("map.bias",)), TensorRow("b", ("norm.beta",)), TensorRow("c", ("output.bias",))]
    assert {name: one.tolist() for name, one in gather(have, rows).items()} == {
        "a": [0] * 3,
        "b": [0] * 4,
        "c": [0] * 5,
    }
    with pytest.raises(OptionError, match=r"this model has no map\.scale"):
        gather(have, [TensorRow("a", ("map.scale",))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda theirs: theirs.pop("table"), "x: the tensor table is missing"),
        (lambda theirs: theirs.update(table=torch.zeros(4, 5)), r"table is \(4, 5\), and in this model \(5, 4\)"),
        (lambda theirs: theirs.update({"h.1.joint": torch.zeros(8, 4)}), r"h\.1\.joint is \(8, 4\), .*\(4, 8\)"),
        (lambda theirs: theirs.update(bias=torch.zeros(5)), r"bias is \(5,\), and in this model \(1, 5\)"),
        (lambda theirs: theirs.update(table=torch.zeros(5, 4, dtype=torch.int8)), "table is torch.int8; weights are"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    rows, made = list(expand(ROWS, 2)), ours()
    theirs = gather(made, rows)
    change(theirs)
    with pytest.raises(OptionError, match=message):
        fill(made, rows, theirs, "x")
    with pytest.raises(OptionError, match="x: nothing in it is our other"):
        fill({**made, "other": torch.zeros(1)}, rows, gather(made, rows), "x")
