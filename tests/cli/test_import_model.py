"""`clearhead import`, and every verb with what it wrote."""

import json
import shutil

import pytest

import clearhead as ch
from clearhead.cli import run
from clearhead.cli.import_model import describe_import
from clearhead.serve.explorer import Explorer
from tests.interop import saved_models
from tests.serve.asking import ask

NAMES = ("gpt2", "llama", "bert", "classifier", "embedder")
TEXTS = {"bert": "the cat <mask> on the mat"}
TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Model folders by name, as `transformers` saved them."""
    home = tmp_path_factory.mktemp("sources")
    for name in NAMES:
        saved_models.save(name, home / name)
    return home


@pytest.fixture(scope="module")
def runs(sources, tmp_path_factory):
    """The imported runs by name."""
    home = tmp_path_factory.mktemp("imported")
    for name in NAMES:
        assert run(["import", str(sources / name), str(home / name)]) == 0
    return home


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "llama",
            [
                "decoder         llama · 2 layers × 4 heads (2 for keys and values) · d_model 32",
                "parameters      4",
                "context         200 tokens",
                "reads           <s> text",
                "task            generate, and chat",
                "clearhead generate {run} --prompt 'A beginning'",
                "clearhead trace {run} 'a line of text'",
            ],
        ),
        (
            "bert",
            [
                "encoder         bert · 2 layers × 3 heads · d_model 24",
                "reads           [CLS] text [SEP]",
                "task            fill",
                "clearhead trace {run} 'a line with a <mask> in it'",
            ],
        ),
        ("classifier", ["labels          plum, cat, window", "task            classify"]),
        ("embedder", ["task            embed", "clearhead embed {run}", "clearhead look {run}"]),
    ],
)
def test_it_says_what_was_read_and_what_to_try(sources, tmp_path, command, name, lines):
    code, out, err = command("import", sources / name, tmp_path / "run")
    assert (code, err) == (0, "")
    for line in lines:
        assert line.format(run=tmp_path / "run") in out


def test_as_json(sources, tmp_path, command):
    _, out, _ = command("import", sources / "llama", tmp_path / "run", "--json", "--context", 50, "--dtype", "bfloat16")
    told = json.loads(out)
    assert told == describe_import(ch.load(tmp_path / "run"))
    assert (told["context"], told["dtype"], told["task"]) == (50, "bfloat16", "generate")
    assert told["stacks"] == [
        {"kind": "decoder", "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_head": 8, "d_model": 32}
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing", "run"), "clearhead: nothing: there is no such folder"),
        (("llama", "run", "--dtype", "int4"), "--dtype: 'int4' cannot be imported; there are float32, bfloat16, int8"),
        (("llama", "run", "--task", "translate"), "to translate takes an encoder-decoder"),
        (("bert", "run", "--task", "classify"), "to classify takes an encoder with Classes"),
        (("llama", "run", "--context", "300"), "--context: the model reads 1 to 200 tokens; came 300"),
        (("llama", "."), "there is something already; choose another folder"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(sources, here, command, args, message):
    for name in ("llama", "bert"):
        shutil.copytree(sources / name, name)
    before = sorted(here.rglob("*"))
    code, out, err = command("import", *args)
    assert (code, out) == (2 if message.startswith("--") else 1, "")
    assert message in err
    assert sorted(here.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_verb_that_takes_a_run(runs, command, name, tmp_path):
    path, text = runs / name, TEXTS.get(name, TEXT)
    verb = ch.load(path).task.verb
    short = ("--max-tokens", 5) if verb == "generate" else ()
    for asked in ((verb, path, *short), (verb, path, "--json", *short)):
        code, out, err = command(*asked, stdin=f"{text}\n\n")
        assert (code, err) == (0, ""), asked
        assert len(out.splitlines()) == 2
    if verb != "generate":
        assert command("answer", path, stdin=f"{text}\n")[0] == 0
    assert command("describe", path)[0] == 0
    code, out, _ = command("trace", path, text)
    assert code == 0
    assert "Every attention layer" in out
    code, _, _ = command("trace", path, text, "--html", tmp_path / "page.html", "--svg", tmp_path / "head.svg")
    assert code == 0
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert json.loads(command("trace", path, text, "--json")[1])


def test_they_are_listed(runs, command):
    code, out, _ = command("runs", runs, "--json")
    found = {one["name"]: one for one in json.loads(out)["runs"]}
    assert code == 0
    assert {name: found[name]["task"] for name in NAMES} == {
        "gpt2": "generate",
        "llama": "generate",
        "bert": "fill",
        "classifier": "classify",
        "embedder": "embed",
    }
    assert all(one["problem"] is None and one["finished"] and one["parameters"] for one in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_explorer_opens_it(runs, name):
    loaded = ch.load(runs / name, device="cpu")
    explorer = Explorer(loaded)
    facts = ask(explorer, "run")
    assert facts["examples"]  # of a few general sentences those that its tokenizer can read
    assert not any(loaded.unseen(example["source"]) for example in facts["examples"])
    for example in facts["examples"]:
        assert ask(explorer, "trace", example)["sites"]
    made = ask(explorer, "trace", {"source": TEXTS.get(name, TEXT)})
    site = made["sites"][-1]["name"]
    assert ask(explorer, "tile", {"site": site, "head": "1", "step": "weight"}, made["id"]).shape[0]
    assert ask(explorer, "row", {"site": site, "head": "0", "query": "1"}, made["id"])
    assert ask(explorer, "curves")["lines"] == []
    edit = {"at": site, "head": 0, "step": "weight", "to": 0.0}
    changed = ask(explorer, "trace", {"source": TEXTS.get(name, TEXT), "edits": [edit]})
    assert changed["id"] != made["id"]


@pytest.mark.slow
def test_replies_of_a_conversation(runs, command):
    asked = ("generate", runs / "llama", "--chat", "--greedy", "--max-tokens", 8)
    code, one, _ = command(*asked, "--prompt", "Who sat?")
    reply = ch.load(runs / "llama", device="cpu").chat(
        [{"role": "user", "content": "Who sat?"}], max_new=8, method=ch.Greedy()
    )
    assert code == 0
    assert json.loads(command(*asked, "--prompt", "Who sat?", "--json")[1])["output"] == reply
    assert one.endswith("\n")
    told = json.loads(command(*asked, "--prompt", "Who sat?", "--json", "--system", "Be brief.")[1])["output"]
    assert told != reply
    code, _, err = command("generate", runs / "gpt2", "--chat", "--prompt", "Who sat?")
    assert code == 1
    assert "has no chat template" in err
    code, _, err = command("generate", runs / "llama", "--system", "x", "--prompt", "Who sat?")
    assert code == 2
    assert "--system" in err


def test_resuming_and_evaluating_what_cannot_be_are_named(runs, command, tmp_path):
    (tmp_path / "t.txt").write_text(TEXT)
    code, _, err = command("train", runs / "llama", "--resume")
    assert code == 1
    assert "was imported from" in err
    code, _, err = command("evaluate", runs / "embedder", "--text", tmp_path / "t.txt")
    assert code == 1
    assert "a run that embeds is not scored" in err
    code, out, _ = command("evaluate", runs / "llama", "--text", tmp_path / "t.txt")
    assert code == 0
    assert "perplexity" in out
