"""Training a pupil's block: the solution learns, what has no gradients or no end says so."""

from dataclasses import replace

import pytest

from clearhead.errors import DataError
from clearhead.exercises import EXERCISES, training
from clearhead.exercises.exercise import run_code
from clearhead.exercises.training import LETTERS, STEPS, TOLD, train, train_file


def test_the_solution_learns_and_one_that_looks_at_nothing_does_not():
    learned = list(train(run_code(EXERCISES["block"].solution, "block")["block"]))
    assert [step for step, _, _ in learned] == list(range(TOLD, STEPS + 1, TOLD))
    assert learned[-1][2] == 1.0
    *_, (_, _, right) = train(lambda x, w, n_heads: x)
    assert right == pytest.approx(1 / LETTERS, abs=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch\n\ndef block(x, w, n):\n    return x.missing\n", "line 4: AttributeError"),
        ("import torch\n\ndef block(x, w, n):\n    while True: pass\n", "was given up after 1 s of work"),
        ("import torch\n\ndef block(x, w, n):\n    open('written', 'w')\n", "PermissionError|OSError"),
        ("import numpy as np\n\ndef block(x, w, n):\n    return x\n", "arrays have no gradients"),
        ("import torch\n", "there is no function `block`"),
    ],
)
def test_a_block_that_cannot_be_trained_says_why(tmp_path, monkeypatch, source, said):
    monkeypatch.setattr(training, "BOUNDS", replace(training.BOUNDS, seconds=1 if "while" in source else 20))
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(DataError, match=said):
        list(train_file(path))
