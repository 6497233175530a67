"""`clearhead craft`: programs listed, shown, run beside their meaning, and as run folders that every verb takes."""

import json
from pathlib import Path

import pytest

import clearhead as ch
from clearhead.cli import craft_run, look, run
from clearhead.rasp import PROGRAMS
from clearhead.serve import explorer_routes, server

OWN = """\
from clearhead import rasp
from clearhead.rasp import aggregate, indices, select, tokens

before = aggregate(select(indices, indices, lambda key, query: key == query - 1), tokens, name="before")
doubled = rasp.map(lambda token: token + token, tokens, name="doubled")
odd = aggregate(
    select(tokens, indices, lambda key, query: key.wrong == query),
    tokens,
)
whole = rasp.Program(
    name="whole", about="the token before", output=before, vocabulary=("x", "y"), plain=lambda text: [], length=4,
    example="xyy",
)
number = 7
"""


@pytest.fixture
def command(capsys, plain_terminal):
    def ran(*args):
        code = run(["craft", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def printed(command):
    """What a command that goes well prints."""

    def ran(*args):
        code, out, err = command(*args)
        assert (code, err) == (0, "")
        return out

    return ran


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


@pytest.mark.slow
def test_the_list_has_every_program_with_its_cost(printed):
    told = json.loads(printed("list", "--json"))["programs"]
    assert [one["name"] for one in told] == list(PROGRAMS)
    for one in told:
        plan = PROGRAMS[one["name"]].plan()
        assert (one["layers"], one["heads"], one["width"]) == (plan.layers, plan.heads, plan.d_model)
    page = printed("list")
    rows = {line.split()[0]: line.split()[1:] for line in page.splitlines() if line.split()}
    assert all(rows[one["name"]] == [str(one[key]) for key in ("layers", "heads", "width")] for one in told)
    assert max(len(line) for line in page.splitlines()) <= 80


def test_show_tells_every_direction_and_head(printed):
    told = json.loads(printed("show", "reverse", "--json"))
    assert len(told["directions"]) == told["width"] == len(set(told["directions"]))
    assert {"one", "sink", "tokens:a", "reverse:c", "opposite:0"} <= set(told["directions"])
    heads = [head for layer in told["each_layer"] for head in layer["heads"]]
    assert len(heads) == told["heads"] == 2
    assert heads[0]["counts"]
    assert heads[1]["compares"] == [{"keys": "indices of all", "queries": "opposite", "where": "key = query"}]
    assert (heads[1]["carries"], heads[1]["writes"]) == ("tokens", "reverse")


def test_the_page_of_a_program_says_what_its_heads_compare_and_carry(printed):
    page = printed("show", "reverse")
    assert str(PROGRAMS["reverse"].plan()) in " ".join(page.split())
    assert "keys are indices of all, queries opposite: key = query\n    carries tokens into reverse\n" in page
    assert "keys are tokens, queries tokens: any key\n    counts what is chosen into 1 / (1 + length)\n" in page


@pytest.mark.slow
def test_brackets_in_names_are_no_markup_and_pages_fit(printed):
    for name in PROGRAMS:
        page = printed("show", name)
        assert max(len(line) for line in page.splitlines()) <= 80
    assert "tokens: ( ) { } [ ]\n" in printed("show", "shuffle-dyck-3")


def test_of_an_encoder_decoder_the_encoder_comes_first(printed):
    page = printed("show", "copy")
    assert page.index("encoder layer 0") < page.index("decoder layer 0")
    assert "head 0, which looks into the source\n" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_runs_its_example_as_plain_python_does(printed, name):
    program = PROGRAMS[name]
    told = json.loads(printed("run", name, "--json"))
    texts = [list(program.example)] + ([list(program.source_example)] if program.source_example else [])
    assert told["equal"]
    assert told["tokens"] == list(map(str, texts[0]))
    assert told["answers"] == pytest.approx(program.plain(*texts), abs=1e-5)
    assert told["interpreter"] == pytest.approx(program.plain(*texts))


def test_a_text_is_characters_or_words(printed):
    pages = {printed("run", "reverse", *text) for text in (["abbc"], ["a b b c"], ["a", "b", "b", "c"], ["ab", "bc"])}
    assert len(pages) == 1
    rows = [line.split() for line in pages.pop().splitlines()]
    assert rows[rows.index(["token", "model", "interpreter"]) + 1 :][:4] == [
        ["a", "c", "c"],
        ["b", "b", "b"],
        ["b", "b", "b"],
        ["c", "a", "a"],
    ]
    assert json.loads(printed("run", "majority", "110", "--json"))["answers"] == [1, 1, 1]
    words = printed("run", "copy", "<go> c", "--source-text", "cab", "--json")
    assert json.loads(words)["answers"] == ["c", "a"]


def test_a_model_that_is_not_its_meaning_is_an_error(command, monkeypatch):
    monkeypatch.setattr(craft_run, "run", lambda *_: ["c", "c", "b", "a"])
    code, out, err = command("run", "reverse", "abbc")
    assert code == 1
    assert "b       b       c             differs\n" in out
    assert "They differ at 1 of 4 places." in out
    assert "model and interpreter differ at place 1 of 'a b b c', and must be equal" in err


def test_softmax_is_shown_with_the_error_it_brings(printed):
    errors = []
    for sharpness in (1, 2, 8):
        args = ("run", "fraction-of-previous", "--weighting", "softmax", "--sharpness", sharpness)
        errors.append(json.loads(printed(*args, "--json"))["largest_error"])
    assert errors[0] > 0.2 > errors[1] > errors[2] > 0
    assert errors[2] < 0.001
    assert "The largest error is " in printed("run", "histogram", "abca", "--weighting", "softmax")
    assert "error" not in printed("run", "histogram", "abca")


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["run", "nix"], 2, "there is no 'nix'; there are length, reverse"),
        (["run", "reverse", "abz"], 2, "'z' is no token of this program. Its tokens: a b c"),
        (["run", "reverse", "a", "b", "zz"], 2, "'zz' is no token"),
        (["run", "reverse", "a" * 11], 1, "a text of 1 to 10 tokens was expected; this one has 11"),
        (["run", "reverse", "ab", "--source-text", "ab"], 2, "reverse reads no source"),
        (["run", "addition", "12+3"], 1, "addition is not for '1 2 + 3'"),
        (["run", "reverse", "--causal"], 1, "reverse looks ahead: the query at place 0"),
        (["show", "reverse", "--causal"], 1, "reverse looks ahead"),
        (["run", "majority", "--weighting", "argmax"], 1, "an argmax that picks one key cannot average"),
        (["run", "reverse", "--weighting", "nix"], 2, "there is no 'nix'; there are softmax"),
        (["run", "reverse", "--sharpness", "0"], 2, "--sharpness: takes a number, above 0"),
        (["show", "mine.py"], 2, "Write mine.py:NAME"),
        (["show", "nowhere.py:mine"], 2, "there is no file nowhere.py"),
        (["nix"], 2, "No such command 'nix'"),
    ],
)
def test_what_cannot_be_is_told(command, args, code, told):
    found, out, err = command(*args)
    assert (found, out) == (code, "")
    assert told in err


def test_length_and_vocabulary_can_be_changed(printed):
    told = json.loads(printed("show", "reverse", "--length", "12", "--alphabet", "xy", "--json"))
    assert (told["length"], told["vocabulary"], told["example"]) == (12, ["x", "y"], ["x", "y"])
    assert json.loads(printed("run", "reverse", "--alphabet", "one two", "two one one", "--json"))["answers"] == [
        "one",
        "one",
        "two",
    ]


def test_a_program_of_ones_own_file(printed, own):
    bare = ("--alphabet", "abc", "--length", "5")
    assert json.loads(printed("run", f"{own}:doubled", "cab", *bare, "--json"))["answers"] == ["cc", "aa", "bb"]
    assert json.loads(printed("run", f"{own}:before", "cab", *bare, "--causal", "--json"))["answers"] == [
        None,
        "c",
        "a",
    ]
    whole = json.loads(printed("run", f"{own}:whole", "--json"))
    assert (whole["tokens"], whole["answers"]) == (["x", "y", "y"], [None, "x", "y"])
    assert "a decoder for up to 5 tokens" in " ".join(printed("show", f"{own}:before", *bare, "--causal").split())


def test_what_is_no_program_in_a_file_is_told(command, own):
    for name, told in (("number", "'number' is a int there"), ("nix", "'nix' is nothing there")):
        code, out, err = command("run", f"{own}:{name}")
        assert (code, out) == (2, "")
        assert told in err
        assert "There are: before, doubled, odd, whole" in err
    code, _, err = command("run", f"{own}:doubled")
    assert code == 2
    assert "say its tokens and length, --alphabet abc --length 8" in err


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("x = 1\nfor\n", 2, "SyntaxError"),
        ("x = 1\n\ny = unknown + 1\n", 3, "NameError: name 'unknown' is not defined"),
        ("import sys\nsys.exit('no')\n", 2, "SystemExit: no"),
        (
            "from clearhead.rasp import *\nx = select(tokens, source_tokens, lambda key, query: True)\n",
            2,
            "the source is read before the target is there",
        ),
    ],
)
def test_an_error_in_the_file_is_told_with_its_line(command, tmp_path, text, line, told):
    path = tmp_path / "wrong.py"
    path.write_text(text)
    code, out, err = command("run", f"{path}:x", "--alphabet", "ab", "--length", "3")
    assert (code, out) == (1, "")
    assert err.startswith(f"clearhead: {path}:{line}: ")
    assert told in err
    assert "Traceback" not in err
    assert "Traceback" in command("run", f"{path}:x", "--debug")[2]


def test_a_function_that_fails_later_is_told_with_its_line_too(command, own):
    code, out, err = command("run", f"{own}:odd", "ab", "--alphabet", "ab", "--length", "3")
    assert (code, out) == (1, "")
    assert f"{own}:7: " in err
    assert "has no attribute 'wrong'" in err


def test_help_says_that_a_file_is_run_and_has_examples(printed, command):
    told = " ".join(printed("show", "--help").split())
    assert "The file is run, so run only what you trust" in told
    for verb in ("list", "show", "run", "look"):
        page = printed(verb, "--help")
        assert f"\n    clearhead craft {verb}" in page[page.index("Examples") :]
        assert max(len(line) for line in page.splitlines()) <= 80
    code, out, err = command()
    assert (code, err) == (2, "")
    assert "\n    clearhead craft list\n" in out


@pytest.fixture
def unserved(monkeypatch, tmp_path):
    """A server that ends at once, and what it was to show."""
    shown = []
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(explorer_routes, "STATIC", tmp_path / "page")
    monkeypatch.setattr(server.Server, "run", lambda self: self.socket.close())
    loaded = look.load
    monkeypatch.setattr(look, "load", lambda *args, **options: shown.append(loaded(*args, **options)) or shown[-1])
    return shown


def test_look_keeps_the_run_where_it_is_told(command, unserved, tmp_path):
    code, out, err = command("look", "sort", "--output", tmp_path / "sort", "--no-open")
    assert code == 0
    assert out.startswith("http://127.0.0.1:")
    assert f"The run is {tmp_path / 'sort'}; its text is words: c a b b a" in err
    assert unserved[0].folder.path == tmp_path / "sort"
    assert ch.load(tmp_path / "sort").task.name == "fill"
    assert command("look", "sort", "--output", tmp_path / "sort", "--no-open")[0] == 1


def test_look_without_a_folder_leaves_nothing_behind(command, unserved, own):
    options = ("--alphabet", "abc", "--length", "5", "--causal", "--no-open")
    assert command("look", f"{own}:before", *options)[0] == 0
    assert unserved[0].task.name == "generate"
    assert not Path(unserved[0].folder.path).exists()
