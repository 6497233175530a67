"""`clearhead trace`: the same numbers in the terminal, as JSON, as a drawing and as a page; and errors in words."""

import json
import re
from xml.etree import ElementTree

import pytest
import torch

import clearhead as ch
from clearhead.cli import run
from clearhead.cli import trace as trace_verb
from clearhead.serve import live

TEXT = "zwei drei vier"


@pytest.fixture
def command(capsys, plain_terminal):
    """Runs a command: its exit code, what it printed, and what it said on stderr."""

    def ran(*args):
        capsys.readouterr()  # what a run was trained with, where this test is the first that asks for it
        code = run([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def template(monkeypatch, tmp_path):
    """A page that is built: what is left of it is where the data go."""
    path = tmp_path / "static" / "live.html"
    path.parent.mkdir()
    path.write_text(f"<html>{live.PLACE}</script>{live.WEIGHTS}</script></html>", encoding="utf-8")
    monkeypatch.setattr(live, "TEMPLATE", path)
    return path


def asked(command, made, *options, text=TEXT):
    """The JSON of a trace."""
    code, out, err = command("trace", made.folder.path, text, "--device", "cpu", "--json", *options)
    assert (code, err) == (0, "")
    return json.loads(out, parse_constant=pytest.fail)


def test_the_picture_has_tokens_attentions_kernels_and_a_map_in_80_columns(command, translator):
    code, out, err = command("trace", translator.folder.path, TEXT, "--device", "cpu")
    made = ch.trace(translator, TEXT)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "The target is its own greedy output." in out
    for name, side in made.sides.items():
        assert f"{name} · {len(side.tokens)} tokens" in out
    for name, site in made.sites.items():
        assert re.search(rf"^  {re.escape(name)}  +{site.kernel} .*[▁▂▃▄▅▆▇█]{{{site.n_heads}}}", out, re.MULTILINE)
    off, allowed = re.search(r"largest difference ([\d.e+-]+), tolerance ([\d.e+-]+)\.", " ".join(out.split())).groups()
    assert float(off) <= float(allowed)


def test_a_page_or_a_drawing_never_takes_the_place_of_a_file_of_the_run(command, translator, tmp_path):
    recipe = translator.folder.recipe_file
    before = recipe.read_bytes()
    for option in ("--html", "--svg"):
        code, out, err = command("trace", translator.folder.path, TEXT, option, recipe)
        assert (code, out) == (1, "")
        assert f"{option}: {recipe} is a file of the run" in err
    both = ["--html", tmp_path / "a", "--svg", tmp_path / "a"]
    assert command("trace", translator.folder.path, TEXT, *both)[0] == 2
    assert recipe.read_bytes() == before


def test_a_chosen_head_or_their_mean_is_mapped_with_its_numbers(command, translator):
    site = ch.trace(translator, TEXT)["encoder.0.attention"]
    for head, weight in (("1", site.head[1].weight), ("mean", torch.stack([one.weight for one in site.head]).mean(0))):
        named = ("--site", site.name, "--head", head)
        code, out, _ = command("trace", translator.folder.path, TEXT, "--device", "cpu", *named)
        assert code == 0
        title = f"━━ {site.name}, {'mean of its 2 heads' if head == 'mean' else f'head {head} (heads 0 to 1)'} ━"
        shown = out[out.index(title) :].splitlines()[2 : 2 + site.n_query]
        assert [float(line.split()[-1]) for line in shown] == pytest.approx(weight.amax(-1).tolist(), abs=0.005)


def test_json_has_every_weight_and_every_step_of_what_is_shown(command, translator):
    found = asked(command, translator)
    made = ch.trace(translator, TEXT)
    assert found["limited"] is None
    assert found["sides"]["decoder"]["tokens"] == made.sides["decoder"].tokens
    assert [one["name"] for one in found["sites"]] == list(made.sites)
    for one in found["sites"]:
        site = made[one["name"]]
        assert (one["kernel"], one["n_heads"], len(one["information"])) == (site.kernel, site.n_heads, site.n_heads)
        assert 0 <= one["off"] <= one["tolerance"]
        for head in site.head:
            assert torch.equal(torch.tensor(found["weight"][site.name][str(head.index)]), head.weight)
    shown = made[found["shown"]["site"]].head[found["shown"]["head"]]
    assert shown.site.slot == "cross"
    for step in ("query", "key", "value", "score", "scaled", "masked", "weight", "context"):
        assert torch.equal(torch.tensor(found["shown"][step]), getattr(shown.rows(), step))
    assert len(found["candidates"]) == len(made.candidates)
    assert found["candidates"][-1][0]["text"] == made.candidates[-1][0].text


def test_what_is_masked_is_null(command, documents):
    found = asked(command, documents, "--site", "decoder.0.attention", "--head", "0", text="the cat eats")
    n = len(found["sides"]["decoder"]["tokens"])
    assert [row.count(None) for row in found["shown"]["masked"]] == list(range(n - 1, -1, -1))
    assert list(found["weight"]) == ["decoder.0.attention"]
    assert list(found["weight"]["decoder.0.attention"]) == ["0"]


def test_json_says_where_it_is_limited(command, translator, monkeypatch):
    monkeypatch.setattr(trace_verb, "MOST_NUMBERS", 10)
    found = asked(command, translator)
    [(site, heads)] = found["weight"].items()
    assert (site, [*map(int, heads)]) == (found["shown"]["site"], [found["shown"]["head"]])
    assert "too many for JSON" in found["limited"]
    assert f"those of {site}, head {found['shown']['head']} (heads 0 to 1) are given" in found["limited"]


@pytest.mark.parametrize(
    ("kind", "text"), [("stretch", "the cat"), ("filler", "the <mask> eats"), ("classifier", "red plum")]
)
def test_runs_of_every_task_are_traced(command, request, kind, text):
    made = request.getfixturevalue(kind)
    code, out, err = command("trace", made.folder.path, text, "--device", "cpu")
    assert (code, err) == (0, "")
    assert "answer · " in out
    assert asked(command, made, text=text)["task"] == made.task.name


def test_a_given_target_is_read_in_place_of_the_own_output(command, translator):
    assert asked(command, translator, "--target-text", "11")["target"] == "11"
    assert asked(command, translator, "--beam", "2")["notes"] == ["written with a cache, token by token"]


def test_a_drawing_is_of_the_head_that_is_shown(command, translator, tmp_path):
    file = tmp_path / "head.svg"
    site = ch.trace(translator, TEXT)["encoder.0.attention"]
    options = ("--site", site.name, "--head", "1", "--svg", file)
    code, out, _ = command("trace", translator.folder.path, TEXT, "--device", "cpu", *options)
    assert code == 0
    assert str(file) in out
    assert f"{site.name}, head 1 (heads 0 to 1)" in out
    assert f"{site.name}, head 1 (heads 0 to 1)" in file.read_text(encoding="utf-8")
    said = [one.text.rpartition(": ")[2] for one in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}title")]
    assert said == [f"{weight:.4%}" for weight in site.head[1].weight.flatten().tolist()]
    assert [path.name for path in tmp_path.iterdir()] == ["head.svg"]


def test_a_page_is_written_and_its_size_is_told(command, translator, template, tmp_path):
    file = tmp_path / "page.html"
    code, out, _ = command("trace", translator.folder.path, TEXT, "--device", "cpu", "--html", file)
    assert code == 0
    assert f"html  {file}" in out
    assert "The model is in it" in out
    found = asked(command, translator, "--html", file)
    assert found["files"]["html"]["bytes"] == file.stat().st_size
    assert not list(tmp_path.glob(".*"))


def test_a_page_opens_on_what_the_beam_wrote(command, translator, template, tmp_path):
    file = tmp_path / "page.html"
    options = ["--device", "cpu", "--beam", "2", "--site", "decoder.0.cross", "--head", "1", "--html", file]
    assert command("trace", translator.folder.path, TEXT, *options)[0] == 0
    data = json.loads(file.read_text(encoding="utf-8").partition(live.PLACE)[2].partition("</script>")[0])
    wrote = ch.trace(translator, TEXT, method=ch.Beam(width=2)).sides["decoder"].ids[1:]
    assert data["run"]["examples"] == [{"source": TEXT}]
    assert data["run"]["opening"] == {"site": "decoder.0.cross", "head": 1, "target": wrote}


def test_of_a_large_model_the_page_has_the_weights_and_the_reason_is_told(
    command, translator, template, tmp_path, monkeypatch
):
    monkeypatch.setattr("clearhead.serve.recorded.LIVE", 10)
    code, out, _ = command("trace", translator.folder.path, TEXT, "--device", "cpu", "--html", tmp_path / "page.html")
    said = " ".join(out.split())
    assert code == 0
    assert "8-bit weights of every head:" in said
    assert "parameters, and a page that runs by itself holds 10 at most" in said


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ["--site", "decoder.7.cross"],
            2,
            "--site: there is no 'decoder.7.cross'. Did you mean 'decoder.0.cross'? There are enc",
        ),
        (["--head", "1"], 2, "--head: a head of which attention? Say --site too"),
        (["--site", "decoder.0.cross", "--head", "2"], 2, "decoder.0.cross has heads 0 to 1, and their mean; came 2"),
        (["--site", "decoder.0.cross", "--head", "9" * 5000], 2, "has heads 0 to 1, and their mean; came 99"),
        (["--site", "decoder.0.cross", "--head", "-1"], 2, "has heads 0 to 1, and their mean; came -1"),
        (["--svg", "no/such/folder/x.svg"], 1, "no/such/folder"),
    ],
)
def test_what_is_asked_wrongly_is_told(command, translator, monkeypatch, tmp_path, *, options, code, said):
    monkeypatch.chdir(tmp_path)
    got, out, err = command("trace", translator.folder.path, TEXT, "--device", "cpu", *options)
    assert (got, out) == (code, "")
    assert said in " ".join(err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  ", "there is no text to trace: expected one; came a blank one"),
        ("eins " * 40, "tokens, and the model reads 31; shorten it"),
    ],
)
def test_a_text_that_cannot_be_read_is_told(command, translator, text, said):
    code, out, err = command("trace", translator.folder.path, text, "--device", "cpu")
    assert (code, out) == (1, "")
    assert said in err


def test_no_run_and_no_page_are_told(command, translator, tmp_path, monkeypatch):
    code, _, err = command("trace", tmp_path / "nothing", TEXT)
    assert code == 1
    assert "nothing" in err
    monkeypatch.setattr(live, "TEMPLATE", tmp_path / "live.html")
    code, _, err = command("trace", translator.folder.path, TEXT, "--device", "cpu", "--html", tmp_path / "x.html")
    assert code == 1
    assert "run `make web`" in err
    assert not (tmp_path / "x.html").exists()
