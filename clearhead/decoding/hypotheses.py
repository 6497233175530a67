"""Results of decoding: hypotheses, and the tree of nodes that beam search builds."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional, final

Candidates = tuple[tuple[int, float], ...]
"""The likeliest tokens at one step, each with its log-probability."""


@final
@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One output.

    Attributes:
        tokens: Its new tokens, with the end token if it ended with one.
        log_probs: Log-probability of each token.
        score: What hypotheses are ranked by: the sum of log-probabilities, in beam search over length **
            length_penalty.
        ended: Whether it ended with an end token, or its grammar is complete.
        candidates: For each step, the most likely tokens and their log-probabilities, if asked for.

    >>> import clearhead as ch
    >>> [best] = ch.generate(ch.presets.gpt2("tiny", vocabulary=20).build(), [5, 6], rules=ch.Rules(max_new=3))
    >>> len(best.tokens), best.ended
    (3, False)
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    ended: bool
    candidates: tuple[Candidates, ...] = ()

    @staticmethod
    def of(
        tokens: Sequence[int], log_probs: Sequence[float], end: Container[int], candidates: Sequence[Candidates] = ()
    ) -> "Hypothesis":
        """Return the output of a method without beams, whose score is the sum of its log-probabilities."""
        return Hypothesis(
            tokens=tuple(tokens),
            log_probs=tuple(log_probs),
            score=sum(log_probs, 0.0),
            ended=bool(tokens) and tokens[-1] in end,
            candidates=tuple(candidates),
        )


class Node(NamedTuple):
    """A token of a beam, and the node it follows; `total` sums the log-probabilities up to it."""

    parent: Optional["Node"]
    token: int
    total: float
    candidates: Candidates = ()

    def path(self) -> "list[Node]":
        """Return the nodes from the first new token to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def hypothesis(self, score: float, *, ended: bool) -> Hypothesis:
        nodes = self.path()
        before = [0.0, *(node.total for node in nodes)]
        return Hypothesis(
            tokens=tuple(node.token for node in nodes),
            log_probs=tuple(node.total - total for node, total in zip(nodes, before, strict=False)),
            score=score,
            ended=ended,
            candidates=tuple(node.candidates for node in nodes if node.candidates),
        )


ROOT = Node(None, -1, 0.0)


class Continuation(NamedTuple):
    """A beam and the token it may go on with; `total` sums the log-probabilities up to it."""

    total: float
    beam: int
    token: int


class Considered(NamedTuple):
    """One step of a beam search: the beams before it, the continuations that were found, and those that go on.

    `shown` has each beam's likeliest next tokens, if they were asked for.
    """

    length: int
    beams: list[Node]
    continuations: list[Continuation]
    shown: Sequence[Candidates]
    live: list[Node]
