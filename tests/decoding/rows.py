"""Rows of a session that a test steps through by itself, with tokens of its own choice."""

from clearhead.decoding.clock import SessionSize
from clearhead.decoding.continuous import find_limit
from clearhead.decoding.session import Session, check_masks

MOST_NEW = 80


class Rows:
    """Prompts that were read, beside sources if there is an encoder; `logits` are those of the next token of each."""

    def __init__(self, model, prompts, sources=None, *, slots=16):
        self.at = [len(prompt) - 1 for prompt in prompts]
        self.n_sources = [len(source) for source in sources or [[]]]
        longest = find_limit("columns", max(self.at) + MOST_NEW, model.decoder)
        check_masks(model.decoder, len(prompts), max(self.at) + 1)
        self.session = Session(model, SessionSize(max(slots, len(prompts)), longest, max(self.n_sources)))
        self.caches, self.fast_step = self.session.caches, self.session.fast_step
        self.session.start(prompts, sources or [[]])
        self.logits = self.step()

    def step(self):
        clock, n_source = self.session.clock, max(self.n_sources)
        clock.common = self.at[0] if len(set(self.at)) == 1 else None
        clock.alike = len(set(self.n_sources)) == 1
        self.session.fit(len(self.at), max(self.at) + 1, n_source)
        self.logits = self.session.step_rows()
        return self.logits

    def extend(self, tokens):
        """The logits after one more token in every row."""
        self.session.tokens[: len(self.at)] = tokens
        self.at = [position + 1 for position in self.at]
        return self.step()

    def select(self, rows, sentences=None):
        """Keep these rows, in this order; some may come several times. Each brings its source."""
        rows = rows.tolist()
        self.session.copy(rows, range(len(rows)))
        self.at = [self.at[row] for row in rows]
