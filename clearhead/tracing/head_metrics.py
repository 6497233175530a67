"""Head metrics: what a head does in a few numbers, the logit lens, and head ablation.

All of them read a head's weights a block of rows at a time.

Spaces: the same tokens compared as embeddings, as queries with keys, and as values of one head.

An embedding knows everything about a word. A head maps it twice: into queries and keys, where words are near each other
if one should look at the other, and into values, where they are near if they say the same to the next layer.

>>> import torch
>>> from clearhead.model import presets
>>> from clearhead.tracing import trace_model
>>> trace = trace_model(presets.gpt2("tiny", vocabulary=50).build(), torch.tensor([[7, 7, 3]]))
>>> compare_spaces(trace, "decoder.0.attention", head=0).embedding.shape
torch.Size([3, 3])
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from clearhead.attention.layer import Attention
from clearhead.calls import public
from clearhead.decoding.generating import eval_mode
from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.model.transformers import Decoder, Encoder, Transformer, apply_output
from clearhead.tracing.edits import Change, Edit
from clearhead.tracing.names import sides_of
from clearhead.tracing.recording import alone_with, check_stopped
from clearhead.tracing.site import Head, Site, check_place, head_outputs
from clearhead.tracing.trace import ROWS, Candidate, Trace, best_of

NAMES: tuple[str, ...] = ("entropy", "distance", "first", "itself", "previous", "same", "induction")
SAMPLE = 16
"""Rows of a block where a head is read from some of its rows."""


@final
@dataclass(frozen=True, kw_only=True)
class Readings:
    """The metrics of one head, means over its queries.

    `itself`, `previous`, `same` and `induction` are means over the queries that may attend to such a key. They are None
    if no query may, or if queries and keys belong to different sequences.

    Attributes:
        entropy: In bits: 0 if each query looks at one key, log2 of the number of keys if it looks at all of them
            equally.
        distance: How many places away it looks.
        first: Weight on the first key (an attention sink); in self-attention without the first query.
        itself: Weight on the query's own place.
        previous: Weight on the token before.
        same: Weight on other occurrences of the query's token.
        induction: Weight on the tokens that followed those occurrences.
        gain: How many times as long as its contexts is what the head adds to the residual stream; None without the
            model, or if all contexts are 0.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> found = ch.tracing.readings(ch.tracing.trace_model(model, torch.tensor([[3, 1, 3, 1]])), "decoder.0.attention")
    >>> all(0 <= head.induction <= 1 for head in found)
    True
    """

    entropy: float
    distance: float
    first: float | None
    itself: float | None
    previous: float | None
    same: float | None
    induction: float | None
    gain: float | None = None


@torch.no_grad()
def read_head(head: Head, tokens: Sequence[int] | None, rows: int | None = None) -> Readings:
    """Return the metrics of a head; `tokens` are the ids of its sequence, None in cross-attention.

    With `rows`, only about that many queries of a long text are read: blocks of them, spread evenly.
    """
    n_query = head.site.n_query
    ids = None if tokens is None else torch.tensor(tokens, device=head.call.query.device)
    sums, counts = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0)
    sampled = rows is not None and n_query > max(rows, 2 * SAMPLE)
    for start, stop in sample_spans(n_query, rows or 0) if sampled else head.spans(range(n_query)):
        weight, allowed = head.rows(start, stop).weight, head.allowed(start, stop)
        rows_read = torch.arange(start, stop, device=weight.device)
        for name, (total, count) in sum_rows(weight, allowed, rows_read, ids).items():
            sums[name] += total
            counts[name] += count
    means = {name: sums[name] / counts[name] if counts[name] else None for name in NAMES}
    return Readings(
        entropy=means["entropy"] or 0.0,
        distance=means["distance"] or 0.0,
        first=means["first"],
        itself=means["itself"],
        previous=means["previous"],
        same=means["same"],
        induction=means["induction"],
    )


def sample_spans(n: int, rows: int) -> list[tuple[int, int]]:
    """Return blocks of SAMPLE rows each, about `rows` in all, from the first row to the last.

    >>> sample_spans(1000, 48)
    [(0, 16), (492, 508), (984, 1000)]
    """
    blocks = max(2, rows // SAMPLE)
    starts = [block * (n - SAMPLE) // (blocks - 1) for block in range(blocks)]
    return [(start, start + SAMPLE) for start in starts]


def sum_rows(
    weight: Float[Tensor, "query key"],
    allowed: Bool[Tensor, "query key"],
    rows: Int[Tensor, "query"],
    ids: Int[Tensor, "key"] | None,
) -> dict[str, tuple[float, int]]:
    """Return, for a block of rows, the sum of each metric and the number of rows it is over."""
    keys = torch.arange(weight.shape[1], device=weight.device)
    sums = weight.abs().sum(-1)
    attends = sums > 0
    share = weight / torch.where(attends, sums, 1).unsqueeze(-1)
    away = (rows.unsqueeze(1) - keys).abs()
    metrics = {
        "entropy": (torch.special.entr(share.abs()).sum().item() / math.log(2), int(attends.sum())),
        "distance": ((share.abs() * away).sum().item(), int(attends.sum())),
    }
    others = attends if ids is None else attends & (rows > 0)
    metrics["first"] = (weight[others, 0].sum().item(), int(others.sum()))
    if ids is None:
        return metrics
    same_token = (ids[rows].unsqueeze(1) == ids) & (away > 0)
    after = torch.zeros_like(same_token)
    after[:, 1:] = same_token[:, :-1] & (keys[1:] <= rows.unsqueeze(1))
    targets = {"itself": away == 0, "previous": rows.unsqueeze(1) - 1 == keys, "same": same_token, "induction": after}
    for name, target in targets.items():
        has = (target & allowed).any(-1)
        metrics[name] = (weight.masked_fill(~target, 0)[has].sum().item(), int(has.sum()))
    return metrics


@public
def readings(trace: Trace, site: Site | str, rows: int | None = None) -> list[Readings]:
    """Return the metrics of every head of a site.

    Args:
        trace: The trace.
        site: `trace.decoder[1].cross`, or its name.
        rows: Read only about this many queries of a long text: blocks of them, evenly spread.

    Returns:
        The metrics of each head.

    Raises:
        OptionError: If `rows` is not a number or None, or there is no such site.
    """
    site = trace[site] if isinstance(site, str) else site
    if rows is not None and not isinstance(rows, int):
        raise OptionError(f"rows: expected a whole number, or None for all; came {rows!r:.80}")
    tokens = None if site.slot == "cross" else trace.sides[site.side].ids
    gains = [None] * site.n_heads if trace.inner is None else output_gains(trace.inner.names.sites[site.name], site)
    return [replace(read_head(head, tokens, rows), gain=gains[head.index]) for head in site.head]


def output_gains(layer: Attention, site: Site) -> list[float | None]:
    """Return how many times as long as its contexts W_O makes each head; 1 without W_O, None where contexts are 0."""
    lengths = [context.norm().item() for context in site.context]
    added = [out.norm().item() for out in head_outputs(layer, site.context)]
    return [out / length if length else None for out, length in zip(added, lengths, strict=True)]


class Lens(NamedTuple):
    """The logit lens at one value of the residual stream: the answers if the model stopped there.

    Attributes:
        name: Name of the value.
        rows: For each position, the most likely answers.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> ch.tracing.lens(ch.tracing.trace_model(model, torch.tensor([[3, 1, 4]])), model)[0].name
    'decoder.embedding.out'
    """

    name: str
    rows: list[list[Candidate]]


@public
def lens(trace: Trace, model: Transformer, *, shown: int = 5) -> list[Lens]:
    """Return the next-token distribution after every layer (the logit lens): the last norm and unembedding applied to
    each.

    Args:
        trace: The trace.
        model: Its model.
        shown: How many of the most likely answers to return at each place.

    Returns:
        One lens for each value of the residual stream.

    Raises:
        OptionError: If `shown` is below 1, or the model answers nothing.
    """
    if shown < 1:
        raise OptionError(f"shown is how many likeliest answers to give, 1 or more; came {shown}")
    side = trace.answer_side
    part, ids = sides_of(model)[side][1], trace.sides[side].ids
    if part.output is None:
        raise OptionError("this model gives vectors and answers nothing, so there is nothing its layers would answer")
    last = f"{side}.normed"
    names = [name for name in trace.stream if name.startswith(f"{side}.") and name != f"{side}.embedding.token"]
    # A later name of a block takes the place of the earlier ones, so the last is left.
    ends = {tuple(name.split(".")[:2]): name for name in names if name.split(".")[1].isdigit()}
    read = [name for name in names if name.endswith("embedding.out") or name in ends.values()]
    with alone_with(model), eval_mode(part):
        lenses = [Lens(name, decode_stream(part, trace.value(name), ids, shown, normed=False)) for name in read]
        if last in names:
            lenses.append(Lens(last, decode_stream(part, trace.value(last), ids, shown, normed=True)))
    return lenses


def decode_stream(
    part: Encoder | Decoder, stream: Float[Tensor, "n d_model"], ids: Sequence[int], shown: int, *, normed: bool
) -> list[list[Candidate]]:
    """Return the likeliest answers, a few rows at a time; a class, which is made of all tokens, in one go."""
    assert part.output is not None
    assert part.spec.output is not None
    vectors = stream.unsqueeze(0)
    if part.stack.norm is not None and not normed:
        vectors = part.stack.norm(vectors)
    lengths = torch.tensor([len(stream)], device=stream.device)
    if not part.spec.output.by_position:
        logits = apply_output(part, vectors, lengths, torch.tensor([ids], device=stream.device))
        return [row[:shown] for row in best_of(torch.log_softmax(logits.float(), -1))]
    candidates = []
    for block in vectors.split(ROWS, 1):
        check_stopped()
        logits = part.output(block, torch.full_like(lengths, block.shape[1]))[0]
        candidates += [row[:shown] for row in best_of(torch.log_softmax(logits.float(), -1))]
    return candidates


class Effect(NamedTuple):
    """The effect of ablating a head: the change of the answer's log-probability, and how far all answers move.

    Attributes:
        head: Number of the head.

    >>> from clearhead.tracing import Effect
    >>> Effect(head=0, change=-0.5, divergence=0.1).change
    -0.5
    """

    head: int
    change: float
    """In nats, negative where the answer becomes less likely without the head; the mean over the places that answer."""
    divergence: float
    """Kullback-Leibler divergence from the answers with the head to those without: 0 where nothing changes."""


@public
def effects(
    model: Transformer,
    forward: Callable[[Sequence[Change]], Tensor],
    site: str,
    n_heads: int,
    changes: Sequence[Change] = (),
) -> list[Effect]:
    """Return the effect of ablating each head of a site.

    Args:
        model: The model.
        forward: Runs the model with changes and returns its logits.
        site: Name of the attention.
        n_heads: How many heads it has.
        changes: Changes that are made in any case.

    Returns:
        One effect for each head.

    Raises:
        OptionError: If `forward` does not return logits.
    """
    with eval_mode(model):
        unchanged = forward(changes)
        if not isinstance(unchanged, Tensor) or unchanged.ndim < 2:
            raise OptionError("forward: expected a function of the changes that returns logits, (…, n, vocabulary)")
        head_effects = []
        for head in range(n_heads):
            check_stopped()
            off = Edit(at=site, step="context", head=head, times=0.0)
            head_effects.append(Effect(head, *compare_answers(unchanged, forward([*changes, off]))))
    return head_effects


def compare_answers(unchanged: Tensor, without: Tensor) -> tuple[float, float]:
    """Return the change of the best answers' log-probability, and the divergence, a few rows of logits at a time.

    Both are means over rows. In double precision all of a long text's logits at once would take gigabytes.
    """
    change, moved, n = 0.0, 0.0, 0
    for before_logits, after_logits in zip(
        unchanged.flatten(0, -2).split(ROWS), without.flatten(0, -2).split(ROWS), strict=True
    ):
        wide = widest_float(before_logits.device)
        before, after = torch.log_softmax(before_logits.to(wide), -1), torch.log_softmax(after_logits.to(wide), -1)
        best = before.argmax(-1, keepdim=True)
        change += (after.gather(-1, best) - before.gather(-1, best)).sum().item()
        moved += (before.exp() * (before - after)).sum().item()
        n += len(before_logits)
    return change / n, moved / n


Table = Float[Tensor, "token token"]


@final
@dataclass(frozen=True, kw_only=True)
class Spaces:
    """Tables of the tokens at `places` against each other: cosines from -1 to 1, and the head's scores.

    Attributes:
        places: Places of the tokens.
        tokens: The tokens.
        embedding: Cosines of the token embeddings, without positions.
        query_key: Cosines of the row's query and the column's key, as they meet in the head (after rotary positions).
        score: The head's scores of the same.
        value: Cosines of the values.

    >>> import torch, clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> trace = ch.tracing.trace_model(model, torch.tensor([[3, 1, 4]]))
    >>> ch.tracing.compare_spaces(trace, "decoder.0.attention", 0).value.shape
    torch.Size([3, 3])
    """

    places: tuple[int, ...]
    tokens: tuple[str, ...]
    embedding: Table
    query_key: Table
    score: Table
    value: Table


@torch.no_grad()
@public
def compare_spaces(trace: Trace, site: str, head: int, places: Sequence[int] | None = None) -> Spaces:
    """Return how similar tokens are in the three spaces of a head of self-attention.

    Args:
        trace: A trace with its model.
        site: Name of the attention.
        head: Number of the head.
        places: Places of the tokens to compare; all if None.

    Returns:
        The tables.

    Raises:
        OptionError: If it is not self-attention, or there is no such place.
    """
    attention = trace[site]
    if attention.slot != "attention":
        raise OptionError(
            f"{site} attends from one text to another, so its tokens have queries or values, not both; choose a "
            "self-attention"
        )
    check_place(site, "head", head, attention.n_heads)
    indices = tuple(range(attention.n_query) if places is None else places)
    if not indices or not all(isinstance(index, int) and 0 <= index < attention.n_query for index in indices):
        actual = ", ".join(map(str, indices)) or "none"
        raise OptionError(f"places: expected one or more from 0 to {attention.n_query - 1}; came {actual}")
    rows, head_values = list(indices), attention.head[head]
    embedding, value = trace.value(f"{attention.side}.embedding.token")[rows], head_values.value[rows]
    return Spaces(
        places=indices,
        tokens=tuple(trace.sides[attention.side].tokens[index] for index in rows),
        embedding=cosines(embedding, embedding),
        query_key=cosines(head_values.query[rows], head_values.key[rows]),
        score=torch.cat([head_values.rows(index, index + 1).score[:, rows] for index in rows]),
        value=cosines(value, value),
    )


def cosines(rows: Float[Tensor, "row d"], columns: Float[Tensor, "column d"]) -> Float[Tensor, "row column"]:
    return F.normalize(rows.float(), dim=-1) @ F.normalize(columns.float(), dim=-1).T
