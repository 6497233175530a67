"""To embed: a vector for each text, with an encoder. It is the task of an imported encoder that has no output."""

from collections.abc import Sequence
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.errors import OptionError
from clearhead.model.outputs import POOLS
from clearhead.model.transformers import Transformer
from clearhead.text.batches import Rows
from clearhead.text.encoding import Corpus, Layout
from clearhead.text.sources import Source
from clearhead.text.store import Store
from clearhead.tracing.trace import Trace
from clearhead.training.recipe import Recipe
from clearhead.training.scores import EvaluationOptions
from clearhead.training.tasks.answering import Answer, Pair
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.learning import Batch

Pooling = Literal["mean", "first"]
"""How the vectors of a text's tokens become one: their mean, or that of the first token (`[CLS]`)."""
SHOWN = 4
"""Numbers of a vector that are shown if there is no room for all."""


@final
class Embed(Task):
    """A text's vector: the mean of its tokens' last vectors. Nothing is asked of it, so it is not trained or scored."""

    name = "embed"
    verb = "embed"
    ways = ("text",)
    answered = "the vector of the last token"

    @staticmethod
    def layout(context: int) -> Layout:
        return Layout(texts=("text",), most=context, too_long="cut")

    @classmethod
    def default_recipe(cls, corpus: Corpus, n_bytes: int, on_gpu: bool) -> Recipe:
        raise OptionError("task: vectors of texts are not trained for here; choose another task, such as fill")

    def read(self, store: Store, rows: Rows, random: np.random.Generator, *, filled: bool) -> Batch:
        raise OptionError("to embed asks for nothing that could be wrong, so it has no loss; choose another task")

    def evaluate(self, model: Transformer, source: Source, how: EvaluationOptions) -> tuple[dict[str, Any], list[str]]:
        raise OptionError("a run that embeds is not scored: nothing says which vector is right. Use `clearhead embed`")

    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        vectors = embed_texts(self, model, texts)
        return [{"output": shorten(vector), "vector": vector.tolist()} for vector in vectors]

    @classmethod
    def usage(cls) -> tuple[str, str]:
        return "echo 'a line of text' | clearhead embed {run}", "clearhead trace {run} 'a line of text'"

    def answer_names(self, ids: Sequence[int]) -> list[str]:
        return [f"x{dimension}" for dimension in ids]

    def traced_answer(self, source: str, trace: Trace) -> str:
        return ""


def embed_texts(
    task: Task, model: Transformer, texts: Sequence[str | Pair], *, pooling: Pooling = "mean", normalize: bool = False
) -> Float[Tensor, "text d_model"]:
    """Return a vector for each text or pair, on the CPU: the mean of its tokens' last vectors, or the first of them.

    Special tokens around the text count as tokens; padding does not. `normalize` makes each vector's length 1. Raises
    OptionError for a model that is no encoder.
    """
    if (encoder := model.encoder) is None or model.decoder is not None:
        raise OptionError(f"to embed takes an encoder; the run was trained to {task.name} with another kind of model")
    if pooling not in get_args(Pooling):
        raise OptionError(f"pooling must be one of {', '.join(get_args(Pooling))}; came {pooling!r}")
    items = task.frame_items(model, texts)
    if empty := [number for number, row in enumerate(items.rows, 1) if not row]:
        raise OptionError(f"text {empty[0]} has no tokens, so it has no vector")

    def embed(tokens: Tensor, *, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        return POOLS[pooling](encoder.states(tokens, lengths=lengths, segments=segments), lengths).float().cpu()

    vectors = task.in_passes(model, embed, *items)
    stacked = torch.stack(vectors) if vectors else torch.zeros(0, model.spec.d_model)
    return nn.functional.normalize(stacked, dim=-1) if normalize else stacked


def shorten(vector: Tensor) -> str:
    """Return the first numbers of a vector as text."""
    return " ".join(f"{number:.4f}" for number in vector[:SHOWN].tolist()) + (" …" if len(vector) > SHOWN else "")
