"""The modules of the package import each other one way: no cycle, not even through an import inside a function."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules_of(package: Path) -> dict[str, Path]:
    """Return every module of a package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a module names in its imports, wherever in the file they stand.

    That `import a.b` also runs `a/__init__.py` is left out: the package itself imports everything.
    """
    found = set()
    for node in ast.walk(ast.parse(modules[module].read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(base), names=names, level=0):
                inside = {f"{base}.{alias.name}" for alias in names}
                found |= inside & set(modules)
                found |= {base} if inside - set(modules) else set()
            case ast.ImportFrom():
                pytest.fail(f"{module}: imports are written from the package's name on, not relative")
    return (found & set(modules)) - {module}


def find_cycle(package: Path) -> list[str]:
    """Return the modules of an import cycle, the first again at the end; an empty list where there is none."""
    modules = modules_of(package)
    try:
        TopologicalSorter({module: imports_of(module, modules) for module in modules}).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    assert find_cycle(ROOT / "clearhead") == []


@pytest.mark.parametrize(
    ("files", "cycle"),
    [
        ({"a": "from p.b import x", "b": "import p.c", "c": ""}, set()),
        ({"a": "from p.b import x", "b": "def f():\n    from p import a"}, {"p.a", "p.b"}),
        ({"a": "import p.b", "b": "if TYPE_CHECKING:\n    import p.c", "c": "import p.a"}, {"p.a", "p.b", "p.c"}),
    ],
)
def test_a_circle_would_be_found(tmp_path, files, cycle):
    (tmp_path / "p").mkdir()
    for name, text in {"__init__": "", **files}.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert set(find_cycle(tmp_path / "p")) == cycle
