"""Writes web/src/lib/messages.ts from the questions of clearhead/serve: `python -m tests.serve.write_messages`."""

import ast
import dataclasses
import inspect
import itertools
import re
from pathlib import Path

from clearhead.serve import answer_key, edit_json, traced
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.questions import question
from clearhead.serve.questions.question import Matrix, Thumbs, answer_type

WRITTEN = Path(__file__).parents[2] / "web/src/lib/messages.ts"
HEADER = """\
/** What the page asks, and what is answered. Written by `python -m tests.serve.write_messages` from the files of
 * clearhead/serve/questions: change those. */
"""
UNASKED = {"vocabulary", "means", "exciting"}
"""Questions of notebooks and scripts. The page never asks them, so it needs no types of them."""
WIDTH = 120
OPEN = {"CurveLine"}
"""Messages that hold more than is said: a line of the log has the scores of its task."""
NAMES = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "None": "null", "Any": "unknown"}


def typescript() -> str:
    """Return every message as a TypeScript type, file by file, and the table of questions."""
    of_questions = dict.fromkeys(map(inspect.getfile, QUESTIONS.values()))
    files = [edit_json.__file__, traced.__file__, question.__file__, *of_questions, answer_key.__file__]
    parts: dict[str, str] = {}
    for node in [node for path in files for node in ast.parse(Path(path).read_text(encoding="utf-8")).body]:
        match node:
            case ast.ClassDef(name=name, bases=[ast.Name(id="TypedDict")]):
                parts[plain(name)] = interface(node, optional=set(), more=[])
            case ast.ClassDef(name=name) if name.startswith("Ask"):
                parts[name] = asked(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_type(value):
                parts[name] = f"export type {name} = {as_type(value)};"
            case _:
                pass
    kinds = [QUESTIONS[name] for name in UNASKED]
    gone = {kind.__name__ for kind in kinds} | {answer_name(kind) for kind in kinds}
    return separate([HEADER.strip(), *without(parts, gone), *tables()]) + "\n"


def without(parts: dict[str, str], gone: set[str]) -> list[str]:
    """Return the types but for some, and for those that only they name."""
    left = {name: text for name, text in parts.items() if name not in gone}
    words = re.findall(r"\w+", "\n".join(left.values()))
    named = {name for one in gone for name in re.findall(r"\w+", parts[one])} & left.keys()
    orphans = {name for name in named if words.count(name) == 1}
    return without(left, orphans) if orphans else list(left.values())


def separate(parts: list[str]) -> str:
    """Return the parts with an empty line between them, but between two that are one line each."""
    pairs = itertools.pairwise(parts)
    return parts[0] + "".join(("\n" if "\n" not in one + other else "\n\n") + other for one, other in pairs)


def is_type(value: ast.expr) -> bool:
    named = isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal"
    return named or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr))


def asked(node: ast.ClassDef) -> str:
    """Return what a question asks; about a trace, its id too."""
    kind = QUESTIONS[node.name.removeprefix("Ask").lower()]
    fields = dataclasses.fields(kind)
    optional = {one.name for one in fields if not one.default is one.default_factory is dataclasses.MISSING}
    return interface(node, optional, ["trace: string;"] if any(one.name == "trace" for one in fields) else [])


def tables() -> list[str]:
    """Return the questions by name: what each asks and answers, and the form of the request and the reply."""
    forms = {Matrix: "matrix", Thumbs: "thumbs"}
    rows = {name: (kind, as_type(ast.parse(answer_name(kind), mode="eval").body)) for name, kind in QUESTIONS.items()
            if name not in UNASKED}  # fmt: skip
    types = [f"  {name}: {{ asks: {kind.__name__}; answers: {answer} }};" for name, (kind, answer) in rows.items()]
    told = {name: "sent" if kind.sent else forms.get(answer_type(kind)) for name, (kind, _) in rows.items()}
    return [
        "/** Row by row. */\nexport interface Matrix {\n  rows: number;\n  columns: number;\n  data: Float32Array;\n}",
        "/** Head by head, row by row. */\n"
        "export interface Thumbs {\n  heads: number;\n  rows: number;\n  columns: number;\n  data: Uint8Array;\n}",
        "\n".join(["export interface Questions {", *types, "}"]),
        "/** How a question is asked and answered, if not by address and in JSON: with a body, or in numbers. */\n"
        'export const FORMS: { readonly [name in keyof Questions]?: "sent" | "matrix" | "thumbs" } = {\n'
        + "".join(f'  {name}: "{form}",\n' for name, form in told.items() if form)
        + "};",
    ]


def answer_name(kind: type) -> str:
    """Return the answer's type as the file has it: TraceQuestion[Row] answers Row."""
    [node] = ast.parse(inspect.getsource(kind)).body
    match node:
        case ast.ClassDef(bases=[ast.Subscript(slice=answers)]):
            return ast.unparse(answers)
        case _:
            raise ValueError(f"{kind.__name__} does not say what it answers: write Question[…]")


def interface(node: ast.ClassDef, optional: set[str], more: list[str]) -> str:
    """Return a type: on one line where nothing is said of its fields and they fit."""
    lines = list(more)
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        match field:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.unparse(kind):
                lines += [comment(said)] if (said := string_of(following)) else []
                mark = "?" if name in optional else ""
                if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "NotRequired":
                    kind, mark = kind.slice, "?"
                lines.append(f"{name}{mark}: {as_type(kind)};")
            case _:
                pass
    lines += ["[more: string]: unknown;"] if node.name in OPEN else []
    said = ast.get_docstring(node)
    head = f"{comment(said)}\n" if said else ""
    short = f"export type {plain(node.name)} = {{ {' '.join(lines).removesuffix(';')} }};"
    if not lines:
        return f"{head}export type {plain(node.name)} = Record<string, never>;"
    if len(short) <= WIDTH and not any(line.startswith("/**") for line in lines):
        return head + short
    return "\n".join([f"{head}export interface {plain(node.name)} {{", *(f"  {line}" for line in lines), "}"])


def plain(name: str) -> str:
    """Return a message's name in TypeScript. In Python one that shares its noun with a class ends with Message."""
    return name.removesuffix("Message")


def string_of(node: ast.stmt | None) -> str | None:
    """Return the text of a docstring that follows a field."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return None


def comment(text: str) -> str:
    return f"/** {' '.join(text.split())} */"


def as_type(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=None):
            return "null"
        case ast.Constant(value=str(text)):
            return f'"{text}"'
        case ast.Name(id=name):
            return NAMES.get(name, plain(name))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return f"{as_type(left)} | {as_type(right)}"
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return generic(name, inner.elts if isinstance(inner, ast.Tuple) else [inner])
        case _:
            raise ValueError(f"line {node.lineno}: {ast.unparse(node)} has no TypeScript yet: add it to as_type")


def generic(name: str, inner: list[ast.expr]) -> str:
    parts = [as_type(one) for one in inner]
    match name:
        case "list":
            is_union = isinstance(inner[0], ast.BinOp)
            return f"({parts[0]})[]" if is_union else f"{parts[0]}[]"
        case "dict":
            # not every side is in a trace; of names that are any text the page asks only for those it was told
            record = f"Record<{parts[0]}, {parts[1]}>"
            return record if parts[0] == "string" else f"Partial<{record}>"
        case "tuple":
            return f"[{', '.join(parts)}]"
        case "Literal":
            return " | ".join(parts)
        case _:
            raise ValueError(f"{name}[...] has no TypeScript yet: add it to generic")


if __name__ == "__main__":
    WRITTEN.write_text(typescript(), encoding="utf-8")
