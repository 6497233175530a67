"""Word alignments of a translation from its cross-attention, in Moses format: `0-0 1-2` is source-target, from 0.

```
clearhead.training.align(run, "die Katze schläft", "the cat sleeps")      # 0-0 1-1 2-2
```
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.errors import OptionError
from clearhead.text.tokenizer import Span
from clearhead.tracing.inner import site_value
from clearhead.tracing.site import Site
from clearhead.tracing.trace import trace_model
from clearhead.training.run import Run, as_run
from clearhead.training.tasks import Translate

WORD = re.compile(r"\S+")
UNITS = ("words", "tokens")


@final
class Alignment(NamedTuple):
    """Pairs of a source and a target number, in the order of the target; printed, they are in Moses format."""

    pairs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


@public
def align(
    run: Run | str | Path,
    source: str,
    target: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    by: str = "words",
) -> Alignment:
    """Return for each word of the target the source word that its cross-attention weighs most; None: its translation.

    `layer` and `head` choose the weights, counted from 0; by default they are the mean of all. The weights of a target
    token are those of the step that writes it. Special tokens of the source are left out. By words, which blanks
    separate, weights are added up over the tokens of a source word and averaged over those of a target word; with
    `by="tokens"` every token counts alone. A text longer than the model reads is cut.
    """
    run = as_run(run)
    task = run.asked(Translate)
    if by not in UNITS:
        raise OptionError(f"by: alignments are of {' or '.join(UNITS)}; came {by!r}")
    texts = {"source": source, "target": run.translate([source])[0] if target is None else target}
    spans = {field: task.tokenizers[field].spans(text)[: task.reads] for field, text in texts.items()}
    if not spans["source"] or not spans["target"]:
        return Alignment(())
    ids = {field: [span.id for span in tokens] for field, tokens in spans.items()}
    frames = {field: task.frame(field) for field in ids}
    rows = frames["source"].around(ids["source"]), [*frames["target"].before, *frames["target"].opening, *ids["target"]]
    device = next(run.model.parameters()).device
    traced = trace_model(run.model, *(torch.tensor([row], device=device) for row in rows))
    weight = mean_weight([site for name, site in traced.sites.items() if name.endswith(".cross")], layer, head)
    first_key = len(frames["source"].before) + len(frames["source"].opening)
    first_query = len(rows[1]) - len(ids["target"]) - 1  # the position before a token is the one that predicts it
    weight = weight[first_query : first_query + len(ids["target"]), first_key : first_key + len(ids["source"])]
    if by == "words":
        read, written = (word_matrix(texts[field], tokens).to(weight) for field, tokens in spans.items())
        weight = written.T @ weight @ read / written.sum(0).clamp(min=1).unsqueeze(1)
    best = weight.argmax(-1).tolist()
    return Alignment(tuple((key, query) for query, key in enumerate(best) if weight[query, key] > 0))


def mean_weight(sites: Sequence[Site], layer: int | None, head: int | None) -> Float[Tensor, "query key"]:
    """Return the weights of one head, or the mean over heads or layers that are not named."""
    for name, number, count in (("layer", layer, len(sites)), ("head", head, min(site.n_heads for site in sites))):
        if number is not None and not 0 <= number < count:
            raise OptionError(f"{name}: there are {count}, counted from 0; came {number}")
    chosen = sites if layer is None else [sites[layer]]
    weights = [site_value(site, "weight").float() for site in chosen]
    return torch.stack([every.mean(0) if head is None else every[head] for every in weights]).mean(0)


def word_matrix(text: str, spans: Sequence[Span]) -> Float[Tensor, "token word"]:
    """Return 1 where a token is of a word, each token of the first word that it has characters of."""
    words = [match.span() for match in WORD.finditer(text)]
    matrix = torch.zeros(len(spans), len(words))
    for row, span in zip(matrix, spans, strict=True):
        inside = (number for number, (start, stop) in enumerate(words) if span.start < stop and span.stop > start)
        if (word := next(inside, None)) is not None:
            row[word] = 1
    return matrix
