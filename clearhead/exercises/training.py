"""Training the block that a pupil wrote, with torch's gradients through it: it learns to name the letter before."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from clearhead.bounds import forbid_writing, stream_bounded
from clearhead.errors import DataError
from clearhead.exercises.answers import BOUNDS, define, explain, is_number, read_source, uses_numpy
from clearhead.exercises.sandbox import confine

Block = Callable[[Tensor, dict[str, Tensor], int], Tensor]
D, LETTERS, LENGTH, HEADS = 16, 5, 8, 2
STEPS, TOLD, BATCH, RATE = 60, 10, 8, 0.02


def train_file(path: Path) -> Iterator[tuple[int, float, float]]:
    """Yield the step, the loss and the share of right answers, while the `block` of a file is trained in a process with
    bounds. DataError where it cannot be.
    """
    arguments = {"source": read_source(path)}
    with contextlib.closing(
        stream_bounded(train_block, arguments, BOUNDS, where=str(path), error=DataError, reuse=False)
    ) as given:
        for told in given:
            if isinstance(told, dict) and "error" in told:
                raise DataError(f"{path}: {str(told['error'])[:300]}")
            if not isinstance(told, list) or len(told) != 3 or not all(map(is_number, told)):
                raise DataError(f"{path}: what came back is no answer as Clearhead sends it")
            yield told[0], told[1], told[2]


# The rest runs in the bounded process.


def train_block(*, source: str) -> Iterator[Any]:
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # torch imports what writes to a temporary folder
    forbid_writing()
    confine()
    try:
        defined = define(source)
        if not callable(block := defined.get("block")):
            yield {"error": "there is no function `block`; clearhead learn write FILE has an empty one"}
        elif uses_numpy(defined):
            yield {"error": "arrays have no gradients: import torch and not numpy, and write the functions with it"}
        else:
            yield from ([*told] for told in train(cast(Block, block)))
    except BaseException as error:
        yield {"error": explain(error)}


def train(block: Block) -> Iterator[tuple[int, float, float]]:
    """Yield the step, the loss, and how many of 100 new texts' letters are named rightly, every few steps."""
    generator = torch.manual_seed(0)

    def matrix(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).requires_grad_()

    w = {name: matrix(D, D) for name in ("w_q", "w_k", "w_v", "w_o")}
    w |= {"w_up": matrix(4 * D, D), "w_down": matrix(D, 4 * D), "b_up": torch.zeros(4 * D, requires_grad=True)}
    w |= {name: torch.zeros(D, requires_grad=True) for name in ("b_down", "beta_1", "beta_2")}
    w |= {name: torch.ones(D, requires_grad=True) for name in ("gamma_1", "gamma_2")}
    tokens, places, output = matrix(LETTERS, D), matrix(LENGTH, D), matrix(LETTERS, D)
    optimizer = torch.optim.Adam([*w.values(), tokens, places, output], lr=RATE)

    def answers(text: Tensor) -> Tensor:
        return (block(tokens[text] + places, w, HEADS) @ output.T)[1:]

    for step in range(1, STEPS + 1):
        texts = torch.randint(LETTERS, (BATCH, LENGTH), generator=generator)
        loss = torch.stack([cross_entropy(answers(text), text[:-1]) for text in texts]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % TOLD == 0:
            others = torch.randint(LETTERS, (100, LENGTH), generator=generator)
            with torch.no_grad():
                right = torch.stack([answers(text).argmax(-1) == text[:-1] for text in others]).float().mean()
            yield step, loss.item(), right.item()
