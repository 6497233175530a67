"""`clearhead import`: a model that other people's code trained, as a run folder."""

import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from clearhead.cli.line_io import Device
from clearhead.cli.options import new_folder
from clearhead.cli.screen import named_row, rule, show, show_json
from clearhead.interop.run import STORED, import_model
from clearhead.options import Option
from clearhead.training.recipe import Origin
from clearhead.training.run import Run
from clearhead.training.tasks import TASKS, Embed

EXAMPLES = """\b
Examples:
  clearhead import models/gpt2 runs/gpt2
  clearhead import hub:HuggingFaceTB/SmolLM2-135M runs/smollm --dtype bfloat16
  clearhead import models/llama runs/llama --context 4096 --json"""
COLUMN = 16
ON_A_TEXT = {"translate": "'a line of the source'", "fill": "'a line with a <mask> in it'"}
"""What a text for `clearhead trace` is, where it is not just any."""


def import_run(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder with config.json, *.safetensors, tokenizer.json; a .gguf file; or hub:ORG/NAME, to fetch.",
            metavar="SOURCE",
        ),
    ],
    run: Annotated[str, typer.Argument(help="The run folder to write; it must not be there yet.", metavar="RUN")],
    *,
    task: Annotated[
        str | None,
        Option(
            f"What the run shall do: {', '.join((*TASKS, Embed.name))}; without it, what its class is for.",
            takes="NAME",
            names=(*TASKS, Embed.name),
        ),
    ] = None,
    dtype: Annotated[str, Option(f"Weights as {' or '.join(STORED)}.", takes="NAME", names=STORED)] = "float32",
    context: Annotated[
        int | None, Option("Longest text in tokens, if shorter than the model's own.", takes="N", least=1)
    ] = None,
    device: Device = "cpu",
    as_json: Annotated[bool, Option("Print what was read as one JSON object.", word="json")] = False,
) -> None:
    """Import a model that Hugging Face's transformers saved, or a GGUF file, as a run folder.

    The run works with the other commands: generate, fill, classify, translate, embed, evaluate, trace, look. Nothing in
    the source is executed or unpickled. The network is used for hub: alone. Where the import fails, RUN is not written.
    """
    imported = import_model(source, new_folder("RUN", run), task=task, dtype=dtype, context=context, device=device)
    facts = describe_import(imported)
    if as_json:
        show_json(facts)
    else:
        show(*render_page(imported, facts))


def describe_import(run: Run) -> dict[str, Any]:
    """Return what was read."""
    origin, tokenizer = run.folder.origin(), run.tokenizer
    assert isinstance(origin, Origin)
    return {
        "run": str(run.folder.path),
        "source": origin.source,
        "architecture": origin.architecture,
        "stacks": list(describe_stacks(run)),
        "parameters": origin.parameters,
        "dtype": origin.dtype,
        "context": run.task.context,
        "vocabulary": tokenizer.vocabulary,
        "framing": {field: frame_text(run, field) for field in run.task.tokenizers},
        "labels": list(run.task.labels),
        "chat_template": run.folder.chat() is not None,
        "task": run.task.name,
    }


def describe_stacks(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the size of each stack of blocks: one for an encoder or a decoder, two for both."""
    for stack in run.model.spec.stacks:
        heads = stack.blocks[0].attention.build(stack.d_model).shape
        yield {
            "kind": stack.kind,
            "n_layers": len(stack.blocks),
            "n_heads": heads.n_heads,
            "n_kv_heads": heads.n_kv_heads,
            "d_head": heads.d_head,
            "d_model": stack.d_model,
        }


def frame_text(run: Run, field: str) -> str:
    """Return what the model is given around a text, as tokens."""
    frame, tokenizer = run.task.frame(field), run.task.tokenizers[field]
    before, after = (tokenizer.pieces(ids) for ids in ((*frame.before, *frame.opening), frame.after))
    return " ".join([*before, field, *after])


def render_page(run: Run, facts: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield what was read, and commands to try."""
    yield rule(facts["run"])
    for stack in facts["stacks"]:
        shared = f" ({stack['n_kv_heads']} for keys and values)" if stack["n_kv_heads"] != stack["n_heads"] else ""
        size = f"{stack['n_layers']} layers × {stack['n_heads']} heads{shared}"
        yield render_row(stack["kind"], f"{facts['architecture']} · {size} · d_model {stack['d_model']:,}")
    yield render_row("parameters", f"{facts['parameters']:,} · {facts['dtype']}")
    yield render_row("context", f"{facts['context']:,} tokens")
    yield render_row("tokenizer", f"{facts['vocabulary']:,} tokens")
    for number, framed in enumerate(facts["framing"].values()):
        yield render_row("" if number else "reads", framed)
    if facts["labels"]:
        yield render_row("labels", ", ".join(facts["labels"]))
    yield render_row("task", facts["task"] + (", and chat" if facts["chat_template"] else ""))
    yield Text()
    quoted = shlex.quote(facts["run"])
    for number, command in enumerate(list_commands(run, quoted)):
        yield render_row("" if number else "try", command)
    yield Text()


def list_commands(run: Run, quoted: str) -> Iterator[str]:
    """Yield commands to try with the run."""
    use, evaluate = run.task.usage()
    yield use.format(run=quoted)
    if run.task.name != Embed.name:
        yield evaluate.format(run=quoted)
    yield f"clearhead trace {quoted} {ON_A_TEXT.get(run.task.name, repr('a line of text'))}"
    yield f"clearhead look {quoted}"


def render_row(name: str, value: str) -> RenderableType:
    return named_row(name, value, COLUMN)
