"""Greedy decoding of whole batches on a GPU: tokens are chosen there, and read from it many at a time.

To read a token waits for the GPU, which is then idle until the host has launched the next step. So steps are launched
ahead, each chooses on the device and notes what it chose, and the host reads the notes of many steps at once. Rows that
have ended by then have computed tokens for nothing; they are left out from there on. The kernel reads a row's logits
twice, for the largest and for the sum, and writes one number: log-probabilities of the vocabulary are never stored.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.compiling import jit, missing_triton
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.on_device import Notes, OnDevice
from clearhead.decoding.rules import FORBIDDEN, FixedRules, Rules

if TYPE_CHECKING:
    import triton.language as tl


class Likeliest(OnDevice):
    """The likeliest token of every row. `sequences` says which sequence a row is, and `going` whether it goes on."""

    beams = 1

    def __init__(self, rules: Rules, count: int, like: Tensor) -> None:
        device = like.device
        self.kind, self.end, self.rules = repr(rules), frozenset(rules.end), FixedRules(rules, device)
        self.may_end = bool(rules.end) or not rules.forbids_nothing
        self.by_kernel = serves(rules, device)
        self.length = torch.ones(1, dtype=torch.long, device=device)
        self.notes = Notes(like.new_zeros(count), torch.zeros(count, dtype=torch.long, device=device))
        self.count = count
        self.forget()

    def restart(self) -> None:
        self.length.fill_(1)
        self.notes.at.zero_()

    def forget(self) -> None:
        self.sequences, self.going = torch.arange(self.count), torch.ones(self.count, dtype=torch.bool)
        self.read_rows: list[ReadRows] = []

    def choose(self, log_probs: Float[Tensor, "row vocabulary"]) -> tuple[None, Int[Tensor, "row 1"]]:
        return None, self.note(*self.rules.forbid(log_probs, self.length).max(-1))

    def choose_by_logits(self, logits: Float[Tensor, "row vocabulary"]) -> tuple[Tensor | None, Tensor]:
        if self.by_kernel:
            return None, self.note(*likeliest(logits))
        return super().choose_by_logits(logits)

    def note(self, value: Float[Tensor, "row"], token: Int[Tensor, "row"]) -> Int[Tensor, "row 1"]:
        self.notes.write(value, token)
        self.length += 1
        return token.unsqueeze(1)

    def read(self) -> list[int]:
        """Take over the tokens of every row up to the first that ends it; return the rows that go on."""
        log_probs, tokens = (part.T.cpu() for part in self.notes.read())
        stops = torch.isin(tokens, torch.tensor(list(self.end), dtype=torch.long)) | (log_probs == FORBIDDEN)
        ends, n = stops.any(1), tokens.shape[1]
        lengths = torch.where(ends, stops.int().argmax(1), n)
        # The token that ends a row belongs to it; where nothing was allowed, it ends before it.
        last = log_probs.gather(1, lengths.clamp(max=n - 1).unsqueeze(1)).squeeze(1)
        lengths = torch.where(self.going, lengths + (ends & (last != FORBIDDEN)), 0)
        self.read_rows.append(ReadRows(self.sequences, lengths, log_probs, tokens))
        self.going = self.going & ~ends
        return self.going.nonzero().flatten().tolist()

    def select(self, sentences: Int[Tensor, "stays"]) -> None:
        self.notes.select(sentences)
        rows = sentences.cpu()
        self.sequences, self.going = self.sequences[rows], self.going[rows]

    def hypotheses(self) -> list[list[Hypothesis]]:
        tokens: list[list[int]] = [[] for _ in range(self.count)]
        log_probs: list[list[float]] = [[] for _ in range(self.count)]
        for _, group in itertools.groupby(self.read_rows, key=lambda read: id(read.sequences)):
            sequences, lengths, values, ids = join_reads(list(group))
            for sequence, length, row_values, row_ids in zip(sequences, lengths, values, ids, strict=True):
                tokens[sequence] += row_ids[:length]
                log_probs[sequence] += row_values[:length]
        return [[Hypothesis.of(*pair, self.end)] for pair in zip(tokens, log_probs, strict=True)]


class ReadRows(NamedTuple):
    """What was read of some steps: the sequence of each row, how many of its tokens count, and the tokens."""

    sequences: Int[Tensor, "row"]
    lengths: Int[Tensor, "row"]
    log_probs: Float[Tensor, "row step"]
    tokens: Int[Tensor, "row step"]


def join_reads(reads: list[ReadRows]) -> tuple[list[int], list[int], list[list[float]], list[list[int]]]:
    """Return the columns of `ReadRows` as lists, of steps that follow each other with the same rows. After the token
    that ends a row none counts, so those that do are the first.
    """
    lengths = torch.stack([read.lengths for read in reads]).sum(0)
    log_probs, tokens = (torch.cat(parts, 1) for parts in zip(*(read[2:] for read in reads), strict=True))
    return reads[0].sequences.tolist(), lengths.tolist(), log_probs.tolist(), tokens.tolist()


BLOCK = 8192
"""Logits of a row that are read at once."""


def serves(rules: Rules, device: torch.device) -> bool:
    """Check whether the kernel can choose: where no rule forbids a token, on a device that has Triton."""
    return rules.forbids_nothing and missing_triton(device.type) is None


def likeliest(logits: Float[Tensor, "row vocabulary"]) -> tuple[Float[Tensor, "row"], Int[Tensor, "row"]]:
    """Return the log-probability of each row's likeliest token, in float32 or better, and the token."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    values = logits.new_empty(rows, dtype=torch.promote_types(logits.dtype, torch.float32))
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    block = min(BLOCK, max(16, 1 << (vocabulary - 1).bit_length()))
    sizes = {"VOCABULARY": vocabulary, "BLOCK": block, "num_warps": max(1, min(16, block // 512))}
    likeliest_kernel[(rows,)](logits, values, tokens, logits.stride(0), **sizes)
    return values, tokens


@jit
def likeliest_kernel(logits, values, tokens, stride, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Write the likeliest token of a row, the first of equals, and its log-probability: one program for each row.

    With exponentials taken relative to the largest logit, the log-probability of the likeliest token is minus the
    logarithm of their sum. It is in float64 for logits in float64. Where a logit is NaN or inf, all log-probabilities
    are NaN, and the first token is taken.
    """
    wide: tl.constexpr = tl.float64 if logits.dtype.element_ty == tl.float64 else tl.float32  # pyright: ignore[reportAssignmentType]
    row = logits + tl.program_id(0).to(tl.int64) * stride
    columns = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), wide)
    place = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, VOCABULARY, BLOCK):
        here = first + columns
        x = tl.load(row + here, mask=here < VOCABULARY, other=float("-inf")).to(wide)
        better = x > best
        place = tl.where(better, here, place)
        best = tl.where(better, x, best)
    largest = tl.max(best, 0)
    token = tl.min(tl.where(best == largest, place, VOCABULARY), 0)
    total = tl.zeros((BLOCK,), wide)
    for first in range(0, VOCABULARY, BLOCK):
        here = first + columns
        x = tl.load(row + here, mask=here < VOCABULARY, other=float("-inf")).to(wide)
        total += tl.exp(x - largest)
    value = -tl.log(tl.sum(total, 0))
    tl.store(values + tl.program_id(0), value)
    tl.store(tokens + tl.program_id(0), tl.where(value <= 0, token, 0).to(tl.int64))
