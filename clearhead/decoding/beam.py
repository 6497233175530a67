"""Beam search: the best few continuations of every sentence are kept, and compared with those that have ended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor

from clearhead.decoding.hypotheses import ROOT, Candidates, Hypothesis, Node
from clearhead.decoding.rules import FORBIDDEN, Rules
from clearhead.decoding.session import Session
from clearhead.decoding.topk import top, top_candidates
from clearhead.devices import widest_float
from clearhead.errors import OptionError

__all__ = ["Beam", "Considered", "beam_search"]

Stop = Literal["exact", "heuristic", "early"]


@final
@dataclass(frozen=True, kw_only=True)
class Beam:
    """Beam search: at each step it continues the `width` best beginnings; it returns the `n_best` best outputs.

    An output's score is the sum of its log-probabilities, divided by length ** `length_penalty`: 0 gives the sum, 1 the
    mean; more favours long outputs. A sentence is done when `width` outputs have ended and, with `stop`:

    - `exact`: no beginning could still beat the worst of them, whatever length it may reach;
    - `heuristic`: the best beginning, scored at its present length, does not beat it (Hugging Face's default);
    - `early`: at once.
    """

    width: int = 5
    length_penalty: float = 1.0
    n_best: int = 1
    stop: Stop = "exact"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise OptionError(f"Beam: width must be 1 or more; came {self.width}")
        if not 1 <= self.n_best <= self.width:
            raise OptionError(f"Beam: n_best must lie between 1 and the width, {self.width}; came {self.n_best}")
        if self.stop not in get_args(Stop):
            raise OptionError(f"Beam: stop must be one of {', '.join(get_args(Stop))}; came {self.stop!r}")
        if not -100 <= self.length_penalty <= 100:
            raise OptionError(f"Beam: length_penalty must be a number; came {self.length_penalty}. -100 to 100 will do")

    def score(self, total: float, length: int) -> float:
        return total / max(length, 1) ** self.length_penalty


@dataclass
class Sentence:
    """One input's beams: nodes that go on, and outputs that have ended, best first."""

    prompt: list[int]
    live: list[Node] = field(default_factory=lambda: [ROOT])
    ended: list[Hypothesis] = field(default_factory=list)

    def so_far(self, rules: Rules) -> list[list[int]]:
        """Return the tokens of every beam, if the rules ask for them."""
        if not rules.look_back:
            return [[]] * len(self.live)
        return [[*self.prompt, *(node.token for node in last.path())] for last in self.live]

    def finish(self, node: Node, length: int, method: Beam, *, ended: bool) -> None:
        """Add a finished output; of more than `width` the worst is dropped."""
        self.ended.append(node.hypothesis(method.score(node.total, length), ended=ended))
        self.ended.sort(key=lambda made: made.score, reverse=True)
        del self.ended[method.width :]

    def done(self, length: int, method: Beam, rules: Rules) -> bool:
        """Check whether no live beam can change the result, at this length."""
        if not self.live or length == rules.max_new:
            return True
        if len(self.ended) < method.width:
            return False
        if method.stop == "early":
            return True
        reach = rules.max_new if method.stop == "exact" and method.length_penalty > 0 else length
        return method.score(self.live[0].total, reach) <= self.ended[-1].score


@dataclass(frozen=True)
class Found:
    """The best continuations of one sentence: of which beam, with which token, their sums, and what each beam saw."""

    totals: list[float]
    beams: list[int]
    tokens: list[int]
    shown: list[Candidates]

    def best_first(self) -> Iterator[tuple[float, int, int]]:
        return zip(self.totals, self.beams, self.tokens, strict=True)


class Considered(NamedTuple):
    """One step of one sentence: which beams there were, what was found to follow them, and what of it goes on."""

    length: int
    beams: list[Node]
    found: Found
    live: list[Node]


Watcher = Callable[[Considered], None]
"""Called with every step; it changes nothing."""


def beam_search(
    session: Session,
    prompts: Sequence[Sequence[int]],
    method: Beam,
    rules: Rules,
    candidates: int,
    *,
    watcher: Watcher | None = None,
) -> list[list[Hypothesis]]:
    """Return hypotheses of every sentence, the best first. Sentences that are done leave the session."""
    search = Search(session, method, rules, candidates, watcher)
    every = [Sentence(list(prompt)) for prompt in prompts]
    sentences = every
    for length in range(1, rules.max_new + 1):
        best = search.continuations(sentences, length - 1)
        origins = [search.advance(*pair, length) for pair in zip(sentences, best, strict=True)]
        stays = [i for i, sentence in enumerate(sentences) if not sentence.done(length, method, rules)]
        if not stays:
            break
        search.go_on(sentences, origins, stays)
        sentences = [sentences[i] for i in stays]
    return [sentence.ended[: method.n_best] for sentence in every]


@dataclass
class Search:
    """One step after another of every sentence of a session."""

    session: Session
    method: Beam
    rules: Rules
    candidates: int
    watcher: Watcher | None = None
    before: Tensor = torch.empty(0)
    """The log-probability of each beam so far, `(sentence, beam)`: of a recorded step, in memory that stays."""

    def __post_init__(self) -> None:
        if self.rules.forbids_nothing and not self.candidates:
            self.session.search = self.search_recorded

    @property
    def keep(self) -> int:
        """Return how many continuations to find: enough that `width` go on, however many end."""
        return max(2, 1 + len(self.rules.end)) * self.method.width

    def continuations(self, sentences: Sequence[Sentence], n_new: int) -> list[Found]:
        """Return the best continuations of every sentence."""
        recorded = self.session.recorded
        if recorded is not None and recorded.found is not None:
            return unpack(recorded.found[0][:, : len(sentences)], [()] * len(self.session.logits))
        so_far = [row for sentence in sentences for row in sentence.so_far(self.rules)]
        log_probs = self.session.log_probs(self.rules, so_far)
        shown = top_candidates(log_probs, self.candidates)
        values, tokens = top(self.rules.forbid(log_probs, n_new, so_far), self.keep)
        totals = [[node.total for node in sentence.live] for sentence in sentences]
        before = torch.tensor(totals, dtype=widest_float(values.device), device=values.device)
        return unpack(best_of(values, tokens, before, self.keep), shown)

    def search_recorded(self, log_probs: Tensor, tokens: Tensor) -> tuple[Tensor]:
        """Return the best continuations of every sentence: what is recorded with a step."""
        values, found = top(log_probs, self.keep)
        return (best_of(values, found, self.before, self.keep),)

    def advance(self, sentence: Sentence, found: Found, length: int) -> list[int]:
        """Finish beams that end, keep the best of the rest, and return which beam each of them continues.

        Only what is among the `width` best may end: the others are there in case those all end.
        """
        width, live, origins = self.method.width, [], []
        for rank, (total, beam, token) in enumerate(found.best_first()):
            if total == FORBIDDEN or (rank >= width and len(live) == width):
                break
            node = Node(sentence.live[beam], token, total, found.shown[beam])
            ends = token in self.rules.end
            if (ends or length == self.rules.max_new) and rank < width:
                sentence.finish(node, length, self.method, ended=ends)
            elif not ends and len(live) < width:
                live.append(node)
                origins.append(beam)
        if self.watcher is not None:
            self.watcher(Considered(length, sentence.live, found, live))
        if not live and not sentence.ended:
            self.stop_short(sentence, length - 1)
        sentence.live = live
        return origins

    def stop_short(self, sentence: Sentence, length: int) -> None:
        """Finish every live beam as it is: the rules allow no token."""
        for node in sentence.live:
            if node.total > FORBIDDEN:
                sentence.finish(node, length, self.method, ended=False)

    def go_on(self, sentences: Sequence[Sentence], origins: Sequence[list[int]], stays: list[int]) -> None:
        """Move the session to the live beams. A sentence with fewer than another is filled up with dead ones."""
        n_before = len(self.session.logits) // len(sentences)
        n_beams = max(len(sentences[i].live) for i in stays)
        rows: list[int] = []
        for i in stays:
            missing = n_beams - len(origins[i])
            rows += [i * n_before + beam for beam in (*origins[i], *[0] * missing)]
            sentences[i].live += [Node(ROOT, 0, FORBIDDEN)] * missing
        live = [node for i in stays for node in sentences[i].live]
        device = self.session.logits.device
        # One transfer for all three, and no wait for the GPU: token ids are exact in the widest float.
        listed = [rows, [node.token for node in live], [node.total for node in live]]
        numbers = torch.tensor(listed, dtype=widest_float(device))
        sent = numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)
        kept = None if len(stays) == len(sentences) else torch.tensor(stays, device=device)
        self.session.select(sent[0].long(), kept)
        self.hold_totals(sent[2].view(len(stays), n_beams))
        self.session.extend(sent[1].long())

    def hold_totals(self, totals: Tensor) -> None:
        """Keep each beam's log-probability where the recorded step reads it; beside it, of sentences that have left."""
        recorded = self.session.recorded
        if recorded is None or recorded.replay is None:
            self.before = totals.clone()
        else:
            self.before[: len(totals)] = totals


def best_of(log_probs: Tensor, tokens: Tensor, before: Tensor, keep: int) -> Tensor:
    """Return the best of each sentence among the best of each beam: log-probability, beam and token of each.

    `before` is each beam's log-probability so far. All three are in one tensor, `(3, sentence, keep)`, so that they are
    read from a GPU at once.
    """
    n_sentences, n_beams = before.shape
    totals = (log_probs.view(n_sentences, n_beams, -1) + before.unsqueeze(-1)).flatten(1)
    best, place = totals.topk(min(keep, totals.shape[1]), -1)
    chosen = tokens.view(n_sentences, -1).gather(-1, place)
    return torch.stack([best, (place // log_probs.shape[-1]).to(best.dtype), chosen.to(best.dtype)])


def unpack(best: Tensor, shown: list[Candidates]) -> list[Found]:
    """Return what `best_of` found, of every sentence; `shown` is what each beam saw."""
    totals, beams, tokens = best.tolist()
    n_beams = len(shown) // len(totals)
    return [
        Found(
            totals[i], [int(one) for one in beams[i]], [int(one) for one in tokens[i]], shown[i * n_beams :][:n_beams]
        )
        for i in range(len(totals))
    ]
