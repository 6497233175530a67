"""`clearhead learn`: exercises that are graded exactly: attention to write, puzzles, heads, slips and circuits."""

import math
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from clearhead.cli.craft import NestedVerbs
from clearhead.cli.options import Sectioned, flatten_groups
from clearhead.cli.screen import rule, show
from clearhead.cli.screen import write as screen_write
from clearhead.errors import DataError, OptionError
from clearhead.exercises import answers, designs, judging
from clearhead.exercises.checking import check_file, check_functions, find_exercise, hint, solution
from clearhead.exercises.exercise import EXERCISES, Exercise, Language
from clearhead.exercises.progress import LearnProgress, hand_in, now, read_hand_in, read_progress, write_progress
from clearhead.exercises.slips import SlipModel, steps_of
from clearhead.exercises.training import STEPS, train_file
from clearhead.exercises.verdict import STATES, Verdict
from clearhead.files import write_text
from clearhead.options import Option
from clearhead.training.claiming import check_output

ABOUT = """Solve exercises that are graded exactly.

Write attention from an empty function, step by step; program it in RASP; design a head by hand; find the step that a
model computes wrongly; find out what a compiled model does, and by which edges. Answers are checked on every cell,
every short text and every edge; what is wrong is shown with the smallest example."""
EXAMPLES = """\b
Examples:
  clearhead learn list
  clearhead learn write attention.py --watch
  clearhead learn solve reverse
  clearhead learn solve slip-1
  clearhead learn hint reverse"""
LANGUAGES = ("en", "de")
TITLES: dict[Language, dict[str, str]] = {
    "en": {
        "write": "Write attention",
        "program": "Program it in RASP",
        "design": "Design a head",
        "slip": "Find the slip",
        "mystery": "Reverse a model",
    },
    "de": {
        "write": "Attention selbst schreiben",
        "program": "In RASP programmieren",
        "design": "Einen Kopf entwerfen",
        "slip": "Den Fehler finden",
        "mystery": "Ein Modell entschlüsseln",
    },
}
LEARNED = 0.95
"""The share of right answers from which a trained block has learned its task; by chance it is a fifth."""
TRIES: dict[Language, tuple[str, str]] = {"en": ("try", "tries"), "de": ("Versuch", "Versuche")}
SAID: dict[Language, dict[str, str]] = {
    "en": {
        "functions": "{file} has {count} empty functions now. Write the first, and run this again.",
        "asked": "{file} says what is asked. Write your answer there, and run this again.",
        "train": "Next: clearhead learn train {file}",
        "look": "See its weights: clearhead craft look {file}:answer --alphabet '{alphabet}' --length 6",
        "numbers": "Every number again: clearhead learn solve {name} --numbers",
        "hint": "Hint {number} of {count}.",
        "last hint": "Hint {number} of {count}, the last. After a try: clearhead learn solution {name}",
    },
    "de": {
        "functions": "{file} hat jetzt {count} leere Funktionen. Schreibe die erste, und rufe dies noch einmal auf.",
        "asked": "In {file} steht, was gefragt ist. Schreibe deine Antwort hinein, und rufe dies noch einmal auf.",
        "train": "Weiter: clearhead learn train {file}",
        "look": "Seine Gewichte: clearhead craft look {file}:answer --alphabet '{alphabet}' --length 6",
        "numbers": "Noch einmal alle Zahlen: clearhead learn solve {name} --numbers",
        "hint": "Hinweis {number} von {count}.",
        "last hint": "Hinweis {number} von {count}, der letzte. Nach einem Versuch: clearhead learn solution {name}",
    },
}
"""What the command says of a new file, and below a verdict or a hint: what there is to do next."""
RASP_NAMES = "aggregate, indices, map, past, select, selector_width, sequence_map, tokens"

app = typer.Typer(cls=NestedVerbs, add_completion=False, rich_markup_mode=None)

InLanguage = Annotated[
    str, Option("The language of what is said: en or de.", word="language", takes="NAME", names=LANGUAGES, closed=True)
]
ExerciseName = Annotated[str, typer.Argument(help="A name from `learn list`.", metavar="EXERCISE")]


@app.command("list", cls=Sectioned, short_help="List the exercises, and which are solved here.")
@flatten_groups
def list_exercises(*, language: InLanguage = "en") -> None:
    """List the exercises, and how far you are in this folder."""
    progress, spoken = read_progress(Path()), cast(Language, language)
    show(*list_page(progress, spoken))


def list_page(progress: LearnProgress, language: Language) -> Iterator[RenderableType]:
    for kind, title in TITLES[language].items():
        yield rule(title)
        table = Table.grid(padding=(0, 2))
        for each in EXERCISES.of_kind(kind):
            record = progress.records.get(each.name)
            solved = record is not None and record.solved is not None
            tries = (
                f"{record.tries} {TRIES[language][record.tries != 1]}" if record is not None and record.tries else ""
            )
            table.add_row("✓" if solved else " ", each.name, each.tasks[language].title, tries)
        yield table


@app.command("write", cls=Sectioned, short_help="Write attention, from empty functions to a KV cache.")
@flatten_groups
def write(
    file: Annotated[Path, typer.Argument(help="Your file; one with empty functions is written if there is none.")],
    *,
    watch: Annotated[bool, Option("Check again whenever the file changes, until Ctrl-C.", word="watch")] = False,
    language: InLanguage = "en",
) -> None:
    """Check your own attention, function by function, up to the first that is not right yet."""
    spoken, exercises = cast(Language, language), EXERCISES.of_kind("write")
    if not file.exists():
        check_output(file, option="FILE")
        write_text(file, empty_functions(exercises, spoken))
        show(Text(SAID[spoken]["functions"].format(file=file, count=len(exercises))))
    while True:
        seen = time_of(file)
        try:
            verdicts = keep(list(check_functions(exercises, file, language=spoken)), file)
            show(*verdict_page(verdicts), count_right(verdicts, len(exercises)))
            if all(verdict.is_right for verdict in verdicts):
                show(Text(SAID[spoken]["train"].format(file=file), style="quiet"))
        except DataError as error:
            if not watch:
                raise
            show(Text(str(error)))  # a file that is no text just now may be one when it is saved again
        if not watch:
            return
        while time_of(file) in (seen, None):  # None: an editor puts a new file in its place
            time.sleep(0.5)


@app.command("train", cls=Sectioned, short_help="Train the block that you wrote.")
@flatten_groups
def train(file: Annotated[Path, typer.Argument(help="Your file, whose `block` is right.")]) -> None:
    """Train the block of your file: it learns to name the letter before each letter, in 60 steps."""
    right = 0.0
    for step, loss, right in train_file(file):
        show(Text(f"step {step}/{STEPS}  loss {loss:.4f}  {right:.0%} of the letters before are right"))
    show(
        Text(
            "Your block has learned it."
            if right > LEARNED
            else f"It has not learned it: clearhead learn write {file} says why."
        )
    )


def time_of(file: Path) -> int | None:
    """Return when a file was changed last; None if there is none just now."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def empty_functions(exercises: Sequence[Exercise], language: Language) -> str:
    """Return a file with an empty function for each exercise, which says what it is to do."""
    parts = ['"""Attention, from empty functions: `clearhead learn write` says what is right."""\n\nimport torch\n']
    for each in exercises:
        task = each.tasks[language]
        about = textwrap.indent(f'"""{task.title}. {task.asked}\n"""', "    ")
        parts.append(f"def {each.fact('function')}:\n{about}\n    ...\n")
    return "\n\n".join(parts)


def keep(verdicts: list[Verdict], file: Path) -> list[Verdict]:
    """Add verdicts on a file to the progress of its folder."""
    progress, source = read_progress(file.parent), answers.read_source(file)
    for verdict in verdicts:
        progress = progress.tried(verdict, source, now())
    write_progress(file.parent, progress)
    return verdicts


def verdict_page(verdicts: Sequence[Verdict]) -> Iterator[RenderableType]:
    for verdict in verdicts:
        mark = "✓" if verdict.is_right else "·"
        yield Text(f"{mark} {label_of(EXERCISES[verdict.name])}: {STATES[verdict.language][verdict.state]}")
        yield from (Text(f"    {line}") for line in verdict.lines)


def label_of(exercise: Exercise) -> str:
    """Return the name of an exercise, with the function that it asks for if that is called otherwise."""
    if exercise.kind != "write" or (function := judging.function_name(exercise)) == exercise.name.replace("-", "_"):
        return exercise.name
    return f"{exercise.name} ({function})"


def count_right(verdicts: Sequence[Verdict], total: int) -> RenderableType:
    right = sum(verdict.is_right for verdict in verdicts)
    return Text(f"{right} of {total}" if verdicts[-1].language == "en" else f"{right} von {total}", style="quiet")


@app.command("solve", cls=Sectioned, short_help="Solve a puzzle, design a head, find a slip or a circuit.")
@flatten_groups
def solve(
    name: ExerciseName,
    file: Annotated[Path | None, typer.Argument(help="Your file with the answer.")] = None,
    *,
    numbers: Annotated[bool, Option("Print every number of a model with a slip again.", word="numbers")] = False,
    language: InLanguage = "en",
) -> None:
    """Check your answer to an exercise.

    Puzzles are tried on every text of up to six tokens, heads on every sentence of a small grammar, slips by the output
    of the repaired model, circuits edge by edge. Without a file, EXERCISE.py is taken; one that says what is asked is
    written if there is none.
    """
    exercise, spoken = find_exercise(name), cast(Language, language)
    if exercise.kind == "write":
        raise OptionError(f"{name} is a function to write: clearhead learn write FILE checks it")
    if numbers and exercise.kind != "slip":
        raise OptionError(f"--numbers: {name} has no numbers to print; {' '.join(slip_names())} have")
    file = Path(f"{name}.py") if file is None else file
    if not file.exists():
        check_output(file, option="FILE")
        write_text(file, stub(exercise, spoken))
        show(Text(SAID[spoken]["asked"].format(file=file)))
        if exercise.kind == "slip":
            show(*slip_page(exercise))
        return
    if numbers:
        show(*slip_page(exercise))
    [verdict] = keep([check_file(exercise, file, language=spoken)], file)
    show(*verdict_page([verdict]))
    if verdict.is_right and exercise.kind == "program":
        show(Text(SAID[spoken]["look"].format(file=file, alphabet=exercise.fact("alphabet")), style="quiet"))
    if not verdict.is_right and exercise.kind == "slip" and not numbers:
        show(Text(SAID[spoken]["numbers"].format(name=name), style="quiet"))


def slip_names() -> list[str]:
    return [each.name for each in EXERCISES.of_kind("slip")]


RASP_HELP: dict[Language, str] = {
    "en": """\
# tokens, indices               the tokens, as text ("a", "1"); their places 0, 1, 2, …
# select(keys, queries, lambda key, query: …)     which keys each query chooses: a selector
# aggregate(selector, values)   the values at the chosen keys (of numbers the mean)
# selector_width(selector)      how many keys are chosen
# past(selector), one & other   no later keys; the keys that both choose
# map(lambda a: …, sequence), sequence_map(lambda a, b: …, first, second)     place by place
# first - second, sequence + 1  sequences of numbers can be added and subtracted
# For example, every place gets its own token:
# aggregate(select(indices, indices, lambda key, query: key == query), tokens)
""",
    "de": """\
# tokens, indices               die Token, als Text ("a", "1"); ihre Stellen 0, 1, 2, …
# select(keys, queries, lambda key, query: …)     welche Keys jede Query wählt: ein Selektor
# aggregate(selector, values)   die Werte an den gewählten Keys (von Zahlen das Mittel)
# selector_width(selector)      wie viele Keys gewählt sind
# past(selector), one & other   keine späteren Keys; die Keys, die beide wählen
# map(lambda a: …, sequence), sequence_map(lambda a, b: …, first, second)     Stelle für Stelle
# first - second, sequence + 1  Folgen von Zahlen lassen sich addieren und abziehen
# Zum Beispiel bekommt jede Stelle ihr eigenes Token:
# aggregate(select(indices, indices, lambda key, query: key == query), tokens)
""",
}
"""What a pupil who has never seen RASP needs to begin."""
STUBS = {
    "program": f"from clearhead.rasp import {RASP_NAMES}\n\n{{help}}\nanswer = ...\n",
    "slip": "import torch\n\n# A step of embedding or of an attention is wrong. Feed-forward, not shown, is right.\n"
    '# Of two heads, steps["score"] has the shape 2 x n x n.\n\n\ndef where():\n'
    '    """Return a place and one of its steps, as ("decoder.0.attention", "query")."""\n    ...\n\n\n'
    "def repair(steps):\n"
    '    """Return what that step should be, from the steps of that place: steps["query"], steps["score"], …"""\n'
    "    ...\n",
    "mystery": "from clearhead.exercises import mystery\n"
    f"from clearhead.rasp import {RASP_NAMES}\n\n{{help}}\n"
    '# model = mystery("{name}"); model.run("abc"); model.scores("exact"); model.patch("abc", "bbc", [edge])\n\n'
    'edges = [\n    # "sender -> receiver", of model.edges\n]\nanswer = ...\n',
}
"""The beginning of an answer, for each kind of exercise."""


def stub(exercise: Exercise, language: Language) -> str:
    """Return a file that says what is asked, with nothing in it yet."""
    task = exercise.tasks[language]
    about = "\n".join(textwrap.wrap(f"{task.title}. {task.asked}", 100))
    if exercise.kind == "design":
        parts = (f"def {role}(word, place):\n    ...\n" for role in designs.design_roles(exercise))
        return "\n\n".join([f'"""{about}\n"""\n', *parts])
    code = STUBS[exercise.kind].replace("{name}", exercise.name).replace("{help}", RASP_HELP[language])
    return f'"""{about}\n"""\n\n{code}'


def slip_page(exercise: Exercise) -> Iterator[RenderableType]:
    """Yield every number of the model with a slip, for its first text."""
    made = SlipModel(exercise=exercise)
    trace = made.trace(made.texts[0])
    for at in made.sites:
        yield rule(at)
        steps = steps_of(trace, at)
        yield Text("  ".join(steps.pop("tokens")), style="quiet")
        for name, value in steps.items():
            heads = [("", value)] if value.ndim == 2 else [(f", head {n}", part) for n, part in enumerate(value)]
            for label, matrix in heads:
                yield Text(f"{name}{label}")
                yield Text(
                    "\n".join("  " + "".join(f"{show_cell(cell):>8}" for cell in row) for row in matrix.tolist())
                )


def show_cell(value: float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "·"
    return f"{value:.3f}" if math.isfinite(value) else "-inf"


@app.command("hint", cls=Sectioned, short_help="Show the next hint of an exercise.")
@flatten_groups
def show_hint(name: ExerciseName, *, language: InLanguage = "en") -> None:
    """Show a hint; the next one with each call in the same folder."""
    spoken = cast(Language, language)
    count, progress = len(find_exercise(name).tasks[spoken].hints), read_progress(Path())
    if name not in progress.records or progress.records[name].hints < count:  # the last one again is no further hint
        progress = progress.hinted(name)
        write_progress(Path(), progress)
    number = min(progress.records[name].hints, count)
    shown = SAID[spoken]["last hint" if number == count else "hint"].format(number=number, count=count, name=name)
    show(Text(hint(name, number, language=spoken)), Text(shown, style="quiet"))


@app.command("solution", cls=Sectioned, short_help="Show a solution, after you have tried.")
@flatten_groups
def show_solution(name: ExerciseName) -> None:
    """Show a solution. An answer of yours must have been checked in this folder before."""
    find_exercise(name)
    if name not in (records := read_progress(Path()).records) or records[name].tries == 0:
        raise OptionError(f"{name}: try it first; clearhead learn hint {name} helps")
    show(Text(solution(name)))


@app.command("hand-in", cls=Sectioned, short_help="Print a line for your teacher.")
@flatten_groups
def show_hand_in(
    *, name: Annotated[str, Option("Your name, as your teacher knows it.", word="name", takes="NAME")]
) -> None:
    """Print what you have solved in this folder as one line to copy. Nothing is sent."""
    screen_write(f"{hand_in(read_progress(Path()), name)}\n")  # never wrapped: it is copied as one line


@app.command("class", cls=Sectioned, short_help="Read hand-in lines into a table.")
@flatten_groups
def show_class(file: Annotated[Path, typer.Argument(help="A file with a hand-in line of each pupil.")]) -> None:
    """Read the lines that pupils handed in, and show who has solved what. Lines with a slip are named."""
    lines = [line for line in answers.read_source(file).splitlines() if line.strip()]
    table, problems = Table("name", "lesson", "solved", "tries", "hints", "minutes", "open", box=None), []
    for number, line in enumerate(lines, 1):
        try:
            handed = read_hand_in(line)
        except DataError as error:
            problems.append(Text(f"line {number}: {error}"))
            continue
        left, solved = handed.left, len(handed.solved)
        shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        facts = handed.lesson, f"{solved} of {solved + len(left)}", handed.tries, handed.hints, handed.minutes
        table.add_row(*(Text(str(fact)) for fact in (handed.name, *facts, shown)))
    show(table, *problems)
