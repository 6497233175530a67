"""To fill blanks: the tokens that belong where a text has `<mask>`, with an encoder."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch

from clearhead.decoding import generating, session
from clearhead.errors import OptionError
from clearhead.model.outputs import Blanks
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.batches import Rows
from clearhead.text.encoding import Corpus, Layout
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import spread
from clearhead.tracing.trace import Trace
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer, Recipe
from clearhead.training.schedules import CosineDecay, Ema
from clearhead.training.scores import EvaluationOptions, ValidationSet
from clearhead.training.tasks.answering import Answer, continued, in_batches
from clearhead.training.tasks.base import Task, TraceInputs, encode_for_trace
from clearhead.training.tasks.learning import Batch, encoder, epochs, spec_name, to_batch
from clearhead.training.tasks.texts import Framing, frame_rows

BLANK = "<mask>"
"""How a blank is written in a text."""
BLANK_SHARE = 0.15
CANDIDATES = 5
"""Pieces that are given for a blank, unless another number is asked for."""


class Filling(NamedTuple):
    """A text with its blanks filled; for each blank the likeliest pieces and their probabilities."""

    text: str
    blanks: list[list[tuple[str, float]]]


@final
class Fill(Task):
    """Text with some tokens blanked: three in twenty are asked for, most of them shown as a blank."""

    name = "fill"
    best_by = "loss"  # a validation set has few blanks: while few are right, which step has most of them is chance
    ways = ("text", "table")
    verb = "fill"
    trial = f"echo 'a line with a {BLANK} in it' | clearhead VERB {{run}}"
    routes = ("/v1/fill",)
    place = "blank"
    sizes = True

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), most=context - 2, too_long="split")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        steps = epochs(40, n_bytes / 4, 8192)
        size = Size(6, 384, 6, 6, 1536) if on_gpu else Size(4, 128, 4, 4, 512)
        return Recipe(
            task=cls.name,
            corpus=corpus,
            tokenizing=Tokenizing(kind="bpe"),
            model=encoder(size, Blanks(), 0.1),
            optimizer=Optimizer(lr=1e-3, schedule=CosineDecay(warmup=min(500, steps // 10)), averaging=Ema(0.999)),
            batching=Batching(tokens=8192, context=256),
            budget=Budget(steps=steps, patience=10),
            checkpointing=Checkpointing(evaluate=max(100, steps // 20)),
        )

    def own_framing(self, field: str) -> Framing:
        tokenizer = self.tokenizers[field]
        return Framing(before=(tokenizer.start,), after=(tokenizer.end,))

    def fitted(self, spec: Spec) -> Spec:
        if spec.decoder is not None:
            raise OptionError(f"to fill blanks takes an encoder; the model is a {spec_name(spec)}")
        return super().fitted(spec)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        tokenizer, frame = self.tokenizer, self.frame()
        tokens, texts, lengths = frame_rows(store["text"], rows, rows.width, frame, tokenizer.pad, filled=filled)
        first, width = len(frame.before), tokens.shape[1]
        positions = np.arange(width)
        # Drawn for the full width, so that the same blanks are asked for whether the batch is filled or not.
        shape = len(tokens), rows.width
        chance, lot = (random.random(shape)[:, :width] for _ in range(2))
        random_tokens = random.integers(0, tokenizer.vocabulary, shape)[:, :width]
        is_blank = (positions >= first) & (positions < first + texts[:, None]) & (chance < BLANK_SHARE)
        is_blank[np.arange(len(tokens)), first + random.integers(0, np.maximum(texts, 1))] |= texts > 0
        replaced = np.where(lot < 0.8, tokenizer.mask, np.where(lot < 0.9, random_tokens, tokens))
        arrays = {
            "tokens": np.where(is_blank, replaced, tokens),
            "lengths": lengths,
            "wanted": np.where(is_blank, tokens, NOTHING),
        }
        return to_batch(arrays, rows.full if filled else 0)

    def fill(self, model: Transformer, texts: Sequence[str], *, shown: int = CANDIDATES) -> list[Filling]:
        """Fill each `<mask>` of each text with the likeliest token, all blanks at once; the rest stays as it is.

        Of a text longer than the context the beginning is read, and only the blanks in it are filled.
        """
        tokenizer, texts = self.tokenizer, [self.with_our_blanks(text) for text in texts]
        if shown < 1:
            raise OptionError(f"shown is how many pieces to give for a blank, 1 or more; came {shown}")
        rows = [self.frame().around(self.encode_blanks(text), self.reads) for text in texts]
        never = sorted(tokenizer.special)

        def answer(batch: list[int]) -> list[Filling]:
            tokens, lengths = session.pad_right([rows[i] for i in batch], next(model.parameters()).device)
            with generating.eval_mode(model):
                probabilities = model(tokens, lengths=lengths).float().softmax(-1)
                probabilities[..., never] = 0
                best = torch.topk(probabilities, min(shown, tokenizer.vocabulary), -1)
            found = zip(batch, best.values.tolist(), best.indices.tolist(), strict=True)
            return [put_into_blanks(tokenizer, texts[i], rows[i], values, ids) for i, values, ids in found]

        return in_batches([len(row) for row in rows], model, answer)

    def with_our_blanks(self, text: str) -> str:
        """Return a text with its blanks as `<mask>`, if they were written as an imported model's own mask token."""
        return text.replace(self.tokenizer.token(self.tokenizer.mask), BLANK) if self.tokenizer.imported else text

    def encode_blanks(self, text: str) -> list[int]:
        """Return the ids of a text, a mask token for each blank.

        If tokens have their space in front, a blank has it too. The tokenizer of an imported model knows by itself
        which space belongs to its mask token.
        """
        if self.tokenizer.imported and BLANK in text:
            return self.tokenizer.encode(text.replace(BLANK, self.tokenizer.token(self.tokenizer.mask)))
        first, *rest = parts_of(self.tokenizer, text)
        if not rest:
            raise OptionError(f"there is no blank to fill in {text[:60]!r}: write {BLANK} where one is")
        ids = self.tokenizer.encode(first)
        for part in rest:
            ids += [self.tokenizer.mask, *encode_inside(self.tokenizer, part)]
        return ids

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has; 0 for one without a blank, of which nothing is read."""
        ours = map(self.with_our_blanks, texts)
        return [len(self.encode_blanks(text)) if BLANK in text else 0 for text in ours]

    def unseen(self, text: str) -> str:
        return self.tokenizer.unseen(self.with_our_blanks(text).replace(BLANK, " "))

    def answer(self, model: Transformer, texts: Sequence[str], *, shown: int = CANDIDATES) -> list[Answer]:
        """Return texts filled, `score` the log-probability of that; a text without a blank comes back as it is."""
        texts = [self.with_our_blanks(text) for text in texts]
        blank = [text for text in texts if BLANK in text]
        fillings = iter(self.fill(model, blank, shown=shown) if blank else ())
        return [as_answer(next(fillings)) if BLANK in text else {"output": text, "blanks": []} for text in texts]

    def entry(self, answer: Answer) -> dict[str, Any]:
        return {"text": answer["output"], "score": answer.get("score"), "blanks": answer.get("blanks", [])}

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return as samples a few records with their middle token blanked, and filled."""
        rows = [held.store["text"][i].tolist() for i in spread(len(held.store), held.samples)]
        texts = [with_blank(self.tokenizer, row) for row in rows]
        return {}, [
            {"input": text, "output": filling.text, "reference": self.tokenizer.decode(row)}
            for row, text, filling in zip(rows, texts, self.fill(model, texts), strict=True)
        ]

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        """Return loss and accuracy at blanks; which ones are asked for is drawn with a fixed seed."""
        scores, outputs = super().evaluate(model, source, how)
        return {"blanks" if name == "places" else name: value for name, value in scores.items()}, outputs

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        source = self.with_our_blanks(source)
        text = self.encode_blanks(source) if BLANK in source else self.tokenizer.encode(source)
        return encode_for_trace(self, "encoder", self.frame().around(text))

    def traced_answer(self, source: str, trace: Trace) -> str:
        """Return the text with its blanks filled, by tokens that stand for text."""
        tokenizer = self.tokenizer
        usable = [
            [candidate for candidate in row if candidate.id not in tokenizer.special] or row for row in trace.candidates
        ]
        values = [[math.exp(candidate.log_prob) for candidate in row] for row in usable]
        ids = [[candidate.id for candidate in row] for row in usable]
        return put_into_blanks(tokenizer, self.with_our_blanks(source), trace.sides["encoder"].ids, values, ids).text

    def example_text(self, ids: list[int]) -> str:
        return with_blank(self.tokenizer, ids) if ids else ""


def parts_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return what stands before, between and after the blanks, less the space that belongs to a blank."""
    *before, last = text.split(BLANK)
    alone = tokenizer.kind in ("byte", "char")
    return [*(part if alone else part.removesuffix(" ") for part in before), last]


def encode_inside(tokenizer: Tokenizer, part: str) -> list[int]:
    """Return the ids of what stands within a text: some tokenisers put a space before whatever they are given."""
    line_end = tokenizer.encode("\n")
    joined = tokenizer.encode(f"\n{part}")
    return joined[len(line_end) :] if joined[: len(line_end)] == line_end else tokenizer.encode(part)


def put_into_blanks(
    tokenizer: Tokenizer, text: str, row: Sequence[int], values: list[list[float]], ids: list[list[int]]
) -> Filling:
    """Return the text with the likeliest piece in each blank; a space before a blank is not put there twice."""
    blanks = [position for position, token in enumerate(row) if token == tokenizer.mask]
    likeliest = [ids[position][0] if position in blanks else token for position, token in enumerate(row)]
    filled, *rest = text.split(BLANK)
    for position, part in zip(blanks, rest, strict=False):
        piece = continued(tokenizer, likeliest[:position], likeliest[position : position + 1])
        filled += (piece.removeprefix(" ") if filled == "" or filled.endswith(" ") else piece) + part
    filled = BLANK.join([filled, *rest[len(blanks) :]])
    likeliest_pieces = [
        list(zip(tokenizer.pieces(ids[position]), values[position], strict=True)) for position in blanks
    ]
    return Filling(filled, likeliest_pieces)


def as_answer(filling: Filling) -> Answer:
    blanks = [[{"piece": piece, "probability": share} for piece, share in blank] for blank in filling.blanks]
    return {
        "output": filling.text,
        "score": sum((math.log(blank[0][1]) for blank in filling.blanks), 0.0),
        "blanks": blanks,
    }


def with_blank(tokenizer: Tokenizer, row: list[int]) -> str:
    """Return the text of a row with a blank for the token nearest to its middle that has a letter or a digit.

    A token with a space in front leaves the space.
    """
    middle = len(row) // 2
    words = [place for place, token in enumerate(row) if any(map(str.isalnum, tokenizer.decode([token])))]
    at = min(words, key=lambda place: abs(place - middle), default=middle)
    piece = continued(tokenizer, row[:at], row[at : at + 1])
    space = " " if at and piece.startswith(" ") and piece != " " else ""
    after = continued(tokenizer, row[: at + 1], row[at + 1 :])
    return f"{tokenizer.decode(row[:at])}{space}{BLANK}{after}"
