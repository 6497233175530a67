"""A trace: one text's way through a model, with every number inside it within reach.

>>> import torch
>>> from clearhead.model import presets
>>> _ = torch.manual_seed(0)
>>> model = presets.tiny(vocabulary=50).build().eval()
>>> made = trace_model(model, torch.randint(50, (1, 6)), torch.randint(50, (1, 4)))
>>> made.decoder[1].cross.head[3].weight.shape
torch.Size([4, 6])
>>> made
Trace of an encoder-decoder: 6 encoder and 4 decoder tokens, 12 attentions of 4 heads
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError, TraceError
from clearhead.model.transformers import Decoder, Encoder, EncoderDecoder
from clearhead.registry import Parts
from clearhead.tracing.edits import ALL_ROWS, Change
from clearhead.tracing.inner import InnerValues, site_value
from clearhead.tracing.names import CONCAT, STEPS, sides_of
from clearhead.tracing.origin import Origin
from clearhead.tracing.recording import Record, recording
from clearhead.tracing.site import Site

__all__ = ["Candidate", "Layer", "Side", "Trace", "recorded", "trace_model"]

LIKELIEST = 20
ROWS = 256
"""Positions whose logits are made at a time."""


class Candidate(NamedTuple):
    """A token (or a class) the model may answer with."""

    id: int
    text: str
    log_prob: float


@final
@dataclass(frozen=True, kw_only=True)
class Side:
    """The tokens of one side, as ids and as they are shown."""

    ids: list[int]
    tokens: list[str]
    n_layers: int
    d_model: int


class Layer(NamedTuple):
    """The attentions of one block."""

    attention: Site
    cross: Site | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Trace:
    """What went through a model for one text. Sites by name, inner values by name, and what it answers.

    `stream` and `sites` are stored; what lies between them is made again by the model when it is asked for.
    """

    kind: str
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    stream: Mapping[str, Tensor]
    task: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    answers: "Answers"
    origin: Origin
    beams: "tuple[Trace, ...]" = field(default=(), repr=False)
    """Of a beam search: the trace of every output, the best first."""
    inner: InnerValues | None = field(default=None, repr=False)
    """Makes what is not stored; None where there is no model to make it with."""
    all_names: tuple[str, ...] = field(default=(), repr=False)
    """The names there are with the model."""

    def __repr__(self) -> str:
        tokens = " and ".join(f"{len(side.ids)} {name}" for name, side in self.sides.items())
        heads = sorted({site.n_heads for site in self.sites.values()})
        counts = f"{len(self.sites)} attentions of {' or '.join(map(str, heads))} heads"
        lines = [f"Trace of an {self.kind}" if self.kind[0] == "e" else f"Trace of a {self.kind}"]
        lines[0] += f": {tokens} tokens, {counts}"
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from clearhead.tracing.notebook import to_html

        return to_html(self)

    def __getitem__(self, name: str) -> Site:
        if name not in self.sites:
            raise OptionError(f"there is no attention called {name!r} in this trace; there are {', '.join(self.sites)}")
        return self.sites[name]

    @property
    def encoder(self) -> list[Layer]:
        return self.layers("encoder")

    @property
    def decoder(self) -> list[Layer]:
        return self.layers("decoder")

    def layers(self, side: str) -> list[Layer]:
        if side not in self.sides:
            raise OptionError(f"this model is a {self.kind}: it has no {side}")
        return [
            Layer(self.sites[f"{side}.{i}.attention"], self.sites.get(f"{side}.{i}.cross"))
            for i in range(self.sides[side].n_layers)
        ]

    @property
    def names(self) -> list[str]:
        """The names of all values that `value` gives, in the order of the way through the model.

        Of a trace that was loaded without its model: the stream, and the steps of every attention.
        """
        return [name for name in self.all_names if self.inner is not None or self.is_stored(name)]

    def value(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """A value by its name: one of the stream, a step of an attention, or any other made in between.

        `encoder.0.feed_forward.hidden` is `(n, d_ff)`; what heads have comes with the head first. Of a long text
        `rows` makes a few rows alone.
        """
        if name not in self.all_names:
            at = ".".join(name.split(".")[:3])
            near = [other for other in self.all_names if other.startswith(at)] or list(self.stream)
            raise OptionError(
                f"there is no {name!r} in this trace; there are {', '.join(near)}. All are in trace.names"
            )
        if self.inner is not None:
            return self.inner.value(name, rows)
        if name in self.stream:
            return self.stream[name][rows]
        if not self.is_stored(name):
            raise TraceError(f"{name} is not stored in a trace, and is made by its model: Trace.load(path, model)")
        at, _, step = name.rpartition(".")
        return site_value(self.sites[at], step, rows)

    def is_stored(self, name: str) -> bool:
        """Whether it can be had without the model."""
        at, _, step = name.rpartition(".")
        return name in self.stream or (at in self.sites and step in (*STEPS, CONCAT))

    @property
    def answering(self) -> str:
        """The side whose last vectors become the answer."""
        return list(self.sides)[-1]

    @property
    def candidates(self) -> list[list[Candidate]]:
        """The likeliest answers at each place, with their log-probabilities: 20 of them, the best first."""
        return self.answers.likeliest

    @property
    def nbytes(self) -> int:
        """What it holds, each piece of memory counted once."""
        held = list(self.stream.values())
        for site in self.sites.values():
            held += [site.call.query, site.call.key, site.call.value, site.made, *(site.projected or ())]
        seen = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
        return sum(seen.values())

    def save(self, path: str | Path) -> None:
        """Writes it to a file that opens without the model, by `Trace.load`."""
        from clearhead.tracing.saving import save_trace

        save_trace(self, path)

    @staticmethod
    def load(path: str | Path, model: nn.Module | None = None, *, parts: Parts | None = None) -> "Trace":
        """A saved trace; with a `model`, it must be the one it was made from. `parts`: as in `clearhead.load`."""
        from clearhead.tracing.saving import load_trace

        return load_trace(path, model, parts=parts)

    def noted(self, *notes: str) -> "Trace":
        return replace(self, notes=(*self.notes, *notes))


class Answers:
    """What the model answers, made when asked for: from the last vectors, or as it was saved."""

    def __init__(self, make: Callable[[], list[list[Candidate]]]) -> None:
        self.make = make
        self.found: list[list[Candidate]] | None = None

    def __repr__(self) -> str:
        return "Answers(...)"

    @property
    def likeliest(self) -> list[list[Candidate]]:
        if self.found is None:
            self.found = self.make()
        return self.found


def trace_model(
    model: nn.Module, *tokens: Tensor, changes: Sequence[Change] = (), pieces: Mapping[str, Sequence[str]] | None = None
) -> Trace:
    """The trace of one sequence of token ids, `(1, n)`; for an encoder-decoder of a source and a target.

    `pieces` are the tokens as they are shown, by side; the ids themselves where they are not given.
    """
    check_rows(tokens)
    with eval_mode(model), recording(model, changes) as record:
        model(*tokens)
    ids = {side: row[0].tolist() for side, row in zip(sides_of(model), tokens, strict=True)}
    return recorded(model, record, ids, changes=changes, pieces=pieces)


def recorded(
    model: nn.Module,
    record: Record,
    ids: Mapping[str, list[int]],
    *,
    row: int = 0,
    changes: Sequence[Change] = (),
    pieces: Mapping[str, Sequence[str]] | None = None,
) -> Trace:
    """The trace of one row of what was recorded. Of a batch with padding, `ids` may be shorter than what passed."""
    parts = sides_of(model)
    sides = {
        side: Side(
            ids=ids[side],
            tokens=list(pieces[side]) if pieces else [str(token) for token in ids[side]],
            n_layers=len(part.stack.blocks),
            d_model=part.spec.d_model,
        )
        for side, (_, part) in parts.items()
    }
    sites = {name: Site(name, passed, row) for name, passed in record.sites.items()}
    stream = {name: value[min(row, len(value) - 1)] for name, value in record.stream.items()}
    ran = [f"{site.name} ran the reference: {site.why}" for site in sites.values() if site.why]
    answering, (_, part) = list(parts.items())[-1]
    last = stream[[name for name in stream if name.startswith(f"{answering}.")][-1]]
    labels = sides[answering].tokens
    lengths = {side: len(one.ids) for side, one in sides.items()}
    inner = InnerValues(model, sites=sites, stream=stream, lengths=lengths, changes=changes)
    return Trace(
        kind={Encoder: "encoder", Decoder: "decoder", EncoderDecoder: "encoder-decoder"}[type(model)],
        sides=sides,
        sites=sites,
        stream=stream,
        notes=tuple(ran),
        changes=tuple(changes),
        answers=Answers(lambda: likeliest(part, last, len(labels))),
        origin=Origin.of(model),
        inner=inner,
        all_names=tuple(inner.names.all),
    )


def likeliest(part: Encoder | Decoder, last: Tensor, n: int) -> list[list[Candidate]]:
    """The best of what the output makes of the last vectors, a few rows at a time; nothing where there is no output."""
    if part.output is None:
        return []
    found = []
    with eval_mode(part):
        lengths = torch.tensor([n], device=last.device)
        for start in range(0, n, ROWS):
            logits = part.output(last[start : min(start + ROWS, n)].unsqueeze(0), lengths)
            whole = logits.ndim == 2
            if whole:
                logits = part.output(last[:n].unsqueeze(0), lengths).unsqueeze(1)
            found += best_of(torch.log_softmax(logits[0].float(), -1))
            if whole:
                break
    return found


def best_of(log_probs: Float[Tensor, "n choice"]) -> list[list[Candidate]]:
    values, ids = log_probs.topk(min(LIKELIEST, log_probs.shape[-1]), -1)
    return [
        [Candidate(i, str(i), value) for i, value in zip(*row, strict=True)]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def check_rows(tokens: Sequence[Tensor]) -> None:
    for row in tokens:
        if row.ndim != 2 or row.shape[0] != 1:
            raise OptionError(
                f"a trace is of one text: expected token ids (1, n); came {tuple(row.shape)}. "
                "For a batch, record it (clearhead.tracing.recording) and choose a row"
            )
