"""How a tokenizer came to a token: the merges of BPE as a tree, the log-probability of Unigram's piece, the bytes.

>>> from clearhead.text.tokenizer import Tokenizer
>>> tokenizer = Tokenizer.train(["low lower lowest"] * 5, size=300)
>>> rules = MergeRules.of(tokenizer)
>>> [(node.text, node.left, node.right) for node in rules.tree("low")]
[('l', None, None), ('o', None, None), ('w', None, None), ('lo', 0, 1), ('low', 3, 2)]
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clearhead.text.kinds import SPACE
from clearhead.text.tokenizer import BYTE_OF, Tokenizer, from_byte_level, visible

LONGEST = 64
"""Characters of the longest token that is shown as a tree."""


class MergeNode(NamedTuple):
    """A part of a token: a character or byte, or two parts that were merged, by their places in the list.

    `rank` counts the merges in the order they were learned: the first has 0.
    """

    text: str
    left: int | None = None
    right: int | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class MergeRules:
    """What a tokenizer learned: `merges` with their ranks (BPE), or `scores`, log-probabilities of pieces (Unigram)."""

    model: str
    merges: Mapping[tuple[str, str], int]
    scores: Mapping[str, float]
    suffix: str
    byte_level: bool

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer) -> "MergeRules":
        config = json.loads(tokenizer.to_json())
        model, kind = config["model"], config["model"].get("type", "")
        # Files of older versions of the library write a pair as one text.
        pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model.get("merges", ()))
        scored = model["vocab"] if kind == "Unigram" else ()
        return MergeRules(
            model=kind,
            merges={(left, right): rank for rank, (left, right) in enumerate(pairs)},
            scores=dict(scored),
            suffix=model.get("end_of_word_suffix") or "",
            byte_level="ByteLevel" in json.dumps(config["decoder"]),
        )

    def tree(self, token: str) -> list[MergeNode] | None:
        """Return the parts of a token and their merges in order, the token last; None where merges do not make it.

        No merge crosses the border of a token, so those within it are the same whatever stands beside it.
        """
        body = token.removesuffix(self.suffix)
        if self.model != "BPE" or not 1 <= len(body) <= LONGEST:
            return None
        parts = [*body[:-1], token[len(body) - 1 :]]
        nodes = [MergeNode(self.shown(part)) for part in parts]
        node_ids = list(range(len(parts)))
        while len(parts) > 1:
            ranks = [self.merges.get((parts[i], parts[i + 1]), len(self.merges)) for i in range(len(parts) - 1)]
            rank = min(ranks)
            if rank == len(self.merges):
                return None
            first = ranks.index(rank)
            parts[first : first + 2] = [parts[first] + parts[first + 1]]
            nodes.append(MergeNode(self.shown(parts[first]), node_ids[first], node_ids[first + 1], rank))
            node_ids[first : first + 2] = [len(nodes) - 1]
        return nodes

    def shown(self, part: str) -> str:
        """Return a part of a token as people read it."""
        return "".join(map(visible, from_byte_level(part) if self.byte_level else part))

    def bytes_of(self, token: str) -> bytes:
        """Return the bytes of text that a token stands for."""
        if self.byte_level and all(sign in BYTE_OF for sign in token):
            return bytes(BYTE_OF[sign] for sign in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.removesuffix(self.suffix).replace(SPACE, " ").encode()
