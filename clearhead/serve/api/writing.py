"""Text as its tokens come: stop strings cut exactly, and each token with its log-probability.

A piece of text is handed on once it can no longer change: it does not end within a character, and its end is not the
beginning of a stop string.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from clearhead.decoding.hypotheses import Candidates
from clearhead.text.tokenizer import LOST, Tokenizer
from clearhead.training.tasks.answering import continued, token_names
from clearhead.training.tasks.generate import Detokenizer

Finish = Literal["stop", "length"]


class WrittenToken(NamedTuple):
    """A token that was written: its id, its text, where that begins in the output, and the likeliest instead of it."""

    id: int
    text: str
    offset: int
    log_prob: float
    candidates: tuple[tuple[str, float], ...] = ()


class Stops:
    """Text with stop strings: it ends before the one that is complete first.

    >>> stops = Stops(("END", "N!"))
    >>> [stops.add(piece) for piece in ("the E", "N", "X E", "ND of")]
    ['the ', '', 'ENX ', '']
    >>> stops.is_found, stops.text
    (True, 'the ENX ')
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self.longest = max(map(len, self.strings), default=0)
        self.text, self.sent, self.is_found = "", 0, False

    def add(self, piece: str) -> str:
        """Return what is certain now and was not before."""
        if self.is_found:
            return ""
        begin = max(0, len(self.text) - self.longest + 1)
        self.text += piece
        ends = [(start + len(stop), start) for stop in self.strings if (start := self.text.find(stop, begin)) >= 0]
        if ends:  # of two that are complete at the same place, the longer one
            self.is_found, self.text = True, self.text[: min(ends)[1]]
            return self.rest()
        held_back = next(
            (n for n in range(min(self.longest, len(self.text)), 0, -1) if self.could_begin(self.text[-n:])), 0
        )
        return self.rest(held_back)

    def could_begin(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self.strings)

    def rest(self, held_back: int = 0) -> str:
        """Return the text that was held back, except its last `held_back` characters."""
        upto = len(self.text) - held_back
        new, self.sent = self.text[self.sent : upto], max(self.sent, upto)
        return new


class OutputText:
    """One output. `before`: ids of the text that it continues; a space between the two belongs to it.

    `details`: the text and the candidates of each token are kept too.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: Sequence[int] = (), *, stops: Sequence[str] = (), details: bool = False
    ) -> None:
        self.tokenizer, self.before, self.details = tokenizer, list(before), details
        self.detokenizer, self.stops = Detokenizer(tokenizer, before), Stops(stops)
        self.ids: list[int] = []
        self.log_probs: list[float] = []
        self.written: list[WrittenToken] = []
        self.heard = 0
        """Characters of the tokens so far."""
        self.late = False
        """Whether the text is decoded at the end only."""
        self.finish: Finish | None = None

    @property
    def text(self) -> str:
        return self.stops.text

    @property
    def stopped(self) -> bool:
        """Return whether a stop string has come: what follows is not wanted."""
        return self.stops.is_found

    def add(self, token: int, log_prob: float, candidates: Candidates = ()) -> str:
        """Return the text that is new and certain with this token."""
        tail = self.detokenizer.ids[self.detokenizer.last :] if self.details else []
        self.ids.append(token)
        self.log_probs.append(log_prob)
        piece = self.detokenizer.add(token)
        if self.details:
            named = self.name_tokens(tail, [token, *(candidate for candidate, _ in candidates)])
            likeliest = tuple((named[candidate], value) for candidate, value in candidates)
            self.written.append(WrittenToken(token, piece or named[token], self.heard, log_prob, likeliest))
        self.heard += len(piece)
        return self.stops.add(piece)

    def add_all(self, tokens: Sequence[int], log_probs: Sequence[float], candidates: Sequence[Candidates]) -> None:
        """Take tokens at once. Where nothing depends on each of them, their text is decoded at the end."""
        if not self.details and not self.stops.strings:
            self.ids += tokens
            self.log_probs += log_probs
            self.late = True
            return
        for i, (token, value) in enumerate(zip(tokens, log_probs, strict=True)):
            self.add(token, value, candidates[i] if candidates else ())
            if self.stopped:
                return

    def close(self, *, ended: bool) -> str:
        """Return what was held back, now that no token follows; `ended`: the model wrote an end token."""
        remainder = continued(self.tokenizer, self.before, self.ids) if self.late else self.detokenizer.rest()
        last = self.stops.add(remainder)
        last += "" if self.stopped else self.stops.rest()
        self.finish = "stop" if ended or self.stopped else "length"
        if self.stopped:  # tokens of the stop string itself are not part of the output
            self.written = [token for token in self.written if token.offset < len(self.text)]
        return last

    def name_tokens(self, tail: Sequence[int], tokens: Sequence[int]) -> Mapping[int, str]:
        """Return the text of each token where it stands; a special token, or part of a character, has a name."""
        named = {}
        for token in dict.fromkeys(tokens):
            text = continued(self.tokenizer, tail, [token])
            named[token] = text if text and LOST not in text else token_names(self.tokenizer, [token])[0]
        return named
