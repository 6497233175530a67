"""A session: a batch of token sequences being continued by a model, on caches."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention.masks import Extent
from clearhead.attention.modes import autocast_enabled
from clearhead.attention.positions.embedded import SinusoidalTable
from clearhead.decoding.cache_set import Caches
from clearhead.decoding.clock import Clock
from clearhead.decoding.recorded import OnDevice, RecordedSearch, RecordedStep, can_record_on
from clearhead.decoding.rules import Rules
from clearhead.decoding.source import Source
from clearhead.decoding.topk import LogSoftmax
from clearhead.model.cpu_matmul import FEW
from clearhead.model.fast_step import FastStep, is_observed
from clearhead.model.fused_step import MOST_ROWS, FusedLinear, can_fuse_weight
from clearhead.model.int8_matmul import Int8Matrix, can_multiply
from clearhead.model.outputs import ToVocabulary
from clearhead.model.transformers import Decoder, EncoderDecoder
from clearhead.registry import is_built_in

Logits = Float[Tensor, "row vocabulary"]
FOREVER = 1 << 30
MUCH = 1 << 20
"""From this many logits on they are written into the same memory each step: fresh pages would take longer."""
MOST_SINES = 1 << 13
"""Positions whose sines are made ahead for a session."""
SEEN: WeakKeyDictionary[nn.Module, dict[Hashable, set[Hashable]]] = WeakKeyDictionary()
"""For each decoder, the kinds of steps that have run once and so can be recorded (`clearhead.decoding.recorded`)."""


class Session:
    """Rows of tokens, each with its prompt read already; `logits` are those of the next token of every row.

    Prompts may differ in length. Rows are sentences times beams: one beam each at the start. `n_new`: how many tokens
    may come, if that is known.
    """

    recorded: RecordedStep | None = None
    fast_step: FastStep | None = None
    int8_table: Int8Matrix | None = None
    head: FusedLinear | None = None
    """The unembedding as a kernel for a few rows, if it can be one."""
    may_record = True

    def __init__(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], source: Source | None = None, n_new: int = FOREVER
    ) -> None:
        self.decoder = decoder
        self.device = decoder.embedding.table.device
        self.log_softmax, self.logit_buffer = LogSoftmax(), torch.empty(0)
        longest = max(len(prompt) for prompt in prompts)
        self.encoded = encode_positions(decoder, longest + n_new) if can_record_on(self.device) else None
        pads = [longest - len(prompt) for prompt in prompts]
        tokens = torch.tensor(
            [[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)], device=self.device
        )
        padding = torch.tensor(pads, device=self.device) if any(pads) else None
        self.caches = Caches(decoder.stack, source, Clock(padding, self.device, longest + n_new))
        check_masks(decoder, len(prompts), longest + n_new - 1 if n_new < FOREVER else longest)
        self.fast_step = self.find_fast_step()
        self.int8_table, self.head = find_int8_table(decoder.output), find_head(decoder.output)
        self.logits = self.read(tokens) if self.fast_step is None or longest > 1 else self.step(tokens)

    def extend(self, tokens: Int[Tensor, "row"]) -> Logits:
        """Return the logits after one more token in every row; valid until the next call."""
        new = tokens.unsqueeze(1)
        if self.recorded is None and self.may_record:
            self.may_record = False
            if self.can_record():
                self.recorded = RecordedStep(self.caches, self.compute, self.kinds_seen())
        if self.recorded is not None:
            self.logits = self.recorded.step(new)
        else:
            self.logits = self.read(new) if self.fast_step is None else self.step(new)
        return self.logits

    def read(self, tokens: Int[Tensor, "row new"]) -> Logits:
        """Return the logits after new tokens, by the model's forward."""
        return self.decoder.output(self.cache(tokens)[:, -1:])[:, 0]

    def cache(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row new d_model"]:
        """Read new tokens into the caches, by the model's forward, and return the last vectors."""
        self.caches.clock.advance(tokens.shape[1])
        return self.decoder.stack(self.embed(tokens), self.caches.kv_sources)

    def find_fast_step(self) -> FastStep | None:
        """Return the stack's fast step; None for a model that is watched, hooked or autocast: its forward must run."""
        decoder = self.decoder
        if autocast_enabled(decoder.embedding.table) or any(map(is_observed, decoder.modules())):
            return None
        return decoder.stack.fast_step(self.caches.kv_sources)

    def can_record(self) -> bool:
        """Check whether steps can be recorded and replayed on this device."""
        return (
            self.fast_step is not None
            and can_record_on(self.device)
            and is_built_in(self.decoder)
            and self.caches.can_fix(self.decoder.stack)
        )

    def record_search(self, search: OnDevice, tokens: Int[Tensor, "row beam"]) -> RecordedSearch:
        """Return a search on this session that goes on from these tokens in recorded steps."""
        return RecordedSearch(self.caches, self.compute, search, tokens, self.kinds_seen())

    def kinds_seen(self) -> set[Hashable]:
        """Return the kinds of recorded steps that this decoder has run in its present dtype, on its present device."""
        table = self.decoder.embedding.table
        return SEEN.setdefault(self.decoder, {}).setdefault((table.dtype, table.device), set())

    def compute(self, tokens: Int[Tensor, "row 1"]) -> Logits:
        """Return the logits after one token in every row, by the fast step, at the clock's new column."""
        assert self.fast_step is not None
        return self.logits_of(self.fast_step(self.embed(tokens).squeeze(1)))

    def step(self, tokens: Int[Tensor, "row 1"]) -> Logits:
        """Return the logits after one new token in every row, by the fast step."""
        self.caches.clock.advance(1)
        return self.compute(tokens)

    def logits_of(self, states: Float[Tensor, "row d_model"]) -> Logits:
        """Return the logits of the model's output; for many rows, in memory that the next call reuses."""
        output, rows = self.decoder.output, len(states)
        if not is_bare(output):
            return output(states.unsqueeze(1))[:, 0]
        table = output.table
        if self.head is not None and rows <= MOST_ROWS:
            return self.head(states)
        if rows * len(table) < MUCH:
            return output(states.unsqueeze(1))[:, 0] if self.int8_table is None else self.int8_table(states)
        if rows <= FEW and self.int8_table is None:
            return output(states.unsqueeze(1))[:, 0]
        if self.logit_buffer.ndim < 2 or len(self.logit_buffer) < rows:
            self.logit_buffer = states.new_empty(rows, len(table))
        if self.int8_table is not None:
            return self.int8_table(states, out=self.logit_buffer[:rows])
        return torch.mm(states, table.T, out=self.logit_buffer[:rows])

    def embed(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row new d_model"]:
        """Return the vectors of the tokens in the new columns; the clock must have been advanced to them."""
        clock = self.caches.clock
        if clock.column is not None:
            return self.decoder.embedding(tokens, positions=clock.positions.clamp(min=0), encoded=self.encoded)
        positions = None if clock.pads is None else clock.positions.clamp(min=0)
        return self.decoder.embedding(tokens, positions=positions, start=clock.n)

    def log_probs(self, rules: Rules, so_far: Sequence[Sequence[int]]) -> Logits:
        """Return log-probabilities of the next token, after the rules' penalty; valid until the next step."""
        return self.log_softmax.of(rules.penalise(self.logits, so_far))

    def select(self, rows: Int[Tensor, "new_row"], sentences: Int[Tensor, "new_sentence"] | None = None) -> None:
        """Keep these rows, in this order; some may come several times. `sentences`: those that stay.

        The logits are still those of all rows, until the session is extended.
        """
        if self.recorded is None or not self.recorded.select(rows, sentences):
            self.caches.select(rows, sentences)


def encode_positions(decoder: Decoder, n: int) -> Tensor | None:
    """Return the sines of the first n positions, which a recorded step would otherwise compute; None for too many."""
    position = decoder.embedding.position
    return position(n) if isinstance(position, SinusoidalTable) and n <= MOST_SINES else None


def check_masks(decoder: Decoder, rows: int, columns: int) -> None:
    """Check that each layer's own mask fits every length that decoding will reach, for any number of rows."""
    device = decoder.embedding.table.device
    for block in decoder.stack.blocks:
        for batch, n in ((rows, columns), (1, max(1, columns - 1))):
            block.attention.mask.check(Extent(batch, block.attention.shape.n_heads, n, n, device))


def is_bare(output: nn.Module) -> TypeGuard[ToVocabulary]:
    """Check for an output that is a bare unembedding table, without hooks or taps."""
    if not isinstance(output, ToVocabulary) or is_observed(output):
        return False
    return output.transform is None and output.bias is None and output.cap is None and output.factor == 1


def find_int8_table(output: nn.Module) -> Int8Matrix | None:
    """Return the table of an output as an int8 matrix, if it is nothing but that."""
    if not is_bare(output) or output.int8_digits is None or output.table.dtype is not torch.float32:
        return None
    return output.int8_matrix(output.int8_digits) if can_multiply(output.table) else None


def find_head(output: nn.Module) -> FusedLinear | None:
    """Return the unembedding table as a fused map, if the output is nothing but that and the device has Triton."""
    if not is_bare(output) or output.int8_digits is not None or not can_fuse_weight(output.table):
        return None
    return FusedLinear(output.table)


def open_session(
    model: Decoder | EncoderDecoder,
    inputs: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    n_new: int = FOREVER,
    make: Callable[[Decoder, Sequence[Sequence[int]], Source | None, int], Session] = Session,
) -> Session:
    """Return a session on prompts, or, for an encoder-decoder, on prompts beside their encoded inputs."""
    if model.encoder is None:
        return make(model.decoder, prompts, None, n_new)
    tokens, lengths = pad_right(inputs, model.decoder.embedding.table.device)
    ragged = None if bool((lengths == tokens.shape[1]).all()) else lengths
    return make(model.decoder, prompts, Source(model.encoder(tokens, lengths=ragged), ragged), n_new)


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Int[Tensor, "row n"], Int[Tensor, "row"]]:
    """Return token ids as one tensor, zeros after the end of each row, and the lengths."""
    longest = max(len(row) for row in rows)
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)
