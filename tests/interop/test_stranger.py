"""The walk of a stranger: an installed copy of the package, a folder outside the project, a model of `transformers`.

A walk is one process that sees nothing of the project, and goes through the commands in order. What should fail has to
fail with one line that says why, and to leave nothing behind; this is asked of the package as it is, in the process of
the tests, since another copy would say the same.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.cli import run
from tests.interop import saved_models
from tests.peers import late

AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification = late(
    "transformers",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
)
pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
WALK = """
import contextlib, io, json, sys
from clearhead.cli import run

for command, stdin in json.load(open("commands.json")):
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(command)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
import clearhead
print(json.dumps(clearhead.__file__))
"""
LINE = "the cat sat on the mat\n"
TRAINED = ("--steps", "4", "--batch-tokens", "256", "--lora", "2", "--device", "cpu", "--threads", "1")


class Home:
    """A stranger's folder, with the package installed beside it."""

    def __init__(self, place):
        self.package, self.folder = place / "installed", place / "folder"
        shutil.copytree(PROJECT / "clearhead", self.package / "clearhead")
        self.folder.mkdir()

    def walk(self, *commands):
        """The exit code, stdout and stderr of each command: a tuple of its words, the last one stdin after `<`."""
        given = [split_stdin([str(word) for word in command]) for command in commands]
        (self.folder / "commands.json").write_text(json.dumps(given))
        environment = os.environ | {"PYTHONPATH": str(self.package), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        done = subprocess.run(
            [sys.executable, "-P", "-c", WALK],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        *found, where = map(json.loads, done.stdout.splitlines())
        assert Path(where).is_relative_to(self.package)
        check_ends(commands, found)
        return found


def check_ends(commands, found):
    for command, (code, _, err) in zip(commands, found, strict=True):
        assert "Traceback" not in err, (command, err)
        assert code in (0, 1, 2), command


def split_stdin(words):
    return [words[:-2], words[-1]] if "<" in words else [words, ""]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.fixture
def walk_here(tmp_path, monkeypatch):
    """As `Home.walk`, in this process and in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def walk(*commands):
        found = []
        for words, stdin in (split_stdin(list(command)) for command in commands):
            out, err = io.StringIO(), io.StringIO()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                found.append((run(words), out, err))
        found = [(code, out.getvalue(), err.getvalue()) for code, out, err in found]
        check_ends(commands, found)
        return found

    return walk


def write_table(path, fields, rows):
    path.write_text("\n".join("\t".join(row) for row in (fields, *rows)))


TEXT, LABELS = ("--text", "text.txt"), ("--table", "labels.tsv")
ASIDE = ("--source", "text.txt", "--target", "text.txt")
SAID = ("--max-tokens", "8", "--greedy", "--prompt", "the cat")
WALKS = {
    "gpt2": (AutoModelForCausalLM, ("generate", "runs/a", *SAID), TEXT),
    "llama": (AutoModelForCausalLM, ("generate", "runs/a", "--chat", *SAID), TEXT),
    "roberta": (AutoModelForMaskedLM, ("fill", "runs/a", "<", "the <mask> sat\n"), TEXT),
    "classifier": (AutoModelForSequenceClassification, ("classify", "runs/a", "<", LINE), LABELS),
    "marian": (AutoModelForSeq2SeqLM, ("translate", "runs/a", "--beam", "2", "<", LINE), ASIDE),
}
"""By model: the class that opens it again, the command that answers, and the options for text."""


@pytest.mark.thorough  # tests/packaging has an installed package that trains, and tests/docs pages that are walked so
@pytest.mark.parametrize("name", WALKS)
def test_a_model_is_imported_used_fine_tuned_and_taken_back(home, name):
    go_there_and_back(name, home.folder, home.walk)


def test_a_model_goes_there_and_back_in_this_process(walk_here, tmp_path):
    go_there_and_back("gpt2", tmp_path, walk_here)


def go_there_and_back(name, folder, walk):
    auto, answer, text = WALKS[name]
    saved_models.save(name, folder / "model")
    (folder / "text.txt").write_text(LINE * 60 + "a window in the rain\n" * 60)
    rows = [(LINE.strip(), "cat"), ("a window", "window"), ("plums", "plum")] * 30
    write_table(folder / "labels.tsv", ("text", "label"), rows)
    commands = [
        ("import", "model", "runs/a"),
        ("describe", "runs/a"),
        answer,
        ("evaluate", "runs/a", *text, "--json"),
        ("trace", "runs/a", "the cat sat <mask>" if name == "roberta" else "the cat sat", "--json"),
        ("train", "runs/b", "--from", "runs/a", *text, *TRAINED),
        ("train", "runs/b", "--resume", "--steps", "6"),
        (*answer[:1], "runs/b", *answer[2:]),
        ("export", "runs/b", "--to", "hf", "-o", "back"),
        ("import", "back", "runs/c"),
        (*answer[:1], "runs/c", *answer[2:]),
    ]
    if name in ("roberta", "classifier"):
        commands.append(("embed", "runs/a", "<", LINE))
    found = walk(*commands)
    for command, (code, out, err) in zip(commands, found, strict=True):
        assert code == 0, (command, err)
        assert out, command
    assert found[10][1] == found[7][1]  # what came back answers as what went out
    peer = auto.from_pretrained(folder / "back").eval()
    before = auto.from_pretrained(folder / "model").state_dict()
    moved = [key for key, one in peer.state_dict().items() if not torch.equal(one, before[key])]
    assert moved  # and is not what came in
    assert "6 steps" in found[6][1] + found[6][2] or "step 6" in found[6][1] + found[6][2]


def test_what_cannot_be_imported_is_told_in_a_line_and_leaves_nothing(walk_here, tmp_path):
    """Unknown architectures, tensors that are missing, left over or cut off, pickles, quantised files."""
    folder = tmp_path
    saved_models.save("llama", folder / "model")

    def changed(name, **fields):
        shutil.copytree(folder / "model", folder / name)
        config = json.loads((folder / name / "config.json").read_text())
        (folder / name / "config.json").write_text(json.dumps({**config, **fields}))
        return folder / name

    changed("unknown", model_type="mixtral")
    changed("quantised", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    changed("larger", hidden_size=4096)
    file = changed("short") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    for name, change in (("missing", lambda found: found.popitem()), ("extra", lambda found: found.update(odd=ONE))):
        file = changed(name) / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
    (changed("pickled") / "model.safetensors").unlink()
    torch.save({"a": Evil()}, folder / "pickled" / "pytorch_model.bin")
    (changed("no tokens") / "tokenizer.json").unlink()
    (changed("no json") / "config.json").write_text("{")
    sources = {
        "nothing": "there is no such folder or .gguf file",
        "model/config.json": "is one file of a model, and no .gguf file",
        "unknown": "mixtral",
        "quantised": "quantization_config",
        "larger": "model.embed_tokens.weight is",
        "short": "model.safetensors",
        "missing": "is missing",
        "extra": "1 tensors have no place in this model: odd",
        "pickled": "pytorch_model.bin",
        "no tokens": "tokenizer.json",
        "no json": "config.json",
    }
    found = walk_here(
        *(("import", source, "runs/x") for source in sources),
        ("import", "model", "runs/x", "--dtype", "int4"),
        ("import", "model", "runs/x", "--task", "fill"),
        ("generate", "runs/x", "--prompt", "x"),
    )
    for (source, message), (code, out, err) in zip(sources.items(), found[: len(sources)], strict=True):
        assert (code != 0, out) == (True, ""), source
        assert message in err, (source, err)
        assert len(err.splitlines()) == 1, err
    for message, (code, _, err) in zip(
        ("there are float32, bfloat16, int8", "names no mask_token", "runs/x"), found[len(sources) :], strict=True
    ):
        assert code
        assert message in err
    assert not (folder / "runs").exists() or not list((folder / "runs").iterdir())
    assert not (folder / "pwned").exists()


ONE = torch.zeros(1)


class Evil:
    """What a pickle may do to whoever loads it."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_runs_that_cannot_do_what_is_asked_say_so(walk_here, tmp_path):
    saved_models.save("t5", tmp_path / "t5")
    saved_models.save("embedder", tmp_path / "bert")
    found = walk_here(
        ("import", "t5", "runs/t5"),
        ("import", "bert", "runs/bert", "--json"),
        ("embed", "runs/bert", "--pairs", "<", LINE),
        ("classify", "runs/bert", "<", LINE),
        ("evaluate", "runs/bert", "--text", "bert/config.json"),
        ("train", "runs/t5", "--resume"),
        ("generate", "runs/t5", "--prompt", "x"),
        ("embed", "runs/t5", "<", LINE),
        ("export", "runs/t5", "--to", "gguf", "-o", "out"),
        ("export", "runs/bert", "--to", "gguf", "-o", "out"),
        ("export", "runs/bert", "--to", "safetensors", "-o", "out"),
        ("export", "runs/nothing", "--to", "hf", "-o", "out"),
        ("import", "bert", "runs/bert"),
    )
    assert [code for code, _, _ in found[:2]] == [0, 0]
    code, out, err = found[2]  # a line that cannot be read has a blank answer, and the others their own
    assert (code, out) == (0, "\n")
    assert "stdin:1: the line cannot be read (expected two texts with one tab between" in err
    expected = [
        "was trained to embed, and was asked to classify",
        "a run that embeds is not scored",
        "was imported",
        "was trained to translate, and was asked to generate",
        "to embed takes an encoder",
        "cannot be exported to gguf",
        "cannot be exported to gguf",
        "there is no format 'safetensors'",
        "runs/nothing",
        "there is something already; choose another folder",
    ]
    for message, (code, out, err) in zip(expected, found[3:], strict=True):
        assert (code != 0, out) == (True, ""), err
        assert message in err
    assert not (tmp_path / "out").exists()
