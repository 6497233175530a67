"""Decoding with an edited model: the same search as `clearhead.generate`, while edits act inside the model.

A KV cache holds what earlier steps computed, one query at a time, and an edit may name any query, key or weight of the
whole text. So there is no cache: every step reads the whole text again, as a trace of it would. An edit of a place that
is not decoded yet waits until it is.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.decoding.request import Request
from clearhead.decoding.session import Session
from clearhead.decoding.topk import LogSoftmax
from clearhead.tracing.edits import Change
from clearhead.tracing.recording import recording
from clearhead.tracing.site import overflow_of


class EditedSession(Session):
    """The rows of one input being continued, each read from its beginning at every step, under the changes."""

    def __init__(self, request: Request, changes: Sequence[Change]) -> None:
        assert len(request.inputs) == 1, "edits name places of one text"
        self.model, self.changes = request.model, changes
        self.device = request.decoder.embedding.table.device
        self.log_softmax = LogSoftmax()
        self.source = None if request.model.encoder is None else torch.tensor(request.inputs, device=self.device)
        self.rows: Int[Tensor, "row n"] = torch.tensor(request.prompts, device=self.device)
        self.logits = self.forward()

    def extend(self, tokens: Int[Tensor, "row"]) -> Float[Tensor, "row vocabulary"]:
        self.rows = torch.cat([self.rows, tokens.unsqueeze(1)], 1)
        self.logits = self.forward()
        return self.logits

    def select(self, rows: Int[Tensor, "new_row"], sentences: Int[Tensor, "new_sentence"] | None = None) -> None:
        self.rows = self.rows[rows]

    def forward(self) -> Float[Tensor, "row vocabulary"]:
        """Return the logits of the next token of every row."""
        n_rows, n = self.rows.shape
        reaching = [change for change in self.changes if change.reaches(n)]
        source = [] if self.source is None else [self.source.expand(n_rows, -1)]
        with recording(self.model, reaching):
            logits = self.model(*source, self.rows)[:, -1]
        if reaching and not bool(logits.isfinite().all()):
            raise overflow_of("decoder.output.logits", logits.dtype)
        return logits
