"""Writes web/src/lib/messages.ts from the messages of clearhead/serve: `python -m tests.serve.write_messages`."""

import ast
from pathlib import Path

from clearhead.serve import messages, part_messages, run_messages

WRITTEN = Path(__file__).parents[2] / "web/src/lib/messages.ts"
HEADER = """\
/** What the server answers. Written by `python -m tests.serve.write_messages`: change clearhead/serve/messages.py. */
"""
NAMES = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "None": "null", "Any": "unknown"}


def typescript() -> str:
    """Return every message as a TypeScript type, in the order of the Python files."""
    sources = [
        Path(str(module.__file__)).read_text(encoding="utf-8") for module in (run_messages, part_messages, messages)
    ]
    parts = [HEADER.strip()]
    for node in [node for source in sources for node in ast.parse(source).body]:
        match node:
            case ast.ClassDef():
                parts.append(interface(node))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                parts.append(f"export type {name} = {as_type(value)};")
            case _:
                pass
    return "\n\n".join(parts) + "\n"


def interface(node: ast.ClassDef) -> str:
    lines = [f"export interface {node.name} {{"]
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            lines += [f"  {comment(said)}"] if (said := string_of(following)) else []
            kind, optional = field.annotation, ""
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "NotRequired":
                kind, optional = kind.slice, "?"
            lines.append(f"  {field.target.id}{optional}: {as_type(kind)};")
    lines += ["  [more: string]: unknown;"] if node.name in messages.OPEN else []
    said = ast.get_docstring(node)
    return "\n".join([*([comment(said)] if said else []), *lines, "}"])


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
            return NAMES.get(name, name)
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
            return f"({parts[0]})[]" if " | " in parts[0] else f"{parts[0]}[]"
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
