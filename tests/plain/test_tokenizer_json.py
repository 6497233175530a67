"""Tokenizers given what is no text: with the annotations unchecked, as they are for a user, they say so themselves."""

import pytest

from clearhead.errors import DataError
from clearhead.text.tokenizer import Tokenizer

BYTE = Tokenizer.train(["das Haus"], "byte")


@pytest.mark.parametrize("bad", [5, None, b"Haus", ("das", "Haus")])
def test_what_is_no_text_is_told(bad):
    kind = type(bad).__name__
    with pytest.raises(DataError, match=f"text 2: expected text, came {kind}"):
        Tokenizer.train(["das", bad])
    with pytest.raises(DataError, match=f"the text: expected text, came {kind}"):
        BYTE.encode(bad)
    with pytest.raises(DataError, match=f"text 2 of 2: expected text, came {kind}"):
        BYTE.encode_batch(["das", bad])
