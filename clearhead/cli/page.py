"""`clearhead page`: one HTML file with the model in it, which runs in the browser."""

from pathlib import Path
from typing import Annotated

from clearhead.cli.line_io import RunPath
from clearhead.cli.options import Parts
from clearhead.cli.screen import show_json, write
from clearhead.exercises.lesson import find_lesson, lesson_tags
from clearhead.experiments.tracing import trace
from clearhead.files import write_text
from clearhead.options import Option
from clearhead.serve.answer_key import packed_key
from clearhead.serve.live import MOST_FILM, PLACE, PageFilm, check_built, check_size, live_page
from clearhead.tracing import Trace
from clearhead.tracing.edits import Edit
from clearhead.training.claiming import check_output
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, load

EXAMPLES = """\b
Examples:
  clearhead page runs/demo -o demo.html
  clearhead page runs/demo --lesson attention-de -o lesson.html
  clearhead page runs/de-en --step 4000 -o de-en.html"""


def page(
    run: RunPath,
    *,
    output: Annotated[Path, Option(help="The HTML file to write.", short="o", takes="FILE")],
    step: Annotated[
        int | None, Option(help="The checkpoint of this step, instead of the best.", takes="N", least=0)
    ] = None,
    lesson: Annotated[
        str | None,
        Option(help="A lesson to give with it: attention, attention-de, or a Markdown file of yours.", takes="NAME"),
    ] = None,
    no_film: Annotated[bool, Option(help="Leave the steps of the training out, for a smaller page.")] = False,
    parts: Parts = None,
    as_json: Annotated[bool, Option(help="Print one JSON object.", word="json")] = False,
) -> None:
    """Write the explorer and the model as one HTML file that needs no server and no network.

    Whoever opens it types any text and sees every layer, head and number; the model runs in the browser. Up to a
    million parameters the weights stay float32; beyond, they are rounded to float16; 30 million are the most. The steps
    of the training's film are in it too, rounded to 11 bits, as many as fit into 12 MB. A part
    that the page cannot compute is refused by name. With --lesson the page opens as that lesson, which ends with a line
    to hand in.
    """
    check_output(output, option="--output")
    planned = None if lesson is None else find_lesson(lesson)
    check_built()
    check_size(RunFolder(Path(run)))
    loaded = load(run, device="cpu", step=step)
    live = live_page(loaded, exercises=None if planned is None else packed_key(planned), film=not no_film)
    write_text(output, live.text if planned is None else live.text.replace(PLACE, lesson_tags(planned) + PLACE, 1))
    size = output.stat().st_size
    if as_json:
        about = {"output": str(output), "bytes": size, "parameters": live.parameters, "weights": live.dtype}
        show_json(about | {"film": list(live.film.steps)})
        return
    rounded = ", rounded from float32" if live.dtype == "float16" else ""
    filmed = "" if no_film else film_words(live.film)
    write(f"{output}: {size / 1e6:.1f} MB, {live.parameters:,} parameters in {live.dtype}{rounded}{filmed}\n")
    if planned is None:
        return
    for task in (each for each in planned["steps"] if each["answer"] is not None):
        text = task["sentence"] or planned["sentence"] or ""
        found = heads_that_answer(loaded, text, task["answer"])
        solved = "switch off " + " or ".join(found) if found else "no single head does it; try it before the lesson"
        write(f"“{task['title']}”, {text!r}: {solved}\n")


def film_words(film: PageFilm) -> str:
    """Return what a page has of the run's film, as the end of a sentence."""
    if not film.of:
        return ""
    if not film.steps:
        return f"; without the film, whose {film.of} steps would take more than {MOST_FILM / 1e6:.0f} MB"
    some = "" if len(film.steps) == film.of else f" of its {film.of}"
    return f"; film of {len(film.steps)}{some} steps, rounded to 11 bits ({sum(map(len, film.lines)) / 1e6:.1f} MB)"


def heads_that_answer(run: Run, text: str, wanted: str) -> list[str]:
    """Return the heads without which the model writes what a task asks for: its solutions by one click."""
    sites = trace(run, text).sites
    offs = [
        Edit(at=name, step="context", head=head, times=0.0)
        for name, site in sites.items()
        for head in range(site.n_heads)
    ]
    return [
        f"head {off.head} of {off.at}" for off in offs if wanted.lower() in answer_of(trace(run, text, edits=[off]))
    ]


def answer_of(found: Trace) -> str:
    """Return what a traced model answers, as plain text."""
    return "".join(likeliest[0].text for likeliest in found.candidates).replace("▁", " ").lower()
