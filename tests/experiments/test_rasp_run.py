"""A compiled RASP program as a run folder: every verb takes it, and its model answers as plain Python does."""

import json
import random
from dataclasses import replace

import pytest
import torch

import clearhead as ch
from clearhead.cli import run
from clearhead.errors import OptionError, RunError
from clearhead.experiments.rasp_run import compile_to_run, make_tokenizer
from clearhead.experiments.tracing import encode_inputs
from clearhead.rasp import PROGRAMS, aggregate, indices, past, select, selector_width, source_indices
from clearhead.serve.explorer import Explorer
from clearhead.training import resume
from clearhead.training.recipe import Budget
from tests.covering import few
from tests.serve.asking import ask


@pytest.fixture
def made(tmp_path):
    def write(name):
        return ch.load(compile_to_run(PROGRAMS[name], tmp_path / name).path, device="cpu")

    return write


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reverse", "histogram", "sort", "shift", "pattern", "addition"])
def test_a_compiled_program_is_a_run_whose_traces_give_its_values(made, name):
    loaded, program, draw = made(name), PROGRAMS[name], random.Random(0)
    texts = [
        text for text in (draw.choices(program.vocabulary, k=n) for n in (1, 4, program.length)) if program.fits(text)
    ]
    for text in [list(program.example), *texts]:
        found = ch.trace(loaded, " ".join(map(str, text)))
        places = slice(1, 1 + len(text))
        said = [row[0].text for row in found.candidates[places]]
        assert said == ["</s>" if value is None else str(value) for value in program.plain(text)]


@pytest.mark.parametrize("name", few((name for name, one in PROGRAMS.items() if one.source_vocabulary is None), 5))
@pytest.mark.slow
def test_every_program_answers_in_its_run_as_it_does_in_python(made, name):
    loaded, program, draw = made(name), PROGRAMS[name], random.Random(1)
    ids = loaded.tokenizer
    drawn = (draw.choices(program.vocabulary, k=draw.randint(1, program.length)) for _ in range(40))
    for text in filter(program.fits, [list(program.example), *drawn]):
        asked = encode_inputs(loaded, " ".join(map(str, text)))
        logits = loaded.model(*(torch.tensor([row]) for row in asked.ids.values()))[0, 1 : 1 + len(text)]
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
    loaded = ch.load(compile_to_run(program, tmp_path / "left").path, device="cpu")
    for source in ("a b c", "a", "a b c a b"):
        found = ch.trace(loaded, source, "3 2 1")
        n = len(source.split())
        assert [row[0].text for row in found.candidates] == [str(max(0, n - place)) for place in range(4)]


def test_the_explorer_begins_with_the_programs_example(made):
    for name, example in (("sort", {"source": "c a b b a"}), ("copy", {"source": "a b .", "target": "a b ."})):
        explorer = Explorer(made(name))
        assert ask(explorer, "run")["examples"] == [example]


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
        compile_to_run(PROGRAMS["shift"], tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mine.txt"]


def test_words_that_a_run_cannot_read_are_refused():
    with pytest.raises(OptionError, match="'<s>' is a special token of every run"):
        make_tokenizer(["a", "<s>"], [])
    with pytest.raises(OptionError, match="'a b' cannot be a word"):
        make_tokenizer(["a b"], [])
    assert make_tokenizer(["a"], [(1, 2)]).vocabulary == 7


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
        compile_to_run(program, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_the_explorer_knows_the_directions_by_name(made):
    facts = ask(Explorer(made("shift")), "run")
    assert facts["directions"][:3] == ["one", "here", "sink"]
    assert len(facts["directions"]) == facts["sides"][0]["d_model"]
