"""The OV and QK circuits of a head over the vocabulary: what it copies, and what it looks for.

Both take the direct path: a token's embedding, without a position and without what earlier layers would add, goes
through the norms in front of the head and through its maps. What a head *copies* from a token is what its values and
W_O then add to the logits, through the last norm as if nothing else were in the stream. What it *looks for* is which
tokens' keys fit a token's query. Vocabulary times vocabulary is never made: a row, or a block of rows, at a time.

>>> from clearhead.circuits import HeadVocabulary
>>> from clearhead.model import presets
>>> head = HeadVocabulary(presets.gpt2("tiny", vocabulary=20).build().eval(), "decoder.0.attention", 1)
>>> [len(found) for found in (head.copies(3, 5), head.seeks(3, 5))], 0 <= head.copying() <= 1
([5, 5], True)
"""

from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.attention.positions import NoPosition
from clearhead.attention.request import AttentionOptions
from clearhead.calls import public
from clearhead.circuits.forward import still
from clearhead.errors import OptionError, PlaceError
from clearhead.model.transformers import Decoder, Encoder, Transformer
from clearhead.tracing.names import names_of
from clearhead.tracing.recording import check_stopped
from clearhead.tracing.site import head_outputs

BLOCK = 1 << 22
"""Numbers of a block of rows: 16 MB of float32."""
SAMPLE = 1000
"""Tokens that the copying score is over, spread evenly over the vocabulary."""


class TokenScore(NamedTuple):
    """A token, and how much its logit changes or how well its key fits."""

    id: int
    score: float


@final
@public
class HeadVocabulary:
    """The OV and QK circuits of a head, asked by single tokens.

    Args:
        model: The model.
        site: Name of the attention.
        head: Number of the head.

    Raises:
        PlaceError: If there is no such head.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build().eval()
    >>> len(ch.circuits.HeadVocabulary(model, "decoder.1.attention", 0).copies(3, 5))
    5
    """

    def __init__(self, model: Transformer, site: str, head: int) -> None:
        names = names_of(model)
        names.check_site(site)
        self.model, self.site, self.head, self.layer = model, site, head, names.sites[site]
        if not isinstance(head, int) or not 0 <= head < self.layer.shape.n_heads:
            raise PlaceError(f"{site}: there is no head {head!r:.60}; there are {self.layer.shape.n_heads}, from 0")
        side, number, self.slot = site.split(".")
        self.part: Encoder | Decoder = names.sides[side][1]
        self.key_part = names.sides["encoder"][1] if self.slot == "cross" else self.part
        self.answering = names.sides[list(names.sides)[-1]][1]
        around = getattr(self.part.stack.blocks[int(number)], f"around_{self.slot}")
        before = [step.box for step in around.steps].index("branch")
        self.norms = [getattr(around, step.module) for step in around.steps[:before] if step.box == "norm"]

    @public
    def copies(self, token: int, most: int = 10, *, largest: bool = True) -> list[TokenScore]:
        """Return the tokens whose logits the head raises most where it attends to this one; or lowers most."""
        [changes] = self.logits_of(self.check(token, self.key_part))
        return best(changes, most, largest=largest)

    @public
    def seeks(self, token: int, most: int = 10) -> list[TokenScore]:
        """Return the tokens whose keys fit the query of this one best, by the scaled score without positions."""
        return best(self.scores_of(self.check(token, self.part)), most, largest=True)

    @public
    def copying(self, most: int = 5, tokens: int = SAMPLE) -> float:
        """Return the copying score: the share of tokens that are themselves among the `most` that the head raises.

        By chance it is `most` over the size of the vocabulary.
        """
        n, own = self.key_part.spec.vocabulary, self.answering.spec.vocabulary
        if n != own:
            raise OptionError(
                f"{self.site} reads {n} tokens and answers with {own}: nothing can be copied between them"
            )
        ids = torch.linspace(0, n - 1, min(tokens, n)).long().unique()
        hits = 0
        for part in ids.split(max(1, BLOCK // own)):
            check_stopped()
            top = self.logits_of(part).topk(min(most, own), -1).indices.cpu()
            hits += int((top == part.unsqueeze(-1)).any(-1).sum())
        return hits / len(ids)

    def check(self, token: int, part: Encoder | Decoder) -> Tensor:
        if not isinstance(token, int) or not 0 <= token < part.spec.vocabulary:
            raise OptionError(f"token {token!r:.60}: expected a number below {part.spec.vocabulary}")
        return torch.tensor([token])

    def logits_of(self, tokens: Tensor) -> Float[Tensor, "token answer"]:
        """Return what each token, attended to with weight 1, adds to every logit."""
        part = self.answering
        if part.output is None or part.spec.output is None or not part.spec.output.by_position:
            raise OptionError("this model does not answer with a token at each place, so no head can copy one")
        with still(self.model):
            values = self.layer.value(self.keys_read(tokens))[0]
            group = self.head * len(values) // self.layer.shape.n_heads
            context = values.new_zeros(self.layer.shape.n_heads, *values.shape[1:])
            context[self.head] = values[group]
            [*written] = head_outputs(self.layer, context)
            vectors = written[self.head]
            if part.stack.norm is not None and hasattr(part.stack.norm, "freeze"):
                vectors = part.stack.norm.freeze(vectors).carry(vectors)  # pyright: ignore
            logits = part.output(vectors.unsqueeze(0), None)[0]
            return logits - part.output(torch.zeros_like(vectors[None, :1]), None)[0]

    def scores_of(self, token: Tensor) -> Float[Tensor, "key_token"]:
        """Return the scaled score of a token's query with the key of every token."""
        with still(self.model):
            query = self.layer.query(self.embed(self.part, token, own=True))
            options = AttentionOptions(self.layer.similarity, self.layer.weighting, NoPosition(), None)
            scores = []
            for part in torch.arange(self.key_part.spec.vocabulary).split(max(1, BLOCK // self.layer.d_model)):
                check_stopped()
                key = self.layer.key(self.keys_read(part))
                call = options.inputs((query, key, self.layer.value(self.keys_read(part)))).with_every_head()
                one, other = call.similarity.prepare(call.query, call.key)
                scores.append((call.similarity.score(one, other) * call.scale)[0, self.head, 0])
        return torch.cat(scores)

    def keys_read(self, tokens: Tensor) -> Float[Tensor, "1 token d_model"]:
        """Return what keys and values are made of: in cross-attention, what the encoder gives without its layers."""
        return self.embed(self.key_part, tokens, own=self.slot != "cross")

    def embed(self, part: Encoder | Decoder, tokens: Tensor, *, own: bool) -> Float[Tensor, "1 token d_model"]:
        """Return embeddings of tokens after the norms on the way, without positions."""
        x = part.embedding.table[tokens.to(part.embedding.table.device)].unsqueeze(0) * part.embedding.factor
        last = [] if own or part.stack.norm is None else [part.stack.norm]
        norms = [part.embedding.norm] if part.embedding.norm is not None else []
        for norm in (*norms, *(self.norms if own else last)):
            x = norm(x)
        return x


def best(scores: Float[Tensor, "token"], most: int, *, largest: bool) -> list[TokenScore]:
    values, ids = scores.topk(min(most, len(scores)), largest=largest)
    return [TokenScore(*pair) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
