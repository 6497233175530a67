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

What a notebook shows of a trace, and what is printed of it: the text, the answers, and weights as heat maps.
"""

import contextlib
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.calls import public
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError, TraceError
from clearhead.model.transformers import Decoder, Encoder, EncoderDecoder, apply_output
from clearhead.notebook import Display, bars, flow, heat_maps, paragraph, spell, token_line
from clearhead.registry import Parts
from clearhead.tracing.edits import ALL_ROWS, Change, TextChange, changes_for
from clearhead.tracing.inner import InnerValues, read_surprise, roll_out, site_value
from clearhead.tracing.names import CONCAT, STEPS, list_near, sides_of
from clearhead.tracing.recording import Counted, Recording, alone_with, recording
from clearhead.tracing.saving import Answers, Candidate, Side, TraceContent, TraceOrigin, load_trace, save_trace
from clearhead.tracing.site import MANY, SIDE, SMALL, Head, Site

WEIGHTS = 40_000_000
"""How many weights are computed for one display: a second or two."""
PLACES = 24
"""The most places whose answers are listed."""
ANSWERS = 3
"""How many answers are listed for each place."""
ROLES = {"source": "key", "target": "query", "text": "query"}


class TraceFacts(NamedTuple):
    """What there is to show of a trace."""

    headline: str
    notes: Sequence[str]
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    candidates: Sequence[Sequence[Candidate]]

    @property
    def tokens(self) -> dict[str, list[str]]:
        """Return the tokens of each side, by what a reader calls it; the side that answers is last."""
        names = {"encoder": "source", "decoder": "target"} if len(self.sides) > 1 else dict.fromkeys(self.sides, "text")
        return {names[side]: content.tokens for side, content in self.sides.items()}

    @property
    def main_site(self) -> Site:
        """Return the last cross-attention, or the last attention if there is none."""
        sites = list(self.sites.values())
        return [*sites, *(site for site in sites if site.slot == "cross")][-1]

    def describe(self) -> str:
        """Return what is printed: what the trace is, its tokens, and the likeliest answer at each place."""
        answers = [f"{spell(best.text)} {math.exp(best.log_prob):.0%}" for best, *_ in self.candidates]
        lines = {name: list(map(spell, tokens)) for name, tokens in self.tokens.items()}
        lines |= {"answers": answers} if answers else {}
        ends = {name: [*(["…"] if len(line) > PLACES else []), *line[-PLACES:]] for name, line in lines.items()}
        said = [f"  {note}" for note in self.notes] + [f"  {name:8}{' '.join(line)}" for name, line in ends.items()]
        return "\n".join([self.headline, *said])

    def draw(self) -> Display:
        """Return the text, the answers, and one map: of the sharpest head of the main attention."""
        site = self.main_site
        head = sharpest(site)
        [drawn] = heat_maps([head.matrix(f"{site.name}, head {head.index} of {site.n_heads}", SIDE)])
        more = f"trace.show() has every head; trace.show({site.name!r}, {head.index}) this one."
        return Display(self.headline, self.overview() + flow([drawn]) + paragraph(more))

    def draw_all(self) -> Display:
        """Return the text, the answers, and the heads of all attentions; of a large model, of as many as are quick."""
        first = self.main_site
        shown, cost = [], 0
        for site in (first, *(site for site in self.sites.values() if site is not first)):
            cost += site.n_heads * site.n_query * site.n_key
            if shown and cost > WEIGHTS:
                break
            shown.append(site)
        side = SIDE if sum(site.n_heads for site in shown) <= MANY else SMALL
        sections = [
            f"<details{' open' if site is first else ''}><summary>{html.escape(site.name)}</summary>"
            f"{flow(heat_maps([head.matrix(f'head {head.index}', side) for head in site.head]))}</details>"
            for site in self.sites.values()
            if site in shown
        ]
        left_out = len(self.sites) - len(shown)
        note = f"{left_out} more of its {len(self.sites)} attentions are left out: trace.show(site=NAME) shows one"
        return Display(self.headline, self.overview() + "".join(sections) + (paragraph(note) if left_out else ""))

    def overview(self) -> str:
        """Return notes, the tokens of each side, and the likeliest answers at each place."""
        lines = [token_line(name, tokens, ROLES[name]) for name, tokens in self.tokens.items()]
        text = "".join([*map(paragraph, self.notes), *lines])
        if not self.candidates:
            return text
        *_, tokens = self.tokens.values()
        names = tokens if len(self.candidates) == len(tokens) else ["answer"] * len(self.candidates)
        rows = [
            (name, [(candidate.text, math.exp(candidate.log_prob)) for candidate in answers[:ANSWERS]])
            for name, answers in zip(names, self.candidates, strict=True)
        ]
        which = f"the last {PLACES} of {len(rows):,} places" if len(rows) > PLACES else "each place"
        asked = "The likeliest answers" + (f" at {which}" if len(rows) > 1 else "")
        return text + paragraph(asked) + flow([bars(rows[-PLACES:], label=asked)])


def sharpest(site: Site) -> Head:
    """Return the head whose queries put most of their weight on one key; the first, if a text is long."""
    if site.n_heads * site.n_query * site.n_key > WEIGHTS // 10:
        return site.head[0]
    return max(site.head, key=lambda head: float(head.weight.amax(-1).mean()))


LIKELIEST = 20
ROWS = 256
"""The number of positions whose logits are computed at a time."""


class Layer(NamedTuple):
    """The attentions of one block."""

    attention: Site
    cross: Site | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Trace:
    """The forward pass of one text: its attentions (sites) and inner values by name, and its answers.

    `stream` and `sites` are stored. The model computes other values again when you ask for them.

    Attributes:
        kind: `encoder`, `decoder` or `encoder-decoder`.
        sides: By side, the tokens.
        sites: By name, the attentions.
        stream: By name, the values of the residual stream.
        task: Name of the run's task.
        notes: What a reader should know, in sentences.
        changes: Edits that were made.
        answers: What the model answers at each place.
        origin: Run, step and text.
    """

    kind: str
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    stream: Mapping[str, Tensor]
    task: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    answers: Answers
    origin: TraceOrigin
    beams: "tuple[Trace, ...]" = field(default=(), repr=False)
    """The trace of every output of a beam search, the best first."""
    inner: InnerValues | None = field(default=None, repr=False)
    """Computes what is not stored; None if there is no model to compute it with."""
    all_names: tuple[str, ...] = field(default=(), repr=False)
    """The names of all values that can be had with the model."""

    def __post_init__(self) -> None:
        for site in self.sites.values():
            site.attention = None if self.inner is None else self.inner.names.sites[site.name]
            keys = self.sides.get("encoder") if site.slot == "cross" else self.sides[site.side]
            if keys is not None:
                site.tokens = self.sides[site.side].tokens, keys.tokens

    def __repr__(self) -> str:
        tokens = " and ".join(f"{len(side.ids)} {name}" for name, side in self.sides.items())
        heads = sorted({site.n_heads for site in self.sites.values()})
        counts = f"{len(self.sites)} attentions of {' or '.join(map(str, heads))} heads"
        lines = [f"Trace of an {self.kind}" if self.kind[0] == "e" else f"Trace of a {self.kind}"]
        lines[0] += f": {tokens} tokens, {counts}"
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    @property
    def facts(self) -> TraceFacts:
        """Return what a trace prints and draws of itself."""
        return TraceFacts(repr(self).splitlines()[0], self.notes, self.sides, self.sites, self.candidates)

    def __str__(self) -> str:
        return self.facts.describe()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the text, the answers, and one attention map."""
        return self.facts.draw()._repr_html_()

    @public
    def show(self, site: str | None = None, head: int | None = None) -> Display:
        """Return the weights as heat maps: of all attentions, of one, or of one of its heads.

        In a notebook it is shown where it is the last value of a cell; `show(...).save("weights.html")` writes it.
        """
        if site is not None:
            return self[site].show(head)
        if head is not None:
            raise OptionError(f"show(head={head}) needs a site: one of {', '.join(self.sites)}")
        return self.facts.draw_all()

    def __getitem__(self, name: str) -> Site:
        if not isinstance(name, str) or name not in self.sites:
            near = list_near(name, list(self.sites))
            raise OptionError(f"there is no attention called {name!r} in this trace; {near}")
        return self.sites[name]

    @property
    def encoder(self) -> Sequence[Layer]:
        return self.layers("encoder")

    @property
    def decoder(self) -> Sequence[Layer]:
        return self.layers("decoder")

    def layers(self, side: str) -> Sequence[Layer]:
        if side not in self.sides:
            raise OptionError(f"this model is {'an' if self.kind[0] == 'e' else 'a'} {self.kind}: it has no {side}")
        layers = [
            Layer(self.sites[f"{side}.{i}.attention"], self.sites.get(f"{side}.{i}.cross"))
            for i in range(self.sides[side].n_layers)
        ]
        return Counted(layers, f"{side}: layer")

    @property
    def names(self) -> list[str]:
        """Return the names of all values that `value` gives, in the order of the forward pass.

        Of a trace that was loaded without its model: the stream, and the steps of every attention.
        """
        return [name for name in self.all_names if self.inner is not None or self.is_stored(name)]

    @public
    def value(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Return a value by its name: of the residual stream, a step of an attention, or any other in between.

        `encoder.0.feed_forward.hidden` is `(n, d_ff)`; values of heads have the head as their first axis. For a
        long text, `rows` computes only a few rows.
        """
        if not isinstance(name, str) or name not in self.all_names:
            near = list_near(name, self.all_names or list(self.stream))
            raise OptionError(f"there is no {name!r} in this trace; {near}. All are in trace.names")
        if not isinstance(rows, slice):
            raise OptionError(f"rows: expected a slice, such as slice(0, 5); came {rows!r:.80}")
        if self.inner is not None:
            return self.inner.value(name, rows)
        if name in self.stream:
            return self.stream[name][rows]
        if not self.is_stored(name):
            raise TraceError(f"{name} is not stored in a trace, and is made by its model: Trace.load(path, model)")
        at, _, step = name.rpartition(".")
        return site_value(self.sites[at], step, rows)

    @public
    def rollout(self, name: str) -> Float[Tensor, "query token"]:
        """Return the attention rollout (Abnar and Zuidema, 2020) of a side, or up to a site: `decoder.1.attention`.

        It is the product over the layers of (A + I) / 2, with A the mean of the heads' weights. For a cross-attention
        it is the mean of its heads, after the rollout of the encoder.
        """
        return roll_out(self.sites, name)

    def is_stored(self, name: str) -> bool:
        """Return whether a value can be had without the model."""
        at, _, step = name.rpartition(".")
        return name in self.stream or (at in self.sites and step in (*STEPS, CONCAT))

    @property
    def answer_side(self) -> str:
        """Return the side whose last vectors become the answer."""
        return list(self.sides)[-1]

    @property
    def candidates(self) -> list[list[Candidate]]:
        """Return the likeliest answers at each place, with their log-probabilities: the best 20 in order."""
        return self.answers.likeliest

    @property
    def surprise(self) -> Float[Tensor, "n"]:
        """Return −log p of each token of the side that answers, in nats; NaN for a token that nothing predicts.

        A language model and a translator predict a token at the place before it, so the first has none. A model that
        fills blanks predicts each token at its own place, where it also reads it.
        """
        if self.inner is None:
            raise OptionError("this trace was loaded without its model, which has the logits: Trace.load(path, model)")
        return read_surprise(self.inner, self.answer_side)

    @property
    def nbytes(self) -> int:
        """Return the size of what it holds, each piece of memory counted once."""
        tensors = list(self.stream.values())
        for site in self.sites.values():
            tensors += [site.call.query, site.call.key, site.call.value, site.recorded_context, *(site.projected or ())]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(storages.values())

    @public
    def save(self, path: str | Path) -> None:
        """Write the trace to a file that opens without the model, by `Trace.load`."""
        save_trace(TraceContent(**{field.name: getattr(self, field.name) for field in fields(TraceContent)}), path)

    @staticmethod
    @public
    def load(path: str | Path, model: nn.Module | None = None, *, parts: Parts | None = None) -> "Trace":
        """Return a saved trace; with a `model`, the one it was made from. `parts` is as in `clearhead.load`."""
        content, inner = load_trace(path, model, parts=parts)
        return Trace(**vars(content), inner=inner)

    def with_notes(self, *notes: str) -> "Trace":
        return replace(self, notes=(*self.notes, *notes))


@public
def trace_model(
    model: nn.Module,
    *tokens: Tensor,
    segments: Tensor | None = None,
    changes: Sequence[Change | TextChange] = (),
    pieces: Mapping[str, Sequence[str]] | None = None,
) -> Trace:
    """Return the trace of one sequence of token ids; for an encoder-decoder, of a source and a target.

    Args:
        model: The model.
        tokens: Ids, `(1, n)`, for each side.
        segments: Segments of the tokens, for an encoder that has any.
        changes: Edits and swaps.
        pieces: The tokens as they are shown, by side; the ids if None.

    Returns:
        The trace.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> ch.tracing.trace_model(model, torch.tensor([[3, 1, 4]])).decoder[0].attention.head[0].weight.shape
    torch.Size([3, 3])
    """
    check_rows(tokens)
    made = changes_for(changes, model, tokens, segments)
    with eval_mode(model), recording(model, made) as record:
        run_to_output(model, tokens, made, segments)
    ids = {side: row[0].tolist() for side, row in zip(sides_of(model), tokens, strict=True)}
    return make_trace(model, record, ids, changes=made, pieces=pieces)


class ReachedOutput(Exception):
    """The end of a forward pass whose logits nobody reads."""


def run_to_output(
    model: nn.Module, tokens: Sequence[Tensor], changes: Sequence[Change], segments: Tensor | None = None
) -> None:
    """Run a model as far as its output, which the trace computes later, a few rows at a time (`likeliest`).

    Of 4,096 tokens and a vocabulary of 49,152 the logits alone would take 800 MB. Where a change is made inside the
    output, or the output is one row for the whole text, it runs.
    """
    apart = {} if segments is None else {"segments": segments}
    side, (_, part) = list(sides_of(model).items())[-1]
    changed = changes_output(side, changes)
    if part.output is None or part.spec.output is None or not part.spec.output.by_position or changed:
        model(*tokens, **apart)
        return

    def stop(*_: object) -> None:
        raise ReachedOutput

    hook = part.output.register_forward_pre_hook(stop)
    try:
        with contextlib.suppress(ReachedOutput):
            model(*tokens, **apart)
    finally:
        hook.remove()


def changes_output(side: str, changes: Sequence[Change]) -> bool:
    """Return whether a change is made inside the output of this side."""
    return any(change.at.startswith(f"{side}.output") for change in changes)


def make_trace(
    model: nn.Module,
    record: Recording,
    ids: Mapping[str, list[int]],
    *,
    row: int = 0,
    changes: Sequence[Change] = (),
    pieces: Mapping[str, Sequence[str]] | None = None,
) -> Trace:
    """Return the trace of one row of a record. If the batch has padding, `ids` may be shorter than the row."""
    parts = sides_of(model)
    if pieces and (missing := [side for side in parts if side not in pieces]):
        raise OptionError(
            f"pieces: expected the tokens as they are shown of {' and '.join(parts)}; there is no {missing[0]}"
        )
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
    inner = InnerValues(model, sites=sites, stream=stream, ids=ids, changes=changes)

    def answers() -> list[list[Candidate]]:
        if not changes_output(answering, changes):
            with alone_with(model):
                return likeliest(part, last, ids[answering])
        logits = inner.value(f"{answering}.output.logits")[: len(ids[answering])]
        return best_of(torch.log_softmax(logits.float(), -1))

    return Trace(
        kind={Encoder: "encoder", Decoder: "decoder", EncoderDecoder: "encoder-decoder"}[type(model)],
        sides=sides,
        sites=sites,
        stream=stream,
        notes=tuple(ran),
        changes=tuple(changes),
        answers=Answers(answers),
        origin=TraceOrigin.of(model),
        inner=inner,
        all_names=tuple(inner.names.all),
    )


def likeliest(part: Encoder | Decoder, last: Tensor, ids: Sequence[int]) -> list[list[Candidate]]:
    """Return the best answers of the last vectors, a few rows at a time; nothing if there is no output."""
    if part.output is None:
        return []
    candidates, n = [], len(ids)
    with eval_mode(part):
        lengths, tokens = torch.tensor([n], device=last.device), torch.tensor([ids], device=last.device)
        for start in range(0, n, ROWS):
            logits = apply_output(part, last[start : min(start + ROWS, n)].unsqueeze(0), lengths, tokens)
            by_sequence = logits.ndim == 2
            if by_sequence:
                logits = apply_output(part, last[:n].unsqueeze(0), lengths, tokens).unsqueeze(1)
            candidates += best_of(torch.log_softmax(logits[0].float(), -1))
            if by_sequence:
                break
    return candidates


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
