"""What can be refused is refused before any work: no text is read, no weights are loaded, nothing is written."""

import importlib
import json
import os
import random
import socket
import sys
from dataclasses import replace

import pytest

from clearhead.cli import trace
from clearhead.serve import live
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Documents
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import parallel
from clearhead.training.recipe import write_recipe
from clearhead.training.tasks import default_recipe

pytestmark = pytest.mark.usefixtures("plain_terminal")


def forbid(monkeypatch, *names):
    """Let the test fail where one of these functions, module.function, is called."""
    for name in names:
        module, _, function = name.rpartition(".")
        # By the module's full name: `clearhead.training.train` is the function of the public API.
        monkeypatch.setattr(
            importlib.import_module(module), function, lambda *_, name=name, **__: pytest.fail(f"{name} was called")
        )


@pytest.fixture
def refused(command, here, monkeypatch):
    """Give a command that must be refused, with this sentence, and must leave the folder as it was."""

    def check(*args, said):
        before = sorted(os.walk(here))
        code, out, err = command(*args)
        assert code in (1, 2), err
        assert out == ""
        assert said in err
        assert "this should not happen" not in err
        assert sorted(os.walk(here)) == before

    return check


@pytest.fixture
def texts(here, monkeypatch):
    """A megabyte of text in several forms. Reading it, training on it and starting processes is forbidden."""
    draw = random.Random(0)
    lines = [" ".join(f"w{draw.randrange(9999)}" for _ in range(30)) for _ in range(5000)]
    (here / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (here / "b.txt").write_text("".join(f"{line}\n" for line in lines))
    (here / "t.csv").write_text("text,label\n" + "".join(f"{line},{i % 2}\n" for i, line in enumerate(lines)))
    (here / "dev.csv").write_text("words,class\na,b\n")
    (here / "dev.xyz").write_text("text or label\na b\n")
    (here / "empty.txt").write_text("")
    (here / "broken.json").write_text("{")
    (here / "vectors.txt").write_text("word 0.1 0.2 0.3\n")
    Tokenizer.train(lines[:50], "char").save(here / "chars.json")
    (here / "file").write_text("no folder\n")
    generated = default_recipe("generate", Corpus(train=Documents(paths=("a.txt",))))
    write_recipe(generated, here / "recipe.json", run=None)
    changed = json.loads((here / "recipe.json").read_text())
    (here / "recipe.json").write_text(json.dumps(changed | {"task": "fill"}))
    forbid(monkeypatch, "clearhead.training.train.prepare", "clearhead.cli.train.launch")
    forbid(monkeypatch, "clearhead.experiments.comparing.begin", "clearhead.experiments.comparing.prepare_text")
    return here


TASKS = {
    "classify": ["--task", "classify", "--table", "t.csv"],
    "translate": ["--task", "translate", "--source", "a.txt", "--target", "b.txt"],
    "generate": ["--task", "generate", "--text", "a.txt"],
    "recipe": [],
}


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        (
            "classify",
            ["--size", "100k"],
            "--size: 100,000 parameters are too few for this encoder with a vocabulary of",
        ),
        ("translate", ["--size", "80k", "--vocabulary", "3000", "--separate-tokenizers"], "--size: 80,000"),
        ("generate", ["--vocabulary", "100"], "--vocabulary: the tokeniser bpe has at least 261 tokens; came 100"),
        ("generate", ["--tokenizer", "broken.json"], "--tokenizer: broken.json"),
        ("generate", ["--tokenizer", "chars.json", "--vectors", "vectors.txt"], "a tokeniser of kind 'char'"),
        ("generate", ["--dev", "no.txt"], "no.txt: there is no such file"),
        ("generate", ["--dev", "empty.txt"], "empty.txt: "),
        ("classify", ["--dev", "dev.csv"], "dev.csv: there is no column"),
        ("classify", ["--dev", "dev.xyz"], "dev.xyz: neither its name nor its first lines tell the form of the table"),
        ("translate", ["--dev-source", "a.txt", "--dev-source", "b.txt", "--dev-target", "a.txt"], "come in pairs"),
        (
            "generate",
            ["--preset", "gpt2", "--minutes", "0.001"],
            "minutes: in 0.001 this model has no time for 20 steps",
        ),
        ("generate", ["--parallel", "fsdp", "--optimizer", "muon", "--processes", "2"], "muon needs whole matrices"),
        ("generate", ["--parallel", "tensor=2"], "--parallel: tensor=2 takes 2 processes, and one would train alone"),
        ("generate", ["--parallel", "tensor=" + "9" * 5000], "--parallel: auto, ddp or fsdp, and how many"),
        ("generate", ["--parallel", "context=2", "--processes", "3"], "3 processes cannot be grouped by context=2"),
        (
            "generate",
            ["--keyed-dropout", "--compile", "--processes", "2"],
            "--keyed-dropout: is not offered with --compile",
        ),
        ("recipe", ["--recipe", "recipe.json"], "to fill blanks takes an encoder"),
    ],
)
def test_a_training(texts, refused, task, options, said):
    refused("train", "run", *TASKS[task], *options, said=said)


def test_a_recipe_for_a_run_that_goes_on_by_its_own(texts, refused):
    refused("train", "run", "--resume", "--recipe", "recipe.json", said="a run goes on by its own recipe")


def test_instructions_without_a_run_to_start_from(texts, refused):
    said = "instruct is for a model that has learned already: give it, --from RUN"
    refused("train", "run", "--task", "instruct", "--table", "t.csv", said=said)


def test_a_training_in_several_processes_where_a_run_is_already(texts, refused):
    (texts / "run").mkdir()
    (texts / "run" / "recipe.json").write_text("{}")
    refused("train", "run", *TASKS["generate"], "--processes", "2", said="there is a run already")


@pytest.mark.parametrize("verb", [["train"], ["compare", "--attention", "softmax,cosine"]])
def test_a_folder_that_cannot_be_made(texts, refused, verb):
    said = "file/run: cannot be written to"
    refused(verb[0], "file/run", *verb[1:], *TASKS["generate"], said=said)


def test_a_folder_that_may_not_be_written_to(texts, refused, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # whoever runs the tests may write anywhere
    refused("train", "run", *TASKS["generate"], said="is read-only for you")


def test_a_tensorboard_that_cannot_be_imported(texts, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    refused("train", "run", *TASKS["generate"], "--tensorboard", said="--tensorboard: TensorBoard is not installed")


def test_a_comparison_without_its_validation_set(texts, refused):
    arms = ["--attention", "softmax,cosine"]
    refused("compare", "home", *TASKS["generate"], *arms, "--dev", "no.txt", said="no.txt: there is no such file")


def test_a_missing_matplotlib_is_told_before_a_comparison(texts, command, monkeypatch):
    monkeypatch.setattr("clearhead.cli.compare.has_package", lambda _: False)
    err = command("compare", "home", *TASKS["generate"], "--attention", "nothing")[2]
    assert err.startswith("There will be no picture: that needs matplotlib")


@pytest.fixture
def unloaded(here, monkeypatch):
    """Weights are not loaded."""
    (here / "a.txt").write_text("a line\n")
    (here / "file").write_text("no folder\n")
    forbid(monkeypatch, "clearhead.training.run.select_weights", "clearhead.interop.run.read_source")
    return here


@pytest.mark.parametrize(
    ("run", "asked", "said"),
    [
        ("classifier", ["translate", "a.txt"], "was trained to classify, and was asked to translate"),
        ("classifier", ["fill", "a.txt"], "was trained to classify, and was asked to fill"),
        ("classifier", ["generate", "--prompt", "a"], "was trained to classify, and was asked to generate"),
        ("stretch", ["classify", "a.txt"], "was trained to generate, and was asked to classify"),
        ("stretch", ["embed", "a.txt"], "to embed takes an encoder"),
        ("stretch", ["generate", "--prompt", "a", "--chat"], "has no chat template"),
        ("stretch", ["generate", "no.txt"], "no.txt: there is no such file"),
        ("translator", ["translate", "no.txt"], "no.txt: there is no such file"),
        ("filler", ["fill", "no.txt"], "no.txt: there is no such file"),
        ("classifier", ["classify", "no.txt"], "no.txt: there is no such file"),
        ("classifier", ["answer", "no.txt"], "no.txt: there is no such file"),
        ("classifier", ["embed", "no.txt"], "no.txt: there is no such file"),
        ("translator", ["translate", "a.txt", "--device", "tpu9"], "device: there is no 'tpu9'"),
        ("stretch", ["evaluate", "--text", "no.txt"], "no.txt: there is no such file"),
        ("stretch", ["evaluate", "--text", "a.txt", "--beam", "3"], "--beam: is for translate"),
        ("stretch", ["evaluate", "--text", "a.txt", "--output", "out"], "is scored without outputs"),
        ("stretch", ["evaluate", "--text", "a.txt", "--device", "tpu9"], "device: there is no 'tpu9'"),
        ("translator", ["evaluate", "--source", "a.txt", "--target", "a.txt", "--output", "no/out"], "no folder no"),
        ("translator", ["export", "--to", "tflite", "-o", "out"], "there is no format 'tflite'"),
        ("translator", ["export", "--to", "hf", "--quantization", "q9", "-o", "out"], "quantization: hf is written in"),
        ("translator", ["export", "--to", "gguf", "-o", "out"], "cannot be exported to gguf"),
        ("translator", ["export", "--to", "ctranslate2", "-o", "."], "is there already, and is not empty"),
        ("translator", ["export", "--to", "ctranslate2", "-o", "file/out"], "file is not a folder"),
        ("translator", ["serve", "--name", "a", "--name", "b"], "there are 1 runs and 2 names"),
        ("translator", ["serve", "--ssl-certfile", "no.pem"], "ssl-certfile: no.pem"),
        ("translator", ["serve", "--host", "no such host"], "host: there is no 'no such host'"),
        ("translator", ["look", "--token", "short"], "token: whoever guesses it"),
        ("translator", ["look", "nothing"], "nothing is not a run folder"),
    ],
)
def test_a_run_is_not_loaded(request, refused, run, asked, said):
    path = request.getfixturevalue(run).folder.path  # it is trained, where this test is the first to need it
    request.getfixturevalue("unloaded")
    refused(asked[0], path, *asked[1:], said=said)


@pytest.fixture
def taken():
    """A port at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield str(listening.getsockname()[1])


@pytest.mark.parametrize("verb", ["serve", "look"])
def test_a_port_that_is_taken(translator, unloaded, refused, taken, verb):
    refused(verb, translator.folder.path, "--port", taken, said=f"port {taken} of 127.0.0.1 cannot be had")


def test_a_port_that_is_taken_before_a_program_is_compiled(here, refused, taken, monkeypatch):
    forbid(monkeypatch, "clearhead.experiments.rasp_run.compile_to_run")
    refused("craft", "look", "reverse", "--port", taken, said=f"port {taken} of 127.0.0.1 cannot be had")


@pytest.fixture
def without(translator, unloaded, monkeypatch):
    """Act as if a package were not installed; return the path of a run."""

    def missing(package):
        monkeypatch.setattr("clearhead.interop.export.has_package", lambda name: name != package)
        return translator.folder.path

    return missing


@pytest.mark.parametrize(
    ("to", "package"),
    [("hf", "transformers"), ("ctranslate2", "ctranslate2"), ("onnx", "onnxscript"), ("gguf", "gguf")],
)
def test_an_export_without_its_package(without, refused, to, package):
    path = without(package)
    said = f"an export to {to} needs {package}, which is not installed: pip install {package}"
    refused("export", path, "--to", to, "-o", "out", said=said)


def test_a_page_that_is_not_built(translator, unloaded, refused, monkeypatch):
    monkeypatch.setattr(live, "TEMPLATE", unloaded / "live.html")
    refused("page", translator.folder.path, "-o", "out.html", said="the page is not built")
    refused("trace", translator.folder.path, "eins", "--html", "out.html", said="the page is not built")


def test_a_model_that_is_too_large_for_a_page(translator, unloaded, refused, monkeypatch):
    monkeypatch.setattr(live, "check_built", lambda: None)
    monkeypatch.setattr("clearhead.cli.page.check_built", lambda: None)
    monkeypatch.setattr(live, "MOST", 10)
    refused("page", translator.folder.path, "-o", "out.html", said="a page that runs by itself holds 10 at most")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--site", "decoder.7.cross"],
            "--site: there is no 'decoder.7.cross'. Did you mean 'decoder.0.cross'? There are encoder.0.attention",
        ),
        (["--head", "0"], "--head: a head of which attention? Say --site too"),
        (["--site", "decoder.0.cross", "--head", "99"], "--head: decoder.0.cross has heads 0 to"),
    ],
)
def test_a_text_is_not_traced(translator, refused, monkeypatch, options, said):
    monkeypatch.setattr(trace, "check_built", lambda: None)
    forbid(monkeypatch, "clearhead.experiments.tracing.trace")
    refused("trace", translator.folder.path, "eins", *options, said=said)


@pytest.mark.parametrize(
    ("run", "options", "said"),
    [
        ("run", ["--task", "dance"], "task: there is no 'dance'"),
        ("run", ["--device", "tpu9"], "device: there is no 'tpu9'"),
        ("run", ["--dtype", "int1"], "dtype: 'int1' cannot be imported"),
        ("file/run", [], "file is not a folder"),
    ],
)
def test_a_model_is_not_imported(unloaded, refused, run, options, said):
    refused("import", "hub:some/model", run, *options, said=said)


def test_weights_that_fsdp_cannot_shard_are_found_without_the_text(texts, monkeypatch):
    recipe = default_recipe("generate", Corpus(train=Documents(paths=("a.txt",))))
    seen = []
    monkeypatch.setattr(parallel, "check_axes", seen.append)
    parallel.check_together(replace(recipe, machine=replace(recipe.machine, parallel="fsdp")), 2)
    assert len(seen) == 1
