"""The last part of `clearhead demo`: a small encoder-decoder, whole and untrained, writing from the same sentence."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import RenderableType
from rich.text import Text

from clearhead.cli.screen import bar, number, prose, rule
from clearhead.cli.sentence import TOKENS
from clearhead.decoding import Beam, Hypothesis, Rules, generate, score
from clearhead.model import presets

__all__ = ["Writing", "as_object", "page", "write"]

Page = Iterator[RenderableType]

WORDS = ("<start>", "<end>", *TOKENS)
START, END = 0, 1
LENGTH, WIDTH, SHOWN = 6, 4, 3
CELL = 18
"""Columns of a candidate with its probability."""


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What the model wrote, greedily and by beam search, and how far the caches lead from the plain forward."""

    n_parameters: int
    greedy: Hypothesis
    beam: Sequence[Hypothesis]
    difference: float
    """The largest between log-probabilities on caches, and those of one forward over the whole output."""


@functools.cache
def write() -> Writing:
    """The same each time: its random numbers start from a seed of their own."""
    torch.manual_seed(0)
    model = presets.tiny(len(WORDS)).build()
    source = [[WORDS.index(word) for word in TOKENS]]
    rules, prefix = Rules(max_new=LENGTH, end=(END,)), [[START]]
    greedy = generate(model, source, rules=rules, prefix=prefix, candidates=SHOWN)[0][0]
    beam = generate(model, source, Beam(width=WIDTH, n_best=SHOWN), rules=rules, prefix=prefix)[0]
    forward = score(model, source, [greedy.tokens], prefix=prefix)[0]
    return Writing(
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        greedy=greedy,
        beam=beam,
        difference=max(abs(a - b) for a, b in zip(greedy.log_probs, forward.log_probs, strict=True)),
    )


def page(made: Writing) -> Page:
    yield rule("A whole model")
    yield prose(
        "The same attention in the classic Transformer: 4 encoder and 4 decoder blocks, 128 wide, "
        f"{made.n_parameters:,} parameters, drawn at random. It has learned nothing, so it writes nonsense; but all of "
        "it runs: tokens, embeddings, positions, encoder, decoder, search."
    )
    yield Text()
    yield Text.assemble(("  source  ", "quiet"), "  ".join(TOKENS))
    yield Text.assemble(("  ids     ", "quiet"), "  ".join(f"{WORDS.index(word):<{len(word)}}" for word in TOKENS))
    yield Text()
    yield prose("Greedy, the likeliest token each time; beside it the likeliest three and their probabilities.")
    yield Text()
    yield from (chosen(*step) for step in zip(made.greedy.tokens, made.greedy.candidates, strict=True))
    yield Text()
    yield prose(f"Beam search, {WIDTH} beginnings at a time, the best {SHOWN} by log-probability a token.")
    yield Text()
    for hypothesis in made.beam:
        yield Text.assemble((f"  {number(hypothesis.score, 3)}  ", "weight"), sentence(hypothesis.tokens))
    yield Text()
    yield prose(
        "Each new token was read once, on keys and values kept from before. One forward over the whole output gives "
        f"the same log-probabilities to [chosen]{made.difference:.0e}[/]."
    )
    yield prose("Go on:  clearhead describe tiny   clearhead describe base", style="quiet")
    yield Text()


def chosen(token: int, candidates: Sequence[tuple[int, float]]) -> Text:
    cells = []
    for word, log_prob in candidates:
        probability = torch.tensor(log_prob).exp().item()
        said = f"{WORDS[word]} {number(probability)}"
        cells += [(f"  {said:<{CELL}}", "chosen" if word == token else ""), (f"{bar(probability, 4):<4}", "weight")]
    return Text.assemble("  ", *cells)


def sentence(tokens: Sequence[int]) -> str:
    return " ".join(WORDS[token] for token in tokens)


def as_object(made: Writing) -> dict[str, Any]:
    return {
        "words": list(WORDS),
        "parameters": made.n_parameters,
        "greedy": hypothesis(made.greedy),
        "beam": [hypothesis(one) for one in made.beam],
        "largest_difference": made.difference,
    }


def hypothesis(one: Hypothesis) -> dict[str, Any]:
    return {"text": sentence(one.tokens), "tokens": one.tokens, "log_probs": one.log_probs, "score": one.score}
