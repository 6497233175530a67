"""A map of patches: shares of the way, the best cells, and each cell as an edit."""

import pytest
import torch

from clearhead.circuits import NodePatch, PatchMap
from clearhead.errors import OptionError

ROW, HEAD = "decoder.0.feed_forward.residual", "decoder.0.attention.head.1"


def made():
    return PatchMap(
        before=-1.0,
        source=3.0,
        patched={ROW: torch.tensor([-1.0, 1.0]), HEAD: torch.tensor([3.0, -3.0])},
        answers=("dog", "cat"),
        place=1,
        tokens={"decoder": ["the", "cat"]},
        nodes={ROW: NodePatch(ROW), HEAD: NodePatch("decoder.0.attention.context", 1)},
        values={ROW: torch.arange(6.0).view(2, 3), "decoder.0.attention.context": torch.arange(8.0).view(2, 2, 2)},
    )


def test_shares_go_from_the_text_to_the_source():
    found = made()
    assert {row: shares.tolist() for row, shares in found.recovered.items()} == {ROW: [0.0, 0.5], HEAD: [1.0, -0.5]}
    assert [tuple(cell) for cell in found.best[:2]] == [(HEAD, 0, 1.0), (ROW, 1, 0.5)]
    assert "decoder.0.attention.head.1 at 0: 100.0%" in str(found)


def test_a_cell_is_an_edit_of_one_place_and_a_row_of_all():
    found = made()
    cell, row = found.edit(HEAD, 1), found.edit(ROW)
    assert isinstance(cell.to, torch.Tensor)
    assert isinstance(row.to, torch.Tensor)
    assert (cell.at, cell.step, cell.head, cell.query, cell.to.tolist()) == (
        "decoder.0.attention",
        "context",
        1,
        1,
        [6.0, 7.0],
    )
    assert row.to.shape == (2, 3)
    with pytest.raises(OptionError, match=r"there is no row 'decoder.0.attention.head.7'.*the nearest is"):
        found.edit("decoder.0.attention.head.7")


def test_a_notebook_draws_it_with_the_text_above():
    drawn = made().show()._repr_html_()
    assert "d0.attn.head.1" in drawn
    assert "cat" in drawn
    assert "less that of &#x27;cat&#x27;" in drawn
