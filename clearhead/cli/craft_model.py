"""A program compiled for a run: a task, a tokeniser of the program's symbols, and a model that takes its rows."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch

from clearhead.cli.craft_program import Ask
from clearhead.errors import OptionError
from clearhead.model.outputs import ToVocabulary
from clearhead.model.transformers import EncoderDecoder
from clearhead.rasp import CompiledModel, Layout, Plan, Program, plan
from clearhead.rasp.compiled_model import SURE
from clearhead.rasp.spaces import ONE
from clearhead.text.kinds import SPECIALS
from clearhead.text.tokenizer import Tokenizer

__all__ = ["GO", "Fitted", "fitted", "tokenizer_of"]

START, END = SPECIALS[2], SPECIALS[3]
GO = "<go>"
"""What a program that reads a source calls the token its answer begins from: in a run it is `<s>`."""
LAYOUTS = {
    "fill": {"target": Layout(sink=START, offset=1, beside=1), "source": Layout()},
    "generate": {"target": Layout(sink=END, offset=1), "source": Layout()},
    "translate": {"target": Layout(sink=START, offset=0), "source": Layout(sink=END, offset=0, beside=1)},
}
"""How a task's rows stand. To fill: `<s>`, the text, `</s>`. To generate: `</s>`, which opens a document, the text.
To translate: the source and `</s>`; the target, whose first token is `<s>` itself."""


@final
@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A crafted model whose ids are a tokeniser's, the plan it was built from, and the longest row of its task."""

    task: str
    plan: Plan
    tokenizer: Tokenizer
    crafted: CompiledModel
    context: int


def fitted(ask: Ask) -> Fitted:
    """The program as a model of a run."""
    program = ask.program
    both = program.source_vocabulary is not None
    task = "translate" if both else "generate" if program.causal else "fill"
    made = plan(
        program.output,
        program.vocabulary,
        length=program.length,
        source_vocabulary=program.source_vocabulary,
        causal=program.causal,
        weighting=ask.weighting,
        sharpness=ask.sharpness,
        layouts=LAYOUTS[task],
    )
    if both:
        check_begins(program, made)
    spoken = [token for token in program.vocabulary if not (both and token == GO)]
    tokenizer = tokenizer_of([*spoken, *(program.source_vocabulary or ())], made.answers)
    ids = ids_of(tokenizer)
    crafted = made.build(ids | {GO: ids[START]} if both else ids)
    say_nothing(crafted, made)
    return Fitted(
        task=task,
        plan=made,
        tokenizer=tokenizer,
        crafted=crafted,
        context=LAYOUTS[task]["target"].total(program.length),
    )


def check_begins(program: Program, made: Plan) -> None:
    """Refuses a target whose first token cannot be `<s>`: one that it lacks, or that is also the sink of a head."""
    why = None
    if GO not in program.vocabulary:
        why = f"its vocabulary has no {GO} for an answer to begin from"
    elif any(level.own for level in made.levels["target"]):
        why = "heads of its target need a token beside the text to attend to, and a run that translates has none"
    if why is not None:
        raise OptionError(f"{program.name} cannot be a run: {why}. `clearhead craft run {program.name}` runs it")


@torch.no_grad()
def say_nothing(crafted: CompiledModel, made: Plan) -> None:
    """Where a program gives nothing the model says `</s>`: half as much as it says an answer, and so only there."""
    if crafted.numeric:
        return
    part = crafted.model.decoder if isinstance(crafted.model, EncoderDecoder) else crafted.model
    assert isinstance(part.output, ToVocabulary)
    part.output.table[crafted.ids[END], made.directions.of(ONE)] = SURE


def tokenizer_of(vocabulary: Iterable[Any], answers: Iterable[Any]) -> Tokenizer:
    """A tokeniser of words: the special ones, the tokens of the text, and what else may come out."""
    words = [str(token) for token in vocabulary]
    spoken = [*words, *map(str, answers)]
    if taken := [symbol for symbol in spoken if symbol in SPECIALS]:
        raise OptionError(f"{taken[0]!r} is a special token of every run, so no program's own; call it otherwise")
    whole = json.loads(Tokenizer.train(["a"], "word", len(SPECIALS) + 1).to_json())
    whole["model"]["vocab"] = {symbol: place for place, symbol in enumerate(dict.fromkeys([*SPECIALS, *spoken]))}
    made = Tokenizer(json.dumps(whole))
    ids = ids_of(made)
    for word in words:
        if made.encode(word) != [ids[word]]:
            raise OptionError(f"{word!r} cannot be a word of a run's text: it is empty, or has a space in it")
    return made


def ids_of(tokenizer: Tokenizer) -> dict[str, int]:
    return json.loads(tokenizer.to_json())["model"]["vocab"]
