"""A compiled program as a run: its answer is the program's, and the page is told what it is and what it lacks."""

import json

import pytest

import clearhead as ch
from clearhead.attention.weighting import Softmax
from clearhead.cli.craft_program import Ask, in_words
from clearhead.cli.craft_run import compare
from clearhead.errors import RunError
from clearhead.experiments.rasp_run import compile_to_run
from clearhead.files import seal
from clearhead.rasp import PROGRAMS
from clearhead.serve.explorer import Explorer
from clearhead.serve.program import load_program
from clearhead.training import resume
from clearhead.training.recipe import Budget
from tests.covering import few
from tests.serve.asking import ask


@pytest.fixture
def look(tmp_path):
    """Write a program as a run, and look into it."""

    def made(name, **options):
        program = Ask(program=PROGRAMS[name], **options)
        return program, Explorer(
            ch.load(compile_to_run(program.program, tmp_path / name, **options).path, device="cpu")
        )

    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", few([name for name, one in PROGRAMS.items() if one.source_vocabulary is None], 6))
def test_the_answer_is_what_craft_run_prints(look, name):
    program, explorer = look(name)
    text = list(program.program.example)
    meta = ask(explorer, "trace", {"source": in_words(text)})
    wanted = ["–" if one is None else f"{one:.4g}" if isinstance(one, float) else str(one)
              for one in compare(program, text, None).answers]  # fmt: skip
    assert meta["program"]["answers"] == wanted
    assert meta["answer"] == " ".join(wanted)


@pytest.mark.slow
def test_sort_answers_with_the_tokens_in_order(look):
    _, explorer = look("sort")
    assert ask(explorer, "trace", {"source": "c a b b a"})["answer"] == "a a b b c"
    assert ask(explorer, "trace", {"source": "b"})["answer"] == "b"


def test_with_a_soft_weighting_the_answer_is_still_read_as_craft_run_reads_it(look):
    program, explorer = look("sort", weighting=Softmax(), sharpness=8.0)
    answers = compare(program, list("cabba"), None).answers
    assert ask(explorer, "trace", {"source": "c a b b a"})["answer"] == in_words(answers)


def test_an_edited_program_answers_as_edited(look):
    _, explorer = look("sort")
    [site] = [layer["heads"][0]["site"] for layer in ask(explorer, "run")["program"]["layers"][-1:]]
    off = {"at": site, "step": "context", "times": 0.0}
    assert ask(explorer, "trace", {"source": "c a b", "edits": [off]})["answer"] == "– – –"


def test_copy_is_answered_by_what_it_writes(look):
    _, explorer = look("copy")
    assert ask(explorer, "trace", {"source": "a b ."})["answer"] == "a b ."


def test_the_page_is_told_what_the_program_is_and_which_head_does_what(look):
    program, explorer = look("sort")
    told = ask(explorer, "run")["program"]
    assert (told["name"], told["about"], told["exact"]) == ("sort", program.program.about, True)
    assert told["listing"][-1] == "in order = aggregate(select(rank, indices, key = query), tokens)"
    heads = [head for layer in told["layers"] for head in layer["heads"]]
    assert heads[0]["site"] == "encoder.0.attention"
    assert "select(tokens, tokens, key < query), then count what is selected → 1 / (1 + smaller)" in [
        head["words"] for head in heads
    ]
    sites = {site["name"]: site["n_heads"] for site in ask(explorer, "trace", {"source": "a"})["sites"]}
    assert all(head["head"] < sites[head["site"]] for head in heads)
    stored = json.loads((explorer.run.folder.path / "program.json").read_text())
    assert stored["layers"] == told["layers"]


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("sort", {"decoding", "training"}),
        ("pattern", {"decoding", "training"}),
        ("fraction-of-previous", {"decoding", "training"}),
        ("shift", {"neurons", "training"}),
        ("copy", {"training"}),
    ],
)
def test_views_with_nothing_to_show_are_absent_with_a_reason(look, name, absent):
    _, explorer = look(name)
    told = ask(explorer, "run")["absent"]
    assert set(told) == absent
    assert "compiled from a program, not trained" in told["training"]
    if "decoding" not in absent:
        assert ask(explorer, "decode", {"source": ask(explorer, "run")["examples"][0]["source"]})["outputs"]


def test_trained_runs_lack_only_what_their_task_lacks(translator, documents, filler, classifier):
    for run, absent in ((translator, []), (documents, []), (filler, ["decoding"]), (classifier, ["decoding"])):
        facts = ask(Explorer(run), "run")
        assert list(facts["absent"]) == absent
        assert "program" not in facts


@pytest.mark.slow
def test_a_program_that_was_trained_on_has_curves_and_its_own_answer_no_longer(look):
    _, explorer = look("shift")
    again = Explorer(resume(explorer.run.folder.path, budget=Budget(steps=1), log=lambda line: None))
    facts = ask(again, "run")
    assert "training" not in facts["absent"]
    assert facts["program"]["exact"] is False
    assert "program" not in ask(again, "trace", {"source": "a b"})


def changed(told, **fields):
    return {**{name: one for name, one in told.items() if name not in ("format", "sha256")}, **fields}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda told: told | {"threshold": 0.4}, "was changed since it was written"),
        (lambda told: seal(changed(told, offset="1")), "offset: expected a whole number; came '1'"),
        (lambda told: seal(changed(told, answer_ids=[10**6])), "an answer has an id beyond the vocabulary"),
        (lambda told: seal(changed(told, colour=1)), "there is no field 'colour'"),
        (lambda told: seal(changed(told, run="ffff")), "is of another run"),
        (lambda told: [], "expected a JSON object; came list"),
    ],
)
def test_a_program_that_was_changed_is_told(look, content, message):
    """What its answers are read with decides them: a damaged file was taken for none, or for what it said."""
    _, explorer = look("sort")
    path = explorer.run.folder.path / "program.json"
    path.write_text(json.dumps(content(json.loads(path.read_text()))))
    with pytest.raises(RunError, match=rf"program\.json: .*{message}"):
        load_program(explorer.run)
