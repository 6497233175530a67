"""Beam search: the best few continuations of every sentence are kept, and compared with those that have ended.

Only the best few continuations of every beam leave the device, in one answer for all jobs; what goes on and what has
finished is then decided in Python, so that searches of different settings may begin and end at any step.
`clearhead.decoding.beam_state` decides the same in tensors, for a search that stays on a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final, get_args

from torch import Tensor

from clearhead.calls import public
from clearhead.decoding.beam_device import BeamOnDevice
from clearhead.decoding.beam_state import BeamState, Stop
from clearhead.decoding.hypotheses import ROOT, Candidates, Considered, Continuation, Hypothesis, Node
from clearhead.decoding.method import DecodingMethod, Running, Start
from clearhead.decoding.rules import FORBIDDEN, Rules
from clearhead.errors import OptionError

Moves = list[tuple[int, int]]
"""Slots that are copied, and where to."""


@final
@public
@dataclass(frozen=True, kw_only=True)
class Beam(DecodingMethod):
    """Beam search: extend the `width` best prefixes at each step, and return the `n_best` best outputs.

    An output's score is the sum of its log-probabilities, divided by length ** `length_penalty`. A sentence is done
    when `width` outputs have ended and the rule `stop` holds:

    - `exact`: no prefix can still beat the worst of them, whatever length it reaches;
    - `heuristic`: the best prefix, scored at its present length, does not beat it (Hugging Face's default);
    - `early`: at once.

    Args:
        width: Prefixes kept at each step.
        length_penalty: 0 ranks by the sum of log-probabilities, 1 by their mean; more favours long outputs.
        n_best: Outputs to return, at most `width`.
        stop: When a sentence is done: `exact`, `heuristic` or `early`.

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> len(ch.generate(model, [5, 6], ch.Beam(width=3, n_best=2), rules=ch.Rules(max_new=4)))
    2
    """

    streams = False
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

    @property
    def rows(self) -> int:
        return self.width

    def check(self, rules: Rules) -> None:
        self.norms(rules.max_new)
        if rules.grammar is not None:
            raise OptionError("a grammar is followed by Greedy() and Sample(); a beam has none: leave one of them out")

    def start(self, start: Start) -> "BeamJob":
        return BeamJob(self, start)

    def search(self, rules: Rules, count: int, vocabulary: int, like: Tensor) -> BeamOnDevice:
        return BeamOnDevice(BeamState(count, self, rules, vocabulary, like.device))

    def norms(self, longest: int) -> list[float]:
        """Return what the sum of an output's log-probabilities is divided by, for every length up to the longest."""
        try:
            norms = [float(max(length, 1) ** self.length_penalty) for length in range(longest + 1)]
        except OverflowError:
            norms = [0.0]
        if min(norms) == 0:
            raise OptionError(
                f"Beam: length ** length_penalty is no usable number for {longest} tokens and a length_penalty of "
                f"{self.length_penalty}; take one nearer to 0, or fewer tokens"
            )
        return norms


class BeamJob(Running):
    """A beam search in as many slots as its width: beam b, of those that live, is in `slots[b]`."""

    def __init__(self, method: Beam, start: Start) -> None:
        super().__init__(start)
        self.method, self.watcher = method, start.watcher
        self.keep = max(2, 1 + len(self.rules.end)) * method.width
        self.norms = method.norms(self.rules.max_new)
        self.beams: list[Node] = [ROOT]
        self.finished: list[tuple[float, Node]] = []
        """The best outputs that have ended, the best first, each with its score."""
        self.decided = False

    @property
    def done(self) -> bool:
        return self.decided

    @property
    def rows(self) -> list[int]:
        return self.slots[: len(self.beams)]

    def outputs(self) -> list[list[int]]:
        return [[node.token for node in beam.path()] for beam in self.beams]

    def advance(self, values: list[list[float]], tokens: list[list[int]], likeliest: Sequence[Candidates]) -> Moves:
        """Go on, given the best continuations of every beam; return the slots that must be copied.

        Only the `width` best continuations may finish; the others are there in case all of those do.
        """
        width, end, before = self.method.width, self.rules.end, self.beams
        self.position += 1
        length, shown = self.n_new, likeliest or [()] * len(before)
        last = length == self.rules.max_new
        continuations = self.find_best(values, tokens)
        going: list[tuple[int, Node]] = []
        ending: list[Node] = []
        for rank, (total, index, token) in enumerate(continuations):
            ends = token in end
            if (ends or last) and rank < width:
                ending.append(Node(before[-index], token, total, shown[-index]))
            if not ends and len(going) < width:
                going.append((-index, Node(before[-index], token, total, shown[-index])))
        if ending:
            self.finish(ending, length)
        if not continuations and not self.finished:  # the rules allow nothing: it ends as it is
            self.finish(before, length - 1)
        self.decided = last or self.is_decided(going[0][1].total if going else FORBIDDEN)
        if self.watcher is not None:
            found = [Continuation(total, -index, token) for total, index, token in continuations]
            live = [] if last else [node for _, node in going]
            self.watcher(Considered(length, before, found, shown, live))
        if self.decided:
            return []
        self.beams = [node for _, node in going]
        return self.place_beams([index for index, _ in going])

    def find_best(self, values: list[list[float]], tokens: list[list[int]]) -> list[tuple[float, int, int]]:
        """Return the `keep` best continuations of all beams: total, beam (counted down from 0) and token."""
        keep, found = self.keep, list[tuple[float, int, int]]()
        # Every beam alone has `keep` of them: no other beam's can be among the best if it is below those.
        least = max(
            beam.total + row[keep - 1] if len(row) >= keep else FORBIDDEN
            for beam, row in zip(self.beams, values, strict=True)
        )
        for index, beam in enumerate(self.beams):
            total = beam.total
            for value, token in zip(values[index], tokens[index], strict=True):  # the likeliest come first
                if value == FORBIDDEN or total + value < least:
                    break
                found.append((total + value, -index, token))
        found.sort(reverse=True)  # of equally good ones the earlier beam comes first
        return found[:keep]

    def finish(self, nodes: Sequence[Node], length: int) -> None:
        """Add outputs of this length, and keep the best; of equally good ones the earlier comes first."""
        self.finished += [(node.total / self.norms[length], node) for node in nodes]
        self.finished.sort(key=lambda pair: -pair[0])
        del self.finished[self.method.width :]

    def is_decided(self, best: float) -> bool:
        """Check whether no live beam can change the outputs; `best` is the best beam's total."""
        enough = len(self.finished) == self.method.width
        if best == FORBIDDEN or not enough or self.method.stop == "early":
            return best == FORBIDDEN or enough
        exact = self.method.stop == "exact" and self.method.length_penalty > 0
        return best / self.norms[self.rules.max_new if exact else self.n_new] <= self.finished[-1][0]

    def place_beams(self, origins: Sequence[int]) -> Moves:
        """Assign slots to the beams: a beam keeps the slot of the beam it continues, unless an earlier beam took it."""
        free = [slot for beam, slot in enumerate(self.slots) if beam not in origins]
        continued, slots, moves = set[int](), list[int](), list[tuple[int, int]]()
        for beam in origins:
            slot = self.slots[beam]
            if beam in continued:
                moves.append((slot, free.pop()))
                slot = moves[-1][1]
            continued.add(beam)
            slots.append(slot)
        self.slots = slots + free
        return moves

    def hypotheses(self) -> list[Hypothesis]:
        """Return the best outputs, the best first."""
        return [
            node.hypothesis(score, ended=node is not ROOT and node.token in self.rules.end)
            for score, node in self.finished[: self.method.n_best]
        ]
