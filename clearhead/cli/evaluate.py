"""`clearhead evaluate`: how good a run is on files of yours."""

import tempfile
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from clearhead.cli.line_io import Device, Dtype, RunPath, check_machine
from clearhead.cli.options import Parts, Words
from clearhead.cli.screen import prose, rule, show, show_json
from clearhead.errors import WordError
from clearhead.options import Given, Option, declared_fields, group_of, override, words_of
from clearhead.text.sources import Table
from clearhead.text.table_readers import list_names
from clearhead.training.evaluation import EvaluationOptions, check_outputs
from clearhead.training.evaluation import evaluate as evaluate_run
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Origin, Recipe
from clearhead.training.run import load
from clearhead.training.tasks import TASKS
from clearhead.training.text_options import TITLE, TRAINING_ONLY, TextOptions, as_corpus, check_text, with_spooled

EXAMPLES = """\b
Examples:
  clearhead evaluate runs/de-en --source test.de --target test.en
  clearhead evaluate runs/de-en --source a --target b --ignore-case
  clearhead evaluate runs/shakespeare --text test.txt --stride 64
  clearhead evaluate runs/reviews --table test.tsv --columns text,label --json"""

TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "accuracy": "accuracy",
    "commonest_answer": "always the commonest",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "loss": "loss, nats",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}
"""The scores, as a page calls them."""
COUNTS = {
    "n": "records",
    "tokens": "tokens",
    "bytes": "bytes",
    "blanks": "blanks",
    "places": "places that asked",
    "cut": "cut, too long",
    "unknown": "unknown tokens",
    "sentences_per_second": "sentences a second",
    "tokens_per_second": "tokens a second",
    "seconds": "seconds",
    "parameters": "parameters",
}
"""What else there is to know of them."""
NAME = 22
"""Columns of a score's name."""


HELD_OUT = Words({TITLE: {word: each for word, each in words_of(TextOptions).items() if word not in TRAINING_ONLY}})
SCORING = Words({"Scores": words_of(EvaluationOptions)})


def evaluate(
    run: RunPath,
    *,
    text: Annotated[Given, HELD_OUT],
    scoring: Annotated[Given, SCORING],
    output: Annotated[
        str | None, Option("Write the translations or labels to this file, one per line.", short="o", takes="FILE")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print everything as one JSON object.", word="json")] = False,
) -> None:
    """Score a trained model on text that it has not seen.

    Translations: BLEU, chrF and exact match. Text: perplexity and bits per byte. Blanks: accuracy. Classes: accuracy
    and F1.
    """
    check_machine(device, dtype)
    folder = RunFolder(Path(run))
    origin, task = folder.origin(), folder.task_kind()
    text = with_columns_of(origin, text)
    check_text(task, group_of(TextOptions, text))
    for name, declared in declared_fields(EvaluationOptions):
        if declared.word in scoring and name not in task.options:
            tasks = " or ".join(other.name for other in TASKS.values() if name in other.options)
            raise WordError(declared.word, f"is for {tasks}, and {run} was trained to {task.name}")
    how = override(EvaluationOptions(skip_bad=text.get("skip_bad", False)), scoring)
    files = as_corpus(task, group_of(TextOptions, text)).train
    files.check()
    if output is not None:
        check_outputs(task, Path(output), files.files)
    loaded = load(run, device=device, dtype=dtype)
    with tempfile.TemporaryDirectory() as spooled:
        source = as_corpus(task, group_of(TextOptions, with_spooled(text, Path(spooled)))).train
        results = evaluate_run(loaded, source, how, output=output)
    if as_json:
        show_json(results)
    else:
        show(
            *render_page(
                results, TITLES | {measure.key: measure.name for measure in task.measures if measure.key not in TITLES}
            )
        )


def with_columns_of(origin: Recipe | Origin, text: Given) -> Given:
    """Return the options with the columns that the run was trained on, where a table is given without any."""
    if "table" not in text or "columns" in text or not isinstance(origin, Recipe):
        return text
    trained_on = origin.corpus.train
    return {**text, "columns": ",".join(trained_on.columns)} if isinstance(trained_on, Table) else text


def render_page(results: Mapping[str, Any], titles: Mapping[str, str]) -> Iterator[RenderableType]:
    yield rule(f"{results['run']}, step {results['step']:,}")
    yield Text()
    for name, title in titles.items():
        if name in results:
            yield Text.assemble(f"  {title:<{NAME}}", (format_number(results[name]), "chosen"))
    if "bleu_signature" in results:
        yield Text()
        yield Text(f"  BLEU|{results['bleu_signature']}", style="quiet", no_wrap=True, overflow="ignore")
        yield Text(f"  chrF|{results['chrf_signature']}", style="quiet", no_wrap=True, overflow="ignore")
    yield from render_labels(results)
    yield from render_lengths(results)
    yield Text()
    for name, title in COUNTS.items():
        if results.get(name):
            yield Text(f"  {title:<{NAME}}{format_number(results[name], 2)}", style="quiet")
    yield from render_remarks(results)
    yield Text()


def render_labels(results: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield records, F1 and the confusion of every label: a row for each true one. A label without records has none."""
    if "records_by_label" not in results:
        return
    names, confusion = results["labels"], results.get("confusion", [])
    answered = f"  answered {', '.join(names)}" if confusion else ""
    yield Text()
    yield Text(f"  {'true label':<{NAME}}{'records':>8}{'F1':>8}{answered}", style="title")
    for name, row in zip_longest(names, confusion, fillvalue=()):
        records = results["records_by_label"][name]
        f1 = f"{results['f1'][name]:.4f}" if records else "–"
        counts = "  " + " ".join(f"{count:>7,}" for count in row) if row else ""
        yield Text(f"  {name:<{NAME}}{records:>8,}{f1:>8}{counts}", no_wrap=True, overflow="ignore")
    absent = [name for name in names if not results["records_by_label"][name]]
    if "accuracy" in results and len(absent) == len(names) - 1:
        yield prose("All records have the same label: accuracy says nothing about the others.")
    elif absent:
        yield prose(f"No record has {escape(list_names(absent))}: scores say nothing about them.")


def render_lengths(results: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the scores of short and long sources apart: a mean over all hides lengths that are rare in the corpus."""
    if len(results.get("by_length", ())) < 2:
        return
    yield Text()
    yield Text(f"  {'characters of source':<{NAME}}{'records':>9}{'exact match':>14}{'chrF':>8}", style="title")
    for row in results["by_length"]:
        name = f"up to {row['up_to']:,}"
        yield Text(f"  {name:<{NAME}}{row['n']:>9,}{100 * row['exact_match']:>12.1f} %{row['chrf']:>8.1f}")


def render_remarks(results: Mapping[str, Any]) -> Iterator[RenderableType]:
    if results["dtype"] != "float32":
        yield Text(f"  {'weights':<{NAME}}{results['dtype']}", style="quiet")
    if results["skipped"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in results["skipped"].items())
        yield prose(f"Left out: {kinds}.")
    if results.get("unknown"):
        yield prose("Bits per byte count an unknown token as one, though it stands for any character.")
    if results["output"]:
        yield Text(f"  {'outputs':<{NAME}}{results['output']}", style="quiet", no_wrap=True, overflow="ignore")


def format_number(value: int | float, digits: int = 4) -> str:
    """Write a count as it is, and another number with so many digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
