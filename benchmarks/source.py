"""Measure the source: `python benchmarks/source.py [CHECKOUT] [--list]`, the figures of docs/decisions/0012.

Everything is read from syntax trees, so a checkout of any age can be measured without installing it.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SHORT = 3
"""Lines of code: a function of so few that is used once costs a reader more than it saves."""
LONG = 40
NO_VERB = {"The", "What", "A", "An", "How", "Whether", "Where", "Which", "Those", "All", "Each", "One", "Its", "Every"}
TASKS = {"Task", "Translate", "Generate", "Fill", "Classify", "Label", "Embed", "Instruct", "Tagging"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int

    def walk(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)

    @property
    def public(self) -> list[str]:
        """Names in the module's `__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                return ast.literal_eval(node.value)
        return []

    @property
    def functions(self) -> list[Function]:
        return [node for node in self.walk() if isinstance(node, Function)]


def read_modules(root: Path) -> dict[str, Module]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted((root / "clearhead").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, ast.parse(text), text.count("\n"))
    return found


def imported_names(module: Module, modules: dict[str, Module]) -> dict[str, str]:
    """Return what each imported name stands for: `package.module`, or `package.module.function`."""
    found = {}
    for node in module.walk():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clearhead"):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname and alias.name in modules}
    return found


def count_uses(modules: dict[str, Module]) -> tuple[Counter[str], Counter[str]]:
    """Count where each module-level function is named (in its module, by import, as `module.function`), and called."""
    uses: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for module in modules.values():
        stands_for = imported_names(module, modules)
        own = {node.name: f"{module.name}.{node.name}" for node in module.tree.body if isinstance(node, Function)}
        called = {id(node.func) for node in module.walk() if isinstance(node, ast.Call)}
        for node in module.walk():
            match node:
                case ast.Name(id=name, ctx=ast.Load()) if name in own or name in stands_for:
                    meant = own.get(name) or stands_for[name]
                case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in stands_for:
                    meant = f"{stands_for[name]}.{attr}"
                case _:
                    continue
            uses[meant] += 1
            calls[meant] += id(node) in called
    return uses, calls


def count_lines(first: ast.stmt, last: ast.stmt) -> int:
    assert last.end_lineno is not None
    return last.end_lineno - first.lineno + 1


def code_lines(function: Function) -> int:
    """Count the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return count_lines(body[0], body[-1]) if body else 0


def used_once(modules: dict[str, Module]) -> tuple[list[tuple[Module, Function]], int]:
    """Return the helpers that are named in one place, where they are called, and how many module functions there are.

    A helper is a function without a decorator that its module's `__all__` leaves out. A function that is passed on,
    as a callback or in a table, is no helper: it could not be inlined.
    """
    uses, calls = count_uses(modules)
    every = [(module, node) for module in modules.values() for node in module.tree.body if isinstance(node, Function)]
    return [
        (module, node)
        for module, node in every
        if not node.decorator_list
        and node.name not in module.public
        and uses[name := f"{module.name}.{node.name}"] == calls[name] == 1
    ], len(every)


def checks_a_task(node: ast.AST) -> bool:
    """Check for `isinstance(x, SomeTask)` or `case SomeTask(...)`."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(getattr(one, "id", getattr(one, "attr", "")) in TASKS for one in ast.walk(kinds))
        case ast.MatchClass(cls=cls):
            return getattr(cls, "id", getattr(cls, "attr", "")) in TASKS
    return False


def renames_a_file(node: ast.AST) -> bool:
    """Check for a call that puts a file in another's place: os.replace, os.rename, path.replace(one), path.rename."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="replace" | "rename")):
            return True
        case ast.Call(func=ast.Attribute(attr="replace" | "rename"), args=[_], keywords=[]):
            return True
    return False


def report(root: Path, *, listed: bool) -> None:
    modules = read_modules(root)
    functions = [(module, node) for module in modules.values() for node in module.functions]
    lengths = sorted(count_lines(node, node) for _, node in functions)
    firsts = Counter(text.split()[0].strip("`.,:") for _, node in functions if (text := ast.get_docstring(node)))
    once, every = used_once(modules)
    short = [(module, node) for module, node in once if code_lines(node) <= SHORT]
    long = [(module, node) for module, node in functions if count_lines(node, node) > LONG]
    tasks = [
        module.name
        for module in modules.values()
        for node in module.walk()
        if ".tasks" not in module.name and checks_a_task(node)
    ]
    renames = [m.name for m in modules.values() for node in m.walk() if renames_a_file(node)]
    print(f"files, lines             {len(modules)}, {sum(module.lines for module in modules.values()):,}")
    print(f"longest files            {sorted(((m.lines, m.name) for m in modules.values()), reverse=True)[:3]}")
    print(f"functions                {len(lengths)}: median {median(lengths):g}, p90 {lengths[len(lengths) * 9 // 10]}")
    print(f"over {LONG} lines            {len(long)}: {', '.join(f'{m.name}.{node.name}' for m, node in long)}")
    print(f"docstrings               {firsts.total()}: {sum(firsts[word] for word in NO_VERB)} open with no verb")
    print(f"first words              {', '.join(f'{word} {n}' for word, n in firsts.most_common(12))}")
    print(f"used in one place        {len(once)} of {every} module functions, {len(short)} of {SHORT} lines or fewer")
    print(f"isinstance over tasks    {len(tasks)} outside tasks/ {tasks}")
    print(f"files renamed            {renames}")
    if listed:
        for module, node in short:
            print(f"{module.path.relative_to(root)}:{node.lineno} {node.name}: {code_lines(node)} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--list", action="store_true", help="name the short functions that are used once")
    options = parser.parse_args()
    report(options.checkout, listed=options.list)


if __name__ == "__main__":
    main()
