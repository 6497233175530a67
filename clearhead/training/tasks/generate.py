"""To generate: text that goes on from a text, with a decoder."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention import mask_rules, masks
from clearhead.decoding import Greedy, Hypothesis, Rules, Sample, Token, generating, session, stream
from clearhead.decoding.method import DecodingMethod, check_method
from clearhead.decoding.request import Model
from clearhead.decoding.scheduler import Job
from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.model.presets import Size
from clearhead.model.transformers import Transformer
from clearhead.text.batches import BatchPlanner, Rows, Windows
from clearhead.text.encoding import Corpus, Layout, chunks, split_records, texts_of, usable_records
from clearhead.text.lines import Problems
from clearhead.text.preparing import Prepared, Tokenizing
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.text.tokenizer import LOST, Tokenizer
from clearhead.text.validation_split import spread
from clearhead.training.baseline import MOST_BYTES, ByteSample, NgramScore, score_ngrams
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer, Recipe
from clearhead.training.schedules import CosineDecay, Ema
from clearhead.training.scores import LOSS, EvaluationOptions, Measure, ValidationSet, score_text
from clearhead.training.tasks.answering import Answer, Decoding, Passage, WritingOptions, Written, continued, in_batches
from clearhead.training.tasks.base import Task, TraceInputs, encode_for_trace
from clearhead.training.tasks.learning import Batch, decoder, epochs, to_batch
from clearhead.training.tasks.texts import Framing

MAX_NEW, TEMPERATURE = 200, 0.8
"""How much is written, and how it is drawn, unless asked otherwise."""
SAMPLE_TOKENS = 100
"""Most tokens of a sample at an evaluation."""
BEGINNING = 16
"""Tokens of a text to go on from, in an example."""
STRETCHES = 200
"""Of how many other places of a long text an example may begin."""
NEXT_ROUND = 1_000_003
"""What a seed grows by when the model goes on from a text it wrote itself."""
MANY_WINDOWS = 1024
"""How many are sorted by length together."""


class Generate(Task):
    """A stream of documents, cut into stretches. An end token closes a document, and opens the next one.

    Of a stream of several documents none sees another, and positions begin again with each.
    """

    name = "generate"
    family = "decoder"
    ways = ("text", "table")
    unit = "file"
    measures = (LOSS, Measure("bits_per_byte", "bits/byte", digits=3, higher=False))
    best_by = "loss"
    options = ("stride",)
    verb = "generate"
    trial = "clearhead VERB {run} --prompt 'A beginning'"
    routes = ("/v1/completions", "/v1/chat/completions")
    target = "continues"
    answered = "what it would write next"
    sizes = True
    plain_logits = True
    place = "last"

    @classmethod
    def of(cls, prepared: Prepared, context: int) -> Task:
        return replace(super().of(prepared, context), documents=len(prepared.train))

    @property
    def opened(self) -> bool:
        """Return whether the model has seen documents begin."""
        return (self.documents or 1) > 1

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), most=context, too_long="keep", end=True)

    def own_framing(self, field: str) -> Framing:
        end = (self.tokenizer.end,)
        return Framing(before=end, ends=end) if self.opened else Framing()

    def usual_layout(self) -> Layout:
        return self.layout(self.context)

    def opener(self) -> list[int]:
        """Return what a text that would be empty begins with: what stands before every text, else one token."""
        if before := self.frame().before:
            return list(before)
        token_ids = [token_id for token_id in (self.tokenizer.end, self.tokenizer.start) if token_id >= 0]
        if not token_ids:
            raise OptionError("the model has no token that a text begins or ends with; give a prompt to begin from")
        return token_ids[-1:] if self.framing else token_ids[:1]

    @property
    def reads(self) -> int:
        read, _ = window(self.context, MAX_NEW)
        return read if self.framing is None else max(1, read - self.frame().size)

    def baseline(self, corpus: Corpus, prepared: Prepared, *, seconds: float = math.inf) -> NgramScore | None:
        """Return the bits per byte of an n-gram model on the dev text; in little time it counts less text."""
        notes, layout = prepared.notes, self.layout(self.context)
        train_bytes, dev_bytes = (store.sizes["text"].text_bytes for store in (prepared.train, prepared.dev))
        samples = {False: ByteSample(train_bytes, MOST_BYTES), True: ByteSample(dev_bytes, MOST_BYTES)}
        for source, record, held_out in split_records(corpus, layout, notes, prepared.copies):
            samples[held_out].add(texts_of(source, layout, record)[0].encode(), ends=record.ends)
        train, dev = (samples[held_out].documents for held_out in (False, True))
        return score_ngrams(train, dev, text_bytes=train_bytes, seconds=seconds)

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        size = Size(6, 384, 6, 6, 1536) if on_gpu else Size(4, 128, 4, 4, 512)
        context = 256 if on_gpu else 128
        tokens = 64 * 256 if on_gpu else 16 * 128
        dropout = 0.2 if n_bytes < 5e6 and on_gpu else 0.0
        steps = epochs(20, n_bytes / 4, tokens, most=5000 if on_gpu else 3000)
        return Recipe(
            task=cls.name,
            corpus=corpus,
            tokenizing=Tokenizing(kind="bpe"),
            model=decoder(size, context, dropout),
            optimizer=Optimizer(
                lr=1e-3, schedule=CosineDecay(warmup=100), betas=(0.9, 0.99), weight_decay=0.1, averaging=Ema(0.99)
            ),
            batching=Batching(tokens=tokens, context=context),
            budget=Budget(steps=steps, patience=10),
            checkpointing=Checkpointing(evaluate=max(100, steps // 20)),
        )

    def planner(self, store: Store, tokens: int, seed: int, records: range | None = None) -> BatchPlanner:
        n_tokens, first = store.sizes["text"].tokens, 0
        width = max(1, min(self.context, n_tokens - 1))
        if records is not None:
            first, end = (
                int(store["text"].ends[record - 1]) if record else 0 for record in (records.start, records.stop)
            )
            n_tokens = end - first
        return Windows(n_tokens=n_tokens, width=width, rows=max(1, tokens // width), seed=seed, first=first)

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        indices = rows.which[:, None] + np.arange(rows.width + 1)
        ids = store["text"].ids[indices].astype(np.int64)
        closed = ids[:, :-1] == self.tokenizer.end
        arrays = {"tokens": ids[:, :-1], "wanted": ids[:, 1:]}
        if self.framing is not None and len(opening := self.frame().before) == 1:
            # What closes a document is read as the first token of the next: an imported model has its own for that.
            arrays["tokens"] = np.where(closed, opening[0], ids[:, :-1])
        if len(store) > 1:
            arrays["documents"] = np.cumsum(closed, axis=1)
        return to_batch(arrays, rows.full if filled else 0)

    def logits(self, model: Transformer, batch: Batch) -> Float[Tensor, "*place choice"]:
        if "documents" not in batch:
            return model(batch["tokens"])
        assert model.decoder is not None
        documents = batch["documents"]
        if model.decoder.embedding.position is None:
            # They count up, so each is one run; to look at them would stop a step from being captured.
            return model(batch["tokens"], mask=mask_rules.Document(documents, packed=True))
        return model(batch["tokens"], mask=masks.document(documents, documents), positions=restarting(documents))

    def stream(
        self,
        model: Transformer,
        rows: Sequence[Sequence[int]],
        method: Greedy | Sample,
        *,
        max_new: int,
        framing: Framing | None = None,
    ) -> Iterator[Token]:
        """Go on from each row, token by token. If the context is full, go on from its last half.

        `framing` None is the usual one of a text; that of a row from within a document is empty. What stands before the
        texts of an imported model stays there when only the end of a long text is read.
        """
        check_streams(method)
        options = WritingOptions(rules=Rules(max_new=max_new), framing=framing)
        passages = [self.passage(row, method, options) for row in rows]
        written: list[list[int]] = [[] for _ in rows]
        going = list(range(len(rows)))
        # All that are still going have written as much, so their next jobs have the same rules.
        while jobs := [job for i in going if (job := passages[i].following(written[i])) is not None]:
            seeded = method.for_sequences(going, len(written[going[0]]) * NEXT_ROUND)
            ended = set()
            for token in stream(cast(Model, model), [job.inputs for job in jobs], seeded, rules=jobs[0].rules):
                i = going[token.sequence]
                written[i].append(token.token)
                ended |= {i} if token.ended else set()
                yield token._replace(sequence=i)
            going = [i for i in going if i not in ended]

    def passage(self, row: Sequence[int], method: DecodingMethod, options: WritingOptions) -> Passage:
        framing = self.frame() if options.framing is None else options.framing
        asked = Rules(max_new=MAX_NEW) if options.rules is None else options.rules
        max_new = asked.max_new
        read, n_new = window(self.context, max_new)
        line = [*framing.before, *row] or self.opener()
        opening = () if self.framing is None else framing.before

        def job(tokens: Sequence[int]) -> Job | None:
            begun = len(tokens)
            if begun >= max_new:
                return None
            new = min(n_new, max_new - begun)
            min_new = max(0, min(asked.min_new - begun, new))
            rules = replace(asked, max_new=new, min_new=min_new, end=framing.ends, never=framing.never)
            inputs = tuple(last_ids([*line, *tokens], read, opening))
            seeded = method.for_sequences([0], begun * NEXT_ROUND)
            return Job(inputs=inputs, rules=rules, method=seeded, candidates=options.candidates, begun=tuple(tokens))

        first = job(())
        assert first is not None
        unread = max(0, len(line) - read)
        return Passage(first=first, following=job, tokenizer=self.tokenizer, before=list(row), unread=unread)

    def continue_rows(
        self,
        model: Transformer,
        rows: Sequence[Sequence[int]],
        method: Greedy | Sample,
        *,
        max_new: int,
        framing: Framing | None = None,
    ) -> list[list[Hypothesis]]:
        """Return what `stream` writes, whole. Row i draws from the i-th seed, whatever the batches are."""
        check_streams(method)
        method.draws(len(rows))  # raises where there are not as many seeds as rows

        def answer(batch: list[int]) -> list[list[Hypothesis]]:
            seeded = method.for_sequences(batch)
            tokens = self.stream(model, [rows[i] for i in batch], seeded, max_new=max_new, framing=framing)
            return generating.collect(tokens, len(batch))

        read, n_new = window(self.context, max_new)
        return in_batches([min(len(row), read) + n_new for row in rows], model, answer)

    def continue_texts(
        self,
        model: Transformer,
        prompts: Sequence[str],
        method: Greedy | Sample,
        *,
        max_new: int,
        framing: Framing | None = None,
    ) -> list[Written]:
        """Return what follows each prompt, with its log-probability."""
        rows = self.tokenizer.encode_batch(list(prompts))
        hypotheses = self.continue_rows(model, rows, method, max_new=max_new, framing=framing)
        return [
            Written(continued(self.tokenizer, row, hypothesis.tokens), hypothesis.score, hypothesis.score)
            for row, [hypothesis] in zip(rows, hypotheses, strict=True)
        ]

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return a continuation of each text, drawn from the same seed: other texts do not change it."""
        method = Sample(temperature=TEMPERATURE, seeds=(0,) * len(texts))
        continuations = self.continue_texts(model, texts, method, max_new=MAX_NEW)
        return [{"output": continuation.text, "score": continuation.score} for continuation in continuations]

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return no score other than the loss, and as samples continuations of a few stretches, with a fixed seed."""
        text = held.store["text"].ids
        length = min(16, self.context // 4, len(text))
        starts = spread(len(text) - length + 1, held.samples)
        rows = [[int(token) for token in text[start : start + length]] for start in starts]
        new = min(SAMPLE_TOKENS, max(1, self.context - length))
        method = Sample(temperature=TEMPERATURE, seeds=tuple(range(len(rows))))
        hypotheses = self.continue_rows(model, rows, method, max_new=new, framing=Framing()) if rows else []
        return {}, [
            {"input": self.tokenizer.decode(row), "output": continued(self.tokenizer, row, hypothesis[0].tokens)}
            for row, hypothesis in zip(rows, hypotheses, strict=True)
        ]

    @classmethod
    def derived_scores(cls, loss: float, held_out: Path) -> dict[str, float]:
        """Return bits per byte: from nats a token, by how many tokens the text has for its bytes."""
        size = Store(held_out).sizes["text"]
        return {"bits_per_byte": loss * size.tokens / (size.text_bytes * math.log(2))}

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        """Return how well text is foreseen. Every token of it is asked for once; no end token is."""
        stride = self.context if how.stride is None else how.stride
        if not 1 <= stride <= self.context:
            raise OptionError(f"stride: between 1 and the model's context, {self.context}, tokens; came {stride}")
        encoded = EncodedText(self, source)
        opened = bool(self.frame().before)
        all_windows = windows(encoded, self.opener(), context=self.context, stride=stride, opened=opened)
        total = 0.0
        started = time.perf_counter()
        while some := list(islice(all_windows, MANY_WINDOWS)):
            total += math.fsum(window_losses(model, some))
        speed = encoded.tokens / (time.perf_counter() - started)
        scores = asdict(score_text(total, encoded.tokens, encoded.n_bytes))
        facts = {"stride": stride, "context": self.context, "unknown": encoded.unknown}
        return {**scores, **facts, "tokens_per_second": round(speed, 1)}, []

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        """Return the source and, after it, the target."""
        read = self.tokenizer.encode(source)
        if isinstance(target, str):
            read = self.tokenizer.encode(source + target)
        elif target is not None:
            read = [*read, *target]
        return encode_for_trace(self, "decoder", [*self.frame().before, *read] or self.opener())

    def decoding(self, ids: Mapping[str, list[int]], *, max_new: int | None, usual: int) -> Decoding:
        source = ids["decoder"]
        room = self.context - len(source) + 1  # what is written last is never read
        if room < 1:
            raise OptionError(f"the text fills the context of {self.context} tokens; shorten it to write more")
        frame = self.frame()
        rules = Rules(max_new=min(room, max_new or usual), end=frame.ends, never=frame.never)
        return Decoding(source=source, prefix=None, rules=rules, writes=self.tokenizer, before=source)

    def example_text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids[:BEGINNING])

    def examples(self, store: Store, places: Iterable[int]) -> Iterator[dict[str, str]]:
        yield from super().examples(store, places)
        ids = store["text"].ids  # of few long texts, other stretches than the beginnings
        for start in spread(max(0, len(ids) - BEGINNING), STRETCHES):
            yield {"source": self.example_text(ids[start : start + BEGINNING].tolist())}


def restarting(documents: Tensor) -> Tensor:
    """Return the place of each token within its document."""
    positions = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    first = torch.ones_like(documents[:, :1], dtype=torch.bool)
    begins = torch.cat([first, documents[:, 1:] != documents[:, :-1]], 1)
    return positions - torch.where(begins, positions, 0).cummax(1).values


def window(context: int, max_new: int) -> tuple[int, int]:
    """Return how many tokens of a text so far are read, and how many are then written before it is read again.

    >>> window(128, 28), window(128, 500)
    ((100, 28), (64, 64))
    """
    n_new = min(max_new, max(1, context - context // 2))
    return max(1, context - n_new), n_new


def last_ids(ids: Sequence[int], most: int, kept: Sequence[int]) -> list[int]:
    """Return the last `most` of the ids, or, where they are more, those that are kept at the front and the last others.

    >>> last_ids([1, 5, 6, 7, 8], 3, [1]), last_ids([1, 5, 6], 3, [1]), last_ids([5, 6, 7], 2, [])
    ([1, 7, 8], [1, 5, 6], [6, 7])
    """
    if len(ids) <= most:
        return list(ids)
    front = kept[: most - 1]
    return [*front, *ids[len(front) - most :]]


def check_streams(method: DecodingMethod) -> None:
    check_method(method)
    if not method.streams:
        raise OptionError(
            f"texts are continued by Greedy or Sample; came {type(method).__name__}. For beams give clearhead.generate "
            "the model and rows of token ids"
        )


class Detokenizer:
    """Decodes tokens as they come. Text that the next token may still change, such as half a character, is held back.

    `ids[given:]` are held back, and `ids[last:given]` are those of the last piece that was returned.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self.tokenizer, self.ids = tokenizer, list(before)
        self.last, self.given = 0, len(self.ids)

    def add(self, token: int) -> str:
        """Return the text that is new with this token, if it is certain."""
        self.ids.append(token)
        piece = self.rest()
        if not piece or piece.endswith(LOST):
            return ""
        self.last, self.given = self.given, len(self.ids)
        return piece

    def rest(self) -> str:
        """Return what is held back. It is decoded after the last piece, which decides whether a space comes first."""
        return continued(self.tokenizer, self.ids[self.last : self.given], self.ids[self.given :])


class LossWindow(NamedTuple):
    """A stretch of ids, of which the model is asked for the last `new`, each from all before it."""

    ids: list[int]
    new: int


class EncodedText:
    """The ids of a corpus, piece by piece as it is read in training, and what they come to: tokens, bytes of text."""

    def __init__(self, task: Task, source: Source) -> None:
        self.task, self.source = task, source
        self.tokens = self.unknown = self.n_bytes = 0

    def __iter__(self) -> Iterator[tuple[list[int], bool]]:
        """Yield pieces of documents; the second value says whether the document ends with it."""
        layout, tokenizer = self.task.layout(self.task.context), self.task.tokenizer
        for chunk in chunks(usable_records(self.source, layout, Problems(skip=True))):
            texts = [texts_of(self.source, layout, record)[0] for record in chunk]
            for record, text, ids in zip(chunk, texts, tokenizer.encode_batch(texts), strict=True):
                self.n_bytes += len(text.encode())
                self.tokens += len(ids)
                self.unknown += ids.count(tokenizer.unknown)
                yield ids, record.ends


def windows(
    pieces: Iterable[tuple[list[int], bool]], opener: Sequence[int], *, context: int, stride: int, opened: bool
) -> Iterator[LossWindow]:
    """Yield windows in which every id is new once. A document's first id is asked for from the opener's.

    `opened`: the model has seen documents begin with it, so it stays in front of what follows too.
    """
    buffer: list[int] = []
    seen = 0
    for ids, ends in pieces:
        if not buffer and opened:
            buffer, seen = list(opener), len(opener)
        elif not buffer and ids:
            yield LossWindow([*opener, ids[0]], 1)
            seen = 1
        buffer += ids
        at = 0
        while len(buffer) - at > context:
            yield LossWindow(buffer[at : at + context + 1], context + 1 - seen)
            at, seen = at + stride, context + 1 - stride
        buffer = buffer[at:]
        if ends:
            if len(buffer) > seen:
                yield LossWindow(buffer, len(buffer) - seen)
            buffer, seen = [], 0


def window_losses(model: Transformer, some: list[LossWindow]) -> list[float]:
    """Return what the new ids of each window cost, in nats."""
    device = next(model.parameters()).device

    def answer(batch: list[int]) -> list[float]:
        rows = [some[i] for i in batch]
        tokens, lengths = session.pad_right([row.ids for row in rows], device)
        new = torch.tensor([row.new for row in rows], device=device)
        positions = torch.arange(1, tokens.shape[1], device=device)
        is_new = (positions >= (lengths - new).unsqueeze(1)) & (positions < lengths.unsqueeze(1))
        targets = torch.where(is_new, tokens[:, 1:], NOTHING)
        with generating.eval_mode(model):
            logits = model(tokens[:, :-1]).float().transpose(1, 2)
            lost = nn.functional.cross_entropy(logits, targets, ignore_index=NOTHING, reduction="none")
        return lost.to(widest_float(lost.device)).sum(1).tolist()

    return in_batches([len(window.ids) for window in some], model, answer)
