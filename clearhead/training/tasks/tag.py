"""To tag: a tag for each word of a text, such as a part of speech or the name of an entity, with an encoder.

Tokens are parts of words: a word's tag is asked at its first token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from clearhead.devices import widest_float
from clearhead.model.outputs import Tags
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.batches import Rows
from clearhead.text.encoding import Corpus, Layout, words_of_tokens
from clearhead.text.store import Store
from clearhead.tracing.trace import Trace
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Recipe
from clearhead.training.tasks.answering import Answer
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.classify import recipe_without_ngrams
from clearhead.training.tasks.framing import frame_rows
from clearhead.training.tasks.learning import Batch, to_batch
from clearhead.training.tasks.measures import ACCURACY, LOSS, MACRO_F1


@final
class Tag(Task):
    """Text with a tag for each word, words being what stands between blanks."""

    name = "tag"
    measures = (ACCURACY, MACRO_F1, LOSS)
    answered = "the tag of the last word"
    place = "last"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), label="label", label_of="subword", most=context - 1, too_long="cut")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe to classify, with a tag at each token; capital letters tell names, so they stay."""
        recipe = recipe_without_ngrams(corpus, n_bytes, on_gpu)
        return replace(
            recipe,
            task=cls.name,
            tokenizing=replace(recipe.tokenizing, lower=False),
            model=replace(recipe.model, output=Tags(2)),
            checkpointing=replace(recipe.checkpointing, select="best"),
        )

    def fitted(self, spec: Spec) -> Spec:
        return replace(super().fitted(spec), output=Tags(len(self.labels)))

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        frame, pad = self.frame(), self.tokenizer.pad
        tokens, texts, lengths = frame_rows(store["text"], rows, rows.width, frame, pad, filled=filled)
        first, width = len(frame.before) + len(frame.opening), tokens.shape[1]
        numbers = store["label"].padded(rows.which, width - first, len(self.labels))
        asked = (numbers < len(self.labels)) & (np.arange(width - first) < texts[:, None])
        front = np.full((len(tokens), first), NOTHING)
        targets = np.concatenate([front, np.where(asked, numbers, NOTHING)], 1)
        return to_batch({"tokens": tokens, "lengths": lengths, "wanted": targets}, rows.full if filled else 0)

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return the tag of each word, and its probability. Words beyond the context have none."""
        frame = self.frame()
        rows = [row[: self.reads] for row in self.tokenizer.encode_batch(list(texts))]
        predicted = self.predict(model, [frame.around(row) for row in rows])
        answers = []
        for text, row, logits in zip(texts, rows, predicted, strict=True):
            words = words_of_tokens(self.tokenizer, text)[: len(row)]
            first = {word: place for place, word in reversed(list(enumerate(words)))}
            shares = logits.to(widest_float(logits.device)).softmax(-1)
            offset, tagged = len(frame.before) + len(frame.opening), []
            for word, place in sorted(first.items()):
                best = int(shares[offset + place].argmax())
                tagged.append((text.split()[word], self.labels[best], float(shares[offset + place, best])))
            answers.append(
                {
                    "output": " ".join(tag for _, tag, _ in tagged),
                    "words": [{"word": word, "tag": tag, "probability": share} for word, tag, share in tagged],
                }
            )
        return answers

    def reference(self, store: Store, record: int) -> str:
        return " ".join(self.labels[number] for number in store["label"][record] if number < len(self.labels))

    def traced_answer(self, source: str, trace: Trace) -> str:
        """Return the tags of a traced text's words, each from its first token."""
        offset, words = len(self.frame().before) + len(self.frame().opening), words_of_tokens(self.tokenizer, source)
        starts = [place for place, word in enumerate(words) if place == 0 or words[place - 1] != word]
        return " ".join(trace.candidates[offset + place][0].text for place in starts)
