"""Many texts: readings and effects of heads as means with their scatter, and the texts that excite a value most.

```
texts = "held-out.txt"                                   # a file, a line each; a list; ch.experiments.repeats(run)
found = ch.experiments.mean_readings(run, texts)
found["decoder.1.attention"]["induction"].mean           # a number for each head
```
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.errors import OptionError, unreadable
from clearhead.experiments.tracing import trace
from clearhead.tracing import Effect, Readings, Trace, effects, readings, recording, trace_model
from clearhead.tracing.names import names_of
from clearhead.tracing.recording import check_stopped
from clearhead.tracing.site import head_outputs
from clearhead.training.run import Run, as_run

MOST_TEXTS = 1000
"""The most texts that are read of a file."""
Text: TypeAlias = str | list[int]
"""A text, or the ids of its tokens."""
TextSource: TypeAlias = str | Path | Sequence[Text]
"""Texts, or a file with one a line."""


class Scatter(NamedTuple):
    """The mean of a number over texts, its standard deviation, and how many texts have it; one for each head."""

    mean: Float[Tensor, "head"]
    deviation: Float[Tensor, "head"]
    n_texts: Float[Tensor, "head"]


Scatters: TypeAlias = dict[str, Scatter]
"""By the name of a metric."""


class ExcitingText(NamedTuple):
    """A text, the place where a value is largest in it, and that value."""

    value: float
    text: Text
    place: int
    token: str


@public
def repeats(run: Run | str | Path, *, count: int = 20, length: int = 24, seed: int = 0) -> list[list[int]]:
    """Return rows of random tokens that are repeated once: the second half can be predicted from the first.

    Induction heads are found with them. A special token comes first if the model reads one.

    Args:
        run: A run, or the path of its folder.
        count: Rows.
        length: Tokens before the repeat.
        seed: Random seed.

    Returns:
        Rows of ids.

    Raises:
        OptionError: If the model cannot read texts of that length.
    """
    run = as_run(run)
    tokenizer = run.tokenizer
    if run.task.target == "writes" or 2 * length > run.task.context:
        raise OptionError(f"{run.folder.path} does not read one text of {2 * length} tokens, as repeats are")
    draw = torch.Generator().manual_seed(seed)
    usable = torch.tensor([token for token in range(tokenizer.vocabulary) if token not in tokenizer.special])
    rows = usable[torch.randint(len(usable), (count, length), generator=draw)]
    return [[*run.task.frame().before, *row, *row] for row in rows.tolist()]


def traces_of(run: Run, texts: TextSource) -> Iterator[tuple[Text, Trace]]:
    """Yield each text with its trace: one is held at a time."""
    for text in read_texts(texts):
        check_stopped()
        if isinstance(text, str):
            yield text, trace(run, text)
        else:
            device = next(run.model.parameters()).device
            yield text, trace_model(run.model, torch.tensor([text], device=device))


def read_texts(texts: TextSource) -> Iterable[Text]:
    """Return texts, those of a file line by line; blank lines are left out."""
    if isinstance(texts, str | Path):
        path = Path(texts)
        if not path.is_file():
            raise OptionError(f"texts: expected a list of texts, or a file with one a line; there is no file {path}")
        with unreadable(path, UnicodeDecodeError, error=OptionError), path.open(encoding="utf-8") as lines:
            texts = list(islice((line.strip() for line in lines if line.strip()), MOST_TEXTS))
    if not texts:
        raise OptionError("texts: expected at least one; came none")
    return texts


def scatter(rows: Sequence[Sequence[float | None]]) -> Scatter:
    """Return mean and standard deviation over texts, a column for each head; None is left out.

    >>> scatter([[1.0, None], [3.0, 4.0]]).mean.tolist()
    [2.0, 4.0]
    """
    table = torch.tensor([[math.nan if x is None else x for x in row] for row in rows], dtype=torch.float64)
    mean = table.nanmean(0)
    spread = (table - mean).square().nanmean(0).sqrt()
    return Scatter(mean, spread, table.isfinite().sum(0).double())


def over_texts(
    run: Run | str | Path, texts: TextSource, sites: Sequence[str], read: Callable[[Run, Trace, str], Sequence[Any]]
) -> dict[str, list[Sequence[Any]]]:
    """Return, for each site, what is read of its heads in each text."""
    run = as_run(run)
    names = sites or list(names_of(run.model).sites)
    found: dict[str, list[Sequence[Any]]] = {name: [] for name in names}
    for _, traced in traces_of(run, texts):
        for name in names:
            found[name].append(read(run, traced, name))
    return found


@public
def mean_readings(
    run: Run | str | Path, texts: TextSource, *, sites: Sequence[str] = (), rows: int | None = None
) -> dict[str, Scatters]:
    """Return the metrics of every head as means over texts, with their scatter: `found[site]["induction"].mean`.

    Args:
        run: A run, or the path of its folder.
        texts: Texts, rows of ids, or a file with one text per line.
        sites: Names of attentions; all if empty.
        rows: As in `ch.tracing.readings`.

    Returns:
        By site and metric, the mean and the scatter for each head.
    """
    found = over_texts(run, texts, sites, lambda run, traced, site: readings(traced, site, rows))
    return {site: columns(per_text, [field.name for field in fields(Readings)]) for site, per_text in found.items()}


@public
def mean_effects(run: Run | str | Path, texts: TextSource, *, sites: Sequence[str] = ()) -> dict[str, Scatters]:
    """Return the effects of ablating each head as means over texts, with scatter: `found[site]["change"].mean`.

    Args:
        run: A run, or the path of its folder.
        texts: Texts, rows of ids, or a file with one text per line.
        sites: Names of attentions; all if empty.

    Returns:
        By site and metric, the mean and the scatter for each head.
    """
    found = over_texts(run, texts, sites, effects_in)
    return {site: columns(per_text, ["change", "divergence"]) for site, per_text in found.items()}


def effects_in(run: Run, traced: Trace, site: str) -> list[Effect]:
    device = next(run.model.parameters()).device
    tokens = [torch.tensor([side.ids], device=device) for side in traced.sides.values()]

    def forward(changes: Sequence[Any]) -> Tensor:
        with recording(run.model, changes):
            return run.model(*tokens)

    return effects(run.model, forward, site, traced[site].n_heads)


def columns(per_text: Sequence[Sequence[Any]], names: Sequence[str]) -> Scatters:
    """Return the scatter of each number by its name."""
    return {name: scatter([[getattr(head, name) for head in heads] for heads in per_text]) for name in names}


@public
def exciting_texts(
    run: Run | str | Path, texts: TextSource, at: str, index: int, *, most: int = 10
) -> list[ExcitingText]:
    """Return the texts in which a unit or a head is most active, with the token where it is.

    Args:
        run: A run, or the path of its folder.
        texts: Texts, rows of ids, or a file with one text per line.
        at: The value that has the unit, `decoder.1.feed_forward.hidden`, or an attention.
        index: Number of the unit or head. A head's activity is the length of the vector that it adds to the residual
            stream.
        most: How many texts to return.

    Returns:
        The texts, most active first.
    """
    run = as_run(run)
    names = names_of(run.model)
    best: list[tuple[float, int, ExcitingText]] = []
    for number, (text, traced) in enumerate(traces_of(run, texts)):
        strength = head_strength(traced, at, index) if at in names.sites else unit_strength(traced, at, index)
        value, place = strength.max(0)
        token = traced.sides[at.partition(".")[0]].tokens[int(place)]
        heapq.heappush(best, (float(value), -number, ExcitingText(float(value), text, int(place), token)))
        if len(best) > most:
            heapq.heappop(best)
    return [found for _, _, found in sorted(best, reverse=True)]


def head_strength(traced: Trace, site: str, head: int) -> Float[Tensor, "n"]:
    found = traced[site].head[head].site  # raises for a head that is not there
    assert found.attention is not None
    [*added] = head_outputs(found.attention, found.context.to(next(found.attention.parameters()).dtype))
    return added[head].norm(dim=-1)


def unit_strength(traced: Trace, name: str, unit: int) -> Float[Tensor, "n"]:
    value = traced.value(name)
    if value.ndim != 2 or not 0 <= unit < value.shape[-1]:
        raise OptionError(f"{name}: there is no unit {unit}; a value of {tuple(value.shape)} came")
    return value[:, unit]
