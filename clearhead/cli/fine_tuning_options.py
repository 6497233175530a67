"""Options for fine-tuning: the run to start from, adapters, and what is not trained."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import typer

from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.options import above_zero, wrong
from clearhead.errors import OptionError
from clearhead.model.lora import ALL, MAPS, Lora


@final
@dataclass(frozen=True, kw_only=True)
class FineTuningOptions:
    """What it starts from."""

    title: ClassVar[str] = "Fine-tuning"

    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            autocompletion=complete_names([RUNS]),
            help="Start from this run, trained or imported: its model, weights and tokenisers. The usual learning rate "
            "is a fifth of that from scratch.",
        ),
    ] = None
    lora: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="RANK", help="LoRA: train adapters of this rank beside frozen weights, at the full rate."
        ),
    ] = None
    lora_maps: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            autocompletion=complete_names([*MAPS, ALL], several=True),
            help=f"lora: maps with adapters: {', '.join(MAPS)} or {ALL}.  [default: query,value]",
        ),
    ] = None
    lora_alpha: Annotated[
        float | None,
        typer.Option(
            metavar="X", callback=above_zero, help="lora: adapters are scaled by X / RANK.  [default: twice the rank]"
        ),
    ] = None
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Do not train these parameters: embedding, blocks.0-3, '*.attention.*'. Repeatable."
        ),
    ] = None


def as_lora(options: FineTuningOptions) -> Lora | None:
    """Return the adapters that are asked for, None where there are none."""
    if options.lora is None:
        for name, value in (("--lora-maps", options.lora_maps), ("--lora-alpha", options.lora_alpha)):
            if value is not None:
                raise wrong(name, "goes with --lora RANK")
        return None
    names = tuple(name.strip() for name in (options.lora_maps or "query,value").split(","))
    try:
        return Lora(rank=options.lora, maps=names, alpha=options.lora_alpha)
    except OptionError as error:
        raise wrong("--lora-maps", str(error).removeprefix("Lora: ")) from error


def as_freeze(options: FineTuningOptions) -> tuple[str, ...]:
    """Return the patterns of names to freeze; one option may hold several, with commas between."""
    patterns = [name.strip() for text in options.freeze or () for name in text.split(",")]
    return tuple(name for name in patterns if name)
