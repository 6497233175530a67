"""The facts that `clearhead describe` prints: what a model is, what it costs, and what it was trained to do.

They come from a preset, a run folder, or a JSON file with a spec or a recipe. The model is never built in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from clearhead.cli.progress import SCORES
from clearhead.errors import ClearheadError, OptionError, RunError, WordError, no_such
from clearhead.files import check_seal, read_json
from clearhead.model.describe import Description, describe
from clearhead.model.sizes import KINDS, PRESETS, Spec, named, parse_count, sized
from clearhead.model.spec_json import spec_from_json
from clearhead.serialization import CLASS, check_fields, check_type
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import load_recipe

VOCABULARY, LENGTH = 32_000, 128
"""Of a model that is named by its size; and of source and target, unless given."""
SEAL = ("format", "run", "sha256")
"""What a file of a run holds beside its content."""


@final
@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What a model was trained to do, or shall be: its task, and the longest text in tokens.

    `steps` and `scores` are those of a run; `parameters` is how many a recipe asks for, once the vocabulary is known.
    """

    task: str
    context: int
    labels: tuple[str, ...] = ()
    steps: int | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None


@final
@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model by name, its spec, what it costs, and what it is for where a run or a recipe says so."""

    name: str
    spec: Spec
    costs: Description
    purpose: Purpose | None = None
    exports: Mapping[str, list[str]] | None = None
    """Of a run, for each format of export: what of the model it cannot express."""
    """How it was trained, or shall be; None for a preset, a spec, or an imported run."""


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
        costs = describe(spec, batch=batch, source=source or usual, target=target or usual)
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
    try:
        return sized(model, parse_count(size), vocabulary or VOCABULARY)
    except OptionError as error:
        raise WordError("size", str(error)) from error


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
    if not {"format", "spec"}.isdisjoint(written):  # a file of a run
        check_seal(written, str(path))
    if written.get(CLASS) == "Recipe":
        recipe = load_recipe(path)
        purpose = Purpose(task=recipe.task, context=recipe.batching.context, parameters=recipe.parameters)
        return recipe.model, purpose
    if CLASS in written:
        content = {name: value for name, value in written.items() if name not in SEAL}
        return spec_from_json(content, where=str(path)), None
    if "spec" in written:  # a run's model.json
        description = check_fields({name: written.get(name) for name in ("task", "context")}, DESCRIBED, str(path))
        return spec_from_json(written["spec"], where=f"{path}: spec"), Purpose(**description)
    raise RunError(f"{path}: describes no model; expected the JSON of a spec or a recipe, or a run's model.json")


DESCRIBED: Mapping[str, Any] = {"task": str, "context": int}
"""The fields of a model.json that are read without the rest of its run."""


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
