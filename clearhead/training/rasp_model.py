"""A RASP program compiled for a run folder: its task, a tokeniser of its symbols, and a model that reads its rows."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch

from clearhead.attention.weighting import Weighting
from clearhead.errors import OptionError
from clearhead.model.outputs import ToVocabulary
from clearhead.rasp import CompiledModel, Program, ProgramPlan, TextLayout, plan
from clearhead.rasp.compiled_model import SURE
from clearhead.rasp.compiler import AVERAGING
from clearhead.rasp.spaces import ONE
from clearhead.text.kinds import SPECIALS
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import Fill, Generate, Translate

START, END = SPECIALS[2], SPECIALS[3]
GO = "<go>"
"""The token that the answer of a program with a source begins from: in a run it is `<s>`."""
LAYOUTS = {
    "encoder": {"target": TextLayout(sink=START, offset=1, beside=1), "source": TextLayout()},
    "decoder": {"target": TextLayout(sink=END, offset=1), "source": TextLayout()},
    "encoder-decoder": {"target": TextLayout(sink=START, offset=0), "source": TextLayout(sink=END, offset=0, beside=1)},
}
"""The layout of a row by the kind of model. Encoder: `<s>`, the text, `</s>`. Decoder: `</s>`, which opens a document,
then the text. Encoder-decoder: the source and `</s>`; the target, whose first token is `<s>` itself."""


@final
@dataclass(frozen=True, kw_only=True)
class ProgramModel:
    """A compiled model whose ids are a tokeniser's, the plan it was built from, and the longest row of its task."""

    task: str
    plan: ProgramPlan
    tokenizer: Tokenizer
    compiled: CompiledModel
    context: int


def compile_for_task(program: Program, *, weighting: Weighting = AVERAGING, sharpness: float = 1.0) -> ProgramModel:
    """Compile a program into a model of the task that fits it: translate with a source, generate if causal, else fill.

    Raises OptionError where no run can hold the program.
    """
    has_source = program.source_vocabulary is not None
    task = Translate if has_source else Generate if program.causal else Fill
    layouts = LAYOUTS[task.family]
    planned = plan(
        program.output,
        program.vocabulary,
        length=program.length,
        source_vocabulary=program.source_vocabulary,
        causal=program.causal,
        weighting=weighting,
        sharpness=sharpness,
        layouts=layouts,
    )
    if has_source:
        check_target_start(program, planned)
    words = [token for token in program.vocabulary if not (has_source and token == GO)]
    tokenizer = make_tokenizer([*words, *(program.source_vocabulary or ())], planned.answers)
    ids = token_ids(tokenizer)
    compiled = planned.build(ids | {GO: ids[START]} if has_source else ids)
    if not compiled.numeric:
        add_end_logit(compiled, planned)
    context = layouts["target"].total(program.length)
    return ProgramModel(task=task.name, plan=planned, tokenizer=tokenizer, compiled=compiled, context=context)


def check_target_start(program: Program, planned: ProgramPlan) -> None:
    """Refuse a target that cannot begin with `<s>`: it lacks `<go>`, or `<s>` would also be the sink of its heads."""
    reason = None
    if GO not in program.vocabulary:
        reason = f"its vocabulary has no {GO} for an answer to begin from"
    elif any(level.own for level in planned.levels["target"]):
        reason = "heads of its target need a token beside the text to attend to, and a run that translates has none"
    if reason is not None:
        raise OptionError(f"{program.name} cannot be a run: {reason}. `clearhead craft run {program.name}` runs it")


@torch.no_grad()
def add_end_logit(compiled: CompiledModel, planned: ProgramPlan) -> None:
    """Give `</s>` half the logit of an answer everywhere, so the model says it exactly where there is no answer."""
    part = compiled.model.stacks[-1]
    assert isinstance(part.output, ToVocabulary)
    part.output.table[compiled.ids[END], planned.directions.of(ONE)] = SURE


def make_tokenizer(vocabulary: Iterable[Any], answers: Iterable[Any]) -> Tokenizer:
    """Return a word tokeniser of the special tokens, the program's tokens, and its other answers."""
    words = [str(token) for token in vocabulary]
    symbols = [*words, *map(str, answers)]
    if reserved := [symbol for symbol in symbols if symbol in SPECIALS]:
        raise OptionError(f"{reserved[0]!r} is a special token of every run, so no program's own; call it otherwise")
    config = json.loads(Tokenizer.train(["a"], "word", len(SPECIALS) + 1).to_json())
    config["model"]["vocab"] = {
        symbol: token_id for token_id, symbol in enumerate(dict.fromkeys([*SPECIALS, *symbols]))
    }
    tokenizer = Tokenizer(json.dumps(config))
    ids = token_ids(tokenizer)
    for word in words:
        if tokenizer.encode(word) != [ids[word]]:
            raise OptionError(f"{word!r} cannot be a word of a run's text: it is empty, or has a space in it")
    return tokenizer


def token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return every token of a tokeniser with its id."""
    return json.loads(tokenizer.to_json())["model"]["vocab"]
