"""What a head copies and what it looks for, over the vocabulary: its OV and QK circuits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.circuits.vocabulary import BLOCK, SAMPLE, HeadVocabulary, TokenScore
from clearhead.errors import OptionError
from clearhead.serve.budget import FLOAT, JSON_OBJECT, Cost
from clearhead.serve.costs import LOGITS
from clearhead.serve.explorer import Explorer
from clearhead.serve.python_lines import load_lines
from clearhead.serve.questions.question import Question, bounded
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.answers import token_names

MOST_TOKENS = 50


class ScoredToken(TypedDict):
    id: int
    text: str
    score: float


class HeadTokens(TypedDict):
    """What a head does with a token, by the direct path from the embedding, without positions."""

    token: int
    text: str
    copies: list[ScoredToken]
    """The tokens whose logits it raises most where it attends to this one."""
    suppresses: list[ScoredToken]
    """Those that it lowers most."""
    seeks: list[ScoredToken]
    """The tokens whose keys fit the query of this one best."""
    copying: float | None
    """The share of tokens that are themselves among the five it raises most; null where it writes other tokens than it
    reads."""
    chance: float


@final
@dataclass(frozen=True, kw_only=True)
class AskVocabulary(Question[HeadTokens]):
    """What a head copies from a token, and what it looks for from there."""

    site: str
    head: int
    token: int
    most: int = bounded(10, least=1, below=MOST_TOKENS + 1)
    step: int | None = None

    def answer(self, explorer: "Explorer") -> HeadTokens:
        run = explorer.at(self.step)
        head = HeadVocabulary(run.model, self.site, self.head)
        vocabulary = head.answering.spec.vocabulary
        cost = Cost(cells=(SAMPLE + 2) * vocabulary // LOGITS, memory=3 * BLOCK * FLOAT + 3 * self.most * JSON_OBJECT)
        explorer.budget.check(cost, "comparing a head with the vocabulary", "use a run with a smaller vocabulary")
        tokenizers = [*run.task.tokenizers.values()]
        reads = tokenizers[0] if head.key_part is not head.answering else tokenizers[-1]
        writes, n = tokenizers[-1], head.key_part.spec.vocabulary
        if self.token >= n:
            raise OptionError(f"token is {self.token:,}, and must be 0 to {n - 1:,}")
        asks = head.part.spec.vocabulary > self.token
        return {
            "token": self.token,
            "text": token_names(reads, [self.token])[0],
            "copies": named(writes, head.copies(self.token, self.most)),
            "suppresses": named(writes, head.copies(self.token, self.most, largest=False)),
            "seeks": named(reads, head.seeks(self.token, self.most)) if asks else [],
            "copying": head.copying() if n == vocabulary else None,
            "chance": min(1.0, 5 / vocabulary),
        }

    def python(self, explorer: "Explorer") -> list[str]:
        head = f"head = ch.circuits.HeadVocabulary(run.model, {self.site!r}, {self.head})"
        asked = f"head.copies({self.token}, {self.most}), head.seeks({self.token}, {self.most}), head.copying()"
        return [*load_lines(explorer.at(self.step)), head, f"({asked})"]


def named(tokenizer: Tokenizer, found: Sequence[TokenScore]) -> list[ScoredToken]:
    """Return tokens with their words."""
    names = token_names(tokenizer, [one.id for one in found])
    return [{"id": one.id, "text": name, "score": one.score} for one, name in zip(found, names, strict=True)]
