"""Completion: what is offered where, and in real shells with a real TAB."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from clearhead.cli import completion, train
from clearhead.cli.completion import COMPLETE, SCRIPTS, complete
from clearhead.interop.export import FORMATS
from clearhead.training.tasks import TASKS

slow = pytest.mark.slow


def offered(*words):
    return [candidate.value for candidate in complete(words)]


@pytest.fixture
def runs(here):
    """Run folders in the current folder and two levels below it, beside folders that are no runs."""
    for path in ("runs/de-en", "runs/de-fr", "runs/sizes/small-1", "alone", "with space/a run"):
        (here / path).mkdir(parents=True)
        (here / path / "run.json").touch()
    (here / "runs" / "empty").mkdir()
    (here / ".hidden" / "run").mkdir(parents=True)
    (here / ".hidden" / "run" / "run.json").touch()
    (here / "alone" / "run.json.d").mkdir()
    return here


def test_the_formats_to_refuse_are_those_of_export():
    assert tuple(FORMATS) == train.EXPORTS


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["tra"], ["train", "translate", "trace"]),
        (["--ver"], ["--version"]),
        (["craft", "s"], ["show"]),
        (["craft", "show", "rev"], ["reverse"]),
        (["train", "--micro"], ["--micro-batch-tokens"]),
        (["train", "x", "--no-fi"], ["--no-film"]),
        (["train", "x", "--task", "cl"], ["classify", "classify-pairs"]),
        (["train", "x", "--task=cl"], ["--task=classify", "--task=classify-pairs"]),
        (["train", "x", "--task", "=", "cl"], ["classify", "classify-pairs"]),
        (["train", "x", "--resume", "--select", ""], ["best", "last"]),
        (["train", "x", "--must-export", "hf,on"], ["hf,onnx"]),
        (["compare", "x", "--attention", "softmax,cos"], ["softmax,cosine"]),
        (["embed", "x", "--pooling", ""], ["mean", "first"]),
        (["describe", "gpt2-m"], ["gpt2-medium"]),
        (["help", "co"], ["compare", "completion"]),
        (["completion", ""], ["bash", "zsh"]),
        (["train", "x", "--source", "de"], []),
        (["train", "x", "--nothing", "--sou"], ["--source"]),
        (["train", "x", "--lr", "--steps"], []),
        (["train", "--", "--t"], []),
        (["kernels", ""], ["--json", "--help"]),
        (["nothing", "x"], []),
    ],
)
def test_what_is_offered(words, values, here):
    assert offered(*words) == values


def test_every_value_of_a_bash_equals_sign_alone(here):
    assert offered("train", "x", "--task", "=") == [*TASKS, "instruct"]


@pytest.mark.parametrize(
    "words", [["look"], ["look", "alone"], ["serve", "a", "b"], ["train"], ["train", "x", "--from"]]
)
def test_run_folders_where_a_run_is_expected(runs, words):
    assert offered(*words, "") == ["alone", "runs/de-en", "runs/de-fr", "with space/a run", "runs/sizes/small-1"]
    assert offered(*words, "runs/de") == ["runs/de-en", "runs/de-fr"]
    assert offered(*words, "runs/s") == ["runs/sizes/small-1"]
    assert offered(*words, "./al") == ["./alone"]
    assert offered(*words, "nothing/") == []


def test_a_home_folder_is_kept_as_it_is_typed(runs, monkeypatch):
    monkeypatch.setenv("HOME", str(runs))
    assert offered("look", "~/runs/de-e") == ["~/runs/de-en"]


def test_a_crowd_of_folders_is_not_searched_to_the_end(here, monkeypatch):
    monkeypatch.setattr(completion, "MOST_FOLDERS", 3)
    for name in "abcde":
        (here / name).mkdir()
        (here / name / "run.json").touch()
    assert offered("look", "") == ["a", "b", "c"]


def test_candidates_come_without_torch_and_typed_words_are_not_run(runs):
    code = "import sys; from clearhead.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    words = ["train", "x", "--parts", "nothing", "--fro"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, COMPLETE: "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("--from\tStart from this run")


@pytest.fixture
def shell(runs, monkeypatch):
    """A folder with runs, a `clearhead` on the path, and the scripts of the shells."""
    bin_folder = runs / ".bin"
    bin_folder.mkdir()
    program = bin_folder / "clearhead"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m clearhead "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for name, script in SCRIPTS.items():
        (runs / f".{name}").write_text(script)
    return runs


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")


def answer_of(*args):
    return subprocess.run(args, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout


@slow
@needs("bash")
@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["tra"], ["train", "translate", "trace"]),
        (["look", "runs/de-"], ["runs/de-en", "runs/de-fr"]),
        (["look", "with"], ["with\\ space/a\\ run"]),
        (["train", "x", "--task", "=", "tr"], ["translate"]),
        (["train", "x", "--text", "poe"], []),
    ],
)
def test_bash_gets_candidates(shell, words, values):
    quoted = " ".join(f"'{word}'" for word in ["clearhead", *words])
    asked = f"source .bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _clearhead clearhead; "
    asked += r"""[[ ${#COMPREPLY[@]} = 0 ]] || printf '%s\n' "${COMPREPLY[@]}" """
    assert answer_of("bash", "--norc", "-c", asked).splitlines() == values


@slow
@pytest.mark.parametrize(
    "started",
    [
        pytest.param(["bash", "--norc", "--noprofile", "-i"], marks=needs("bash")),
        pytest.param(["zsh", "-f", "-i"], marks=needs("zsh")),
    ],
)
def test_a_tab_in_a_terminal(shell, started, monkeypatch):
    name = started[0]
    begin = "autoload -U compinit; compinit -u -D; source .zsh" if name == "zsh" else "source .bash"
    monkeypatch.setenv("PS1", "$ ")
    monkeypatch.setenv("TERM", "dumb")
    with Terminal(started) as terminal:
        terminal.type(f"{begin}; echo re''ady\n")
        terminal.wait_for("ready")
        terminal.type("echo clearhead; clearhead transl\t--bea\t")  # TAB ends each word with a space
        terminal.wait_for("translate --beam")
        terminal.type("\x15clearhead look runs/sizes/\t")
        terminal.wait_for("look runs/sizes/small-1")
        terminal.type("\x15clearhead look with\t")
        terminal.wait_for("look with\\ space/a\\ run")


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, args):
        self.args, self.seen = args, ""

    def __enter__(self):
        self.process, self.file = pty.fork()
        if not self.process:
            os.execvp(self.args[0], self.args)
        return self

    def __exit__(self, *failed):
        os.close(self.file)
        os.waitpid(self.process, 0)

    def type(self, text):
        os.write(self.file, text.encode())

    def wait_for(self, text):
        ends = time.monotonic() + 60
        while text not in " ".join(self.seen.split()):  # zsh draws a space anew
            ready, _, _ = select.select([self.file], [], [], max(0, ends - time.monotonic()))
            assert ready, f"{text!r} did not come, but {self.seen!r}"
            self.seen += os.read(self.file, 4096).decode(errors="replace").replace("\b", "")
        self.seen = ""
