"""A checkpoint of a search for edges: one that was cut goes on with the same result."""

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from clearhead.errors import RunError
from clearhead.serialization import load_tensors, save_tensors

HEADER = "clearhead-edge-scores"
PAUSE = 10.0
"""Seconds between two saves."""


@final
class ScoreCheckpoint:
    """Tensors of a search, kept in a file by names; without a path, or without what was asked, there are none.

    `identity` says whose they are: model, texts and method. A file of another search is refused.
    """

    def __init__(
        self, path: Path | None = None, identity: str = "", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path, self.identity, self.clock = path, identity, clock
        self.saved: dict[str, Tensor] = {}
        self.last = clock()
        if path is not None and path.exists():
            try:
                owner, self.saved = load_tensors(path, header=HEADER)
            except OSError as error:
                raise RunError(f"{path}: cannot be read as scores of edges ({error}): move it away") from None
            if owner != identity:
                raise RunError(f"{path} is of another search (model, texts or method): move it away")

    def load(self, key: str) -> dict[str, Tensor]:
        """Return the tensors that were last saved under a key; an empty dict if nothing was."""
        return {name.removeprefix(f"{key}/"): value for name, value in self.saved.items() if name.startswith(f"{key}/")}

    def save(self, key: str, tensors: Mapping[str, Tensor], *, now: bool = False) -> None:
        """Keep tensors under a key in place of those before; written every few seconds, or now."""
        if self.path is None or not (now or self.clock() - self.last >= PAUSE):
            return
        self.saved = {name: value for name, value in self.saved.items() if not name.startswith(f"{key}/")}
        self.saved |= {f"{key}/{name}": value for name, value in tensors.items()}
        save_tensors(self.path, self.saved, self.identity, header=HEADER)
        self.last = self.clock()

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def digest(*described: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of words and of every bit of some tensors."""
    made = hashlib.sha256("\n".join(described).encode())
    for name, tensor in tensors.items():
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).flatten()
        made.update(plain.view(torch.uint8).numpy().data)
    return made.hexdigest()
