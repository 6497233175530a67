"""To translate: lines of one language into lines of another, with an encoder-decoder."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearhead.decoding import Beam, Greedy, Hypothesis, Rules, generate
from clearhead.decoding.request import Model
from clearhead.errors import OptionError
from clearhead.model import PreNorm, presets
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.text.batches import Rows
from clearhead.text.encoding import Corpus, Layout, chunks, texts_of, usable_records
from clearhead.text.lines import Problems
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.text.validation_split import spread
from clearhead.tracing.trace import Trace
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Batching, Budget, Checkpointing, Optimizer, Recipe
from clearhead.training.schedules import InverseSqrt, Last
from clearhead.training.scores import (
    LOSS,
    EvaluationOptions,
    Measure,
    ValidationSet,
    score_by_length,
    score_translations,
)
from clearhead.training.tasks.answering import (
    Answer,
    Decoding,
    WritingOptions,
    Written,
    in_batches,
    one_line,
    token_names,
)
from clearhead.training.tasks.base import Task, TraceInputs, stored_loss
from clearhead.training.tasks.learning import PLACEHOLDER, Batch, epochs, spec_name, to_batch
from clearhead.training.tasks.texts import Framing, frame_rows

BEAM = 5
"""Hypotheses that are kept, unless another number is asked for."""


@final
class Translate(Task):
    """Pairs: the source with an end token, the target from a start token to an end token."""

    name = "translate"
    family = "encoder-decoder"
    ways = ("source", "table")
    measures = (
        Measure("bleu", "BLEU"),
        Measure("chrf", "chrF"),
        Measure("exact_match", "exact match %", 100),
        LOSS,
    )
    best_by = "chrf"
    options = ("beam", "length_penalty", "tokenize", "lower")
    outputs = True
    verb = "translate"
    trial = "echo 'a line of the source' | clearhead VERB {run}"
    routes = ("/v1/translate",)
    target = "writes"
    answered = "what it would write next"
    sizes = True
    plain_logits = True

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("source", "target"), most=context - 1, too_long="drop")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        small = n_bytes < 20e6
        size = Size(4, 128, 4, 4, 256) if small or not on_gpu else Size(6, 512, 8, 8, 2048)
        dropout = 0.3 if small else 0.1
        steps = epochs(40 if small else 20, n_bytes / 4, 8192 if small else 25_000)
        return Recipe(
            task=cls.name,
            corpus=corpus,
            tokenizing=Tokenizing(kind="metaspace"),
            model=presets.classic(PLACEHOLDER, size=size, dropout=dropout, arrangement=PreNorm()),
            optimizer=Optimizer(
                lr=5e-3 if size.d_model == 128 else 1e-3,
                schedule=InverseSqrt(warmup=min(2000, max(100, steps // 4))),
                smoothing=0.1,
                weight_decay=0.0,
                averaging=Last(),
            ),
            batching=Batching(tokens=8192 if small else 25_000, micro_batch_tokens=None if small or on_gpu else 4096),
            budget=Budget(steps=steps, patience=10),
            checkpointing=Checkpointing(evaluate=max(100, steps // 20)),
        )

    def own_framing(self, field: str) -> Framing:
        tokenizer = self.tokenizers[field]
        if field == "source":
            return Framing(after=(tokenizer.end,))
        return Framing(before=(tokenizer.start,), after=(tokenizer.end,), ends=(tokenizer.end,))

    def fitted(self, spec: Spec) -> Spec:
        if spec.encoder is None or spec.decoder is None:
            raise OptionError(f"to translate takes an encoder-decoder; the model is a {spec_name(spec)}")
        source, target = (self.tokenizers[name].vocabulary for name in ("source", "target"))
        shared = self.tokenizers["source"] is self.tokenizers["target"]
        return replace(
            spec if shared else spec.with_own_tables(),
            encoder=replace(spec.encoder, vocabulary=source),
            decoder=replace(spec.decoder, vocabulary=target),
        )

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        reads, writes = self.frame("source"), self.frame("target")
        first = len(writes.before)
        pads = {name: tokenizer.pad for name, tokenizer in self.tokenizers.items()}
        source, _, source_lengths = frame_rows(store["source"], rows, rows.width, reads, pads["source"], filled=filled)
        target, _, lengths = frame_rows(
            store["target"], rows, rows.width + first, writes, pads["target"], filled=filled
        )
        # The model is asked for all but what stands before the target, each from the tokens to the left of it.
        positions = np.arange(1, target.shape[1])
        targets = np.where((positions >= first) & (positions < lengths[:, None]), target[:, 1:], NOTHING)
        arrays = {"source": source, "source_lengths": source_lengths, "tokens": target[:, :-1], "wanted": targets}
        return to_batch(arrays, rows.full if filled else 0)

    def logits(self, model: Transformer, batch: Batch) -> Float[Tensor, "*place choice"]:
        return model(batch["source"], batch["tokens"], source_lengths=batch["source_lengths"])

    def search(
        self, model: Transformer, rows: Sequence[Sequence[int]], method: Greedy | Beam = Greedy()
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses for each row of source ids, unframed. A row over the context is cut."""
        jobs = [self.passage(row, method, WritingOptions()).first for row in rows]

        def answer(batch: list[int]) -> list[list[Hypothesis]]:
            first, inputs = jobs[batch[0]], [jobs[i].inputs for i in batch]
            return generate(cast(Model, model), inputs, method, rules=first.rules, prefix=[list(first.prefix or ())])

        return in_batches([len(job.inputs) for job in jobs], model, answer, width=method.rows, apart=reach)

    def translate(self, model: Transformer, lines: Sequence[str], method: Greedy | Beam) -> list[list[Written]]:
        """Return the translations of each text with their scores, the best first; a blank text's are blank."""
        nonblank = [i for i, text in enumerate(lines) if text.strip()]
        rows = self.tokenizers["source"].encode_batch([lines[i] for i in nonblank])
        translations = [[Written("", 0.0, 0.0)] * method.n_best for _ in lines]
        decode = self.tokenizers["target"].decode
        for i, some in zip(nonblank, self.search(model, rows, method), strict=True):
            translations[i] = [
                Written(decode(hypothesis.tokens), sum(hypothesis.log_probs, 0.0), hypothesis.score)
                for hypothesis in some
            ]
        return translations

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        translations = self.translate(model, texts, Beam(width=BEAM))
        return [{"output": best.text, "score": best.score, "log_prob": best.log_prob} for best, *_ in translations]

    def score(self, model: Transformer, held: ValidationSet) -> tuple[dict[str, float], list[dict[str, str]]]:
        """Return BLEU, chrF and exact match of greedy translations of records spread over the store."""
        indices = spread(len(held.store), held.score_records)
        if not indices:
            return {}, []
        rows = [held.store["source"][i].tolist() for i in indices]
        target = self.tokenizers["target"]
        outputs = [target.decode(hypotheses[0].tokens) for hypotheses in self.search(model, rows)]
        references = [target.decode(held.store["target"][i].tolist()) for i in indices]
        scores = score_translations(outputs, references)
        inputs = [self.tokenizers["source"].decode(row) for row in rows[: held.samples]]
        return {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_match}, [
            {"input": text, "output": output, "reference": reference}
            for text, output, reference in zip(inputs, outputs, references, strict=False)
        ]

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        layout = self.usual_layout()
        method = Greedy() if how.beam == 1 else Beam(width=how.beam, length_penalty=how.length_penalty)
        inputs: list[str] = []
        outputs: list[str] = []
        references: list[str] = []
        started = time.perf_counter()
        for chunk in chunks(usable_records(source, layout, Problems(skip=True))):
            sources, targets = zip(*(texts_of(source, layout, record) for record in chunk), strict=True)
            outputs += (one_line(best_first[0].text) for best_first in self.translate(model, sources, method))
            inputs += sources
            references += targets
        speed = len(outputs) / (time.perf_counter() - started)
        scores = asdict(score_translations(outputs, references, tokenize=how.tokenize, lower=how.lower))
        scores["by_length"] = score_by_length(inputs, outputs, references, lower=how.lower)
        loss = stored_loss(self, model, source, replace(layout, too_long="cut"))
        facts = {"beam": how.beam, "length_penalty": how.length_penalty, "sentences_per_second": round(speed, 1)}
        return {**scores, "loss": loss.nats, "tokens": loss.places, "cut": loss.too_long, **facts}, outputs

    def trace_inputs(self, source: str, target: str | Sequence[int] | None = None) -> TraceInputs:
        reads, writes = self.tokenizers["source"], self.tokenizers["target"]
        read = reads.encode(source)
        target_ids = [] if target is None else writes.encode(target) if isinstance(target, str) else list(target)
        for name, row in (("source", read), ("target", target_ids)):
            if len(row) > self.reads:
                raise OptionError(f"the {name} has {len(row)} tokens, and the model reads {self.reads}; shorten it")
        framing = self.frame("target")
        opening = framing.opening if target is not None else ()
        ids = {
            "encoder": self.frame("source").around(read),
            "decoder": [*framing.before, *opening, *target_ids],
        }
        pieces = {
            "encoder": token_names(reads, ids["encoder"]),
            "decoder": token_names(writes, ids["decoder"]),
        }
        return TraceInputs(ids, pieces)

    def decoding(self, ids: Mapping[str, list[int]], *, max_new: int | None, usual: int) -> Decoding:
        framing, source = self.frame("target"), ids["encoder"]
        rules = Rules(max_new=min(self.context, max_new or reach(len(source))), end=framing.ends, never=framing.never)
        writes = self.tokenizers["target"]
        return Decoding(source=source, prefix=[list(framing.before)], rules=rules, writes=writes, before=[])

    def traced_answer(self, source: str, trace: Trace) -> str:
        return self.tokenizers["target"].decode([row[0].id for row in trace.candidates])

    def traced_target(self, target: str | Sequence[int] | None, trace: Trace) -> str | None:
        return self.tokenizers["target"].decode(trace.sides["decoder"].ids)

    def examples(self, store: Store, places: Iterable[int]) -> Iterator[dict[str, str]]:
        for index in places:
            yield {name: self.tokenizers[name].decode(store[name][index].tolist()) for name in ("source", "target")}


def reach(length: int) -> int:
    """Return how many tokens the translation of a text may have, the same for texts of similar length.

    A beam's search depends on it, so a text must be given the same whatever stands beside it.

    >>> [reach(n) for n in (3, 16, 17, 50)]
    [48, 48, 80, 144]
    """
    return 2 * max(16, 1 << (length - 1).bit_length()) + 16
