"""The command itself: help, version, errors and exit codes, terminals and pipes."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from rich.color import Color

from clearhead.cli import run, set_waiting, steps
from clearhead.cli.screen import HEAT, heat
from clearhead.colours import ROLES
from clearhead.errors import ShapeError
from tests.training.small_runs import classifying, documents, trained, translating

MODULE = [sys.executable, "-m", "clearhead"]
HINT = "Try: clearhead steps --help\n"


@pytest.fixture
def command(capsys, plain_terminal):
    """Runs a command in this process: its exit code, what it printed, and what it said on stderr."""

    def ran(*args):
        code = run(args)
        return code, *capsys.readouterr()

    return ran


def failing(error):
    def demonstrate(*_):
        raise error

    return demonstrate


def test_the_version_names_the_package_and_torch(command):
    code, out, err = command("--version")
    assert (code, err) == (0, "")
    said = re.fullmatch(rf"clearhead {version('clearhead')} \(torch (\S+), Python \S+\)\n", out)
    assert said is not None
    assert torch.__version__.startswith(said[1])  # a package of PyPI leaves out the +cu130 of its build


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["demo", "--help"], ["steps", "--help"], ["kernels", "-h"]])
def test_help_has_an_example(command, args):
    code, out, err = command(*args)
    assert (code, err) == (0, "")
    examples = out[out.index("Example") :]
    assert f"\n    clearhead {args[0] if len(args) > 1 else 'demo'}\n" in examples
    assert max(len(line) for line in out.splitlines()) <= 80


def test_without_a_verb_it_shows_the_help_and_was_asked_wrongly(command):
    code, out, err = command()
    assert (code, err) == (2, "")
    assert out == command("--help")[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["steps", "--query", "cat"],
            "--query: there is no 'cat'; there are a, fluffy, blue, cute, creature\n" + HINT,
        ),
        (["steps", "--mask", "future"], "--mask: there is no 'future'; there are none, causal\n" + HINT),
        (
            ["steps", "--weighting", "hard"],
            "--weighting: there is no 'hard'; there are softmax, warm-softmax, argmax,",
        ),
        (["steps", "--tokn", "cute"], "No such option: --tokn"),
        (["steps", "extra"], "there are more words than it takes: extra"),
        (["steps", "--mask"], "--mask: needs a value"),
        (["steps", "--json=1"], "--json: takes no value"),
        (["trace", "run"], "Missing TEXT: The text the model reads."),
        (["nothing"], "No such command 'nothing'"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_two_lines(command, args, said):
    code, out, err = command(*args)
    assert (code, out) == (2, "")
    assert err.startswith("clearhead: ")
    assert said in err
    assert len(err.splitlines()) == 2


def test_every_weighting_is_listed_as_it_can_be_typed(command):
    listed = command("steps", "--weighting", "hard")[2].splitlines()[0].partition("there are ")[2].split(", ")
    assert [name.replace("-", " ") for name in listed] == list(steps.WEIGHTINGS)


def test_an_error_of_the_library_is_told_in_a_line(command, monkeypatch):
    monkeypatch.setattr(steps, "demonstrate", failing(ShapeError("expected 3 axes; came 2")))
    assert command("steps") == (1, "", "clearhead: expected 3 axes; came 2\n")


def test_an_error_of_ours_says_how_to_see_more(command, monkeypatch):
    monkeypatch.setattr(steps, "demonstrate", failing(ZeroDivisionError("by zero")))
    code, out, err = command("steps")
    assert (code, out) == (1, "")
    assert err == (
        "clearhead: this should not happen: ZeroDivisionError: by zero\nThe same command with --debug shows where.\n"
    )


@pytest.mark.parametrize("args", [["--debug", "steps"], ["steps", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(command, monkeypatch, args):
    monkeypatch.setattr(steps, "demonstrate", failing(ShapeError("expected 3 axes; came 2")))
    code, out, err = command(*args)
    assert (code, out) == (1, "")
    assert err.startswith("Traceback")
    assert err.endswith("ShapeError: expected 3 axes; came 2\n")


def test_an_interrupt_is_quiet(command, monkeypatch):
    monkeypatch.setattr(steps, "demonstrate", failing(KeyboardInterrupt()))
    assert command("steps") == (130, "", "")


def test_colours_on_a_terminal_and_none_where_they_are_not_wanted(command, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = command("steps")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    plain = command("steps")[1]
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("FORCE_COLOR")
    assert command("steps")[1] == plain


def test_no_two_roles_share_a_colour_and_black_is_legible_on_every_heat():
    assert len({*ROLES.values()}) == len(ROLES)
    darkness = [luminance(ground) for ground in HEAT]
    assert darkness == sorted(darkness, reverse=True)
    assert (darkness[-1] + 0.05) / 0.05 >= 4.5
    assert [heat(weight).bgcolor.name for weight in (-1.0, 0.0, 1.0, 2.0)] == [HEAT[0], HEAT[0], HEAT[-1], HEAT[-1]]


def luminance(colour):
    channels = (x / 255 for x in Color.parse(colour).triplet)
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return sum(share * x for share, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(
    ("args", "given", "found"),
    [
        (["train", "run"], {}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}),
        (["demo"], {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}),
        (["demo"], {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        (["translate", "train"], {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ([], {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
    ],
)
def test_in_training_threads_look_for_work_before_they_sleep(args, given, found, monkeypatch):
    environ = dict(given)
    monkeypatch.setattr(os, "environ", environ)
    set_waiting(args)
    assert environ == {**found, "KMP_BLOCKTIME": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["kernels", "--help", "--version"])
def test_the_module_runs_and_a_closed_pipe_is_quiet(asked):
    process = subprocess.Popen([*MODULE, asked], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


@pytest.mark.slow
def test_the_module_prints_plain_lines_into_a_pipe_even_in_ascii():
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "", "TERM": "xterm-256color"}
    done = subprocess.run([*MODULE, "steps"], capture_output=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout


STARTED = """
import gc, sys
from clearhead.cli import main

for verb in {verbs!r}:
    try:
        main(verb)
    except SystemExit as stop:
        assert not stop.code, verb
    assert gc.isenabled()
found = {{name.partition(".")[0] for name in sys.modules}} | {{name for name in sys.modules if name.count(".") == 1}}
print("imported:", sorted(found & {slow!r}))
"""
SLOW = {"torch._dynamo", "torch._inductor", "sympy", "triton", "matplotlib", "transformers", "uvicorn"}
"""What takes a tenth of a second and more to import, and a line of text does not need."""


@pytest.mark.slow
def test_a_line_of_text_is_answered_without_what_takes_long_to_import(tmp_path, tmp_path_factory):
    runs = {kind: str(trained(kind, tmp_path_factory).folder.path) for kind in (translating, documents, classifying)}
    (tmp_path / "line").write_text("zwei null\n")
    line = str(tmp_path / "line")
    verbs = [
        ["translate", runs[translating], line],
        ["generate", runs[documents], line, "--max-tokens", "2"],
        ["classify", runs[classifying], line],
        ["trace", runs[translating], "zwei", "--json"],
        ["describe", "--help"],
    ]

    def imported(verbs, slow):
        code = STARTED.format(verbs=verbs, slow=slow)
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        return said.stdout.splitlines()[-1]

    assert imported(verbs, SLOW | {"sacrebleu"}) == "imported: []"
    scored = ["evaluate", runs[translating], "--source", line, "--target", line]
    assert imported([scored], SLOW | {"sacrebleu"}) == "imported: ['sacrebleu']"
