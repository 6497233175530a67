"""Import a model as a run folder, with which every command works.

```
import clearhead as ch

run = ch.import_model("models/smollm", "runs/smollm")
run.generate(["Once upon a time"])
```

A source that begins with `hub:`, and only that, is fetched from the Hugging Face hub, by `huggingface_hub`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from clearhead import devices, extras, files
from clearhead.calls import public
from clearhead.errors import OptionError, RunError, no_such
from clearhead.interop import gguf, gguf_file
from clearhead.interop.huggingface import Imported, read_generation, read_hugging_face, write_pooler
from clearhead.interop.tables import Config
from clearhead.interop.tokenizer import ImportedTokenizer, read_tokenizer
from clearhead.model.int8 import DTYPES, quantize
from clearhead.model.sizes import Spec
from clearhead.text.templates import ChatTemplate
from clearhead.training import checkpoints, claiming, reporting
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Origin
from clearhead.training.run import Run, check_fit
from clearhead.training.tasks import TASKS, Embed, Framing, Task, task_named

STORED = {**{name: DTYPES[name] for name in ("float32", "bfloat16")}, "int8": quantize}
"""How weights can be kept, by name, and what makes a model so. With `int8`, what is no linear map stays float32."""
SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical_p")
NEUTRAL: Mapping[str, object] = {
    "do_sample": False,
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty"), 1.0),
    **dict.fromkeys(("length_penalty", "num_beams", "guidance_scale"), 1.0),
    **dict.fromkeys(("min_p", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "diversity_penalty"), 0.0),
    **dict.fromkeys(("min_length", "min_new_tokens", "penalty_alpha"), 0),
    "top_k": 50,
    "early_stopping": False,
    **dict.fromkeys(("exponential_decay_length_penalty", "begin_suppress_tokens", "forced_decoder_ids")),
    **dict.fromkeys(("sequence_bias", "stop_strings", "watermarking_config")),
}
"""Settings of generation_config.json that change what is written, and the value with which they do not."""


@public
def import_model(
    source: str | Path,
    path: str | Path,
    *,
    task: str | None = None,
    dtype: str = "float32",
    context: int | None = None,
    device: str = "auto",
    log: Callable[[str], None] = reporting.to_stderr,
) -> Run:
    """Import a Hugging Face folder or a GGUF file as a new run folder, and return the run.

    Args:
        source: Folder or file; `hub:OWNER/NAME` is fetched from the Hugging Face hub.
        path: Run folder to make.
        task: The run's task, if the model's class does not say it.
        dtype: How weights are stored, one of `STORED`.
        context: Limit on the length of a text, below the model's own.
        device: Device of the returned run.
        log: Called with lines for the user, such as the names of weights that the task does not need.

    Returns:
        The run.

    Raises:
        OptionError: If the model, its configuration or an argument is not supported.
        DataError: If a file cannot be read. Nothing is left at `path` then.
        RunError: If the run cannot be written.
    """
    if dtype not in STORED:
        raise OptionError(f"dtype: {dtype!r} cannot be imported; there are {', '.join(STORED)}")
    chosen_device = devices.choose_device(device)
    task_names = (*TASKS, Embed.name)
    if task is not None and task not in task_names:
        raise OptionError(f"task: {no_such(task, task_names)}")
    target = Path(os.path.abspath(path))
    check_free(Path(path))
    files.check_writable(target)
    read = read_source(source)
    imported, tokens = read.imported, read.tokens
    run_task = make_task(imported, tokens, read.generation, task=task, context=context)
    check_fit(run_task, imported.spec, str(source))
    check_finite(imported.model, str(source))
    parameters = sum(parameter.numel() for parameter in imported.model.parameters())
    model = imported.model
    STORED[dtype](model)
    check_finite(model, str(source))  # once more: what float32 holds can be infinite in a smaller type
    origin = Origin(
        source=str(source),
        file_format=read.file_format,
        architecture=str(imported.config.get("model_type")),
        task=run_task.name,
        dtype=dtype,
        parameters=parameters,
    )
    write_run(target, imported, model, run_task, origin=origin, chat=tokens.chat)
    if left := ignored_settings(read.generation) if run_task.target != "none" else []:
        log(f"{source}: asks to decode with {', '.join(left)}, which a run does not keep: give them as options")
    if imported.left_out:
        log(f"{source}: to {run_task.name} takes no {', '.join(imported.left_out)}: left out")
    return Run(RunFolder(Path(path)), run_task, model.to(chosen_device).eval(), 0)


class SourceFiles(NamedTuple):
    """What was read of a source: the model, its tokenizer, and its settings of decoding."""

    file_format: str
    imported: Imported
    tokens: ImportedTokenizer
    generation: Config


def read_source(source: str | Path) -> SourceFiles:
    """Read a model folder, a GGUF file, or what `hub:` names."""
    home = fetch_from_hub(source) if isinstance(source, str) and source.startswith(PREFIX) else Path(source)
    if home.is_dir():
        imported = read_hugging_face(home)
        end = next(iter(imported.end), None)
        tokens = read_tokenizer(home, rows_of(imported.spec), start=imported.start, end=end)
        return SourceFiles("Hugging Face", imported, tokens, read_generation(home, imported.config))
    if home.suffix == ".gguf" and home.exists():
        imported = gguf.read_gguf(home)
        tokens = gguf_file.read_tokenizer_of_gguf(home, rows_of(imported.spec))
        return SourceFiles("GGUF", imported, tokens, imported.config)
    if home.is_file():
        raise OptionError(f"{source}: is one file of a model, and no .gguf file; give its folder, {home.parent}")
    raise OptionError(
        f"{source}: there is no such folder or .gguf file; give a folder as save_pretrained writes it, or hub:ORG/NAME"
    )


def check_free(path: Path) -> None:
    """Raise RunError where something is at a path already; an empty folder is nothing."""
    try:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path}: there is something already; choose another folder")
    except OSError as error:
        raise RunError(f"{path}: cannot be written to ({error.strerror}); choose another folder") from None


def rows_of(spec: Spec) -> int:
    """Return how many tokens the model has a row for."""
    return spec.stacks[0].vocabulary


def make_task(
    imported: Imported, tokens: ImportedTokenizer, generation: Config, *, task: str | None, context: int | None
) -> Task:
    """Return the task of the run, with the special tokens that the model expects around its texts."""
    if context is not None and not 1 <= context <= imported.context:
        raise OptionError(f"context: the model reads 1 to {imported.context} tokens; came {context}")
    if len(set(imported.labels)) < len(imported.labels):
        raise imported.config.error("id2label", "two classes have one name")
    kind = task_named(task or imported.task)
    fields = kind.layout(imported.context).texts
    run_task = kind(
        tokenizers=dict.fromkeys(fields, tokens.tokenizer),
        context=context or imported.context,
        labels=imported.labels,
        framing=dict(framing_of(kind, imported, tokens, generation)),
    )
    if kind.place == "blank" and tokens.tokenizer.mask < 0:
        raise OptionError(
            "the tokenizer names no mask_token, so there is no way to ask for a blank; choose another task"
        )
    return run_task


def framing_of(
    kind: type[Task], imported: Imported, tokens: ImportedTokenizer, generation: Config
) -> Iterator[tuple[str, Framing]]:
    """Yield the framing of each field; `generation` has a token that every output begins with, if there is one."""
    read = Framing(before=tokens.before, after=tokens.after)
    if imported.spec.decoder is None:
        segment = tokens.segment if tokens.segment < (imported.spec.embedding.segments or 1) else 0
        read = replace(read, between=tokens.between, segment=segment)
    forced, never = generation.tokens("forced_bos_token_id"), tuple(forbidden_tokens(generation))
    if kind.target == "none":
        yield from ((field, read) for field in kind.layout(imported.context).texts)
    elif kind.target == "continues":
        yield "text", Framing(before=tokens.before, ends=imported.end, never=never)  # nothing stands after it
    else:
        if imported.start is None:
            raise imported.config.error("decoder_start_token_id", "is missing: it says what an output begins with")
        yield "source", read
        yield (
            "target",
            Framing(
                before=(imported.start, *forced),
                opening=() if forced else tokens.before,
                after=tokens.after or imported.end[:1],
                ends=imported.end,
                never=never,
            ),
        )


def ignored_settings(generation: Config) -> list[str]:
    """Return the settings that change what `transformers` writes and that are not taken over, as `name=value`.

    Those for sampling count only where it samples. Limits on lengths are not among them: every command has its own.
    """
    sampled = () if generation.get("do_sample") else SAMPLED
    words = generation.get("bad_words_ids")
    said = {name: generation.get(name) for name in NEUTRAL if name not in sampled}
    said["bad_words_ids"] = [one for one in words if isinstance(one, list) and len(one) > 1] if words else None
    found = {name: value for name, value in said.items() if value not in (None, NEUTRAL.get(name), [], {})}
    return [f"{name}={value!r:.80}" for name, value in found.items()]


def forbidden_tokens(generation: Config) -> Iterator[int]:
    """Yield the ids that are never to be written; of words of several tokens, which are left out, none."""
    yield from generation.tokens("suppress_tokens")
    words = generation.get("bad_words_ids") or []
    if not isinstance(words, list):
        raise generation.error("bad_words_ids", f"expected lists of token ids; came {words!r:.80}")
    for word in words:
        ids = Config({"bad_words_ids": word}, generation.where).tokens("bad_words_ids")
        if len(ids) == 1:
            yield from ids


def check_finite(model: nn.Module, where: str) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise OptionError(f"{where}: the weights have values that are no numbers (NaN or infinite), in {name}")


def write_run(
    target: Path, imported: Imported, model: nn.Module, task: Task, *, origin: Origin, chat: ChatTemplate | None
) -> None:
    """Write a run that is in memory as a folder: beside its place, and renamed once it is whole."""
    try:
        with files.replacing_folder(target) as partial:
            claiming.write_imported(
                RunFolder(partial), imported.spec, task, checkpoints.named_tensors(model), origin, chat=chat
            )
            if imported.pooler:
                write_pooler(partial, imported.pooler)
    except (OSError, RunError) as error:
        raise RunError(f"{target}: the run could not be written, and nothing was left there ({error})") from None


PREFIX = "hub:"
NAME = re.compile(r"(?:\w[\w.-]{0,95}/)?\w[\w.-]{0,95}(?:@[\w./-]{1,96})?", re.ASCII)
"""ORG/NAME, with a branch, a tag or a commit after an @."""
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
WEIGHTS, PICKLED = ("model*.safetensors", "model.safetensors.index.json"), ("pytorch_model*.bin*",)
"""Weights as they are asked for first, and if there are none of these."""


def fetch_from_hub(source: str, *, cache: Path | None = None) -> Path:
    """Fetch the files of `hub:ORG/NAME` that an import reads, and return the folder they are in.

    They are kept in `cache`, else where `huggingface_hub` keeps its own; what is there already is not fetched again.
    The environment variable HF_ENDPOINT names another server. OptionError if they cannot be fetched.
    """
    name = source.removeprefix(PREFIX)
    if not NAME.fullmatch(name):
        raise OptionError(f"{source}: expected {PREFIX}ORG/NAME, such as {PREFIX}HuggingFaceTB/SmolLM2-135M")
    hub = extras.import_peer("huggingface_hub")
    repository, _, revision = name.partition("@")
    for weights in (WEIGHTS, PICKLED):
        try:
            snapshot = hub.snapshot_download(
                repository,
                revision=revision or None,
                cache_dir=cache,
                allow_patterns=[*FILES, *weights],
                ignore_patterns=["*/*"],
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        except Exception as error:  # the library raises its own, those of its network library, and OSError
            message = next(iter(str(error).splitlines()), type(error).__name__)
            raise OptionError(f"{source}: could not be fetched ({type(error).__name__}: {message[:200]})") from None
        if any(Path(snapshot).glob(weights[0])):
            break
    return Path(snapshot)
