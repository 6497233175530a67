"""Texts as batches, and what cannot be compared place by place."""

import pytest
import torch

from clearhead.circuits import Texts
from clearhead.circuits.texts import check_pair, pad_texts
from clearhead.errors import OptionError, ShapeError
from tests.circuits.random_models import make


def test_padding_says_how_many_tokens_count():
    texts = pad_texts({"encoder": [[1, 2, 3], [4]]})
    assert texts.tokens["encoder"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert texts.lengths["encoder"].tolist() == [3, 1]
    assert texts.repeat(2)[2:].tokens["encoder"].tolist() == texts.tokens["encoder"].tolist()


def test_pairs_must_fit_place_by_place():
    case = make("both-pre")
    check_pair(case.model, case.clean, case.other)
    shorter = Texts(tokens={side: rows[:, :-1] for side, rows in case.other.tokens.items()})
    with pytest.raises(ShapeError, match="as many tokens"):
        check_pair(case.model, case.clean, shorter)
    with pytest.raises(OptionError, match="this model reads decoder and encoder; came decoder"):
        check_pair(case.model, case.clean, Texts(tokens={"decoder": torch.zeros(2, 5, dtype=torch.long)}))
    lengths = {"encoder": torch.tensor([6, 6])}
    with pytest.raises(ShapeError, match="both texts of a pair need one length"):
        check_pair(case.model, case.clean, Texts(tokens=case.other.tokens, lengths=lengths))
