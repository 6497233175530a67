"""The public names: all there, from where the package says, and none imported before it is used."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import clearhead as ch
from clearhead import CONTENTS, SUBMODULES


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
