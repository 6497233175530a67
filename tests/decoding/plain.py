"""Decoding in plain Python, straight from its definition: no cache, no batch, every sequence alone and read anew."""

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.decoding import Beam, Rules, generate, score, stream
from clearhead.model.transformers import Decoder, EncoderDecoder
from tests.decoding.rows import Rows

TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Case:
    """A model, and what it is asked to go on from: prompts of any lengths, beside sources if it has an encoder."""

    model: Decoder | EncoderDecoder
    prompts: list[list[int]]
    sources: list[list[int]] | None = None
    made: dict[object, Any] = field(default_factory=dict)

    def only(self, rows) -> "Case":
        return Case(self.model, [self.prompts[i] for i in rows], self.sources and [self.sources[i] for i in rows])

    def asked(self) -> dict[str, Any]:
        return {"inputs": self.prompts} if self.sources is None else {"inputs": self.sources, "prefix": self.prompts}

    def generate(self, method, rules, candidates=0):
        """What the model writes; computed once, as several laws look at the same."""
        key = (method, rules, candidates)
        if key not in self.made:
            self.made[key] = generate(self.model, method=method, rules=rules, candidates=candidates, **self.asked())
        return self.made[key]

    def stream(self, method, rules, candidates=0):
        return stream(self.model, method=method, rules=rules, candidates=candidates, **self.asked())

    def score(self, outputs):
        return score(self.model, outputs=outputs, **self.asked())

    def session(self):
        return Rows(self.model, self.prompts, self.sources)

    def after(self, tokens: list[list[int]]) -> "Case":
        """With these tokens after the prompts."""
        longer = [[*prompt, *more] for prompt, more in zip(self.prompts, tokens, strict=True)]
        return Case(self.model, longer, self.sources)

    @torch.no_grad()
    def logits(self, row: int, outputs: list[list[int]]) -> Tensor:
        """Of the token after the prompt of this row, and after each token of every output; all of one length."""
        tokens = torch.tensor([[*self.prompts[row], *output] for output in outputs])
        if self.sources is None:
            logits = self.model(tokens)
        else:
            memory = self.memory(row)
            logits = self.model.decoder(tokens, memory=memory.expand(len(tokens), -1, -1))
        return logits[:, len(self.prompts[row]) - 1 :]

    def memory(self, row: int) -> Tensor:
        """What the encoder makes of the source of this row alone."""
        assert self.model.encoder is not None
        assert self.sources is not None
        if row not in self.made:
            self.made[row] = self.model.encoder(torch.tensor([self.sources[row]]))
        return self.made[row]

    def log_probs(self, row: int, outputs: list[list[int]]) -> Tensor:
        return torch.log_softmax(self.logits(row, outputs), -1)


class Output(NamedTuple):
    """A whole output, and what it is worth."""

    tokens: tuple[int, ...]
    score: float
    ended: bool


class Found(NamedTuple):
    """What a plain search found; `clear` unless equally good beginnings were left out, where others may find others."""

    outputs: list[Output]
    clear: bool


def beam_search(case: Case, row: int, method: Beam, rules: Rules, *, stops: bool = True) -> Found:
    """As `Beam` says; without `stops` it goes on to the greatest length whatever has ended."""
    live, ended, clear = [((), 0.0)], [], True
    for length in range(1, rules.max_new + 1):
        log_probs = case.log_probs(row, [list(tokens) for tokens, _ in live])[:, -1].tolist()
        found = [
            ((*tokens, token), total + log_prob)
            for (tokens, total), row_of_log_probs in zip(live, log_probs, strict=True)
            for token, log_prob in enumerate(row_of_log_probs)
        ]
        found.sort(key=lambda pair: pair[1], reverse=True)
        for tokens, total in found[: method.width]:
            if length == rules.max_new or tokens[-1] in rules.end:
                ended.append(Output(tokens, total / length**method.length_penalty, tokens[-1] in rules.end))
        ended = sorted(ended, key=lambda output: output.score, reverse=True)[: method.width]
        going = [(tokens, total) for tokens, total in found if tokens[-1] not in rules.end]
        live = going[: method.width]
        clear = clear and not tied(found, method.width) and not tied(going, method.width)
        if stops and len(ended) == method.width and is_done(live, ended, length, method, rules):
            break
    return Found(ended[: method.n_best], clear)


def tied(found: list[tuple[tuple[int, ...], float]], count: int) -> bool:
    """Whether the last of the first so many is as good as the next."""
    return len(found) > count and found[count - 1][1] - found[count][1] < 1e-7


def is_done(live, ended, length: int, method: Beam, rules: Rules) -> bool:
    lengths = range(length, rules.max_new + 1) if method.stop == "exact" else [length]
    reach = max(live[0][1] / n**method.length_penalty for n in lengths)
    return method.stop == "early" or reach <= ended[-1].score


def every_output(case: Case, row: int, method: Beam, rules: Rules, vocabulary: int) -> list[Output]:
    """All outputs there can be, the best first: those that end, and those of the greatest length that do not."""
    others = [token for token in range(vocabulary) if token not in rules.end]
    beginnings = [list(tokens) for tokens in product(others, repeat=rules.max_new - 1)]
    log_probs = case.log_probs(row, beginnings).tolist()
    totals: dict[tuple[int, ...], float] = {}
    for tokens, after in zip(beginnings, log_probs, strict=True):
        total = 0.0
        for n, table in enumerate(after):
            last = range(vocabulary) if n + 1 == rules.max_new else rules.end
            totals |= {(*tokens[:n], token): total + table[token] for token in last}
            total += table[tokens[n]] if n < len(tokens) else 0.0
    made = [
        Output(tokens, total / len(tokens) ** method.length_penalty, tokens[-1] in rules.end)
        for tokens, total in totals.items()
    ]
    return sorted(made, key=lambda output: output.score, reverse=True)


def apart(what: str, mine, wanted) -> list[str]:
    """What is said where two rows of numbers differ by more than the tolerance; nothing where they do not."""
    mine, wanted = (torch.as_tensor(side, dtype=torch.float64) for side in (mine, wanted))
    if mine.shape != wanted.shape:
        return [f"{what}: {tuple(mine.shape)}, not {tuple(wanted.shape)}"]
    if not mine.numel():
        return []
    off = (mine - wanted).abs().max().item()
    allowed = TOLERANCE * max(1.0, wanted.abs().max().item())
    return [] if off <= allowed else [f"{what}: {off:.1e} apart"]


def unlike(what: str, mine, wanted) -> list[str]:
    """What is said where two hypotheses, or a hypothesis and an `Output`, differ. Equally good ones may stand for each
    other: a model that sees one token back, say, gives `a a b a` after `a` what it gives `a b a a`."""
    found = apart(f"{what}: {mine.tokens}, not {wanted.tokens}, by its score", mine.score, wanted.score)
    if mine.tokens == wanted.tokens and hasattr(wanted, "log_probs"):
        found += apart(f"{what}: {mine.tokens}, its log-probabilities", mine.log_probs, wanted.log_probs)
    same_end = mine.tokens != wanted.tokens or mine.ended == wanted.ended
    return found if same_end else [*found, f"{what}: {mine.tokens} has ended or has not"]


def all_unlike(what: str, mine, wanted) -> list[str]:
    """The same for the hypotheses of one sentence, the best first."""
    if len(mine) != len(wanted) or len({hypothesis.tokens for hypothesis in mine}) != len(wanted):
        return [f"{what}: {[hypothesis.tokens for hypothesis in mine]}, not {len(wanted)} different hypotheses"]
    pairs = enumerate(zip(mine, wanted, strict=True))
    return [said for place, (one, other) in pairs for said in unlike(f"{what}, hypothesis {place}", one, other)]


def kept(logits: list[float], *, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0) -> dict[int, float]:
    """The tokens a sample is drawn from, and the probability of each: the cuts of `Sample` in plain Python."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[:top_k]
    order = order[: fewest(shares(logits, order, temperature), top_p)] if top_p < 1 else order
    share = shares(logits, order, temperature)
    order = [token for token, own in zip(order, share, strict=True) if own >= min_p * share[0]]
    return dict(zip(order, shares(logits, order, temperature), strict=True))


def shares(logits: list[float], tokens: list[int], temperature: float) -> list[float]:
    best = max(logits[token] for token in tokens)
    amounts = [math.exp((logits[token] - best) / temperature) for token in tokens]
    return [amount / sum(amounts) for amount in amounts]


def fewest(share: list[float], top_p: float) -> int:
    """How many of the likeliest it takes to reach `top_p`."""
    reached = 0.0
    for count, own in enumerate(share, 1):
        reached += own
        if reached >= top_p:
            return count
    return len(share)
