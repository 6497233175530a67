"""What models say of tokens and specs that cannot be, in our words: nothing checks shapes before them here."""

import pytest
import torch

from clearhead.errors import DtypeError, OptionError, ShapeError
from clearhead.model.feedforward import GELU
from clearhead.model.outputs import Classes
from tests.model.small import WORDS, both_spec, decoder_spec, encoder_spec, words

WRONG = [
    (torch.zeros(3, dtype=torch.long), ShapeError, r"expected a tensor \(batch, n\) of token ids.*; came \(3,\)"),
    (torch.zeros(2, 0, dtype=torch.long), ShapeError, r"n at least 1; came \(2, 0\)"),
    ([[1, 2]], ShapeError, "came list"),
    (torch.zeros(2, 3), DtypeError, "token ids are int64 or int32; came torch.float32"),
    (torch.zeros(2, 3, dtype=torch.bool), DtypeError, "came torch.bool"),
    (torch.zeros(2, 3, dtype=torch.uint8), DtypeError, "came torch.uint8"),
    (torch.tensor([[0, WORDS]]), OptionError, f"ids go from 0 to {WORDS - 1} in this vocabulary; there is {WORDS}"),
    (torch.tensor([[0, -1]]), OptionError, f"ids go from 0 to {WORDS - 1} in this vocabulary; there is -1"),
]


@pytest.mark.parametrize(("tokens", "error", "said"), WRONG)
@pytest.mark.parametrize("place", ["encoder", "decoder", "source", "target"])
def test_wrong_tokens_are_told_wherever_they_come_in(place, tokens, error, said):
    calls = {
        "encoder": lambda: encoder_spec().build()(tokens),
        "decoder": lambda: decoder_spec().build()(tokens),
        "source": lambda: both_spec().build()(tokens, words()),
        "target": lambda: both_spec().build()(words(), tokens),
    }
    with pytest.raises(error, match=said):
        calls[place]()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: both_spec(tied="four"), "tied must be one of none, two, three, embeddings; came 'four'"),
        (lambda: Classes(3, pool="middle"), "pool must be one of first, last, mean; came 'middle'"),
        (lambda: GELU(3, form="rough"), "form must be exact or tanh; came 'rough'"),
    ],
)
def test_wrong_names_are_told(make, said):
    with pytest.raises(OptionError, match=said):
        make()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([1, 2, 3]), r"expected one for each of the 2 sequences; came \(3,\)"),
        ([1, 2, 3], r"expected one for each of the 2 sequences; came \(3,\)"),
        ([[1], [2, 3]], r"lengths: expected whole numbers, in rows of one length; came \[\[1\], \[2, 3\]\]"),
        (2, r"lengths: expected 1 axes, not empty; came \(\)"),
        (torch.tensor([1, 0]), "lengths go from 1 to the . tokens there are; there is 0"),
        (torch.tensor([1, 99]), "lengths go from 1 to the . tokens there are; there is 99"),
    ],
    ids=["too many", "too many in a list", "ragged", "one number", "none", "past the end"],
)
def test_lengths_are_one_for_each_sequence(lengths, message):
    with pytest.raises(ShapeError, match=message):
        encoder_spec().build()(words(), lengths=lengths)
    with pytest.raises(ShapeError, match=message):
        both_spec().build()(words(), words(), source_lengths=lengths)


def test_lengths_in_a_list_are_those_of_a_tensor():
    model, tokens = both_spec().build().eval(), words()
    wanted = model(tokens, tokens, source_lengths=torch.tensor([1, 2]))
    torch.testing.assert_close(model(tokens, tokens, source_lengths=[1, 2]), wanted, rtol=0, atol=0)


def test_source_and_target_are_as_many():
    with pytest.raises(ShapeError, match="the batch sizes must be the same"):
        both_spec().build()(words(3), words(2))
