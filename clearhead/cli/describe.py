"""`clearhead describe`: what a model is made of. Parameters, operations and memory, by part."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from clearhead.cli.screen import prose, rule, show, show_json
from clearhead.errors import OptionError
from clearhead.model.describe import Description, Part, Section
from clearhead.model.describe import describe as describe_model
from clearhead.model.sizes import KINDS, PRESETS, Spec, named, parse_count, sized
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from clearhead.training.folder import RunFolder

__all__ = ["EXAMPLES", "describe"]

EXAMPLES = """\b
Examples:
  clearhead describe base
  clearhead describe gpt2-medium --target 1024
  clearhead describe decoder --size 10M --vocabulary 8000
  clearhead describe bert --json
  clearhead describe runs/gpt2"""

VOCABULARY, LENGTH = 32_000, 128
"""Of a model that is named by its size; and of source and target, unless given."""
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


def describe(
    model: Annotated[
        str,
        typer.Argument(
            help=f"A run folder, a preset (tiny, base, big, gpt2, bert-large, llama-1b, …), or with --size: "
            f"{', '.join(KINDS)}.",
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
    source: Annotated[
        int | None,
        typer.Option(min=1, help=f"Length of the encoder's input, in tokens.  [default: {LENGTH}]", metavar="N"),
    ] = None,
    target: Annotated[
        int | None,
        typer.Option(min=1, help=f"Length of the decoder's output, in tokens.  [default: {LENGTH}]", metavar="N"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size, in sequences.", metavar="N")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Count the parameters, FLOPs and memory of a model, by part.

    The model is not built, so a large one takes no longer than a small one.
    """
    spec = find_spec(model, size, vocabulary)
    check_lengths(model, spec, source, target)
    usual = usual_length(model)
    made = describe_model(spec, batch=batch, source=source or usual, target=target or usual)
    blocks = export_blocks(model, spec)
    if as_json:
        show_json(as_object(model, spec, made) | ({} if blocks is None else {"exports": blocks}))
    else:
        show(*page(model, spec, made), *export_rows(blocks or {}))


def find_spec(model: str, size: str | None, vocabulary: int | None) -> Spec:
    """Return the spec that was asked for by a run's folder, by name, or by kind and size."""
    if (folder := RunFolder(Path(model))).exists():
        if size is not None or vocabulary is not None:
            raise typer.BadParameter(
                f"{model} is a run, and has its own: leave it out",
                param_hint="--size" if size is not None else "--vocabulary",
            )
        return folder.spec()
    if model not in KINDS and model not in PRESETS:
        there = f"{', '.join(PRESETS)}; and, with --size, {', '.join(KINDS)}"
        raise typer.BadParameter(f"there is no run folder or preset {model!r}. There are: {there}", param_hint="MODEL")
    if model in KINDS and size is None:
        raise typer.BadParameter(f"{model!r} can have any size: give one, such as --size 10M", param_hint="--size")
    if size is None:
        return named(model, vocabulary)
    if model not in KINDS:
        kinds = ", ".join(KINDS)
        raise typer.BadParameter(f"{model!r} has its own size. With --size there are: {kinds}", param_hint="--size")
    try:
        return sized(model, parse_count(size), vocabulary or VOCABULARY)
    except OptionError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from error


def export_blocks(model: str, spec: Spec) -> dict[str, list[str]] | None:
    """Return for each format of export what of a run it cannot express; None for what is no run."""
    folder = RunFolder(Path(model))
    if not folder.exists():
        return None
    from clearhead.interop.export import blocks_by_format

    task = folder.task()
    return blocks_by_format(spec, task.name, tuple(one.kind for one in task.tokenizers.values()))


def export_rows(blocks: dict[str, list[str]]) -> Iterator[RenderableType]:
    """Yield a line for each format of export: that it can be written, or what blocks it."""
    for name, found in blocks.items():
        yield prose(f"export to {name}: " + (f"blocked, no {escape('; no '.join(found))}" if found else "yes"))
    if blocks:
        yield Text()


def usual_length(model: str) -> int:
    """Return how many tokens a text has, unless given: no more than a run's model reads."""
    folder = RunFolder(Path(model))
    return min(LENGTH, folder.read_description()["context"]) if folder.exists() else LENGTH


def check_lengths(model: str, spec: Spec, source: int | None, target: int | None) -> None:
    if source is not None and isinstance(spec, DecoderSpec):
        raise typer.BadParameter(f"{model} is a decoder, and reads no source: use --target", param_hint="--source")
    if target is not None and isinstance(spec, EncoderSpec):
        raise typer.BadParameter(f"{model} is an encoder, and writes no target: use --source", param_hint="--target")


def as_object(model: str, spec: Spec, made: Description) -> dict[str, Any]:
    """Return all of it as JSON. The numbers of a section and its parts are those of all its blocks together."""
    return {
        "model": model,
        **shape(spec),
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


def shape(spec: Spec) -> dict[str, Any]:
    """Return the numbers a model is known by."""
    match spec:
        case EncoderDecoderSpec(encoder=encoder, decoder=decoder):
            kind, stacks, one = "encoder-decoder", [encoder, decoder], decoder
        case EncoderSpec():
            kind, stacks, one = "encoder", [spec], spec
        case DecoderSpec():
            kind, stacks, one = "decoder", [spec], spec
    return {
        "kind": kind,
        "vocabulary": one.vocabulary,
        "d_model": one.d_model,
        "n_layers": [len(stack.blocks) for stack in stacks],
    }


def page(model: str, spec: Spec, made: Description) -> Iterator[RenderableType]:
    known = shape(spec)
    yield rule(model)
    layers = " + ".join(str(n_layers) for n_layers in known["n_layers"])
    yield prose(
        f"{known['kind']} · d_model {known['d_model']} · {layers} blocks · vocabulary {known['vocabulary']:,}\n"
        f"one forward pass: {lengths(made)}"
    )
    yield Text()
    yield Text.assemble(
        (f"  {'':<{NAME}}{'parameters':>{NUMBER}}{'':>{SHARE}}{'FLOPs':>{NUMBER}}{'':>{SHARE}}", "quiet")
    )
    for section in made.sections:
        yield from section_rows(section, made)
    yield row("in all", made.parameters, made.operations, made, style="title")
    yield Text()
    yield from notes(made)


def lengths(made: Description) -> str:
    given = {"source": made.source, "target": made.target}
    return " · ".join([f"batch {made.batch:,}", *(f"{name} {n:,} tokens" for name, n in given.items() if n)])


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
