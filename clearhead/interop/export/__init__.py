"""Export: a run in the formats of other programs, each checked by the program that reads it before it is there."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clearhead.calls import public
from clearhead.errors import OptionError, RunError
from clearhead.extras import has_package
from clearhead.files import check_writable, replacing_folder
from clearhead.interop.export.base import ExportFigures, Format, spec_of
from clearhead.interop.export.ctranslate2 import CTranslate2
from clearhead.interop.export.gguf import Gguf
from clearhead.interop.export.graphs import TorchProgram
from clearhead.interop.export.huggingface import HuggingFace
from clearhead.interop.export.onnx import Onnx
from clearhead.interop.export.samples import save_tokenizers
from clearhead.model.int8 import dequantize
from clearhead.model.sizes import Spec
from clearhead.training.folder import RunFolder
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
    """Return the format of this name; OptionError where there is none."""
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
    """Raise OptionError where a format cannot express the model of a run, before its weights are read."""
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
            figures = format.check(run, partial, quantization)
            if not figures.passed:
                raise RunError(f"{target}: not written, since the export fails its check by {figures}")
        return figures
    except OSError as error:
        raise RunError(f"{target}: could not be written ({error}); free some space, or choose another folder") from None
