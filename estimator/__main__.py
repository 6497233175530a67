"""`python -m estimator MODEL --gpus N`: read the model and the options, and print the estimate."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.cli import explain_error
from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.describe import gather_facts
from clearhead.cli.options import Sectioned, flatten_groups
from clearhead.cli.screen import show, show_json
from clearhead.errors import WordError
from clearhead.files import read_json
from clearhead.model.sizes import KINDS, PRESETS
from clearhead.options import Option
from clearhead.serialization import CLASS
from clearhead.training.recipe import Recipe, load_recipe
from estimator.options import RateOptions, ScalingOptions, plan_training
from estimator.page import training_object, training_page


def find_recipe(path: Path) -> Recipe | None:
    """Return the recipe in a file, or of a run that was trained here."""
    file = path / "recipe.json" if path.is_dir() else path
    return load_recipe(file) if file.exists() and read_json(file).get(CLASS) == "Recipe" else None


def length_option(whose: str) -> Any:
    return Option(help=f"Length of the {whose}, in tokens.", takes="N", least=1)


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help=f"A run folder, a JSON file with a spec or a recipe, a preset, or with --size: {', '.join(KINDS)}.",
            metavar="MODEL",
            autocompletion=complete_names([RUNS, *PRESETS, *KINDS]),
        ),
    ],
    *,
    size: Annotated[str | None, Option(help="Choose a model with about this many parameters.", takes="COUNT")] = None,
    vocabulary: Annotated[int | None, Option(help="Size of the vocabulary.", takes="N", least=1)] = None,
    source_length: Annotated[int | None, length_option("encoder's input")] = None,
    target_length: Annotated[int | None, length_option("decoder's output")] = None,
    scaling: ScalingOptions,
    rates: RateOptions,
    as_json: Annotated[bool, Option(help="Print everything as one JSON object.", word="json")] = False,
) -> None:
    """Estimate training on many GPUs: memory by part, communication, and time. The model is not built."""
    facts = gather_facts(model, size=size, vocabulary=vocabulary, batch=1, source=source_length, target=target_length)
    recipe = None if facts.purpose is None else find_recipe(Path(model))
    plan = plan_training(facts.spec, (facts.costs.source or 1, facts.costs.target or 1), scaling, rates, recipe)
    if as_json:
        show_json(training_object(plan))
    else:
        show(*training_page(facts.name, plan))


def run(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Sectioned)(flatten_groups(estimate))
    try:
        return typer.main.get_command(app).main(args=list(args), prog_name="estimator", standalone_mode=False) or 0
    except Exception as error:
        print(explain_error(error).replace("clearhead", "estimator"), file=sys.stderr)
        return 2 if isinstance(error, WordError) else getattr(error, "exit_code", 1)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
