"""To follow instructions: a decoder is given a prompt, and its answer alone is scored.

A record is a prompt and an answer, from a table or JSON lines; or a list of messages, the last of which is the answer.
A run that came with a chat template has its prompts rendered by it, as they will be when it is talked to.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from clearhead.decoding import Greedy
from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.text.batches import BatchPlanner, ByLength, Rows
from clearhead.text.encoding import Corpus, Layout
from clearhead.text.lines import Problems
from clearhead.text.preparing import Prepared
from clearhead.text.sources import Messages, Record, Source
from clearhead.text.store import Store
from clearhead.text.templates import ChatTemplate
from clearhead.text.validation_split import spread
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Recipe
from clearhead.training.scores import LOSS, EvaluationOptions, ValidationSet
from clearhead.training.tasks.answering import continued
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.generate import MAX_NEW, Generate
from clearhead.training.tasks.learning import Batch, to_batch


@final
class Instruct(Generate):
    """Prompts with answers: the model reads both, and is asked for the answer and the end after it.

    If the two are longer than the context, the end of the prompt is read, as it is when the model writes.
    """

    name = "instruct"
    ways = ("table",)
    unit = "line"
    measures = (LOSS,)
    options = ()
    chats = True
    trial = "clearhead VERB {run} --prompt 'A question'"
    exports_as = Generate.name

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("prompt", "answer"), most=context - 2, too_long="drop")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        return replace(super().default_recipe(corpus, n_bytes, on_gpu), task=cls.name)

    def baseline(self, corpus: Corpus, prepared: Prepared, *, seconds: float = math.inf) -> None:
        """Return nothing: only answers are asked for, and an n-gram sees too little of the prompt."""

    def planner(self, store: Store, tokens: int, seed: int, records: range | None = None) -> BatchPlanner:
        # A row is up to twice as wide as its longer half.
        layout = self.usual_layout()
        return ByLength(
            store=store,
            fields=layout.texts,
            tokens=max(1, tokens // 2),
            seed=seed,
            longest=layout.most,
            extra=1,
            records=records,
        )

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        frame = self.frame()
        end = (frame.ends or (self.tokenizer.end,))[:1]
        pairs = []
        for i in rows.which.tolist():
            prompt, answer = store["prompt"][i].tolist(), [*store["answer"][i].tolist(), *end]
            room = max(0, self.context + 1 - len(frame.before) - len(answer))
            pairs.append(([*frame.before, *prompt[max(0, len(prompt) - room) :]], answer))
        longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
        most = min(self.context + 1, 2 * rows.width + len(frame.before))
        width = max(longest, most) if filled else longest
        ids = np.full((len(pairs), width), self.tokenizer.pad, dtype=np.int64)
        targets = np.full_like(ids, NOTHING)
        for row, (prompt, answer) in enumerate(pairs):
            stop = len(prompt) + len(answer)
            ids[row, :stop] = prompt + answer
            targets[row, len(prompt) : stop] = answer
        return to_batch({"tokens": ids[:, :-1], "wanted": targets[:, 1:]}, rows.full if filled else 0)

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return no score other than the loss, and as samples the likeliest answers to a few prompts."""
        indices = spread(len(held.store), held.samples)
        rows = [held.store["prompt"][i].tolist() for i in indices]
        new = max(1, min(MAX_NEW, self.context // 2))
        hypotheses = self.continue_rows(model, rows, Greedy(), max_new=new) if rows else []
        return {}, [
            {
                "input": self.tokenizer.decode(row),
                "output": continued(self.tokenizer, row, hypothesis[0].tokens),
                "reference": self.tokenizer.decode(held.store["answer"][i].tolist()),
            }
            for i, row, hypothesis in zip(indices, rows, hypotheses, strict=True)
        ]

    @classmethod
    def derived_scores(cls, loss: float, held_out: Path) -> dict[str, float]:
        return {}

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        return Task.evaluate(self, model, source, how)

    def examples(self, store: Store, places: Iterable[int]) -> Iterator[dict[str, str]]:
        return Task.examples(self, store, places)


@dataclass(frozen=True, kw_only=True)
class Chats(Source):
    """Prompts of another source as a chat template renders them, up to where the answer begins."""

    source: Source
    template: ChatTemplate

    fields = ("prompt", "answer")

    @property
    def files(self) -> tuple[str, ...]:
        return self.source.files

    def records(self, problems: Problems) -> Iterator[Record]:
        for record in self.source.records(problems):
            prompt, answer = record.fields
            messages = (
                json.loads(prompt) if isinstance(self.source, Messages) else [{"role": "user", "content": prompt}]
            )
            try:
                yield record._replace(fields=(self.template.render(messages), answer))
            except OptionError as error:
                problems.add(record.place, str(error), "not for the chat template")


def with_template(source: Source, template: ChatTemplate | None) -> Source:
    """Return the source with its prompts rendered; OptionError for messages if there is no template."""
    if template is not None:
        return Chats(source=source, template=template)
    if isinstance(source, Messages):
        raise OptionError(
            "messages are for a run that came with a chat template; give a table with a prompt and an answer instead"
        )
    return source
