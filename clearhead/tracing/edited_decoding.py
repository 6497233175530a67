"""Decoding with an edited model: the same steps as `clearhead.generate`, while edits act inside the model.

A KV cache holds what earlier steps computed, one query at a time, and an edit may name any query, key or weight of the
whole text. So there is no cache: every step reads the whole text again, as a trace of it would. An edit of a place that
is not decoded yet waits until it is.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.caches import Guest
from clearhead.decoding.clock import SessionSize
from clearhead.decoding.prefix_cache import Memory
from clearhead.decoding.request import Model
from clearhead.decoding.session import Prefill, Session
from clearhead.tracing.edits import Change, TextChange, changes_for
from clearhead.tracing.recording import recording
from clearhead.tracing.site import overflow_of


@final
class EditedSession(Session):
    """The rows of one input being continued, each read from its beginning at every step, under the changes."""

    def __init__(self, changes: Sequence[Change | TextChange], model: Model, size: SessionSize) -> None:
        super().__init__(model, size)
        self.model, self.changes = model, changes
        self.texts: Int[Tensor, "slot column"] = self.tokens.new_zeros(size.slots, size.columns)
        self.source: list[Tensor] = []

    def open_prefill(
        self,
        prompts: Sequence[Sequence[int]],
        inputs: Sequence[Sequence[int]],
        at_once: int,
        begun: Memory | None = None,
        adapters: Sequence[int] = (),
    ) -> "EditedPrompt":
        assert len(prompts) == 1, "edits name places of one text"
        self.source = [] if self.encoder is None else [torch.tensor(inputs, device=self.device)]
        return EditedPrompt(torch.tensor(prompts, device=self.device)[:, :-1])

    def join(self, prefill: Prefill, guests: Sequence[Guest]) -> None:
        self.texts[:, : prefill.tokens.shape[1]] = prefill.tokens

    def copy_written(self, origins: Sequence[int], slots: Sequence[int]) -> None:
        self.texts[list(slots)] = self.texts[list(origins)]

    def compute_step(self) -> Float[Tensor, "row vocabulary"]:
        """Return the logits of the next token of every row."""
        last = int(self.clock.at[0])
        self.texts[:, last] = self.tokens
        rows = self.texts[: self.clock.rows, : last + 1]
        source = [tokens.expand(len(rows), -1) for tokens in self.source]
        changes = changes_for(self.changes, self.model, [*source, rows])
        reaching = [change for change in changes if change.reaches(last + 1)]
        with recording(self.model, reaching):
            logits = self.model(*source, rows)[:, -1]
        if reaching and not bool(logits.isfinite().all()):
            raise overflow_of("decoder.output.logits", logits.dtype)
        self.clock.at += self.moves
        return logits


@final
class EditedPrompt(Prefill):
    """A prompt that is read in every step, and so is not read before."""

    def __init__(self, tokens: Int[Tensor, "row n"]) -> None:
        self.tokens, self.source_tokens = tokens, 0

    @property
    def done(self) -> bool:
        return True
