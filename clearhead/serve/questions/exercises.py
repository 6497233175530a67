"""Exercises that are solved in the page: puzzles and repairs by menus, heads by numbers. No code of a reader runs."""

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, final

from clearhead.errors import OptionError
from clearhead.exercises.checking import check, check_menus, find_exercise
from clearhead.exercises.designs import design_cases, design_roles
from clearhead.exercises.exercise import EXERCISES, KINDS, Exercise
from clearhead.exercises.menus import MOST_LINES, OPERATIONS, list_repairs, menu_of, write_program, write_repair
from clearhead.exercises.mysteries import make_mystery
from clearhead.exercises.slips import SlipModel, logits_of, steps_of
from clearhead.exercises.verdict import Verdict
from clearhead.serve.budget import JSON_OBJECT, Cost
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import Params, bounded
from clearhead.serve.questions.question import Question

Spoken = Literal["en", "de"]
LONGEST_LINE, WIDEST, MOST_EDGES = 80, 32, 400
"""Characters of a line by menus; numbers of a vector; edges of a mystery that may be marked."""
LONGEST_TEXT = 3
"""Letters of the texts that a mystery is tried with in the page: there are 39 of three letters."""


class Asked(TypedDict):
    """What an exercise asks, and its hints."""

    name: str
    title: str
    asked: str
    hints: list[str]


class Puzzle(TypedDict):
    asked: Asked
    alphabet: str
    menus: dict[str, list[str]]
    """What may be chosen: by slot, the predicates, functions of one value and functions of two."""


class Goal(TypedDict):
    """A head to design. It is tried on every sentence."""

    asked: Asked
    roles: list[str]
    cases: list[tuple[str, int]]
    """Every word with every place where it stands: a vector of each is graded."""
    sentences: list[list[str]]
    causal: bool
    outputs: int
    """How many numbers the head gives each word; 0 if only its weights are graded."""


class PageExercises(TypedDict):
    puzzles: list[Puzzle]
    operations: dict[str, list[str]]
    """By operation, what it takes: sequences, selectors, or names from a menu."""
    most: int
    """How many lines a program may have."""
    goals: list[Goal]
    slips: list[Asked]
    mysteries: list[Puzzle]


@final
@dataclass(frozen=True, kw_only=True)
class AskExercises(Question[PageExercises]):
    """The exercises that can be solved in the page, in a language."""

    turn: ClassVar = "files"
    language: Spoken = "en"

    def answer(self, explorer: "Explorer") -> PageExercises:
        explorer.budget.check(Cost(memory=1000 * JSON_OBJECT), "the list of exercises", "raise the budget")
        return self.listed(EXERCISES.values())

    def listed(self, exercises: Collection[Exercise]) -> PageExercises:
        """Return those of some exercises that can be solved in a page."""
        of_kind = {kind: [each for each in exercises if each.kind == kind] for kind in KINDS}
        return {
            "puzzles": [self.puzzle(each) for each in of_kind["program"] if each.menus],
            "operations": {name: [*slots] for name, (slots, _) in OPERATIONS.items()},
            "most": MOST_LINES,
            "goals": [
                {
                    "asked": self.asked(each),
                    "roles": [*design_roles(each)],
                    "cases": design_cases(each),
                    "sentences": (sentences := [[*words] for words in each.checks["sentences"]()]),
                    "causal": each.checks.get("causal", False),
                    "outputs": len(each.checks["result"](sentences[0], 0)) if "result" in each.checks else 0,
                }
                for each in of_kind["design"]
            ],
            "slips": [self.asked(each) for each in of_kind["slip"]],
            "mysteries": [self.puzzle(each) for each in of_kind["mystery"]],
        }

    def puzzle(self, exercise: Exercise) -> Puzzle:
        menus = {slot: [*menu_of(slot, exercise)] for slot in ("predicate", "function", "joining")}
        return {"asked": self.asked(exercise), "alphabet": exercise.fact("alphabet"), "menus": menus}

    def asked(self, exercise: Exercise) -> Asked:
        task = exercise.tasks[self.language]
        return {"name": exercise.name, "title": task.title, "asked": task.asked, "hints": [*task.hints]}

    def python(self, explorer: "Explorer") -> list[str]:
        return ["import clearhead as ch", "[*ch.exercises.EXERCISES]"]


class SlipStep(TypedDict):
    name: str
    heads: list[list[list[float | None]]]
    """A matrix, or one for each head; null stands for −∞, and 1 and 0 for what may be attended to and may not."""
    formulas: list[str]
    """What may be put in its place."""


class SlipSite(TypedDict):
    at: str
    steps: list[SlipStep]


class SlipNumbers(TypedDict):
    """Every number of a small model in which one step is computed wrongly, for one of its texts."""

    name: str
    texts: list[str]
    tokens: list[str]
    sites: list[SlipSite]
    logits: list[list[float]]


@final
@dataclass(frozen=True, kw_only=True)
class AskSlip(Question[SlipNumbers]):
    """The numbers of the model of the slip `name`, for one of its texts."""

    turn: ClassVar = "files"
    name: str = bounded(longest=40)
    text: int = bounded(0, least=0, below=3)

    def answer(self, explorer: "Explorer") -> SlipNumbers:
        exercise = find_kind(self.name, "slip")
        explorer.budget.check(Cost(memory=2000 * JSON_OBJECT), "the numbers of this model", "raise the budget")
        return slip_numbers(exercise, self.text)

    def python(self, explorer: "Explorer") -> list[str]:
        text = SlipModel(exercise=find_kind(self.name, "slip")).texts[self.text]
        return [
            "import clearhead as ch",
            f"trace = ch.exercises.trace_slip(ch.exercises.EXERCISES[{self.name!r}], {text!r})",
            "trace.value(f'{trace.answer_side}.output.logits')",
        ]


def slip_numbers(exercise: Exercise, text: int) -> SlipNumbers:
    made = SlipModel(exercise=exercise)
    trace = made.trace(made.texts[text])
    return {
        "name": exercise.name,
        "texts": [*made.texts],
        "tokens": made.texts[text].split(),
        "sites": [site_numbers(at, steps_of(trace, at)) for at in made.sites],
        "logits": logits_of(trace).tolist(),
    }


def site_numbers(at: str, steps: Mapping[str, Any]) -> SlipSite:
    matrices = {name: value.double() for name, value in steps.items() if name != "tokens"}
    return {
        "at": at,
        "steps": [
            {
                "name": name,
                "heads": [
                    [[number if math.isfinite(number) else None for number in row] for row in matrix]
                    for matrix in (value if value.ndim == 3 else value[None]).tolist()
                ],
                "formulas": list_repairs(name, steps),
            }
            for name, value in matrices.items()
        ],
    }


class MysteryModel(TypedDict):
    """What a model whose program is not told does with short texts, and what its edges do."""

    name: str
    edges: list[str]
    texts: list[str]
    answers: list[list[str | None]]
    """To each text, a value for each place."""
    changed: list[list[str | None]]
    """Answers to texts in which one edge carries another text's."""
    changes: list[tuple[int, int, int, int]]
    """An edge, a text, the other text, and what the answer changes to; whatever is not here changes nothing."""


@final
@dataclass(frozen=True, kw_only=True)
class AskMystery(Question[MysteryModel]):
    """The answers of the model of the mystery `name`, and what each edge changes by itself."""

    turn: ClassVar = "files"
    name: str = bounded(longest=40)

    def answer(self, explorer: "Explorer") -> MysteryModel:
        explorer.budget.check(Cost(memory=20_000 * JSON_OBJECT), "the answers of this model", "raise the budget")
        return mystery_model(find_kind(self.name, "mystery"))

    def python(self, explorer: "Explorer") -> list[str]:
        return ["import clearhead as ch", f"model = ch.exercises.mystery({self.name!r})", 'model.run("abc")']


def mystery_model(exercise: Exercise) -> MysteryModel:
    found, lengths = make_mystery(exercise), range(1, LONGEST_TEXT + 1)
    texts = ["".join(word) for n in lengths for word in itertools.product(exercise.fact("alphabet"), repeat=n)]
    changed: list[list[str | None]] = []
    changes: list[tuple[int, int, int, int]] = []
    for edge, text, other, answer in found.changes(texts):
        if answer not in changed:
            changed.append(answer)
        changes.append((found.edges.index(edge), texts.index(text), texts.index(other), changed.index(answer)))
    return {
        "name": exercise.name,
        "edges": found.edges,
        "texts": texts,
        "answers": [found.run(text) for text in texts],
        "changed": changed,
        "changes": changes,
    }


class GradedAnswer(TypedDict):
    """What is said of an answer."""

    name: str
    state: str
    """right, not yet, empty or failed."""
    lines: list[str]
    credit: float | None
    """Of a head: the share of all weight that is where it should be."""
    computed: list[tuple[str, str]]
    """Of a program that is wrong: what each line computes for the shortest text that shows it."""


def read_vectors(params: Params) -> dict[str, list[list[float]]]:
    """Return the vectors of a designed head by role; what is no number is refused where they are graded."""
    given = params.values.get("vectors", {})
    if not isinstance(given, dict) or not all(is_table(table) for table in given.values()):
        raise params.value_error("vectors", f"expected lists of up to {WIDEST} finite numbers by role", given)
    return given


def is_table(table: object) -> bool:
    rows = table if isinstance(table, list) else [None]
    return len(rows) <= 1000 and all(
        isinstance(row, list)
        and 0 < len(row) <= WIDEST
        and all(type(number) in (int, float) and abs(number) < 1e9 for number in row)
        for row in rows
    )


@final
@dataclass(frozen=True, kw_only=True)
class AskGrade(Question[GradedAnswer]):
    """Whether an answer to the exercise `name` is right: `lines` of a puzzle or mystery, `vectors` of a head, or a
    repair.
    """

    sent: ClassVar = True
    turn: ClassVar = "files"
    name: str = bounded(longest=40)
    language: Spoken = "en"
    lines: list[str] | None = bounded(None, most=MOST_LINES, longest=LONGEST_LINE)
    edges: list[str] | None = bounded(None, most=MOST_EDGES, longest=2 * LONGEST_LINE)
    """The edges of a mystery that are marked."""
    vectors: dict[str, list[list[float]]] = dataclasses.field(default_factory=dict, metadata={"read": read_vectors})
    """By role, a vector for each case of the goal."""
    at: str | None = bounded(None, longest=WIDEST)
    step: str | None = bounded(None, longest=WIDEST)
    formula: str | None = bounded(None, longest=WIDEST)
    """The step of a slip's model that is wrong, and the formula that repairs it."""

    def answer(self, explorer: "Explorer") -> GradedAnswer:
        explorer.budget.check(Cost(memory=1000 * JSON_OBJECT), "grading an exercise", "raise the budget")
        exercise = find_exercise(self.name)
        if exercise.kind in ("program", "mystery"):
            edges = None if exercise.kind == "program" else self.edges or []
            verdict = check_menus(exercise, self.lines or [], edges=edges, language=self.language)
        elif exercise.kind == "design":
            verdict = check(self.name, self.functions(exercise), language=self.language)
        else:
            verdict = check(self.name, self.repair(), language=self.language)
        return graded(verdict)

    def functions(self, exercise: Exercise) -> dict[str, Any]:
        """Return query, key and value as functions of a word and its place."""
        cases = design_cases(exercise)
        if any(len(self.vectors.get(role, ())) != len(cases) for role in design_roles(exercise)):
            raise OptionError(f"{self.name}: expected a vector of each role for each of {len(cases)} words and places")
        tables = {role: dict(zip(cases, self.vectors[role], strict=True)) for role in design_roles(exercise)}
        return {role: lambda word, place, table=table: table[word, place] for role, table in tables.items()}

    def repair(self) -> dict[str, Any]:
        find_kind(self.name, "slip")
        repair = write_repair(self.step or "", self.formula or "")
        return {"where": lambda: (self.at, self.step), "repair": repair}

    def python(self, explorer: "Explorer") -> list[str]:
        exercise = find_exercise(self.name)
        imports = ["import clearhead as ch", ""]
        if exercise.kind in ("program", "mystery"):
            code = write_program(self.lines or [], exercise).rstrip().splitlines()
            given = "answer" if exercise.kind == "program" else f'{{"edges": {self.edges or []}, "answer": answer}}'
            return [*imports, *code, f"ch.exercises.check({self.name!r}, {given}).state"]
        if exercise.kind == "design":
            cases = design_cases(exercise)
            tables = [
                f"{role} = dict(zip({cases}, {self.vectors[role]}, strict=True))" for role in design_roles(exercise)
            ]
            given = ", ".join(f"{role!r}: lambda *case: {role}[case]" for role in design_roles(exercise))
            return [*imports, *tables, f"ch.exercises.check({self.name!r}, {{{given}}}).state"]
        return [
            *imports,
            "from clearhead.exercises.menus import write_repair",
            f"repair = write_repair({self.step!r}, {self.formula!r})",
            f"where = {self.at!r}, {self.step!r}",
            f"ch.exercises.check({self.name!r}, {{'where': lambda: where, 'repair': repair}}).state",
        ]


def graded(verdict: Verdict) -> GradedAnswer:
    return {
        "name": verdict.name,
        "state": verdict.state,
        "lines": [*verdict.lines],
        "credit": verdict.credit,
        "computed": [*verdict.computed],
    }


def find_kind(name: str, kind: str) -> Exercise:
    """Return an exercise of a kind; OptionError where it is of another."""
    if (found := find_exercise(name)).kind != kind:
        raise OptionError(f"{name} is no {kind}; there are {', '.join(each.name for each in EXERCISES.of_kind(kind))}")
    return found
