"""`clearhead describe`: what a model is made of. Parameters, operations and memory, by part.

A model comes from a preset, a run folder, or a JSON file with a spec or a recipe. It is never built in memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from clearhead.calls import render
from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.options import Parts
from clearhead.cli.progress import SCORES, format_scores
from clearhead.cli.screen import WIDTH, prose, rule, show, show_json
from clearhead.errors import ClearheadError, RunError, WordError, naming_word, no_such
from clearhead.files import check_seal, read_json
from clearhead.model.describe import Description, PartSize, Section
from clearhead.model.describe import describe as describe_costs
from clearhead.model.sizes import KINDS, PRESETS, Spec, named, parse_count, sized, spec_from_json, spec_to_json
from clearhead.options import Option
from clearhead.serialization import CLASS, check_type
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import load_recipe
from clearhead.training.reporting import replace_nonfinite

EXAMPLES = """\b
Examples:
  clearhead describe base
  clearhead describe runs/demo
  clearhead describe runs/demo/recipe.json
  clearhead describe gpt2-medium --target-length 1024
  clearhead describe decoder --size 10M --vocabulary 8000
  clearhead describe bert --json"""

VOCABULARY, LENGTH = 32_000, 128
"""Defaults for a model that is named by its size: the vocabulary, and the length of source and target."""
SEAL = ("format", "run", "sha256")
"""Fields that a file of a run has in addition to its content."""
FLOATS = {name: getattr(torch, name) for name in ("float32", "bfloat16")}
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
    help_text = f"Length of the {whose}, in tokens.  [default: a run's context, or {LENGTH}]"
    return Option(help_text, takes="N", least=1)


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What a model was trained to do, or will be: its task, and the longest text in tokens.

    `steps` and `scores` are those of a run; `parameters` is how many a recipe asks for, once the vocabulary is known.
    """

    task: str
    context: int
    labels: tuple[str, ...] = ()
    steps: int | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model by name, its spec, what it costs, and what it is for if a run or a recipe says it."""

    name: str
    spec: Spec
    costs: Description
    purpose: Purpose | None = None
    exports: Mapping[str, list[str]] | None = None
    """For a run and each format of export: the parts of the model that it cannot express."""
    """How it was trained, or will be; None for a preset, a spec, or an imported run."""


def gather_facts(
    model: str,
    *,
    size: str | None = None,
    vocabulary: int | None = None,
    batch: int = 1,
    source: int | None = None,
    target: int | None = None,
) -> ModelFacts:
    """Return the facts of a preset, of a kind of model with a size, of a run folder, or of a spec or recipe in JSON."""
    purpose: Purpose | None = None
    if model in PRESETS or model in KINDS:
        spec = find_preset(model, size, vocabulary)
    else:
        if size is not None or vocabulary is not None:
            raise WordError(
                "vocabulary" if size is None else "size",
                f"goes with the name of a model ({', '.join(KINDS)}); {model} has its own",
            )
        spec, purpose = read_model(model)
    if source is not None and spec.encoder is None:
        raise WordError("source_length", f"{model} is a decoder, and reads no source: use --target-length")
    if target is not None and spec.decoder is None:
        raise WordError("target_length", f"{model} is an encoder, and writes no target: use --source-length")
    usual = LENGTH if purpose is None else purpose.context
    try:
        costs = describe_costs(spec, batch=batch, source=source or usual, target=target or usual)
    except (ClearheadError, RuntimeError, OverflowError, TypeError) as error:
        if model in PRESETS or model in KINDS:
            raise
        # torch raises errors of its own for sizes that no tensor can have.
        raise RunError(f"{model}: the model cannot be built ({str(error).splitlines()[0]})") from None
    exports = list_blocks(RunFolder(Path(model)), spec) if purpose is not None and Path(model).is_dir() else None
    return ModelFacts(name=model, spec=spec, costs=costs, purpose=purpose, exports=exports)


def list_blocks(folder: RunFolder, spec: Spec) -> dict[str, list[str]]:
    """Return for each format of export what of a run it cannot express."""
    from clearhead.interop.export import blocks_by_format

    task = folder.task()
    return blocks_by_format(spec, task.name, tuple(tokenizer.kind for tokenizer in task.tokenizers.values()))


def find_preset(model: str, size: str | None, vocabulary: int | None) -> Spec:
    """Return the spec that was asked for by name, or by kind and size."""
    if model in KINDS and size is None:
        raise WordError("size", f"{model!r} can have any size: give one, such as --size 10M")
    if size is None:
        return named(model, vocabulary)
    if model not in KINDS:
        raise WordError("size", f"{model!r} has its own size. With --size there are: {', '.join(KINDS)}")
    with naming_word("size"):
        return sized(model, parse_count(size), vocabulary or VOCABULARY)


def read_model(model: str) -> tuple[Spec, Purpose | None]:
    """Return the spec in a run folder or a JSON file, and what it is for."""
    path = Path(model)
    if path.is_dir():
        return read_run(RunFolder(path))
    if not path.exists():
        more = f"; with --size, {', '.join(KINDS)}; and run folders and JSON files by their paths"
        raise WordError("MODEL", no_such(model, PRESETS, more))
    written = read_json(path)
    if not isinstance(written, dict):
        raise RunError(f"{path}: expected a JSON object; came {type(written).__name__}")
    if "format" in written:  # a file of a run
        check_seal(written, str(path))
    if written.get(CLASS) == "Recipe":
        recipe = load_recipe(path)
        purpose = Purpose(task=recipe.task, context=recipe.batching.context, parameters=recipe.parameters)
        return recipe.model, purpose
    if CLASS in written:
        content = {name: value for name, value in written.items() if name not in SEAL}
        return spec_from_json(content, where=str(path)), None
    raise RunError(f"{path}: describes no model; expected the JSON of a spec or a recipe")


def read_run(folder: RunFolder) -> tuple[Spec, Purpose]:
    """Return the spec of a run and what it was trained to do, with its steps and scores so far."""
    if not (folder.exists() or folder.model_file.exists()):
        raise RunError(
            f"{folder.path} is not a run folder: it has no model.json; `clearhead runs` lists those there are"
        )
    description = folder.read_description()
    saved = folder.checkpoints.all()
    evaluated = folder.best_evaluation()
    scored = check_type(evaluated.get("scores", evaluated), dict, f"{folder.evaluation}: scores")
    return folder.spec(), Purpose(
        task=description["task"],
        context=description["context"],
        labels=tuple(description["labels"]),
        steps=saved[0].step if saved else 0,
        scores={measure.key: scored[measure.key] for measure in SCORES if measure.key in scored},
    )


def describe(
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder, a JSON file with a spec or a recipe, a preset (tiny, base, big, gpt2, bert-large, "
            f"llama-1b, …), or with --size: {', '.join(KINDS)}.",
            metavar="MODEL",
            autocompletion=complete_names([RUNS, *PRESETS, *KINDS]),
        ),
    ],
    *,
    size: Annotated[
        str | None, Option("Choose a model with about this many parameters: 300k, 10M, 1.5B.", takes="COUNT")
    ] = None,
    vocabulary: Annotated[
        int | None, Option(f"Size of the vocabulary.  [default: the preset's, or {VOCABULARY:,}]", takes="N", least=1)
    ] = None,
    source_length: Annotated[int | None, length_option("encoder's input")] = None,
    target_length: Annotated[int | None, length_option("decoder's output")] = None,
    batch: Annotated[int, Option("Batch size, in sequences.", takes="N", least=1)] = 1,
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print everything as one JSON object.", word="json")] = False,
) -> None:
    """Count the parameters, FLOPs and memory of a model, by part.

    The model is not built, so a large one takes no longer than a small one. For a run it also shows its task.
    """
    facts = gather_facts(
        model, size=size, vocabulary=vocabulary, batch=batch, source=source_length, target=target_length
    )
    if as_json:
        show_json(as_object(facts))
    else:
        show(*render_page(facts), *render_exports(facts.exports or {}))


def render_exports(blocks: Mapping[str, list[str]]) -> Iterator[RenderableType]:
    """Yield a line for each format of export: that it can be written, or what blocks it."""
    for name, blockers in blocks.items():
        yield prose(f"export to {name}: " + (f"blocked, no {escape('; no '.join(blockers))}" if blockers else "yes"))
    if blocks:
        yield Text()


def as_object(facts: ModelFacts) -> dict[str, Any]:
    """Return all of it as JSON. The numbers of a section and its parts are those of all its blocks together."""
    costs = facts.costs
    stacks = facts.spec.stacks
    return {
        "model": facts.name,
        "kind": facts.spec.kind,
        "vocabulary": stacks[-1].vocabulary,
        "d_model": stacks[-1].d_model,
        "n_layers": [len(stack.blocks) for stack in stacks],
        "purpose": None if facts.purpose is None else replace_nonfinite(asdict(facts.purpose)),
        "exports": facts.exports,
        "spec": spec_to_json(facts.spec),
        "batch": costs.batch,
        "source": costs.source,
        "target": costs.target,
        "parameters": costs.parameters,
        "trainable": costs.trainable,
        "frozen": costs.frozen,
        "operations": costs.operations,
        "memory": {name: asdict(costs.memory(dtype)) for name, dtype in FLOATS.items()},
        "sections": [section_object(section) for section in costs.sections],
    }


def section_object(section: Section) -> dict[str, Any]:
    totals = {"parameters": section.parameters, "frozen": section.frozen, "operations": section.operations}
    return {
        "name": section.name,
        "count": section.count,
        **totals,
        "parts": [
            {
                "name": part.name,
                "parameters": section.count * part.parameters,
                "frozen": section.count * part.frozen,
                "operations": section.count * part.operations,
                "shares": list(part.shares),
            }
            for part in section.parts
        ],
    }


def render_page(facts: ModelFacts) -> Iterator[RenderableType]:
    costs, stacks = facts.costs, facts.spec.stacks
    yield rule(facts.name)
    layers = " + ".join(str(len(stack.blocks)) for stack in stacks)
    sides = {"source": costs.source, "target": costs.target}
    lengths = "".join(f" · {name} {n:,} tokens" for name, n in sides.items() if n)
    yield prose(
        f"{facts.spec.kind} · d_model {stacks[-1].d_model} · {layers} blocks · "
        f"vocabulary {stacks[-1].vocabulary:,}\none forward pass: batch {costs.batch:,}{lengths}"
    )
    if facts.purpose is not None:
        yield prose(describe_purpose(facts.purpose))
    yield Text()
    for stack in stacks:
        yield Padding(Text(render(stack, WIDTH - 4)), (0, 2))
        yield Text()
    yield Text.assemble(
        (f"  {'':<{NAME}}{'parameters':>{NUMBER}}{'':>{SHARE}}{'FLOPs':>{NUMBER}}{'':>{SHARE}}", "quiet")
    )
    for section in costs.sections:
        yield from render_section(section, costs)
    yield render_row("in all", costs.parameters, costs.operations, costs, style="title")
    yield Text()
    yield from render_notes(costs)


def describe_purpose(purpose: Purpose) -> str:
    """Say what a run was trained to do and how far it is, or what a recipe is for."""
    labels = f" with {len(purpose.labels):,} labels" if purpose.labels else ""
    verb = "to be trained" if purpose.steps is None else "trained"
    steps = "" if purpose.steps is None else f", {purpose.steps:,} steps"
    scores = "".join(f" · {score}" for score in format_scores(purpose.scores))
    sized = "" if purpose.parameters is None else f"\nsize asked for: {purpose.parameters:,} parameters"
    return f"{verb} to {purpose.task}{labels}, context {purpose.context:,} tokens{steps}{scores}{sized}"


def render_section(section: Section, costs: Description) -> Iterator[RenderableType]:
    name = section.name if section.count == 1 else f"{section.name} × {section.count}"
    yield render_row(name, section.parameters, section.operations, costs, style="title")
    for part in section.parts:
        yield render_row(
            f"  {part.name}", section.count * part.parameters, section.count * part.operations, costs, part=part
        )
    yield Text()


def render_row(
    name: str, parameters: int, operations: int, costs: Description, *, style: str = "", part: PartSize | None = None
) -> Text:
    shared = "shared" if part is not None and part.shares and not parameters else ""
    return Text.assemble(
        (f"  {name:<{NAME}}", style),
        (f"{shared or f'{parameters:,}':>{NUMBER}}", style or ("" if parameters else "quiet")),
        (f"{format_percent(parameters, costs.parameters):>{SHARE}}", "quiet"),
        (f"{format_count(operations):>{NUMBER}}", style or ("" if operations else "quiet")),
        (f"{format_percent(operations, costs.operations):>{SHARE}}", "quiet"),
    )


def render_notes(costs: Description) -> Iterator[RenderableType]:
    for path, names in find_shared(costs).items():
        yield prose(f"{path} is shared with {' and '.join(names)}, and counted once.")
    if costs.frozen:
        yield prose(f"{costs.frozen:,} parameters are frozen, {costs.trainable:,} are trained.")
    yield prose(
        "FLOPs: those of the matrix products, two for a multiply-add. Scores that the mask hides are not counted."
    )
    yield Text()
    yield Text.assemble((f"  {'memory':<{NAME}}", "title"), *((f"{name:>{NUMBER}}", "quiet") for name in FLOATS))
    for title, amount in MEMORY.items():
        amounts = [asdict(costs.memory(dtype))[amount] for dtype in FLOATS.values()]
        if any(amounts):
            yield Text.assemble(f"  {title:<{NAME}}", *(f"{format_count(amount):>{NUMBER - 1}}B" for amount in amounts))
    yield Text()


def find_shared(costs: Description) -> dict[str, list[str]]:
    """Return the parameters that sections share with sections before, and which do."""
    shared: dict[str, list[str]] = {}
    for section in costs.sections:
        for path in dict.fromkeys(path for part in section.parts for path in part.shares):
            shared.setdefault(path, []).append(section.name)
    return shared


def format_percent(number: int, whole: int) -> str:
    share = 100 * number / max(whole, 1)
    return "" if not number else "<0.1 %" if share < 0.05 else f"{share:.1f} %"


def format_count(number: int) -> str:
    """Write a number as three digits and a power of a thousand: 1.23 G; small numbers as they are."""
    if number < 1000:
        return f"{number} "
    value, prefix = float(number), 0
    while value >= 999.5:
        value, prefix = value / 1000, prefix + 1
    return f"{value:.{max(0, 2 - (value >= 9.995) - (value >= 99.95))}f} {PREFIXES[prefix]}"
