"""The wheel, installed into an empty environment away from the source: what is in it, and that it works there."""

import json
import re
import signal
import subprocess
import urllib.request
from importlib.metadata import Distribution
from zipfile import ZipFile

import pytest

from release.wheel import build_wheel, stray_files, table_of_files
from tests.once import made_once
from tests.packaging.environment import Environment, create_environment

pytestmark = [pytest.mark.slow, pytest.mark.plain]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = made_once(tmp_path_factory, "wheel", build_wheel)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    folder = made_once(tmp_path_factory, "installed", lambda home: create_environment(home, wheel))
    return Environment(folder)


BARE = """
import os, sys
import clearhead as ch
from clearhead.cli import run
print("code", run(["demo"]), os.path.exists("runs"))
run(sys.argv[1:])
trace = ch.trace(ch.load("runs/small"), "one two three")
print("file", ch.__file__)
print("trace", *trace.decoder[0].attention.head[0].weight.shape, "<svg" in trace.show()._repr_html_())
"""


@pytest.fixture(scope="module")
def bare(environment):
    """What the package says without any extra: asked for the demo, then for a small training and a trace of it."""
    (environment.work / "lines.txt").write_text("one two three four five\n" * 60, encoding="utf-8")
    options = ("--task", "generate", "--text", "lines.txt", "--steps", "2", "--size", "100k", "--context", "16")
    return environment.run("python", "-c", BARE, "train", "runs/small", *options, "--device", "cpu")


@pytest.fixture(scope="module")
def demo(environment, bare):
    """What a short demo says, trained in the environment with what its extra brings; without matplotlib."""
    environment.link("num2words")
    printed = environment.run("clearhead", "demo", "--steps", "2", "--json")
    return json.JSONDecoder().raw_decode(printed)[0]  # the log on stderr comes after it


def test_no_link_of_its_page_leads_nowhere(wheel):
    """An index shows the README by itself: a relative link would lead nowhere there."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        page = archive.read(name).decode().partition("\n\n")[2]
    assert "## Three doors" in page
    assert re.findall(r"\]\((?!https?:)[^)]*\)", page) == []


def test_it_has_the_page_and_nothing_that_does_not_belong(wheel):
    assert stray_files(wheel) == []
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if re.search(r"test|node_modules|\.(ts|svelte|map)$", name)] == []
    assert {"clearhead/serve/static/live.html", "clearhead/py.typed"} <= set(names)
    assert table_of_files(wheel).startswith(f"{wheel.name}: ")


def test_a_file_that_does_not_belong_is_found(tmp_path):
    strays = {"clearhead/notes.md", "tests/test_a.py", "web/src/App.svelte", "clearhead/serve/static/assets/a.js.map"}
    with ZipFile(tmp_path / "bad.whl", "w") as archive:
        for name in ("clearhead/serve/static/index.html", *strays):
            archive.writestr(name, "")
    assert set(stray_files(tmp_path / "bad.whl")) == strays | {"clearhead/serve/static/live.html"}


def test_its_metadata_says_what_a_registry_shows(environment):
    (info,) = environment.packages.glob("clearhead-*.dist-info")
    said = Distribution.at(info).metadata
    assert {"demo", "plots", "export", "parquet", "tensorboard"} <= set(said.get_all("Provides-Extra") or ())
    assert "Typing :: Typed" in (said.get_all("Classifier") or [])


def test_the_demo_says_which_extra_is_missing(bare):
    assert "pip install 'matplotlib>=3.10' 'num2words>=0.5.14'" in " ".join(bare.split())
    assert "Traceback" not in bare
    assert "code 1 False\n" in bare  # failed, and no folder was made


def test_a_small_training_works_without_the_extras_and_says_so(environment, bare):
    assert "curves.svg is not drawn" in bare
    assert "pip install 'matplotlib>=3.10'" in bare
    assert {path.name for path in (environment.work / "runs/small").iterdir()} >= {"model.json", "evaluation.json"}


def test_a_trace_is_the_wheels(environment, bare):
    assert f"file {environment.packages}" in bare
    assert re.search(r"^trace (\d+) \1 True$", bare, re.MULTILINE)


@pytest.mark.thorough  # tests/cli/test_demo.py, and what the wheel's demo needs is seen in `bare` and by `look`
def test_the_demo_trains_and_writes_its_page(environment, demo):
    assert demo["evaluation"]["steps"] == 2
    assert "<title>" in (environment.work / demo["page"]).read_text(encoding="utf-8")[:3000]
    assert not (environment.work / "runs/demo/curves.svg").exists()  # there is no matplotlib


@pytest.mark.usefixtures("bare")
def test_look_answers_over_http(environment):
    command = environment.command("clearhead", "look", "runs/small", "--no-open", "--device", "cpu")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=environment.work, env=environment.variables()) as server:
        assert server.stdout is not None
        try:
            home = server.stdout.readline().strip()
            assert home.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(home) as answer:
                assert "<title>" in answer.read().decode()
            asked = urllib.request.Request(
                f"{home}api/trace", b'{"source": "one two"}', {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(asked) as answer:
                assert "two" in answer.read().decode()
        finally:
            server.send_signal(signal.SIGINT)
            _, complaints = server.communicate()
    assert (server.returncode, complaints) == (0, "")
