"""The explorer: everything the page may ask of a run, as plain data. It knows nothing of HTTP."""

from typing import Any, final

from jaxtyping import Float, UInt8
from torch import Tensor

from clearhead.errors import ClearheadError, OptionError
from clearhead.serve.asking import Asked
from clearhead.serve.contexts import context_view, occurrences
from clearhead.serve.curves import Curves, is_training
from clearhead.serve.facts import run_facts
from clearhead.serve.kept import Latest
from clearhead.serve.traced import Traced, mean_of
from clearhead.serve.tree import Grown, grow, request_of
from clearhead.serve.wanted import WEIGHTINGS, Wanted, changes_of, read_edits
from clearhead.serve.waves import positions
from clearhead.tracing.sentence import TOKENS, creature_exchange
from clearhead.tracing.sequence_diagram import draw_sequence
from clearhead.training.run import Run, load
from clearhead.training.tasks import Translate
from clearhead.training.tracing import shown, trace

__all__ = ["Explorer", "GoneError"]

TRACES, ROOM = 12, 2_000_000_000
"""How many traces are kept, and bytes of them together."""
OTHERS = 2
"""Checkpoints that are loaded beside the run's own."""
MOST_TEXTS, LONGEST_WORD = 20, 100
SHOWN = 30
"""Of how many characters never met it is told which."""


class GoneError(ClearheadError):
    """A trace that is no longer kept."""


@final
class Explorer:
    """A run, looked into. Methods take what was asked and give data, or raise a ClearheadError with a sentence."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.metrics = Curves(run.folder.metrics)
        self.others = Latest[int, Run](most=OTHERS)
        self.traces = Latest[str, Traced](most=TRACES, room=ROOM, size=lambda one: one.trace.nbytes)
        self.device = str(next(run.model.parameters()).device)

    def run_facts(self) -> dict[str, Any]:
        return {**run_facts(self.run, self.metrics), "weightings": list(WEIGHTINGS)}

    def at(self, step: int) -> Run:
        """The run with the weights of a checkpoint."""
        if step == self.run.step:
            return self.run
        return self.others.get_or_make(step, lambda: load(self.run.folder.path, device=self.device, step=step))

    def trace(self, asked: Asked) -> dict[str, Any]:
        wanted = Wanted.of(asked, self.run.step)
        return self.traces.get_or_make(wanted.id, lambda: self.made(wanted)).meta()

    def made(self, wanted: Wanted) -> Traced:
        run = self.at(wanted.step)
        found = trace(run, wanted.source, wanted.target, edits=wanted.changes)
        return Traced(wanted, run, found.noted(*never_met(run, wanted.source)))

    def known(self, name: str) -> Traced:
        found = self.traces.get(name)
        if found is None:
            raise GoneError("this trace is no longer kept: ask for it again, and it is made anew")
        return found

    def tile(self, name: str, asked: Asked) -> Float[Tensor, "query key"]:
        return self.known(name).tile(asked)

    def thumbs(self, name: str, asked: Asked) -> UInt8[Tensor, "head row column"]:
        return self.known(name).thumbs(asked)

    def row(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).row(asked)

    def column(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).column(asked)

    def cell(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).cell(asked)

    def vectors(self, name: str, asked: Asked) -> Float[Tensor, "n d"]:
        return self.known(name).vectors(asked)

    def stream(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).stream(asked)

    def spaces(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).spaces(asked)

    def sequence(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).sequence(asked)

    def sentence(self, asked: Asked) -> dict[str, Any]:
        """The sequence diagram of the notes' sentence, whose head was set by hand: it needs no trained run."""
        row = asked.whole("token", below=len(TOKENS), default=TOKENS.index("creature"))
        return {"tokens": list(TOKENS), "token": row, "svg": draw_sequence(creature_exchange(row), standalone=False)}

    def box(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).box(asked)

    def terms(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).terms(asked)

    def readings(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).readings(asked)

    def lens(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).lens(asked)

    def effects(self, name: str, asked: Asked) -> dict[str, Any]:
        return self.known(name).effects(asked)

    def context(self, asked: Asked) -> dict[str, Any]:
        """One word in several texts."""
        asked.only("texts", "word", "step")
        word = asked.text("word", longest=LONGEST_WORD).strip()
        if not word:
            raise OptionError("there is no word to follow: write one that stands in every text")
        run = self.at(asked.whole("step", default=self.run.step))
        found = []
        for text in asked.texts("texts", most=MOST_TEXTS, longest=100_000):
            made = self.plain_trace(run, text)
            found += occurrences(run.tokenizer, word, text, made.trace, next(iter(made.trace.sides)))
        return context_view(word, found)

    def plain_trace(self, run: Run, text: str) -> Traced:
        """The trace of a text that is only read: nothing is translated."""
        target = [] if isinstance(run.task, Translate) else None
        wanted = Wanted(source=text, target=target, edits=[], step=run.step)
        return self.traces.get_or_make(wanted.id, lambda: self.made(wanted))

    def positions(self, asked: Asked) -> dict[str, Any]:
        return positions(self.run, asked.whole("n", least=2, below=1025, default=64))

    def decode(self, asked: Asked) -> dict[str, Any]:
        """Search with a beam, and return it step by step, with where its best output looked in the source.

        With edits it is the changed model that is searched with, and looked into.
        """
        asked.only("source", "beam", "candidates", "max_new", "step", "edits")
        run = self.at(asked.whole("step", default=self.run.step))
        width = asked.whole("beam", least=1, below=9, default=4)
        candidates = asked.whole("candidates", least=1, below=51, default=5)
        max_new = asked.maybe_whole("max_new", least=1, below=run.task.context + 1)
        request = request_of(run, asked.text("source"), max_new)
        edits = read_edits(asked)
        grown = grow(run, request, width=width, candidates=candidates, changes=changes_of(edits))
        return {
            "nodes": grown.nodes,
            "best": grown.best,
            "outputs": grown.outputs(request),
            "source_tokens": shown(run.tokenizer, request.source),
            "cross": self.cross(run, asked.text("source"), grown, edits),
            "edits": edits,
        }

    def cross(self, run: Run, source: str, grown: Grown, edits: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Of each token of the best output: how much each layer looked at each piece of the source."""
        if not isinstance(run.task, Translate):
            return None
        tokens = grown.hypotheses[0].tokens
        reached = [edit for edit, change in zip(edits, changes_of(edits), strict=True) if change.reaches(len(tokens))]
        wanted = Wanted(source=source, target=list(tokens[:-1]), edits=reached, step=run.step)
        made = self.traces.get_or_make(wanted.id, lambda: self.made(wanted)).trace
        layers = [mean_of([head.weight for head in layer.cross.head]) for layer in made.decoder if layer.cross]
        return [
            {"step": step, "weight": [weight[step - 1].tolist() for weight in layers]}
            for step in range(1, len(tokens) + 1)
        ]

    def curves(self, asked: Asked) -> dict[str, Any]:
        lines = self.metrics.after(asked.whole("after", least=-1, default=-1))
        last = max((line["step"] for line in lines), default=None)
        return {"lines": lines, "training": is_training(self.run.folder), "last": last}


def never_met(run: Run, text: str) -> list[str]:
    """A sentence about what of a text the tokeniser has never met, if there is any of it."""
    unseen = run.unseen(text)
    if not unseen:
        return []
    more = "…" if len(unseen) > SHOWN else ""
    return [f"never met in training, and read as unknown: {unseen[:SHOWN]}{more}"]
