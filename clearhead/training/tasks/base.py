"""What a task is: all that the rest of Clearhead asks of translating, generating, filling, classifying, or of your own.

A task says how records are laid out and read, which model it fits, what the model is asked and by what it is scored,
what a default recipe is, how lines are answered, and what a trace of a text looks like. `Task` has a neutral answer to
each where there is one: a task overrides only what differs.

A batch is a few tensors of whole numbers, the same few for every task: `tokens` go into the model, `wanted` is what
should come out (`NOTHING` where nothing is asked), `lengths`, `source`, `source_lengths` and `documents` where the task
has them.
"""

import math
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.decoding.generating import eval_mode
from clearhead.decoding.scheduler import Job
from clearhead.decoding.session import pad_right
from clearhead.errors import OptionError
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.registry import kind
from clearhead.text.batches import BatchPlanner, ByLength, Rows
from clearhead.text.drawing import spread
from clearhead.text.encoding import Corpus, Encoding, Layout
from clearhead.text.preparing import Prepared
from clearhead.text.sources import Source, Unit
from clearhead.text.store import Ragged, Store, StoreWriter
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.trace import Trace
from clearhead.training.answers import in_batches, token_names
from clearhead.training.baseline import Baseline
from clearhead.training.linear import Figures
from clearhead.training.losses import NOTHING, cross_entropy
from clearhead.training.recipe import Recipe
from clearhead.training.scores import macro_f1
from clearhead.training.tasks.framing import Framing, frame_rows
from clearhead.training.tasks.label_counts import describe_labels
from clearhead.training.tasks.measures import ACCURACY, LOSS, EvaluationOptions, Measure, ValidationSet
from clearhead.training.tasks.passages import Passage, WritingOptions

Batch = dict[str, Tensor]
Ids = NDArray[np.int64]
Answer = dict[str, Any]
Pair = tuple[str, str]
"""What is answered to a line: `output`, and whatever else `--json` tells."""
Family = Literal["encoder", "decoder", "encoder-decoder"]
Way = Literal["source", "table", "text"]
DEV_SEED = 0
AT_ONCE = 8192
"""Tokens of a batch of records: the same anywhere, since which blanks are asked for goes by the batches."""


class TraceInputs(NamedTuple):
    """A text as a model is given it: the ids of each side, and how each piece is shown.

    `segments` has the segment of each token of a pair of texts, for a model that has segments.
    """

    ids: dict[str, list[int]]
    pieces: dict[str, list[str]]
    segments: list[int] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What is decoded from, and what the output may be. `before`: ids of the text that an output follows."""

    source: list[int]
    prefix: list[list[int]] | None
    rules: Rules
    writes: Tokenizer
    before: list[int]


@kind("task", saved=False)
@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task over given tokenisers, with rows of `context` tokens at most.

    `labels` are those of the training text, where the task has any; `documents` is how many documents that text has,
    where it matters. `framing` has, by field, the special tokens around the texts of an imported model; without it
    they are the task's own.
    """

    name: ClassVar[str]
    """What the model was trained to do, in one word: the verb of messages such as "was trained to classify"."""
    family: ClassVar[Family] = "encoder"
    """The kind of model that it takes."""
    ways: ClassVar[tuple[Way, ...]] = ("table",)
    """How text can be given on the command line, by the option that says so, the usual one first."""
    unit: ClassVar[Unit] = "line"
    """What a document is in a file that is given with `--text`."""
    measures: ClassVar[tuple[Measure, ...]] = (ACCURACY, LOSS)
    """What tells how good a model is, the main one first. With ACCURACY it is counted at every place that asks."""
    best_by: ClassVar[str] = "accuracy"
    """The score that the best checkpoint has most of; the least loss where there is no such score."""
    options: ClassVar[tuple[str, ...]] = ()
    """The fields of `EvaluationOptions` that bear on its evaluation."""
    outputs: ClassVar[bool] = False
    """Whether its evaluation has an output for each record, which `--output` writes."""
    verb: ClassVar[str] = "answer"
    """The command that answers lines."""
    target: ClassVar[Literal["none", "writes", "continues"]] = "none"
    """Whether a text has a target: none; one that the model writes; or one that continues the text."""
    answered: ClassVar[str] = "at the last place"
    """Where the answer that a trace shows stands, in words."""
    routes: ClassVar[tuple[str, ...]] = ()
    """Addresses of the API that a run of it answers at, beside /v1/answer: /v1/translate and /v1/completions decode its
    `passage`, /v1/classify and /v1/fill tell the `entry` of its answers."""
    exports_as: ClassVar[str] = ""
    """The task that other programs know it as, if it is not its own."""
    chats: ClassVar[bool] = False
    """Whether its texts may be conversations: a run's chat template then lays them out."""
    place: ClassVar[Literal["first", "last", "blank"]] = "first"
    """The place of a text whose answer the explorer shows first."""

    sizes: ClassVar[bool] = False
    """Whether the size of its usual model, its dropout and learning rate are fitted to a budget."""

    tokenizers: Mapping[str, Tokenizer]
    context: int
    labels: tuple[str, ...] = ()
    documents: int | None = None
    framing: Mapping[str, Framing] | None = None

    @classmethod
    def of(cls, prepared: Prepared, context: int) -> "Task":
        """Return the task for a corpus that is prepared."""
        return cls(tokenizers=prepared.tokenizers, context=context, labels=prepared.labels)

    def describe_records(self, prepared: Prepared) -> list[str]:
        """Return lines about the records that are printed before training: the counts of labels, where it has any."""
        field = self.usual_layout().label
        return [] if field is None else describe_labels(self.labels, prepared, field)

    def baseline(self, corpus: Corpus, prepared: Prepared, *, minutes: float | None = None) -> Baseline | None:
        """Return a simple model that was fitted to the records in seconds: the line to beat. None where there is none.

        If the task's usual model has a place for it, it becomes a part of what is kept. `minutes` is the budget of the
        run, if it has one: the shorter, the less may this take.
        """
        return None

    def weigh(self, model: Transformer, prepared: Prepared) -> Figures | None:
        """Choose by the dev records how much a trained model and its linear part count, in place.

        Returns the score of the Transformer alone; None if there is no such part.
        """
        return None

    @staticmethod
    @abstractmethod
    def layout(context: int) -> Layout:
        """Return what is kept of a record."""

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Return what a record holds: the names of a table's columns, unless others are given."""
        return cls.layout(AT_ONCE).fields

    def own_framing(self, field: str) -> Framing:
        """Return the special tokens around a text of this field, in a model that was trained here."""
        return Framing(before=(self.tokenizers[field].start,))

    def frame(self, field: str | None = None) -> Framing:
        """Return the special tokens around a text of this field, or of the first one."""
        field = field or next(iter(self.tokenizers))
        return self.own_framing(field) if self.framing is None else self.framing.get(field, Framing())

    def usual_layout(self) -> Layout:
        """Return what is kept of a record, of texts as long as fit into the context with what is around them."""
        layout = self.layout(self.context)
        if self.framing is None:
            return layout
        return replace(layout, most=self.context - max(self.frame(field).size for field in layout.texts))

    @property
    def reads(self) -> int:
        """Return how many tokens of a text the model reads."""
        return self.usual_layout().most

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokeniser of the input."""
        return next(iter(self.tokenizers.values()))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has, to be compared with `reads`."""
        return [len(row) for row in self.tokenizer.encode_batch(list(texts))]

    def unseen(self, text: str) -> str:
        """Return what of a text the tokeniser has never seen."""
        return self.tokenizer.unseen(text)

    @classmethod
    @abstractmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        """Return the recipe for a corpus of so many bytes, on this kind of machine."""

    def fitted(self, spec: Spec) -> Spec:
        """Return the spec for these tokenisers' vocabularies; raise OptionError where it is the wrong kind of model."""
        if spec.kind != self.family or len(spec.stacks) > 1:
            raise OptionError(f"to {self.name} takes {with_article(self.family)}; the model is a {spec_name(spec)}")
        return replace(spec, vocabulary=self.tokenizer.vocabulary)

    def planner(self, store: Store, tokens: int, seed: int) -> BatchPlanner:
        """Return the plan of batches of about so many tokens."""
        layout = self.usual_layout()
        extra = self.context - layout.most
        return ByLength(store=store, fields=layout.texts, tokens=tokens, seed=seed, longest=layout.most, extra=extra)

    @abstractmethod
    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        """Return the batch itself. `filled` gives it the full shape of its width, with rows that ask for nothing."""

    def logits(self, model: Transformer, batch: Batch) -> Float[Tensor, "*place choice"]:
        """Return what the model says where `wanted` asks."""
        return model(batch["tokens"], lengths=batch["lengths"])

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return scores of held-out records beside loss and accuracy, and samples: input, output and reference."""
        indices = spread(len(held.store), held.samples)
        texts = [self.text_at(held.store, i) for i in indices]
        answers = self.answer(model, texts) if texts else []
        samples = [{"input": text, "output": answer["output"]} for text, answer in zip(texts, answers, strict=True)]
        for i, sample in zip(indices, samples, strict=True):
            if (reference := self.reference(held.store, i)) is not None:
                sample["reference"] = reference
        return {}, samples

    def text_at(self, store: Store, record: int) -> str:
        """Return the text of a record, as a line that is answered."""
        return self.tokenizer.decode(store[self.layout(self.context).texts[0]][record].tolist())

    def reference(self, store: Store, record: int) -> str | None:
        """Return the right answer to a record as text; None where there is none."""
        return None

    def goal(self, scores: Mapping[str, float], loss: float) -> float:
        """Return the number by which checkpoints are compared: higher is better."""
        if self.best_by not in scores:
            return -loss
        higher = next((measure.higher for measure in self.measures if measure.key == self.best_by), True)
        return scores[self.best_by] if higher else -scores[self.best_by]

    @classmethod
    def derived_scores(cls, loss: float, held_out: Path) -> dict[str, float]:
        """Return scores that follow from the mean loss over the store in this folder."""
        return {}

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        """Return the scores on the user's files by name, and the outputs where there are any."""
        started = time.perf_counter()
        loss = stored_loss(self, model, source, self.usual_layout())
        speed = loss.tokens / (time.perf_counter() - started)
        n, scores = max(loss.places, 1), dict[str, float]()
        if ACCURACY in self.measures:
            scores = {"accuracy": loss.right / n, "commonest_answer": loss.commonest / n, **loss.classes}
        facts = {"places": loss.places, "tokens": loss.tokens, "tokens_per_second": round(speed, 1)}
        return {"loss": loss.nats, **scores, **facts}, []

    @abstractmethod
    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return the answer to each text, with the usual options. Texts are not blank."""

    def answer_pairs(self, model: Transformer, pairs: Sequence[Pair]) -> list[Answer]:
        """Return what `answer` does for pairs of texts, where the task takes any."""
        raise OptionError(f"to {self.name} takes single texts, and no pairs; give each as a text")

    def answer_items(self, model: Transformer, items: Sequence[str | Pair]) -> list[Answer]:
        """Return the answers to texts, or to pairs of them; the answer to a blank one is blank."""
        asked = [i for i, item in enumerate(items) if "".join(item).strip()]
        pairs = [item for i in asked if not isinstance(item := items[i], str)]
        texts = [item for i in asked if isinstance(item := items[i], str)]
        if pairs and texts:
            raise OptionError("some of the texts are pairs and some are not; give them apart")
        found = self.answer_pairs(model, pairs) if pairs else self.answer(model, texts) if texts else []
        answers: list[Answer] = [{"output": ""} for _ in items]
        for i, answer in zip(asked, found, strict=True):
            answers[i] = answer
        return answers

    def entry(self, answer: Answer) -> dict[str, Any]:
        """Return an answer in the form of the task's own address; that to a blank text has nothing but its output."""
        return answer

    def check_line(self, line: str) -> object:
        """Raise OptionError for a line that cannot be answered, such as one that is no pair of texts."""
        return line

    def opener(self) -> list[int]:
        """Return the ids that a text which would be empty begins with, where the model goes on from it."""
        return []

    def exported(self) -> "Task":
        """Return the task as other programs know it."""
        return self

    def predict(
        self, model: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Return the logits for each row of ids, in order: what an answer is made of where one pass is enough.

        `segments` has the segment of each token, for a model that tells two texts apart by them.
        """

        def answer(batch: list[int]) -> list[Tensor]:
            device = next(model.parameters()).device
            tokens, lengths = pad_right([rows[i] for i in batch], device)
            apart = {} if segments is None else {"segments": pad_right([segments[i] for i in batch], device)[0]}
            with eval_mode(model):
                return list(model(tokens, lengths=lengths, **apart))

        return in_batches([len(row) for row in rows], model, answer)

    @classmethod
    def usage(cls) -> tuple[str, str]:
        """Return two commands to try with a run, `{run}` for its folder: one that answers, one that evaluates."""
        options = {"source": "--source TEST --target TEST", "table": "--table TEST", "text": "--text TEST"}[cls.ways[0]]
        return f"echo 'a line of text' | clearhead {cls.verb} {{run}}", f"clearhead evaluate {{run}} {options}"

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        """Return a text as the model is given it; a target only where `target` says that there is one."""
        return encode_for_trace(self, "encoder", self.frame().around(self.tokenizer.encode(source)))

    def decoding(self, ids: Mapping[str, list[int]], *, max_new: int | None, usual: int) -> Decoding:
        """Return what decoding from these ids begins with: for tasks whose `target` is not "none".

        `max_new` None: as many new tokens as the task gives, `usual` where it leaves the choice.
        """
        raise OptionError(f"to {self.name} writes nothing, so there is nothing to decode")

    def passage(self, row: Sequence[int], method: Greedy | Sample | Beam, options: WritingOptions) -> Passage:
        """Return the jobs that decode the output for a text's ids, without its special tokens."""
        frame, side = self.frame(), "decoder" if self.target == "continues" else "encoder"
        most = self.context - frame.size
        decoding = self.decoding({side: frame.around(row, most)}, max_new=options.max_new, usual=self.context)
        job = Job(
            inputs=tuple(decoding.source),
            rules=decoding.rules,
            method=method,
            prefix=None if decoding.prefix is None else tuple(decoding.prefix[0]),
            candidates=options.candidates,
        )
        unread = max(0, len(row) - most)
        return Passage(
            first=job, following=lambda _: None, tokenizer=decoding.writes, before=decoding.before, unread=unread
        )

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


def spec_name(spec: Spec) -> str:
    return type(spec).__name__.removesuffix("Spec")


def with_article(family: str) -> str:
    return f"{'an' if family.startswith('e') else 'a'} {family}"


def close_rows(rows: Ragged, batch: Rows, width: int, tokenizer: Tokenizer, *, filled: bool) -> tuple[Ids, Ids]:
    """Return rows with an end token after each, and their lengths, the end counted.

    They are padded to `width` if filled, else to the longest of them; one that has no room for its end is cut.
    """
    ids, _, lengths = frame_rows(rows, batch, width, Framing(after=(tokenizer.end,)), tokenizer.pad, filled=filled)
    return ids, lengths


def to_batch(arrays: Mapping[str, Ids], rows: int = 0) -> Batch:
    """Return arrays as tensors, with rows added up to `rows`: copies of the first one that ask for nothing."""
    missing = max(0, rows - len(arrays["wanted"]))
    more = {name: np.repeat(array[:1], missing, 0) for name, array in arrays.items()}
    more["wanted"] = np.full_like(more["wanted"], NOTHING)
    return {name: torch.from_numpy(np.concatenate([array, more[name]])) for name, array in arrays.items()}


def encode_for_trace(task: Task, side: str, ids: list[int]) -> TraceInputs:
    """Return ids of a single text as they are traced; raise OptionError where they are more than the model reads."""
    if len(ids) > task.context:
        raise OptionError(
            f"the text has {len(ids)} tokens, and the model was trained to read {task.context}; shorten it"
        )
    return TraceInputs({side: ids}, {side: token_names(task.tokenizer, ids)})


class TotalLoss(NamedTuple):
    """The total loss in nats, the number of targets, and how many of them the likeliest answer got right."""

    nats: float
    places: int
    right: int
    commonest: int
    """How many targets are the commonest one: what a model would get right that always gives the same answer."""
    classes: dict[str, float]
    """Where answers are labels: macro F1, and how many different labels were asked for."""
    standard_error: float | None
    """How far the mean loss of other records like these would lie from this one: by the scatter between batches."""
    batches: int


def loss_of(model: Transformer, task: Task, held: ValidationSet) -> TotalLoss:
    """Return the loss over held-out records by teacher forcing."""
    device = next(model.parameters()).device
    random = np.random.default_rng(DEV_SEED)
    nll: list[Tensor] = []
    places: list[int] = []
    right = torch.zeros((), device=device)
    counts: Counter[int] = Counter()
    answers: Counter[tuple[int, int]] = Counter()
    has_classes = bool(task.labels) and ACCURACY in task.measures
    with eval_mode(model), torch.autocast(device.type, torch.bfloat16, enabled=held.bfloat16):
        planned = list(task.planner(held.store, held.tokens, DEV_SEED).in_order())
        if held.sample is not None:
            planned = [planned[i] for i in spread(len(planned), held.sample)]
        for rows in planned:
            read = task.read(held.store, rows, random, filled=False)
            batch = {name: tensor.to(device) for name, tensor in read.items()}
            logits, targets = task.logits(model, batch).flatten(0, -2), batch["wanted"].flatten()
            nll.append(cross_entropy(logits, targets).nll)
            answered, truths = logits.argmax(-1), read["wanted"].flatten().tolist()
            right += (answered == targets).sum()
            counts.update(truths)
            places.append(len(truths) - truths.count(NOTHING))
            if has_classes:
                answers.update(pair for pair in zip(truths, answered.tolist(), strict=True) if pair[0] != NOTHING)
    del counts[NOTHING]
    classes = {"macro_f1": macro_f1(answers), "labels_asked": len(counts)} if has_classes else {}
    losses = torch.stack(nll).cpu().numpy().astype(float) if nll else np.zeros(0)
    error = standard_error(losses, np.array(places, float))
    commonest = max(counts.values(), default=0)
    return TotalLoss(float(losses.sum()), counts.total(), int(right.item()), commonest, classes, error, len(planned))


def standard_error(totals: NDArray[np.float64], counts: NDArray[np.float64]) -> float | None:
    """Return the standard error of sum(totals) / sum(counts) over groups of places; None for fewer than two.

    >>> standard_error(np.array([2.0, 4.0, 6.0, 8.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    0.645...
    """
    n = len(totals)
    if n < 2 or not counts.any():
        return None
    apart = totals - totals.sum() / counts.sum() * counts
    return math.sqrt(n / (n - 1) * float(apart @ apart)) / float(counts.sum())


class StoredLoss(NamedTuple):
    """The mean loss of a target in nats, and the counts of `TotalLoss`."""

    nats: float
    places: int
    right: int
    commonest: int
    classes: dict[str, float]
    tokens: int
    too_long: int


def stored_loss(task: Task, model: Transformer, source: Source, layout: Layout) -> StoredLoss:
    """Return the loss by teacher forcing, from ids on disk as in training: a corpus of any size will do."""
    encoding = Encoding(layout, task.tokenizers, task.labels)
    with tempfile.TemporaryDirectory() as folder, StoreWriter(Path(folder) / "held", encoding.sizes) as writer:
        encoding.fill(source, writer)
        store = writer.close({})
        held_out = ValidationSet(store=store, tokens=AT_ONCE, score_records=0, samples=0)
        total = loss_of(model, task, held_out)
    tokens = sum(store.sizes[name].tokens for name in layout.texts)
    return StoredLoss(total.nats / max(total.places, 1), *total[1:5], tokens, encoding.too_long)
