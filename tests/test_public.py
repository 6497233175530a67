"""The public names: all there, from where the package says, and none imported before it is used."""

import ast
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clearhead as ch
from clearhead import CONTENTS, SUBMODULES

ROOT = Path(__file__).parents[1]
GUIDE = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", *sorted(ROOT.glob("notebooks/*.ipynb"))]


def test_every_public_name_is_there():
    assert sorted(ch.__all__) == sorted([*SUBMODULES, *(name for names in CONTENTS.values() for name in names)])
    for name in ch.__all__:
        assert getattr(ch, name) is not None


def test_dir_shows_the_public_names_alone():
    assert set(dir(ch)) == {*ch.__all__, "__version__"}


def test_the_version_is_that_of_the_package():
    assert ch.__version__ == importlib.metadata.version("clearhead")


def test_errors_are_there_before_anything_else_is_imported():
    code = "import sys, clearhead as ch; ch.errors.OptionError, ch.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_type_checker_sees_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(ch.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: f"{node.module}.{alias.name}" if alias.name in SUBMODULES else node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: module for module, names in CONTENTS.items() for name in names}
    assert seen == {**homes, **SUBMODULES}


def test_a_name_that_is_none_is_an_attribute_error():
    assert not hasattr(ch, "transformer")


def test_the_help_imports_no_torch():
    code = "import sys; from clearhead.cli import run; run(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_namespaces_have_the_names_that_they_say():
    for name in SUBMODULES:
        module = getattr(ch, name)
        assert all(getattr(module, public, None) is not None for public in module.__all__), name


def is_public(path: str) -> bool:
    """Check that each step of a dotted path is in `__all__` of the module before it; what is in a class is its own."""
    home: object = ch
    for name in path.split("."):
        if not inspect.ismodule(home):
            return hasattr(home, name)
        if name not in (*home.__all__, "__all__", "__version__"):
            return False
        home = getattr(home, name)
    return True


def page_text(page: Path) -> tuple[str, list[str]]:
    """Return the text of a page or notebook, and its code in Python."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return "\n".join("".join(cell["source"]) for cell in cells), code
    text = page.read_text(encoding="utf-8")
    return text, re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def taught_names(page: Path) -> Iterator[str]:
    """Yield the names of Clearhead's that a page uses or mentions, as paths below the package."""
    text, code = page_text(page)
    yield from re.findall(r"`(?:clearhead|ch)\.(?!json\b)([a-z_]\w*(?:\.\w+)*)", text)
    for block in code:
        try:
            tree = ast.parse(block)
        except SyntaxError:  # a sketch with … in it
            yield from re.findall(r"\bch\.(\w+(?:\.\w+)*)", block)
            yield from (f"{module}.{name}".lstrip(".") for module, name in IMPORT.findall(block))
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "clearhead":
                module = (node.module or "").removeprefix("clearhead").lstrip(".")
                yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (a.name.removeprefix("clearhead.") for a in node.names if a.name.startswith("clearhead."))
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("ch.", "clearhead.")):
                path = ast.unparse(node).partition(".")[2]
                yield from [path] if re.fullmatch(r"[\w.]+", path) else ()


IMPORT = re.compile(r"from clearhead\.?([\w.]*) import (\w+)")


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_the_guide_teaches_public_names_alone(page):
    assert {name for name in taught_names(page) if not is_public(name)} == set()


def test_a_page_with_a_private_name_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`clearhead.tracing.head_metrics` and `ch.registry.find`\n```python\n"
        "import clearhead as ch\nfrom clearhead.model.variants import with_parts\nch.taps.Tapped()\n```\n",
        encoding="utf-8",
    )
    private = {name for name in taught_names(page) if not is_public(name)}
    assert {"tracing.head_metrics", "registry.find", "model.variants.with_parts", "taps.Tapped"} <= private
    assert is_public("Trace.load")
    assert is_public("training.tasks.Task")
