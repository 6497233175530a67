"""`attribute`: what each head, feed-forward and layer of a run adds to an answer's logit.

```
found = ch.attribute(run, "zweiundvierzig", answer="f", other="t", place=0)
found.total                                  # the logit of f less that of t
found.parts["decoder.1.cross.head.3"]        # what that head adds to it
```
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clearhead.calls import public
from clearhead.circuits.attribution import Attribution, attribute_logits
from clearhead.circuits.graph import Graph
from clearhead.errors import OptionError, PlaceError
from clearhead.tracing.edits import Change, TextChange
from clearhead.tracing.names import list_near
from clearhead.tracing.trace import Trace
from clearhead.training.run import Run, as_run
from clearhead.training.tasks.pairs import Pair
from clearhead.training.tracing import trace

AnswerName = str | int
"""An answer: a token or a label as it is shown, or its number."""


@public
def attribute(
    run: Run | str | Path,
    source: str | Pair,
    target: str | Sequence[int] | None = None,
    *,
    answer: AnswerName | None = None,
    other: AnswerName | None = None,
    place: int | None = None,
    edits: Sequence[Change | TextChange] = (),
) -> Attribution:
    """Return what each part of a model adds to the logit of an answer (direct logit attribution).

    With `other`, it is the difference of the two logits. Answers are tokens or labels as a trace shows them, or their
    numbers; without `answer` it is the likeliest. `place` is a token of the text that answers, counted from 0, or from
    -1 at the end; without it, where the explorer looks first. `source`, `target` and `edits` are as in `ch.trace`.
    """
    run = as_run(run)
    traced = trace(run, source, target, edits=edits)
    return attribute_trace(run, traced, answer=answer, other=other, place=place)


def attribute_trace(
    run: Run,
    traced: Trace,
    *,
    answer: AnswerName | None = None,
    other: AnswerName | None = None,
    place: int | None = None,
    graph: Graph | None = None,
) -> Attribution:
    """Return what `attribute` does, of a text that is traced already."""
    place = first_place(run, traced) if place is None else place
    chosen = likeliest_at(traced, place) if answer is None else find_answer(run, answer)
    against = None if other is None else find_answer(run, other)
    found = attribute_logits(traced, place=place, answer=chosen, other=against, graph=graph)
    words = run.task.answer_names([chosen] if against is None else [chosen, against])
    return replace(found, names=(words[0], words[-1] if against is not None else ""))


def first_place(run: Run, traced: Trace) -> int:
    """Return the place whose answer the explorer shows first: the first, the last, or that of a blank."""
    ids = traced.sides[traced.answer_side].ids
    if run.task.place == "blank" and run.tokenizer.mask in ids:
        return ids.index(run.tokenizer.mask)
    return 0 if run.task.place == "first" else len(ids) - 1


def likeliest_at(traced: Trace, place: int) -> int:
    """Return the likeliest answer at a place; a class is the same at all."""
    rows = traced.candidates
    if not rows:
        raise OptionError("this model gives vectors and answers nothing, so it has no logit to take apart")
    if len(rows) > 1 and not -len(rows) <= place < len(rows):
        raise PlaceError(f"place {place}: there are {len(rows)} tokens, counted from 0, or from -1 at the end")
    return rows[place if len(rows) > 1 else 0][0].id


def find_answer(run: Run, answer: AnswerName) -> int:
    """Return the number of an answer that is given by its name or by its number."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer
    if not isinstance(answer, str):
        raise OptionError(
            f"answer: expected a token or a label as a trace shows it, or its number; came {answer!r:.80}"
        )
    task = run.task
    tokenizer = [*task.tokenizers.values()][-1]
    names = task.answer_names(range(len(task.labels) or tokenizer.vocabulary))
    if answer in names:
        return names.index(answer)
    encoded = [] if task.labels else tokenizer.encode(answer)
    if len(encoded) == 1:
        return encoded[0]
    parts = f"; it is {len(encoded)} tokens: {', '.join(map(repr, task.answer_names(encoded)))}" if encoded else ""
    near = list_near(answer, names) if task.labels else "give one token as a trace shows it, or its number"
    raise OptionError(f"there is no answer {answer!r:.80}{parts}; {near}")
