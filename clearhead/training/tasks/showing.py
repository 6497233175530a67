"""What shows: a text as it is traced, what the model says in words, and texts to look at."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple

from clearhead.errors import OptionError
from clearhead.text.store import Store
from clearhead.tracing.trace import Trace
from clearhead.training.answers import token_names
from clearhead.training.tasks.answering import Pair, Passage
from clearhead.training.tasks.texts import TaskTexts


class TraceInputs(NamedTuple):
    """A text as a model is given it: the ids of each side, and how each piece is shown.

    `segments` has the segment of each token of a pair of texts, for a model that has segments.
    """

    ids: dict[str, list[int]]
    pieces: dict[str, list[str]]
    segments: list[int] | None = None


class Showing(TaskTexts):
    """How a run is looked into."""

    answered: ClassVar[str] = "at the last place"
    """Where the answer that a trace shows stands, in words."""
    place: ClassVar[Literal["first", "last", "blank"]] = "first"
    """The place of a text whose answer the explorer shows first."""

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        """Return a text as the model is given it; a target only where `target` says that there is one."""
        return encode_for_trace(self, "encoder", self.frame().around(self.tokenizer.encode(source)))

    def written_inputs(self, passage: Passage, tokens: Sequence[int]) -> TraceInputs:
        """Return a text and the tokens of its output as they are traced."""
        ids, tokenizers = {"decoder": passage.row(tokens)}, {"encoder": self.tokenizer, "decoder": passage.tokenizer}
        if passage.first.prefix is not None:
            ids = {"encoder": list(passage.first.inputs), "decoder": ids["decoder"][: self.context]}
        return TraceInputs(ids, {side: token_names(tokenizers[side], row) for side, row in ids.items()})

    def answer_names(self, ids: Sequence[int]) -> list[str]:
        """Return what the answers with these numbers are called."""
        if self.labels:
            return [self.labels[i] for i in ids]
        return token_names([*self.tokenizers.values()][-1], ids)

    def traced_answer(self, source: str, trace: Trace) -> str:
        """Return what the model says to a text that was traced."""
        return trace.candidates[-1][0].text

    def traced_target(self, target: str | Sequence[int] | None, trace: Trace) -> str | None:
        """Return the target of a trace as text, given as text or as ids."""
        return target if target is None or isinstance(target, str) else self.tokenizer.decode(target)

    def example_code(self, text: str) -> str:
        """Return a text as it is written in Python for a run to answer."""
        return repr(text)

    def example_text(self, ids: list[int]) -> str:
        """Return a text to look at, from the ids of a held-out one."""
        return self.tokenizer.decode(ids)

    def examples(self, store: Store, places: Iterable[int]) -> Iterator[dict[str, str]]:
        """Yield texts to look at from these records of a store: a source and, where it is known, its target."""
        first = self.layout(self.context).texts[0]
        for index in places:
            yield {"source": self.example_text(store[first][index].tolist())}


def encode_for_trace(task: TaskTexts, side: str, ids: list[int]) -> TraceInputs:
    """Return ids of a single text as they are traced; raise OptionError where they are more than the model reads."""
    if len(ids) > task.context:
        raise OptionError(
            f"the text has {len(ids)} tokens, and the model was trained to read {task.context}; shorten it"
        )
    return TraceInputs({side: ids}, {side: token_names(task.tokenizer, ids)})


def trace_pair(task: TaskTexts, pair: Pair) -> TraceInputs:
    """Return a pair of texts as it is traced; a pair that is too long is refused, not cut."""
    frame, (first, second) = task.frame(), task.tokenizer.encode_batch(list(pair))
    needed = len(first) + len(second) + frame.size + len(frame.between)
    ids, segments = frame.around_pair(first, second, needed)
    return encode_for_trace(task, "encoder", ids)._replace(segments=segments if frame.segment else None)
