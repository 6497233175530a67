"""Measure the source: `python benchmarks/source.py [CHECKOUT] [--list] [--against REV]`.

A table has a row for each room (a folder of the package): lines, code lines without docstrings and comments, the share
of import lines, `isinstance` over tasks, models and methods, comment lines in a thousand. `--against` sets another
revision beside it, and lists apart the code lines that only moved from one file to another.

Everything is read from syntax trees, so a checkout of any age can be measured without installing it.
"""

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

SHORT = 3
"""Lines of code: a function of so few that is used once costs a reader more than it saves."""
LONG = 40
NO_VERB = {"The", "What", "A", "An", "How", "Whether", "Where", "Which", "Those", "All", "Each", "One", "Its", "Every"}
SEAMS = {
    "tasks": {
        "Task",
        "Translate",
        "Generate",
        "Fill",
        "Classify",
        "ClassifyPairs",
        "Label",
        "Embed",
        "Instruct",
        "Tag",
    },
    "models": {
        "Transformer",
        "Encoder",
        "Decoder",
        "EncoderDecoder",
        "EncoderSpec",
        "DecoderSpec",
        "EncoderDecoderSpec",
    },
    "methods": {"Chooser", "Greedy", "Sample", "Beam"},
}
"""Classes that generic code should not ask for: `isinstance(x, Decoder)`, `case Decoder()`."""
INNER_ROOMS = ("serve/api", "training/tasks")
"""Folders inside a room that are counted on their own."""
MANY_MOVED = 10
"""Lines between two files from which a move is listed."""
SHORT_LINE = 12
"""Characters: a line with fewer is in every file, so that it is in two says nothing of a move."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The folder of the package that it belongs to."""
        inside = self.path.removeprefix("clearhead/")
        inner = [room for room in INNER_ROOMS if inside.startswith(f"{room}/")]
        return inner[0] if inner else inside.partition("/")[0] if "/" in inside else "(top)"

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def without_prose(self) -> list[str]:
        """The lines, stripped, but for docstrings and blank ones."""
        prose: set[int] = set()
        for node in self.walk():
            # Also a string below a constant or a field, which documents it.
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        stripped = ((number, line.strip()) for number, line in enumerate(self.text.split("\n"), 1))
        return [line for number, line in stripped if line and number not in prose]

    @property
    def code(self) -> list[str]:
        return [line for line in self.without_prose if not line.startswith("#")]

    @property
    def comments(self) -> int:
        """The number of lines that are a comment."""
        return len(self.without_prose) - len(self.code)

    @cached_property
    def imports(self) -> int:
        nodes = [node for node in self.walk() if isinstance(node, ast.Import | ast.ImportFrom)]
        return sum(count_lines(node, node) for node in nodes)

    @cached_property
    def seams(self) -> Counter[str]:
        """How often it asks for a class of `SEAMS`, by their kind."""
        return Counter(kind for node in self.walk() for kind, classes in SEAMS.items() if asks_for(node, classes))

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


def read_modules(root: Path, revision: str | None = None) -> dict[str, Module]:
    """Return every module of the package by its dotted name, of the checkout as it is or of one of its revisions."""
    modules = (Module(path, text, ast.parse(text)) for path, text in sorted(read_sources(root, revision)))
    return {module.name: module for module in modules}


def read_sources(root: Path, revision: str | None) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of the package."""
    if revision is None:
        for path in (root / "clearhead").rglob("*.py"):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        return
    command = ["git", "-C", str(root), "archive", revision, "clearhead"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                yield member.name, file.read().decode()


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


def asks_for(node: ast.AST, classes: set[str]) -> bool:
    """Check for `isinstance(x, SomeClass)` or `case SomeClass(...)`."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(getattr(one, "id", getattr(one, "attr", "")) in classes for one in ast.walk(kinds))
        case ast.MatchClass(cls=cls):
            return getattr(cls, "id", getattr(cls, "attr", "")) in classes
    return False


def renames_a_file(node: ast.AST) -> bool:
    """Check for a call that puts a file in another's place: os.replace, os.rename, path.replace(one), path.rename."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="replace" | "rename")):
            return True
        case ast.Call(func=ast.Attribute(attr="replace" | "rename"), args=[_], keywords=[]):
            return True
    return False


@dataclass(frozen=True)
class Room:
    """The figures of a room, or of the whole package."""

    files: int
    lines: int
    code: int
    imports: int
    comments: int
    seams: Counter[str]

    @classmethod
    def of(cls, modules: list[Module]) -> "Room":
        return cls(
            files=len(modules),
            lines=sum(module.lines for module in modules),
            code=sum(len(module.code) for module in modules),
            imports=sum(module.imports for module in modules),
            comments=sum(module.comments for module in modules),
            seams=sum((module.seams for module in modules), Counter()),
        )

    def columns(self) -> list[str]:
        lines = max(self.lines, 1)
        seams = " ".join(f"{self.seams[kind]:>7}" for kind in SEAMS)
        return [
            f"{self.files:>5} {self.lines:>7,} {self.code:>7,} {self.imports / lines:>8.1%}",
            f"{1000 * self.comments / lines:>9.1f} {seams}",
        ]


def by_room(modules: Mapping[str, Module]) -> dict[str, Room]:
    """Return the figures of every room, and those of all of them last."""
    rooms: dict[str, list[Module]] = {}
    for module in modules.values():
        rooms.setdefault(module.room, []).append(module)
    return {name: Room.of(rooms[name]) for name in sorted(rooms)} | {"all": Room.of(list(modules.values()))}


def report_rooms(modules: Mapping[str, Module], before: Mapping[str, Module] | None) -> None:
    now, then = by_room(modules), {} if before is None else by_room(before)
    change = "" if before is None else f"{'code before':>12} {'change':>7}"
    print(
        f"{'room':<16}{'files':>5} {'lines':>7} {'code':>7} {'imports':>8} {'comments‰':>9} {' '.join(SEAMS)} {change}"
    )
    for name in [*sorted(now.keys() | then.keys() - {"all"}, key=lambda name: (name == "all", name))]:
        room = now.get(name, Room.of([]))
        earlier = then.get(name, Room.of([]))
        changed = "" if before is None else f"{earlier.code:>12,} {room.code - earlier.code:>+7,}"
        print(f"{name:<16}{' '.join(room.columns())} {changed}")


def doubled_classes(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the class names that several modules define, and the modules."""
    places: dict[str, list[str]] = {}
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module.name)
    return {name: where for name, where in places.items() if len(where) > 1}


def find_moves(modules: Mapping[str, Module], before: Mapping[str, Module]) -> Counter[tuple[str, str]]:
    """Count the code lines that one file lost and another gained, unchanged, by both files."""
    lost: dict[str, list[str]] = {}
    moves: Counter[tuple[str, str]] = Counter()
    for name, module in before.items():
        gone = Counter(long_lines(module)) - Counter(long_lines(modules[name]) if name in modules else [])
        for line, count in gone.items():
            lost.setdefault(line, []).extend([name] * count)
    for name, module in modules.items():
        gained = Counter(long_lines(module)) - Counter(long_lines(before[name]) if name in before else [])
        for line, count in gained.items():
            for source in lost.get(line, [])[:count]:
                moves[source, name] += 1
            lost[line] = lost.get(line, [])[count:]
    return moves


def long_lines(module: Module) -> list[str]:
    """Return the code lines that are long enough to be known again, without imports."""
    return [line for line in module.code if len(line) >= SHORT_LINE and not re.match(r"(from|import) ", line)]


def report_moves(modules: Mapping[str, Module], before: Mapping[str, Module]) -> None:
    moves = find_moves(modules, before)
    gone, new = sorted(before.keys() - modules.keys()), sorted(modules.keys() - before.keys())
    print(f"files gone               {len(gone)}: {', '.join(gone)}")
    print(f"files new                {len(new)}: {', '.join(new)}")
    print(f"code lines that moved    {moves.total()} (as they were, from one file to another)")
    for (source, target), count in moves.most_common():
        if count >= MANY_MOVED:
            print(f"{count:>6}  {source} → {target}")


def report(root: Path, *, listed: bool, against: str | None) -> None:
    modules = read_modules(root)
    before = None if against is None else read_modules(root, against)
    report_rooms(modules, before)
    if before is not None:
        report_moves(modules, before)
    report_functions(modules, listed=listed)


def report_functions(modules: dict[str, Module], *, listed: bool) -> None:
    functions = [(module, node) for module in modules.values() for node in module.functions]
    lengths = sorted(count_lines(node, node) for _, node in functions)
    firsts = Counter(text.split()[0].strip("`.,:") for _, node in functions if (text := ast.get_docstring(node)))
    once, every = used_once(modules)
    short = [(module, node) for module, node in once if code_lines(node) <= SHORT]
    long = [(module, node) for module, node in functions if count_lines(node, node) > LONG]
    doubled = doubled_classes(modules)
    renames = [m.name for m in modules.values() for node in m.walk() if renames_a_file(node)]
    print(f"longest files            {sorted(((m.lines, m.name) for m in modules.values()), reverse=True)[:3]}")
    print(f"functions                {len(lengths)}: median {median(lengths):g}, p90 {lengths[len(lengths) * 9 // 10]}")
    print(f"over {LONG} lines            {len(long)}: {', '.join(f'{m.name}.{node.name}' for m, node in long)}")
    print(f"docstrings               {firsts.total()}: {sum(firsts[word] for word in NO_VERB)} open with no verb")
    print(f"first words              {', '.join(f'{word} {n}' for word, n in firsts.most_common(12))}")
    print(f"used in one place        {len(once)} of {every} module functions, {len(short)} of {SHORT} lines or fewer")
    print(f"class names used twice   {len(doubled)} by {sum(map(len, doubled.values()))} classes")
    print(f"files renamed            {renames}")
    if listed:
        for module, node in short:
            print(f"{module.path}:{node.lineno} {node.name}: {code_lines(node)} lines")
        for name, where in sorted(doubled.items()):
            print(f"{name}: {', '.join(where)}")
        for module in modules.values():
            for kind, count in module.seams.items():
                print(f"{module.path}: isinstance over {kind} {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument(
        "--list", action="store_true", help="name short functions used once, doubled classes and isinstance"
    )
    parser.add_argument("--against", metavar="REV", help="a revision of the same repository to compare with")
    options = parser.parse_args()
    report(options.checkout, listed=options.list, against=options.against)


if __name__ == "__main__":
    main()
