"""Files of weights: which of a run's are used, what a run starts from (weights of another, or word vectors), and if a
file fits the model.

`pretrained.safetensors` holds all weights that the run started from, and is written once, before training begins: the
folder they came from is not needed again. A checkpoint holds what is trained: everything, or with frozen parts or LoRA
only the rest, which is then a small file.

A file of weights is checked against the model's spec before either takes memory. A spec from a stranger can ask for any
size; it is compared with the names and shapes in the file's header, which no one can make large without a large file.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from clearhead.errors import ClearheadError, OptionError, RunError, unreadable
from clearhead.files import os_errors_as_run_errors, replacing
from clearhead.model.embedding import TokenEmbedding
from clearhead.model.int8 import CODES, SCALE
from clearhead.model.lora import add_adapters, is_adapter, merge_adapters
from clearhead.model.outputs import SHARES, ToNgramLogits
from clearhead.model.sizes import Spec, build_for_shapes, counts_in
from clearhead.model.transformers import Transformer
from clearhead.serialization import check_regular, check_type
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.vectors import WordVectors, read_vectors
from clearhead.training.checkpoints import MODEL, Checkpoint, copy_into, named_tensors, write_tensors
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import FineTuning
from clearhead.training.tasks.base import Task

RANGE = re.compile(r"(?<![\w-])(\d{1,4})-(\d{1,4})(?![\w-])")
BLOCK = re.compile(r"(.*blocks)\.(\d+)\.")
WIDE = "output.wide."
"""How the tensors of a wide part begin, and the one of them that is chosen when training ends."""


def prepare_parameters(model: nn.Module, tuning: FineTuning) -> nn.Module:
    """Add the adapters that are asked for, and freeze what is not to be trained, in place; return the model."""
    if tuning.lora is not None:
        add_adapters(model, tuning.lora)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_adapter(name) or (tuning.new_output and name.startswith("output.")))
    for pattern in tuning.freeze:
        freeze(model, pattern)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OptionError(f"freeze: {', '.join(tuning.freeze)} is the whole model: nothing is left to train")
    return model


def freeze(model: nn.Module, pattern: str) -> None:
    """Freeze the parameters whose names begin with a pattern or match it; OptionError if there are none.

    A pattern is a name, or one with `*`, or with a range of numbers as in `blocks.0-3`. `stack.` may be left out.
    """
    any_frozen = False
    for name, parameter in model.named_parameters(remove_duplicate=False):
        for alternative in expand_ranges(pattern.strip()):
            names = (name, name.replace("stack.", ""))
            if any(
                fnmatchcase(candidate, alternative) or fnmatchcase(candidate, f"{alternative}.*") for candidate in names
            ):
                any_frozen = True
                parameter.requires_grad_(False)
    if not any_frozen:
        raise OptionError(f"freeze: no parameter is called {pattern!r}; there are {', '.join(list_parts(model))}")


def expand_ranges(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with ranges of numbers stands for.

    >>> list(expand_ranges("blocks.1-3.attention"))
    ['blocks.1.attention', 'blocks.2.attention', 'blocks.3.attention']
    """
    parts = RANGE.split(pattern)
    texts, ranges = parts[::3], zip(parts[1::3], parts[2::3], strict=True)
    for numbers in itertools.product(*(range(int(first), int(last) + 1) for first, last in ranges)):
        yield texts[0] + "".join(f"{number}{text}" for number, text in zip(numbers, texts[1:], strict=True))


def list_parts(model: nn.Module) -> list[str]:
    """Return the names of a model's large parts, as `--freeze` takes them."""
    blocks: dict[str, int] = {}
    parts: dict[str, None] = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        short = name.replace("stack.", "")
        if match := BLOCK.match(short):
            blocks[match[1]] = max(int(match[2]), blocks.get(match[1], 0))
            parts.setdefault(match[1])
        else:
            steps = short.split(".")
            parts.setdefault(".".join(steps[: 2 if steps[0] in ("encoder", "decoder") else 1]))
    return [
        f"{name}.0-{blocks[name]}" if blocks.get(name) else f"{name}.0" if name in blocks else name for name in parts
    ]


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model by name, without its frozen parameters."""
    tensors = named_tensors(model)
    return {
        name: tensor for name, tensor in tensors.items() if tensor.requires_grad or not isinstance(tensor, nn.Parameter)
    }


def without_wide(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model without those of its wide part, which no step changes: `ngrams_file` has them."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(WIDE)}


def write_wide(folder: RunFolder, part: ToNgramLogits) -> None:
    """Write a classifier's wide part, whole or not at all."""
    with os_errors_as_run_errors(folder.ngrams_file), replacing(folder.ngrams_file) as partial:
        write_tensors(partial, {WIDE + name: tensor for name, tensor in named_tensors(part).items() if name != SHARES})


def load_wide(folder: RunFolder) -> dict[str, Tensor]:
    """Load a classifier's wide part, with the shares that baseline.json has; nothing where the run has none."""
    sums = folder.read_description()["files"]
    if folder.ngrams_file.name not in sums:
        return {}
    tensors = load_sealed(folder, folder.ngrams_file, "the n-grams of this run's linear part")
    try:
        shares = check_type(folder.read_own(folder.baseline).get(SHARES), list[float], f"{folder.baseline}: {SHARES}")
    except FileNotFoundError:
        raise RunError(f"{folder.baseline}: is not there, and says how much the parts count. Put it back") from None
    return {**tensors, WIDE + SHARES: torch.tensor(shares)}


def load_sealed(folder: RunFolder, path: Path, holds: str) -> dict[str, Tensor]:
    """Load tensors that were written before training; RunError if they are missing or were changed."""
    if not path.is_file():
        raise RunError(f"{path}: is not there, and holds {holds}. Put it back")
    folder.check_sum(path, folder.read_description()["files"])
    with unreadable(path, SafetensorError):
        return load_file(path)


def write_start(folder: RunFolder, model: nn.Module) -> None:
    """Write the weights that a fine-tuned run starts from, whole or not at all."""
    with os_errors_as_run_errors(folder.pretrained_file), replacing(folder.pretrained_file) as partial:
        write_tensors(partial, without_wide(named_tensors(model)))


def load_start(folder: RunFolder) -> dict[str, Tensor]:
    """Load the weights that a fine-tuned run started from; RunError if they are missing or were changed."""
    return load_sealed(folder, folder.pretrained_file, "the weights that this run was fine-tuned from")


def check_saved(folder: RunFolder, spec: Spec, tuning: FineTuning | None, path: Path) -> None:
    """Raise RunError if the weights of a checkpoint's file do not fit the spec's model.

    Of a fine-tuned run the file may lack frozen weights, which are those it started from.
    """
    header = with_float_weights(read_header(path), str(path))
    if tuning is not None:
        saved = {name: info for name, info in header.items() if not is_adapter(name)}
        header = {**read_header(folder.pretrained_file), **saved}
    if folder.ngrams_file.exists():
        header = {**header, **read_header(folder.ngrams_file), WIDE + SHARES: TensorInfo("F32", (2,))}
    check_shapes(spec, header, str(path))


def fill_tuned(
    model: nn.Module, folder: RunFolder, tuning: FineTuning, weights: Mapping[str, Tensor], *, merge: bool, where: str
) -> None:
    """Copy a checkpoint's weights into a new model of a fine-tuned run, and those it started from where it lacks them.

    `merge` adds the adapters of LoRA to the weights they stand beside; then the model is as its spec says.
    """
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    saved = trained_tensors(prepare_parameters(model, tuning))
    if frozen := {name: tensor for name, tensor in named_tensors(model).items() if name not in saved}:
        start = load_start(folder)
        start_tensors = {name: start[name] for name in frozen if name in start}
        copy_into(frozen, start_tensors, str(folder.pretrained_file))
    copy_into(saved, weights, where)
    if merge:
        merge_adapters(model)
        for name, tensor in model.named_parameters():
            tensor.requires_grad_(trained[name])


class TensorInfo(NamedTuple):
    """A tensor in a header: its dtype as safetensors calls it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


Header = Mapping[str, TensorInfo]
FLOATS = {"F64", "F32", "F16", "BF16"}


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file without reading them; RunError if it is none."""
    with unreadable(path, SafetensorError):
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: TensorInfo(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}


def with_float_weights(header: Header, where: str) -> dict[str, TensorInfo]:
    """Return a header with one float weight in place of each pair of int8 codes and scales, as a spec has it.

    Raises RunError if there is not a scale for each row of codes.
    """
    float_header = dict(header)
    for name, info in header.items():
        stem = name.removesuffix(CODES)
        if stem != name and info.dtype == "I8" and stem + SCALE in header:
            scale = header[stem + SCALE]
            if scale.shape != info.shape[:1] or scale.dtype not in FLOATS:
                raise RunError(
                    f"{where}: {stem}{SCALE} must have a number for each of the {info.shape[0]} rows of {name}"
                )
            del float_header[name], float_header[stem + SCALE]
            float_header[f"{stem}.weight"] = TensorInfo(scale.dtype, info.shape)
    return float_header


def check_shapes(spec: Spec, header: Header, where: str) -> None:
    """Raise RunError if the weights of a file do not fit the spec's model. It takes almost no memory."""
    blocks = sum(len(stack.blocks) for stack in spec.stacks)
    if blocks > len(header):
        raise RunError(f"{where}: the model has {blocks:,} blocks, and the file only {len(header):,} tensors")
    largest = max((size for info in header.values() for size in info.shape), default=0)
    for name, count in counts_in(spec):
        if count > largest:
            raise RunError(f"{where}: the model has a {name} of {count:,}, and no tensor in the file is so large")
    try:
        expected = named_tensors(build_for_shapes(spec))
    except (ClearheadError, RuntimeError, OverflowError, TypeError) as error:
        raise RunError(f"{where}: the model cannot be built ({str(error).splitlines()[0]})") from None
    if expected.keys() != header.keys():
        odd = sorted(expected.keys() ^ header.keys())
        raise RunError(f"{where}: its tensors are not this model's; they differ in {', '.join(odd[:3])}")
    for name, tensor in expected.items():
        if tuple(tensor.shape) != header[name].shape:
            raise RunError(f"{where}: {name} is {header[name].shape} and should be {tuple(tensor.shape)}")
        if tensor.is_floating_point() != (header[name].dtype in FLOATS):
            raise RunError(f"{where}: {name} is of {header[name].dtype} and should be {tensor.dtype}")


def start_from_vectors(model: Transformer, task: Task, path: str, log: Callable[[str], None]) -> None:
    """Copy the vectors of a file into the model's token tables, and log how many words were found.

    What enters the model for such a word is the file's vector itself, whatever factor the embedding has. Words that the
    file does not have keep their random start. A word is looked up as it is written, then in lower case.
    """
    tables = embeddings_of(model, task)
    words = {name: tokenizer.pieces(range(tokenizer.vocabulary)) for name, (_, tokenizer) in tables.items()}
    for name, (_, tokenizer) in tables.items():
        if tokenizer.kind != "word":
            raise OptionError(
                f"vectors: they are of words, and the tokens of the {name} are of kind {tokenizer.kind!r}; choose the "
                "tokeniser word"
            )
    spellings = {form for every in words.values() for word in every for form in (word, word.lower())}
    word_vectors = read_vectors(path, spellings)
    for name, (embedding, _) in tables.items():
        filled = fill(embedding, words[name], word_vectors)
        share = f"{filled:,} of {len(words[name]):,} words of the {name}"
        log(f"vectors: {share} are in {path}, which has {word_vectors.count:,}")


def embeddings_of(model: Transformer, task: Task) -> dict[str, tuple[TokenEmbedding, Tokenizer]]:
    """Return the embeddings that have a table of their own, and the tokenisers of what they read, by name."""
    if len(model.stacks) == 1:
        return {"text": (model.stacks[0].embedding, task.tokenizer)}
    source, target = (stack.embedding for stack in model.stacks)
    tables = {"source": (source, task.tokenizers["source"]), "target": (target, task.tokenizers["target"])}
    if source.table is target.table:
        return {"text": tables["target"]}
    return tables


@torch.no_grad()
def fill(embedding: TokenEmbedding, words: list[str], word_vectors: WordVectors) -> int:
    """Copy the vectors into the table's rows; return for how many words there was a vector."""
    width = embedding.table.shape[1]
    if word_vectors.size != width:
        raise OptionError(f"vectors: they have {word_vectors.size} numbers each, and the model is {width} wide")
    count = 0
    for row, word in enumerate(words):
        vector = word_vectors.vectors.get(word) or word_vectors.vectors.get(word.lower())
        if vector is not None:
            embedding.table[row] = torch.tensor(vector) / embedding.factor
            count += 1
    return count


def load_weights(checkpoint: Checkpoint, folder: RunFolder, spec: Spec) -> dict[str, Tensor]:
    """Return a checkpoint's weights; RunError if they are damaged, of another model, or not finite."""
    check_saved(folder, spec, folder.fine_tuning(), checkpoint.folder / MODEL)
    return checkpoint.model()


class SavedWeights(NamedTuple):
    """Weights, the step they are of, and where they were read."""

    step: int
    where: str
    weights: dict[str, Tensor]


def select_weights(folder: RunFolder, spec: Spec, step: int | None, log: Callable[[str], None]) -> SavedWeights:
    """Return the weights to use: those of `step`, else of the best checkpoint, else of the newest whole one."""
    if step is not None:
        return load_step(folder, spec, step)
    before, passed_over, problem = folder.checkpoints.folders(), list[str](), ""
    checkpoints = folder.checkpoints.all(passed_over.append)
    best = best_step(folder, checkpoints) if checkpoints else None
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.step != best):
        try:
            weights = load_weights(checkpoint, folder, spec)
        except RunError as error:
            passed_over.append(f"{error}; the checkpoint is passed over")
            problem = problem or f": {error}"
            continue
        for line in passed_over:
            log(line)
        return SavedWeights(checkpoint.step, str(checkpoint.folder), weights)
    if folder.checkpoints.folders() != before:
        # The run is in training: a newer checkpoint was saved, and those that were listed are removed.
        return select_weights(folder, spec, step, log)
    for line in passed_over:
        log(line)
    if problem:
        raise RunError(f"{folder.path}: no checkpoint can be used{problem}")
    raise RunError(f"{folder.path}: there is no whole checkpoint yet; train it, or go on with --resume")


def load_step(folder: RunFolder, spec: Spec, step: int) -> SavedWeights:
    """Return the weights of a step: of its checkpoint, or of the frame that the training's film has of it."""
    checkpoint, film = folder.checkpoints.at(step), folder.film
    if checkpoint is not None:
        return SavedWeights(step, str(checkpoint.folder), load_weights(checkpoint, folder, spec))
    if film.has(step):
        check_saved(folder, spec, folder.fine_tuning(), film.path(step))
        return SavedWeights(step, str(film.path(step)), film.load(step))
    steps = ", ".join(str(checkpoint.step) for checkpoint in reversed(folder.checkpoints.all())) or "none"
    frames = "".join(f"; the film has {', '.join(map(str, film_steps))}" for film_steps in [film.steps()] if film_steps)
    raise RunError(f"{folder.path}: there is no checkpoint of step {step}; there are {steps}{frames}")


def best_step(folder: RunFolder, checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return the step of the best weights, None if the recipe selects the last ones."""
    best = checkpoints[0].state["best"]
    return None if best is None or folder.recipe().checkpointing.select == "last" else int(best["step"])
