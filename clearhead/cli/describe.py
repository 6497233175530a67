"""`clearhead describe`: what a model is made of. Parameters, operations and memory, by part."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from itertools import groupby
from typing import Annotated, Any

import torch
import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from clearhead.cli.model_facts import LENGTH, VOCABULARY, ModelFacts, Purpose, gather_facts
from clearhead.cli.options import Parts
from clearhead.cli.progress import scores_said
from clearhead.cli.scaling_options import RateOptions, ScalingOptions, plan_training
from clearhead.cli.scaling_page import training_object, training_page
from clearhead.cli.screen import prose, rule, show, show_json
from clearhead.model.blocks import AttentionSpec
from clearhead.model.describe import Description, Part, Section, block_name
from clearhead.model.sizes import KINDS, kind_of
from clearhead.model.spec_json import spec_to_json
from clearhead.model.transformers import DecoderSpec, EncoderSpec
from clearhead.training.metrics import replace_nonfinite

__all__ = ["EXAMPLES", "describe"]

EXAMPLES = """\b
Examples:
  clearhead describe base
  clearhead describe runs/demo
  clearhead describe runs/demo/recipe.json
  clearhead describe gpt2-medium --target 1024
  clearhead describe decoder --size 10M --vocabulary 8000
  clearhead describe llama-7b --gpus 64 --target 4096 --train-tokens 1T
  clearhead describe bert --json"""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MEMORY = {
    "parameters": "parameters",
    "cache, each token": "token",
    "cache, each source token": "source_token",
    "cache, at most or fixed": "fixed",
}
"""What is printed of the memory, and its name there."""
NAME, NUMBER, SHARE = 28, 16, 8
"""Columns of a part's name, of a number, and of its share of the whole."""
PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def length_option(whose: str) -> Any:
    said = f"Length of the {whose}, in tokens.  [default: a run's context, or {LENGTH}]"
    return typer.Option(min=1, help=said, metavar="N")


def describe(
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder, a JSON file with a spec or a recipe, a preset (tiny, base, big, gpt2, bert-large, "
            f"llama-1b, …), or with --size: {', '.join(KINDS)}.",
            metavar="MODEL",
        ),
    ],
    *,
    size: Annotated[
        str | None,
        typer.Option(help="Choose a model with about this many parameters: 300k, 10M, 1.5B.", metavar="COUNT"),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=1, help=f"Size of the vocabulary.  [default: the preset's, or {VOCABULARY:,}]", metavar="N"),
    ] = None,
    source: Annotated[int | None, length_option("encoder's input")] = None,
    target: Annotated[int | None, length_option("decoder's output")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size, in sequences.", metavar="N")] = 1,
    parts: Parts = None,
    scaling: ScalingOptions,
    rates: RateOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Count the parameters, FLOPs and memory of a model, by part.

    The model is not built, so a large one takes no longer than a small one. Of a run it also shows what the run was
    trained to do. With --gpus it estimates training on so many: memory by part, communication, and time.
    """
    facts = gather_facts(model, size=size, vocabulary=vocabulary, batch=batch, source=source, target=target)
    made = facts.costs
    plan = plan_training(facts.spec, (made.source or 1, made.target or 1), scaling, rates, facts.recipe)
    if as_json:
        show_json(as_object(facts) | ({} if plan is None else {"training": training_object(plan)}))
    elif plan is not None:
        show(*training_page(facts.name, plan))
    else:
        show(*page(facts), *export_rows(facts.exports or {}))


def export_rows(blocks: Mapping[str, list[str]]) -> Iterator[RenderableType]:
    """Yield a line for each format of export: that it can be written, or what blocks it."""
    for name, found in blocks.items():
        yield prose(f"export to {name}: " + (f"blocked, no {escape('; no '.join(found))}" if found else "yes"))
    if blocks:
        yield Text()


def as_object(facts: ModelFacts) -> dict[str, Any]:
    """Return all of it as JSON. The numbers of a section and its parts are those of all its blocks together."""
    made = facts.costs
    stacks = facts.spec.stacks
    return {
        "model": facts.name,
        "kind": kind_of(facts.spec),
        "vocabulary": stacks[-1].vocabulary,
        "d_model": stacks[-1].d_model,
        "n_layers": [len(stack.blocks) for stack in stacks],
        "purpose": None if facts.purpose is None else replace_nonfinite(asdict(facts.purpose)),
        "exports": facts.exports,
        "spec": spec_to_json(facts.spec),
        "batch": made.batch,
        "source": made.source,
        "target": made.target,
        "parameters": made.parameters,
        "trainable": made.trainable,
        "frozen": made.frozen,
        "operations": made.operations,
        "memory": {name: asdict(made.memory(dtype)) for name, dtype in DTYPES.items()},
        "sections": [section_object(section) for section in made.sections],
    }


def section_object(section: Section) -> dict[str, Any]:
    totals = {"parameters": section.parameters, "frozen": section.frozen, "operations": section.operations}
    return {
        "name": section.name,
        "count": section.count,
        **totals,
        "parts": [part_object(part, section.count) for part in section.parts],
    }


def part_object(part: Part, count: int) -> dict[str, Any]:
    return {
        "name": part.name,
        "parameters": count * part.parameters,
        "frozen": count * part.frozen,
        "operations": count * part.operations,
        "shares": list(part.shares),
    }


def page(facts: ModelFacts) -> Iterator[RenderableType]:
    made, stacks = facts.costs, facts.spec.stacks
    yield rule(facts.name)
    layers = " + ".join(str(len(stack.blocks)) for stack in stacks)
    given = {"source": made.source, "target": made.target}
    lengths = "".join(f" · {name} {n:,} tokens" for name, n in given.items() if n)
    yield prose(
        f"{kind_of(facts.spec)} · d_model {stacks[-1].d_model} · {layers} blocks · "
        f"vocabulary {stacks[-1].vocabulary:,}\none forward pass: batch {made.batch:,}{lengths}"
    )
    if facts.purpose is not None:
        yield prose(purpose_said(facts.purpose))
    yield Text()
    for stack in stacks:
        yield from stack_parts(stack, type(stack).__name__.removesuffix("Spec").lower())
    yield Text.assemble(
        (f"  {'':<{NAME}}{'parameters':>{NUMBER}}{'':>{SHARE}}{'FLOPs':>{NUMBER}}{'':>{SHARE}}", "quiet")
    )
    for section in made.sections:
        yield from section_rows(section, made)
    yield row("in all", made.parameters, made.operations, made, style="title")
    yield Text()
    yield from notes(made)


def purpose_said(purpose: Purpose) -> str:
    """Say what a run was trained to do and how far it is, or what a recipe is for."""
    labels = f" with {len(purpose.labels):,} labels" if purpose.labels else ""
    verb = "to be trained" if purpose.steps is None else "trained"
    steps = "" if purpose.steps is None else f", {purpose.steps:,} steps"
    scores = "".join(f" · {one}" for one in scores_said(purpose.scores))
    sized = "" if purpose.parameters is None else f"\nsize asked for: {purpose.parameters:,} parameters"
    return f"{verb} to {purpose.task}{labels}, context {purpose.context:,} tokens{steps}{scores}{sized}"


def stack_parts(stack: EncoderSpec | DecoderSpec, name: str) -> Iterator[RenderableType]:
    """Yield the parts that a stack is made of: its embedding's, and those of blocks, once where they are alike."""
    yield Text(f"  {name}", "title")
    yield from part_rows("embedding", stack.embedding)
    for block, numbered in groupby(enumerate(stack.blocks, 1), key=lambda pair: pair[1]):
        numbers = [number for number, _ in numbered]
        if len(numbers) < len(stack.blocks):
            yield Text(f"  {block_name(numbers, len(stack.blocks))}", "quiet")
        for field in fields(block):
            part = getattr(block, field.name)
            if is_dataclass(part):
                yield from part_rows(field.name.replace("_", " "), part)
    yield Text()


def part_rows(name: str, part: Any) -> Iterator[RenderableType]:
    """Yield a row with a part and the fields of it that differ from their defaults; those of an attention apart."""
    if isinstance(part, AttentionSpec):
        inner = [getattr(part, field.name) for field in fields(part) if field.name not in ("dropout", "kernel")]
        said = " · ".join(brief(one) for one in inner if one is not None)
    else:
        said = brief(part)
    yield Padding(Text.assemble((f"{name:<{NAME - 12}}", "quiet"), said), (0, 0, 0, 4))


def brief(part: Any) -> str:
    """Write a part with the parts in it, and the other fields that differ from their defaults.

    >>> from clearhead.model import GELU, RMSNorm, PreNorm
    >>> brief(PreNorm(RMSNorm())), brief(GELU(256))
    ('PreNorm(norm=RMSNorm())', 'GELU(d_ff=256)')
    """
    if not is_dataclass(part):
        return repr(part)
    usual = {field.name: field.default for field in fields(part) if field.default is not MISSING}
    values = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    given = [
        f"{name}={brief(value)}"
        for name, value in values.items()
        if is_dataclass(value) or name not in usual or value != usual[name]
    ]
    return f"{type(part).__name__}({', '.join(given)})"


def section_rows(section: Section, made: Description) -> Iterator[RenderableType]:
    name = section.name if section.count == 1 else f"{section.name} × {section.count}"
    yield row(name, section.parameters, section.operations, made, style="title")
    for part in section.parts:
        yield row(f"  {part.name}", section.count * part.parameters, section.count * part.operations, made, part=part)
    yield Text()


def row(
    name: str, parameters: int, operations: int, made: Description, *, style: str = "", part: Part | None = None
) -> Text:
    shared = "shared" if part is not None and part.shares and not parameters else ""
    return Text.assemble(
        (f"  {name:<{NAME}}", style),
        (f"{shared or f'{parameters:,}':>{NUMBER}}", style or ("" if parameters else "quiet")),
        (f"{percent(parameters, made.parameters):>{SHARE}}", "quiet"),
        (f"{short(operations):>{NUMBER}}", style or ("" if operations else "quiet")),
        (f"{percent(operations, made.operations):>{SHARE}}", "quiet"),
    )


def notes(made: Description) -> Iterator[RenderableType]:
    for path, names in sharing(made).items():
        yield prose(f"{path} is shared with {' and '.join(names)}, and counted once.")
    if made.frozen:
        yield prose(f"{made.frozen:,} parameters are frozen, {made.trainable:,} are trained.")
    yield prose(
        "FLOPs: those of the matrix products, two for a multiply-add. Scores that the mask hides are not counted."
    )
    yield Text()
    yield Text.assemble((f"  {'memory':<{NAME}}", "title"), *((f"{name:>{NUMBER}}", "quiet") for name in DTYPES))
    for title, field in MEMORY.items():
        amounts = [asdict(made.memory(dtype))[field] for dtype in DTYPES.values()]
        if any(amounts):
            yield Text.assemble(f"  {title:<{NAME}}", *(f"{short(amount):>{NUMBER - 1}}B" for amount in amounts))
    yield Text()


def sharing(made: Description) -> dict[str, list[str]]:
    """Return the parameters that sections share with sections before, and which do."""
    found: dict[str, list[str]] = {}
    for section in made.sections:
        for path in dict.fromkeys(path for part in section.parts for path in part.shares):
            found.setdefault(path, []).append(section.name)
    return found


def percent(number: int, whole: int) -> str:
    share = 100 * number / max(whole, 1)
    return "" if not number else "<0.1 %" if share < 0.05 else f"{share:.1f} %"


def short(number: int) -> str:
    """Write a number as three digits and a power of a thousand: 1.23 G; small numbers as they are."""
    if number < 1000:
        return f"{number} "
    value, prefix = float(number), 0
    while value >= 999.5:
        value, prefix = value / 1000, prefix + 1
    return f"{value:.{max(0, 2 - (value >= 9.995) - (value >= 99.95))}f} {PREFIXES[prefix]}"
