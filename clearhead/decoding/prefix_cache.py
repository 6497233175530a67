"""Prefix cache: keys and values of prompts that were read, for later prompts that begin with the same tokens.

Prompts are cut into blocks. A block is found by the block before it and by its tokens, so that two prompts have a block
in common only if they are the same from the first token to its end. Nothing is copied when a prompt is kept: its blocks
are places in the memory that it was read into. What was used longest ago is dropped first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.errors import OptionError

BLOCK = 64
"""Tokens of a block."""
USUAL_BYTES = 1 << 28
ROOT = 0
"""The number of the block before the first; less for each adapter."""
Key = tuple[int, tuple[int, ...]]
"""The number of the block before, and the tokens of a block."""
Memory = list[list[Tensor]]
"""The memory of every cache: tensors of `(row, head, column, d)`."""


@dataclass(eq=False)
class ReadPrompts:
    """The memory of prompts that were read together, and the blocks that lie in it."""

    memory: Memory = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    n_bytes: int = 0


class PromptBlock(NamedTuple):
    """Where a block is: a row of some prompts' memory, from `column` on."""

    number: int
    prompts: ReadPrompts
    row: int
    column: int


class PrefixCache:
    """Blocks of prompts, in at most `most_bytes` of memory."""

    def __init__(self, most_bytes: int = USUAL_BYTES, block: int = BLOCK) -> None:
        if block < 1:
            raise OptionError(f"block must be 1 token or more; came {block}")
        self.most_bytes, self.block = most_bytes, block
        self.blocks: dict[Key, PromptBlock] = {}
        self.read: OrderedDict[int, ReadPrompts] = OrderedDict()
        """What is kept, by identity, the one that was used longest ago first."""
        self.bytes, self.last_number = 0, ROOT

    def cut(self, prompt: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the tokens of the whole blocks of a prompt, without its last token, which is never read ahead."""
        ends = range(0, len(prompt), self.block)
        return (tuple(prompt[start:stop]) for start, stop in pairwise(ends))

    def find(self, prompt: Sequence[int], adapter: int = 0) -> list[PromptBlock]:
        """Return the blocks that the prompt begins with, as many as there are; each adapter has its own."""
        found, parent = list[PromptBlock](), ROOT - adapter
        for tokens in self.cut(prompt):
            block = self.blocks.get((parent, tokens))
            if block is None:
                break
            found.append(block)
            parent = block.number
        for block in reversed(found):  # so that no block is dropped before those that follow it
            if id(block.prompts) in self.read:
                self.read.move_to_end(id(block.prompts))
        return found

    def next_key(self, prompt: Sequence[int], found: Sequence[PromptBlock], adapter: int = 0) -> Key | None:
        """Return the key of the first block that was not found; None if the prompt has no more of them."""
        start = len(found) * self.block
        if start + self.block >= len(prompt):
            return None
        return found[-1].number if found else ROOT - adapter, tuple(prompt[start : start + self.block])

    def gather(self, rows: Sequence[Sequence[PromptBlock]]) -> Memory:
        """Return memory with the blocks of each row, as many for each: what reading them would have given."""
        runs = [list(self.join_runs(blocks)) for blocks in rows]
        caches = rows[0][0].prompts.memory
        return [
            [torch.stack([torch.cat([run.part(i, j) for run in row], 1) for row in runs]) for j in range(len(parts))]
            for i, parts in enumerate(caches)
        ]

    def join_runs(self, blocks: Sequence[PromptBlock]) -> Iterator["BlockRun"]:
        """Yield blocks that lie side by side as one."""
        begin, size = blocks[0], self.block
        for block, following in pairwise([*blocks, None]):
            assert block is not None
            stop = block.column + size
            if following is None or following[1:] != (block.prompts, block.row, stop):
                yield BlockRun(begin.prompts, begin.row, begin.column, stop)
                begin = following or block

    def keep(self, prompts: Sequence[Sequence[int]], memory: Memory, begun: int, adapters: Sequence[int] = ()) -> None:
        """Keep what was read of prompts: a row of the memory for each, which has `begun` columns from here."""
        read = ReadPrompts()
        for row, prompt in enumerate(prompts):
            parent = ROOT - adapters[row] if adapters else ROOT
            for index, tokens in enumerate(self.cut(prompt)):
                key, column = (parent, tokens), index * self.block - begun
                if key not in self.blocks:
                    if column < 0:  # it was dropped while the rest was read
                        break
                    self.last_number += 1
                    self.blocks[key] = PromptBlock(self.last_number, read, row, column)
                    read.keys.append(key)
                parent = self.blocks[key].number
        if read.keys:
            # Where there is nothing in common, nothing is copied; else the beginning is not kept twice.
            read.memory = [[part[:, :, begun:].clone() if begun else part for part in each] for each in memory]
            read.n_bytes = count_bytes(read.memory)
            self.read[id(read)] = read
            self.bytes += read.n_bytes
            self.drop_oldest()

    def drop_oldest(self) -> None:
        while self.bytes > self.most_bytes:
            _, oldest = self.read.popitem(last=False)
            self.bytes -= oldest.n_bytes
            for key in oldest.keys:
                del self.blocks[key]


def count_bytes(memory: Memory) -> int:
    """Return the bytes that the memory holds; parts of one tensor hold all of it."""
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for each in memory for part in each}
    return sum(storage.nbytes() for storage in storages.values())


class BlockRun(NamedTuple):
    """Columns of a row that lie side by side."""

    prompts: ReadPrompts
    row: int
    start: int
    stop: int

    def part(self, cache: int, index: int) -> Tensor:
        return self.prompts.memory[cache][index][self.row, :, self.start : self.stop]
