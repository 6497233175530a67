"""A compiled RASP program: an ordinary model, and how tokens become its ids and its logits become values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from clearhead.decoding.generating import eval_mode
from clearhead.errors import ClearheadError, OptionError, ProgramError
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.model.transformers import Decoder, Encoder, EncoderDecoder
from clearhead.serialization import load_tensors, save_tensors

HEADER = "clearhead crafted"
SURE = 0.5
"""A category that is there is a 1, and one that is not a 0."""


@final
@dataclass(frozen=True, kw_only=True)
class TextLayout:
    """Where a text begins among the tokens that a model reads, and which token is the attention sink.

    Attributes:
        sink: The token.

    >>> from clearhead.rasp import TextLayout
    >>> TextLayout().offset
    1
    """

    sink: str = "<s>"
    offset: int = 1
    """The place of the text's first token."""
    beside: int = 0
    """How many tokens stand after the text, or for it, that are none of it."""

    def total(self, length: int) -> int:
        return self.offset + length + self.beside


@final
class CompiledModel:
    """A compiled program. `model` is an ordinary encoder, decoder or encoder-decoder; `run` reads it as the program.

    Attributes:
        model: The model.
        ids: By token, its id.
        vocabulary: By side, the tokens.
        answers: What the columns of the output mean.
        numeric: Whether the program answers with numbers.
        length: Longest text.
        directions: A name for every direction of the residual stream.
        layouts: By side, where a text begins.

    >>> from clearhead import rasp
    >>> rasp.compile(rasp.PROGRAMS["reverse"].output, "abc", length=4).run("abc")
    ['c', 'b', 'a']
    """

    def __init__(
        self,
        *,
        model: Encoder | Decoder | EncoderDecoder,
        ids: dict[str, int],
        vocabulary: dict[str, list[str]],
        answers: list[Any],
        numeric: bool,
        length: int,
        directions: list[str],
        layouts: dict[str, TextLayout],
    ) -> None:
        self.model, self.ids, self.answers, self.numeric = model, ids, answers, numeric
        self.vocabulary = vocabulary
        """The tokens a text of each side may have, as they are written."""
        self.length, self.directions, self.layouts = length, directions, layouts

    def __repr__(self) -> str:
        kind = type(self.model).__name__
        return f"CompiledModel({kind}, {len(self.directions)} wide, for up to {self.length} tokens)"

    def encode(self, text: Sequence[Any], side: str = "target") -> list[int]:
        """Return the ids of a text as the model is given it."""
        if not 0 < len(text) <= self.length:
            raise OptionError(f"a text of 1 to {self.length} tokens was expected; this one has {len(text)}")
        unknown = [token for token in text if str(token) not in self.vocabulary[side]]
        if unknown:
            raise OptionError(f"{unknown[0]!r} is not in the vocabulary this model was compiled for")
        ids, sink = [self.ids[str(token)] for token in text], self.ids[self.layouts[side].sink]
        return [sink, *ids] if self.layouts[side].offset else [*ids, sink]

    def tensors(self, text: Sequence[Any], source: Sequence[Any] | None = None) -> list[Tensor]:
        """Return the tensors that the model is called with."""
        has_source = len(self.model.stacks) > 1
        if has_source == (source is None):
            raise OptionError(
                "this program reads a source: give both" if has_source else "this program reads no source"
            )
        rows = [self.encode(text)] if source is None else [self.encode(source, "source"), self.encode(text)]
        device = next(self.model.parameters()).device
        return [torch.tensor([row], device=device) for row in rows]

    def run(self, text: Sequence[Any], source: Sequence[Any] | None = None) -> list[Any]:
        """Run the model on a text, and read its logits as the program's values.

        If the interpreter raises, because categories that differ were chosen together, it means nothing.
        """
        with eval_mode(self.model):
            logits = self.model(*self.tensors(text, source))[0]
        offset = self.layouts["target"].offset
        return self.read(logits[offset : offset + len(text)])

    def run_batch(
        self, texts: Sequence[Sequence[Any]], sources: Sequence[Sequence[Any]] | None = None
    ) -> list[list[Any]]:
        """Run the model on many texts of one length at once."""
        if len({len(text) for text in texts}) > 1 or (sources and len({len(text) for text in sources}) > 1):
            raise OptionError("run_batch takes texts of one length; sort them by it, or use run")
        rows = [self.tensors(text, sources[i] if sources else None) for i, text in enumerate(texts)]
        with eval_mode(self.model):
            logits = self.model(*(torch.cat(column) for column in zip(*rows, strict=True)))
        offset, n = self.layouts["target"].offset, len(texts[0])
        return [self.read(row) for row in logits[:, offset : offset + n]]

    def read(self, logits: Tensor) -> list[Any]:
        """Read the values in the logits of a text's places."""
        columns = logits[:, [self.ids[str(answer)] for answer in self.answers]]
        if self.numeric:
            return columns[:, 0].tolist()
        best, indices = columns.max(-1)
        return [
            self.answers[i] if value > SURE else None for value, i in zip(best.tolist(), indices.tolist(), strict=True)
        ]

    def save(self, path: str | Path) -> None:
        """Write it atomically to one file, safetensors with JSON in its header."""
        plain = all(isinstance(answer, str | int | float) for answer in self.answers)
        if not plain:
            raise ProgramError("answers other than words and numbers cannot be written to a file")
        header = {
            "spec": spec_to_json(self.model.spec),
            "ids": self.ids,
            "vocabulary": self.vocabulary,
            "answers": self.answers,
            "numeric": self.numeric,
            "length": self.length,
            "directions": self.directions,
            "layouts": {side: vars(layout) for side, layout in self.layouts.items()},
        }
        try:
            save_tensors(path, self.model.state_dict(), header, header=HEADER)
        except OSError as error:
            raise ProgramError(f"{path}: cannot be written ({error})") from None

    @staticmethod
    def load(path: str | Path) -> "CompiledModel":
        """Load what `save` wrote."""
        try:
            header, state = load_tensors(path, header=HEADER)
        except OSError as error:
            raise ProgramError(f"{path}: cannot be read as a crafted model ({error})") from None
        if header is None:
            raise ProgramError(f"{path}: is no crafted model; one is written by CompiledModel.save")
        try:
            model = spec_from_json(header.pop("spec")).build().eval()
            model.load_state_dict(state)
            layouts = {side: TextLayout(**layout) for side, layout in header.pop("layouts").items()}
            return CompiledModel(model=model, layouts=layouts, **header)
        except (KeyError, TypeError, AttributeError, RuntimeError, ClearheadError) as error:
            raise ProgramError(f"{path}: is a crafted model that lacks something or is damaged ({error})") from None
