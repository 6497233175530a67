"""Export: a run in the formats of other programs, each checked by the program that reads it before it is there.

Choose a model that other programs can express, near the usual one: what `train --must-export` trains.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from clearhead.attention.heads import Heads
from clearhead.calls import public
from clearhead.errors import OptionError, RunError
from clearhead.extras import has_package
from clearhead.files import check_writable, replacing_folder
from clearhead.interop.export.base import spec_of
from clearhead.interop.export.ctranslate2 import CTranslate2
from clearhead.interop.export.format import ExportFigures, Format, compare
from clearhead.interop.export.gguf import Gguf
from clearhead.interop.export.graphs import TorchProgram
from clearhead.interop.export.huggingface import HuggingFace
from clearhead.interop.export.onnx import Onnx
from clearhead.interop.export.samples import save_tokenizers
from clearhead.model import GELU, Classes
from clearhead.model.int8 import dequantize
from clearhead.model.presets import Size, bert
from clearhead.model.sizes import Spec
from clearhead.model.variants import map_blocks
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Recipe
from clearhead.training.run import Run, load

__all__ = ["FORMATS", "ExportFigures", "Exported", "Format", "blocks_by_format", "check_exportable", "export"]

FORMATS: Mapping[str, Format] = {
    one.name: one for one in (HuggingFace(), CTranslate2(), Onnx(), Gguf(), TorchProgram())
}
"""Every format, by the name that `--to` takes."""


class Exported(NamedTuple):
    """An export: its folder, its format, and what the check has measured."""

    path: Path
    to: str
    quantization: str
    figures: ExportFigures


def find_format(name: str) -> Format:
    """Return the format of this name; OptionError if there is none."""
    if name not in FORMATS:
        raise OptionError(f"there is no format {name!r} to export to; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def blocks_by_format(spec: Spec, task: str, tokenizers: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return for each format what of a model it cannot express; an empty list where it can express all."""
    return {name: export_format.blocks(spec, task, tokenizers) for name, export_format in FORMATS.items()}


def check_exportable(to: str, spec: Spec, task: str, tokenizers: tuple[str, ...] = ()) -> None:
    """Raise OptionError, naming each part, where a format cannot express a model."""
    blocks = find_format(to).blocks(spec, task, tokenizers)
    if blocks:
        raise OptionError(f"this model cannot be exported to {to}, which has no {'; no '.join(blocks)}")


@public
def export(
    run: Run | str | Path, *, to: str, path: str | Path, quantization: str | None = None, step: int | None = None
) -> Exported:
    """Write a run for another program, and return what its check measured.

    The folder is written under a temporary name, loaded by the other program and compared with the run; only then is it
    renamed to `path`.

    Args:
        run: A run, or the path of its folder.
        to: Name of the format, one of `FORMATS`.
        path: Folder to write.
        quantization: Name of a quantization that the format has; none if None.
        step: Checkpoint of a run folder; the best one if None.

    Returns:
        What was written, and how far its outputs are from the run's.

    Raises:
        OptionError: If the format cannot express something in the run; the message names it.
        RunError: If the exported model's outputs differ.
    """
    target = Path(path)
    quantized_as = check_target(to, target, quantization)
    if not isinstance(run, Run):
        check_run(to, run)
    loaded = on_cpu(run if isinstance(run, Run) else load(run, device="cpu", step=step))
    kinds = tuple(tokenizer.kind for tokenizer in loaded.task.tokenizers.values())
    check_exportable(to, spec_of(loaded), loaded.task.name, kinds)
    return Exported(target, to, quantized_as, write_checked(loaded, find_format(to), target, quantized_as))


def check_target(to: str, target: Path, quantization: str | None) -> str:
    """Return how weights are written; OptionError for what is wrong with the request, whatever the run is."""
    format = find_format(to)
    quantized_as = quantization or format.quantizations[0]
    if quantized_as not in format.quantizations:
        available = ", ".join(format.quantizations)
        raise OptionError(f"quantization: {to} is written in {available}; came {quantized_as!r}")
    if missing := [package for package in format.packages if not has_package(package)]:
        named = " and ".join(missing)
        raise OptionError(f"an export to {to} needs {named}, which is not installed: pip install {' '.join(missing)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OptionError(f"{target}: is there already, and is not empty; choose another folder")
    check_writable(target)
    return quantized_as


def check_run(to: str, path: str | Path) -> None:
    """Raise OptionError if a format cannot express the model of a run, before its weights are read."""
    folder = RunFolder(Path(path))
    folder.origin()
    task = folder.task()
    kinds = tuple(tokenizer.kind for tokenizer in task.tokenizers.values())
    check_exportable(to, folder.spec(), task.name, kinds)


def on_cpu(run: Run) -> Run:
    """Return the run with a copy of its model on the CPU, all weights float32: those that were int8 as rounded."""
    model = copy.deepcopy(run.model).cpu().float().eval()
    dequantize(model)
    return Run(run.folder, run.task, model, run.step)


def write_checked(run: Run, format: Format, target: Path, quantization: str) -> ExportFigures:
    """Write the folder beside its place, check it, and rename it; whatever fails leaves nothing behind."""
    try:
        with replacing_folder(target) as partial:
            save_tokenizers(run, partial)
            format.write(run, partial, quantization)
            figures = compare(format.open(run, partial, quantization))
            if not figures.passed:
                raise RunError(f"{target}: not written, since the export fails its check by {figures}")
        return figures
    except OSError as error:
        raise RunError(f"{target}: could not be written ({error}); free some space, or choose another folder") from None


class Change(NamedTuple):
    """A change that makes a model easier to export, in words, and how it is made."""

    words: str
    make: Callable[[Spec, int], Spec]


def without_ngrams(spec: Spec, context: int) -> Spec:
    if spec.decoder is None and isinstance(spec.output, Classes):
        return replace(spec, output=replace(spec.output, ngrams=None))
    return spec


def like_bert(spec: Spec, context: int) -> Spec:
    """Return an encoder with BERT's parts, of the same size; its classes are read from the first token."""
    if spec.decoder is not None:
        return spec
    heads = spec.blocks[0].attention.head_layout
    if not isinstance(heads, Heads) or spec.blocks[0].feed_forward is None:
        return spec
    size = Size(len(spec.blocks), spec.d_model, heads.count, heads.count, spec.blocks[0].feed_forward.d_ff)
    output = replace(spec.output, pool="first", hidden=True) if isinstance(spec.output, Classes) else spec.output
    dropout = spec.blocks[0].dropout
    like = bert(size, vocabulary=spec.vocabulary, length=context, dropout=dropout)
    return without_ngrams(replace(like, output=output), context)


def with_tanh_gelu(spec: Spec, context: int) -> Spec:
    """Return a decoder whose GELU is llama.cpp's, the tanh formula."""
    if spec.encoder is not None:
        return spec
    return map_blocks(
        spec,
        lambda block: (
            replace(block, feed_forward=replace(block.feed_forward, form="tanh"))
            if isinstance(block.feed_forward, GELU)
            else block
        ),
    )


CHANGES = (
    Change("as usual", lambda spec, context: spec),
    Change("without the wide part, which is linear in n-grams", without_ngrams),
    Change("with GELU by the tanh formula", with_tanh_gelu),
    Change("with BERT's parts: the norm after each branch, learned positions, normed embeddings", like_bert),
)
"""From the usual model on, each further away from it."""


def exportable_recipe(recipe: Recipe, formats: Sequence[str], *, may_change: bool = True) -> tuple[Recipe, str]:
    """Return a recipe whose model all of these formats can express, and how it differs from the usual one, in words.

    The nearest to the recipe's is taken; without `may_change`, since its parts were chosen, only that. OptionError,
    naming the parts, where none of those known here will do.
    """
    kinds = () if recipe.tokenizing.given else (recipe.tokenizing.kind,)
    refusal: OptionError | None = None
    for words, make in CHANGES if may_change else CHANGES[:1]:
        changed = replace(recipe, model=make(recipe.model, recipe.batching.context))
        try:
            for name in formats:
                check_exportable(name, changed.model, changed.task, kinds)
        except OptionError as error:
            refusal = refusal or error
        else:
            return changed, "" if changed == recipe else f"to be exported to {', '.join(formats)}, the model is {words}"
    assert refusal is not None
    raise refusal
