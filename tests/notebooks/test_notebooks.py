"""Every notebook runs from top to bottom and shows its pages; what is committed is clean, and installs a wheel."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from release.notebooks import NotebookError, cells, run_notebook
from tests.registering import registry_restored

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PAGES = {"look-into-a-model": 2, "your-own-attention": 2, "text-to-translator": 1, "a-head-by-hand": 1}
"""How many pages of weights each of them shows."""
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def registry():
    """A notebook may register a part, in a module of its own; the next test sees neither."""
    import clearhead.training  # noqa: F401  # Clearhead's own parts are registered before, not meanwhile

    with registry_restored("mine"):
        yield


@each
@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("length", ["short", pytest.param("whole", marks=pytest.mark.thorough)])
def test_every_cell_runs_and_the_pages_appear(path, length, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CLEARHEAD_SHORT", raising=False)
    if length == "short":
        monkeypatch.setenv("CLEARHEAD_SHORT", "1")
    shown = run_notebook(path)
    assert len(shown.pages) == PAGES[path.stem]
    assert all("<svg" in page for page in shown.pages)
    assert shown.printed


def test_there_are_four():
    assert {path.stem for path in NOTEBOOKS} == set(PAGES)
    index = (NOTEBOOKS[0].parent / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"({path.name})" not in index] == []


@each
def test_what_is_committed_has_no_outputs_and_installs_a_wheel_where_clearhead_is_missing(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert found["cells"][0]["source"][0].startswith("# ")
    assert 'find_spec("clearhead") is None' in cells(path)[0]
    assert 'f"{wheels[-1]}[demo]"' in cells(path)[0]
    assert path.stat().st_size < 50_000


def test_the_first_cell_is_the_same_everywhere_and_installs_the_wheel_beside_it(monkeypatch, tmp_path):
    (code,) = {cells(path)[0] for path in NOTEBOOKS}
    asked = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: asked.append(command[1:]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="`make wheel`"):
        exec(code, {})
    Path("clearhead-0.2.0-py3-none-any.whl").touch()
    exec(code, {})
    assert asked == [["-m", "pip", "install", "--quiet", "clearhead-0.2.0-py3-none-any.whl[demo]"]]


@each
def test_the_outputs_that_the_site_shows_are_of_its_present_code(path):
    kept = json.loads((path.parent / "outputs" / f"{path.stem}.json").read_text(encoding="utf-8"))
    assert kept["code"] == cells(path), "run `python release/notebooks.py`: the code has changed since"
    assert len(kept["outputs"]) == len(kept["code"])
    assert sum(bool(output["page"]) for output in kept["outputs"]) == PAGES[path.stem]


def test_a_cell_that_fails_is_named(tmp_path):
    path = tmp_path / "broken.ipynb"
    sources = (["x = 1\n", "x"], ["print(x)\n", "x / 0"])
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source} for source in sources]}))
    with pytest.raises(NotebookError, match=r"broken\.ipynb, cell 2: ZeroDivisionError"):
        run_notebook(path)
