"""The sequence diagram of the notes' sentence, whose head was set by hand: it needs no trained run."""

from dataclasses import dataclass
from typing import TypedDict, final

from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.question import Question, bounded
from clearhead.tracing.sentence import TOKENS, creature_exchange
from clearhead.tracing.sequence_diagram import draw_sequence


class Sentence(TypedDict):
    """The diagram of a token of the sentence, as an SVG element."""

    svg: str
    tokens: list[str]
    token: int


@final
@dataclass(frozen=True, kw_only=True)
class AskSentence(Question[Sentence]):
    """The sequence diagram of the notes' sentence."""

    token: int = bounded(TOKENS.index("creature"), below=len(TOKENS))

    def answer(self, explorer: "Explorer") -> Sentence:
        diagram = draw_sequence(creature_exchange(self.token), standalone=False)
        return {"tokens": list(TOKENS), "token": self.token, "svg": diagram}

    def python(self, explorer: "Explorer") -> list[str]:
        exchange = f"sentence.creature_exchange({self.token})"
        return ["from clearhead.tracing import sentence", "", f"sentence.draw_sequence({exchange}, standalone=False)"]
