"""Searches that stay on a GPU: each step is one replay, which reads a token of each row and chooses the next.

Nobody looks at the tokens until some steps later. The ways to choose are in `greedy.py` and `beam_device.py`.
"""

import torch

from clearhead.decoding.clock import SessionSize
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.on_device import OnDevice
from clearhead.decoding.recorded import Replay, is_worth_recording
from clearhead.decoding.request import Request
from clearhead.decoding.rules import Rules
from clearhead.decoding.session import Session, check_masks
from clearhead.model.fused_step import MOST_ROWS

FIRST_COLUMNS, MANY_COLUMNS = 64, 1024
"""Columns that are allocated first."""


def find_columns(filled: int, limit: int = 0, first: int = FIRST_COLUMNS) -> int:
    """Return how many columns to allocate if `filled` are there: more than those, so that some steps fit. If `limit`,
    the most there will be, is no more than twice as many, allocate them at once.
    """
    columns = first
    while columns <= filled:
        columns *= 2
    return -(-limit // 8) * 8 if filled < limit <= 2 * columns else columns


class RecordedSearch:
    """A search on a session whose every step is one replay. The session has a slot for each sentence.

    Sentences that have ended are computed on until half of them have. `filled` is the most columns that a slot has.
    """

    def __init__(self, session: Session, search: OnDevice, filled: int) -> None:
        self.session, self.clock, self.search, self.filled = session, session.clock, search, filled
        self.count = len(session.moves)
        self.replay: Replay | None = None

    def run(self, steps: int) -> list[list[Hypothesis]]:
        """Take this many steps, or fewer if all sentences end before; return the outputs of every sentence."""
        taken = 0
        while True:
            n_steps = min(steps, self.search.steps_at_once(taken))
            for _ in range(n_steps):
                self.step()
            steps -= n_steps
            taken += n_steps
            stays = self.search.read()
            if not steps or not stays:
                self.replay = None  # it holds this search, which would keep its memory until Python looks for cycles
                return self.search.hypotheses()
            if 2 * len(stays) <= self.count and is_worth_recording(steps):
                self.keep(stays)

    def step(self) -> None:
        if not self.clock.searching or self.filled >= self.clock.columns:
            self.grow()
        if self.replay is None:
            kind = self.search.kind, self.count, self.search.beams, self.clock.columns
            self.replay = Replay(self.work, self.session.kinds_seen(), kind)
        self.replay()
        self.filled += 1

    def grow(self) -> None:
        """Make room for more columns; the step is then recorded anew.

        A kernel that reads the filled columns alone takes no longer if there are more of them.
        """
        fused = self.search.beams == 1 and self.count <= MOST_ROWS and self.session.caches.reads_filled
        columns = find_columns(self.filled, self.clock.size.columns, MANY_COLUMNS if fused else FIRST_COLUMNS)
        self.session.search_beams(self.search.beams, columns)
        self.replay = None

    def work(self) -> None:
        origins, chosen = self.search.choose_by_logits(self.session.compute_step())
        self.session.tokens[: self.clock.rows] = chosen.flatten()
        if origins is not None:
            self.clock.continue_beams(origins)

    def keep(self, sentences: list[int]) -> None:
        """Go on with these sentences."""
        self.search.select(torch.tensor(sentences, device=self.session.device))
        self.session.keep(sentences)
        self.count, self.replay = len(sentences), None


def open_search(request: Request, method: DecodingMethod, rules: Rules) -> RecordedSearch | None:
    """Return a search that has read the prompts of a request; None where model or method have none.

    For rules that do not look back.
    """
    n, longest, table = len(request.prompts), max(map(len, request.prompts)), request.decoder.embedding.table
    check_masks(request.decoder, n, longest + rules.max_new - 1)
    session = Session(request.model, SessionSize(n, longest + rules.max_new - 1, max(map(len, request.inputs))))
    if not session.recordable:
        return None
    like = torch.empty(0, dtype=torch.promote_types(table.dtype, torch.float32), device=table.device)
    search = method.search(rules, n, request.decoder.spec.vocabulary, like)
    if search is None:
        return None
    session.start(request.prompts, request.inputs)
    return RecordedSearch(session, search, longest - 1)
