"""`clearhead craft`: programs listed, shown, run beside their meaning, and as run folders that every verb takes."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

import clearhead as ch
from clearhead.cli import craft_run, look, run
from clearhead.cli.craft_folder import write_run
from clearhead.cli.craft_model import tokenizer_of
from clearhead.cli.craft_program import Ask, in_words
from clearhead.errors import OptionError, RunError
from clearhead.rasp import PROGRAMS, aggregate, indices, past, select, selector_width, source_indices
from clearhead.serve import server
from clearhead.serve.explorer import Explorer
from clearhead.training import resume
from clearhead.training.recipe import Budget
from clearhead.training.tracing import asked_of, tensors_of

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


def test_brackets_in_names_are_no_markup_and_pages_fit(printed):
    for name in PROGRAMS:
        page = printed("show", name)
        assert max(len(line) for line in page.splitlines()) <= 80
    assert "tokens: ( ) { } [ ]\n" in printed("show", "shuffle-dyck-3")


def test_of_an_encoder_decoder_the_encoder_comes_first(printed):
    page = printed("show", "copy")
    assert page.index("encoder layer 0") < page.index("decoder layer 0")
    assert "head 0, which looks into the source\n" in page


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
    words = printed("run", "copy", "<go> c", "--source", "cab", "--json")
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
        (["run", "nix"], 2, "there is no 'nix'. There are: length, reverse"),
        (["run", "reverse", "abz"], 2, "'z' is no token of this program. Its tokens: a b c"),
        (["run", "reverse", "a", "b", "zz"], 2, "'zz' is no token"),
        (["run", "reverse", "a" * 11], 1, "a text of 1 to 10 tokens was expected; this one has 11"),
        (["run", "reverse", "ab", "--source", "ab"], 2, "reverse reads no source"),
        (["run", "addition", "12+3"], 1, "addition is not for '1 2 + 3'"),
        (["run", "reverse", "--causal"], 1, "reverse looks ahead: the query at place 0"),
        (["show", "reverse", "--causal"], 1, "reverse looks ahead"),
        (["run", "majority", "--weighting", "argmax"], 1, "one winner cannot do that"),
        (["run", "reverse", "--weighting", "nix"], 2, "there is no 'nix'. There are: softmax"),
        (["run", "reverse", "--sharpness", "0"], 2, "it must be above 0"),
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
    told = json.loads(printed("show", "reverse", "--length", "12", "--vocabulary", "xy", "--json"))
    assert (told["length"], told["vocabulary"], told["example"]) == (12, ["x", "y"], ["x", "y"])
    assert json.loads(printed("run", "reverse", "--vocabulary", "one two", "two one one", "--json"))["answers"] == [
        "one",
        "one",
        "two",
    ]


def test_a_program_of_ones_own_file(printed, own):
    bare = ("--vocabulary", "abc", "--length", "5")
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
    assert "say its tokens and length, --vocabulary abc --length 8" in err


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
    code, out, err = command("run", f"{path}:x", "--vocabulary", "ab", "--length", "3")
    assert (code, out) == (1, "")
    assert err.startswith(f"clearhead: {path}:{line}: ")
    assert told in err
    assert "Traceback" not in err
    assert "Traceback" in command("run", f"{path}:x", "--debug")[2]


def test_a_function_that_fails_later_is_told_with_its_line_too(command, own):
    code, out, err = command("run", f"{own}:odd", "ab", "--vocabulary", "ab", "--length", "3")
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
def made(tmp_path):
    def write(name):
        return ch.load(write_run(Ask(program=PROGRAMS[name]), tmp_path / name).path, device="cpu")

    return write


@pytest.mark.parametrize("name", ["reverse", "histogram", "sort", "shift", "pattern", "addition"])
def test_a_compiled_program_is_a_run_whose_traces_give_its_values(made, name):
    loaded, program, draw = made(name), PROGRAMS[name], random.Random(0)
    texts = [
        text for text in (draw.choices(program.vocabulary, k=n) for n in (1, 4, program.length)) if program.fits(text)
    ]
    for text in [list(program.example), *texts]:
        found = ch.trace(loaded, in_words(text))
        places = slice(1, 1 + len(text))
        said = [row[0].text for row in found.candidates[places]]
        assert said == ["</s>" if value is None else str(value) for value in program.plain(text)]


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.source_vocabulary is None])
def test_every_program_answers_in_its_run_as_it_does_in_python(made, name):
    loaded, program, draw = made(name), PROGRAMS[name], random.Random(1)
    ids = loaded.tokenizer
    drawn = (draw.choices(program.vocabulary, k=draw.randint(1, program.length)) for _ in range(40))
    for text in filter(program.fits, [list(program.example), *drawn]):
        logits = loaded.model(*tensors_of(loaded, asked_of(loaded, in_words(text))))[0, 1 : 1 + len(text)]
        wanted = program.plain(text)
        if isinstance(wanted[0], float):
            assert logits[:, ids.encode("number")[0]].tolist() == pytest.approx(wanted, abs=1e-5)
        else:
            right = [ids.end if value is None else ids.encode(str(value))[0] for value in wanted]
            assert logits.argmax(-1).tolist() == right


def test_copy_is_a_run_that_translates(made):
    loaded = made("copy")
    sources = ["a b c .", "c", "b b a c a b ."]
    assert loaded.translate(sources, beam=1) == loaded.translate(sources, beam=3) == sources
    found = ch.trace(loaded, "c a .", "c a")
    assert [row[0].text for row in found.candidates] == ["c", "a", "."]
    assert found["decoder.0.cross"].head[0].weight.argmax(-1).tolist() == [0, 1, 2]


def test_the_end_of_a_source_is_no_place_of_it(tmp_path):
    left = selector_width(select(source_indices, indices, lambda key, query: key >= query), name="left")
    vocabulary = ("<go>", *map(str, range(7)))
    program = replace(PROGRAMS["copy"], name="left", output=left, vocabulary=vocabulary, length=6)
    loaded = ch.load(write_run(Ask(program=program), tmp_path / "left").path, device="cpu")
    for source in ("a b c", "a", "a b c a b"):
        found = ch.trace(loaded, source, "3 2 1")
        n = len(source.split())
        assert [row[0].text for row in found.candidates] == [str(max(0, n - place)) for place in range(4)]


def test_the_explorer_begins_with_the_programs_example(made):
    for name, example in (("sort", {"source": "c a b b a"}), ("copy", {"source": "a b .", "target": "a b ."})):
        explorer = Explorer(made(name))
        assert explorer.run_facts()["examples"] == [example]


def test_the_folder_names_the_directions_and_the_runs_are_listed(made, capsys, tmp_path):
    loaded = made("sort")
    told = json.loads((loaded.folder.path / "program.json").read_text())
    assert {"tokens:a", "indices:0", "rank:3", "in order:c"} <= set(told["directions"])
    assert len(told["directions"]) == loaded.model.spec.d_model
    capsys.readouterr()
    assert run(["runs", str(tmp_path), "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["name"], listed["task"], listed["problem"]) == ("sort", "fill", None)


def test_training_goes_on_from_a_compiled_program(made):
    loaded = made("shift")
    again = resume(loaded.folder.path, budget=Budget(steps=1), log=lambda line: None)
    assert again.step == 1
    before, after = (dict(one.model.named_parameters()) for one in (loaded, again))
    moved = [(before[name] - after[name]).detach().abs().max().item() for name in before]
    assert 0 < max(moved) < 0.01


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="there is something already"):
        write_run(Ask(program=PROGRAMS["shift"]), tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mine.txt"]


def test_words_that_a_run_cannot_read_are_refused():
    with pytest.raises(OptionError, match="'<s>' is a special token of every run"):
        tokenizer_of(["a", "<s>"], [])
    with pytest.raises(OptionError, match="'a b' cannot be a word"):
        tokenizer_of(["a b"], [])
    assert tokenizer_of(["a"], [(1, 2)]).vocabulary == 7


@pytest.mark.parametrize(
    ("vocabulary", "own_heads", "told"),
    [(("a", "b"), False, "has no <go>"), (("<go>", "a"), True, "need a token beside the text")],
)
def test_an_encoder_decoder_that_cannot_translate_soundly_is_refused(tmp_path, vocabulary, own_heads, told):
    chosen = select(indices, indices, lambda key, query: key == query)
    output = PROGRAMS["copy"].output
    if own_heads:
        output = aggregate(past(chosen), output)
    program = replace(PROGRAMS["copy"], name="mine", vocabulary=vocabulary, output=output)
    with pytest.raises(OptionError, match=told):
        write_run(Ask(program=program), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


@pytest.fixture
def unserved(monkeypatch, tmp_path):
    """A server that ends at once, and what it was to show."""
    shown = []
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(server, "STATIC", tmp_path / "page")
    monkeypatch.setattr(server.Server, "run", lambda self: self.socket.close())
    loaded = look.load
    monkeypatch.setattr(look, "load", lambda *args, **options: shown.append(loaded(*args, **options)) or shown[-1])
    return shown


def test_look_keeps_the_run_where_it_is_told(command, unserved, tmp_path):
    code, out, err = command("look", "sort", "--folder", tmp_path / "sort", "--no-open")
    assert code == 0
    assert out.startswith("http://127.0.0.1:")
    assert f"The run is {tmp_path / 'sort'}; its text is words: c a b b a" in err
    assert unserved[0].folder.path == tmp_path / "sort"
    assert ch.load(tmp_path / "sort").task.name == "fill"
    assert command("look", "sort", "--folder", tmp_path / "sort", "--no-open")[0] == 1


def test_look_without_a_folder_leaves_nothing_behind(command, unserved, own):
    options = ("--vocabulary", "abc", "--length", "5", "--causal", "--no-open")
    assert command("look", f"{own}:before", *options)[0] == 0
    assert unserved[0].task.name == "generate"
    assert not Path(unserved[0].folder.path).exists()


def test_the_explorer_knows_the_directions_by_name(made):
    facts = Explorer(made("shift")).run_facts()
    assert facts["directions"][:3] == ["one", "here", "sink"]
    assert len(facts["directions"]) == facts["sides"][0]["d_model"]
