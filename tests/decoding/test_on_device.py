"""Notes of some steps: read together in their order, and for the sentences that stay."""

import torch

from clearhead.decoding.on_device import Notes


def test_notes_are_read_in_their_order_and_once():
    notes = Notes(torch.zeros(3), torch.zeros(3, 2, dtype=torch.long))
    for step in range(2):
        notes.write(torch.full((3,), float(step)), torch.full((3, 2), step))
    values, tokens = notes.read()
    assert values.tolist() == [[0.0] * 3, [1.0] * 3]
    assert tokens.shape == (2, 3, 2)
    assert len(notes.read()[0]) == 0


def test_notes_of_sentences_that_have_left_are_dropped():
    notes = Notes(torch.zeros(3))
    notes.select(torch.tensor([2, 0]))
    notes.write(torch.tensor([7.0, 5.0]))
    assert notes.read()[0].tolist() == [[7.0, 5.0]]
