"""`clearhead describe`: what it prints is what `describe` counts, in 80 columns; and wrong questions are told."""

import json
import re
from dataclasses import replace

import pytest

from clearhead.cli import run
from clearhead.cli.describe import format_count, format_percent, gather_facts
from clearhead.errors import RunError
from clearhead.model import presets
from clearhead.model.describe import describe
from clearhead.model.sizes import KINDS, named, sized, spec_to_json
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import write_recipe


@pytest.fixture
def printed(capsys, plain_terminal):
    """Runs `clearhead describe` with these arguments, and gives what it printed."""

    def ran(*args):
        assert run(["describe", *args]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return ran


@pytest.fixture
def refused(capsys, plain_terminal):
    """Runs it with arguments that are wrong, and gives what it said."""

    def ran(*args, code=2):
        assert run(["describe", *args]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == (2 if code == 2 else 1)
        return err

    return ran


def rows(page):
    """The parameters and operations that stand beside each part, in order: (indent, name, parameters, operations)."""
    found = re.findall(
        r"^(  +)(\S.*?) {2,}([\d,]+|shared)(?: +<?[\d.]+ %)? +([\d.]+ ?[kMGTP]?)(?: +<?[\d.]+ %)?$", page, re.MULTILINE
    )
    return [(len(indent), name, parameters, operations.strip()) for indent, name, parameters, operations in found]


@pytest.mark.parametrize("model", ["tiny", "gpt2-medium", "bert", "llama-1b"])
@pytest.mark.slow
def test_the_page_has_every_part_with_its_numbers(printed, model):
    made, page = describe(named(model)), printed(model)
    wanted = []
    for section in made.sections:
        name = section.name if section.count == 1 else f"{section.name} × {section.count}"
        wanted.append((2, name, f"{section.parameters:,}", format_count(section.operations).strip()))
        for part in section.parts:
            parameters = section.count * part.parameters
            shown = "shared" if part.shares and not parameters else f"{parameters:,}"
            wanted.append((4, part.name, shown, format_count(section.count * part.operations).strip()))
    wanted.append((2, "in all", f"{made.parameters:,}", format_count(made.operations).strip()))
    assert rows(page) == wanted


@pytest.mark.parametrize(
    "args", [["base"], ["gpt2-xl", "--target-length", "1024"], ["llama-7b", "--target-length", "100000"]]
)
@pytest.mark.slow
def test_the_page_fits_80_columns_without_escape_codes(printed, args):
    page = printed(*args)
    assert max(len(line) for line in page.splitlines()) <= 80
    assert "\x1b" not in page


@pytest.mark.slow
def test_the_page_says_what_is_shared_and_what_is_counted(printed):
    page = " ".join(printed("base").split())
    assert "encoder.embedding.table is shared with decoder embedding and decoder output, and counted once." in page
    assert "two for a multiply-add" in page
    assert "encoder-decoder · d_model 512 · 6 + 6 blocks · vocabulary 37,000" in page
    assert "batch 1 · source 128 tokens · target 128 tokens" in page
    assert "parameters 252 MB 126 MB" in page
    assert "cache, each source token 24.6 kB 12.3 kB" in page


@pytest.mark.slow
def test_json_holds_the_whole_description(printed):
    answer = json.loads(
        printed(
            "tiny", "--vocabulary", "500", "--source-length", "20", "--target-length", "9", "--batch", "3", "--json"
        )
    )
    made = describe(presets.tiny(500), batch=3, source=20, target=9)
    assert (answer["model"], answer["kind"], answer["vocabulary"]) == ("tiny", "encoder-decoder", 500)
    assert (answer["d_model"], answer["n_layers"]) == (128, [4, 4])
    assert (answer["batch"], answer["source"], answer["target"]) == (3, 20, 9)
    for name in ("parameters", "trainable", "frozen", "operations"):
        assert answer[name] == getattr(made, name)
    for name in ("parameters", "operations", "frozen"):
        assert sum(part[name] for section in answer["sections"] for part in section["parts"]) == getattr(made, name)
        assert sum(section[name] for section in answer["sections"]) == getattr(made, name)
    assert [(section["name"], section["count"]) for section in answer["sections"]] == [
        (section.name, section.count) for section in made.sections
    ]
    assert answer["memory"]["bfloat16"]["parameters"] == 2 * made.parameters
    assert answer["memory"]["float32"]["token"] == made.memory().token


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_kind_with_a_size(printed, kind):
    answer = json.loads(printed(kind, "--size", "1.5M", "--vocabulary", "1000", "--json"))
    assert answer["parameters"] == describe(sized(kind, 1_500_000, 1000)).parameters
    assert answer["parameters"] == pytest.approx(1_500_000, rel=0.1)
    assert answer["kind"] == kind


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Missing MODEL: A run folder"),
        (["gpt3"], "MODEL: there is no 'gpt3'. Did you mean 'gpt2'? There are tiny, base, big, gpt2, gpt2-tiny,"),
        (["base", "--size", "10M"], "--size: 'base' has its own size. With --size there are: encoder-decoder,"),
        (["decoder"], "--size: 'decoder' can have any size: give one, such as --size 10M"),
        (["decoder", "--size", "10X"], "--size: '10X' is no number of parameters; write 300k, 10M"),
        (["decoder", "--size", "10k"], "vocabulary of 32,000: the least is 518,736; raise the size, or lower the voc"),
        (["gpt2", "--source-length", "5"], "--source-length: gpt2 is a decoder, and reads no source: use --target-l"),
        (["bert", "--target-length", "5"], "--target-length: bert is an encoder, and writes no target: use --sour"),
        (["base", "--vocabulary", "0"], "--vocabulary"),
        (["base", "--batch", "none"], "--batch"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_told_in_two_lines(refused, args, said):
    assert said in refused(*args)


def test_more_tokens_than_there_are_positions_is_told_in_a_line(refused):
    assert "positions 0 to 511, and 0 to 999 were asked for" in refused("bert", "--source-length", "1000", code=1)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1.00 k"), (9_994, "9.99 k"), (9_996, "10.0 k"), (99_960, "100 k"),
     (999_499, "999 k"), (999_500, "1.00 M"), (16_628_056_064, "16.6 G"), (3 * 10**18, "3.00 E")],
)  # fmt: skip
def test_large_numbers_have_three_digits(number, text):
    assert format_count(number) == text


def test_shares_are_percents_and_nothing_is_left_blank():
    assert [format_percent(number, 1000) for number in (0, 1, 125, 1000)] == ["", "0.1 %", "12.5 %", "100.0 %"]
    assert format_percent(1, 100_000) == "<0.1 %"


@pytest.fixture
def said(capsys, plain_terminal):
    """Runs `clearhead describe`, and gives its exit code and what it printed."""

    def ran(*args):
        code = run(["describe", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out + err

    return ran


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec_to_json(presets.tiny(vocabulary=100))), encoding="utf-8")
    return path


def test_of_a_run_the_facts_are_those_of_its_model(classifier):
    folder = RunFolder(classifier.folder.path)
    facts = gather_facts(str(folder.path))
    assert facts.spec == classifier.model.spec
    assert facts.costs.parameters == sum(one.numel() for one in classifier.model.parameters())
    assert facts.costs.source == classifier.task.context
    assert (facts.purpose.task, facts.purpose.context) == ("classify", classifier.task.context)
    assert facts.purpose.labels == classifier.task.labels
    assert facts.purpose.steps == folder.checkpoints.all()[0].step > 0
    assert facts.purpose.scores["accuracy"] == folder.read_evaluation()["accuracy"]


def test_the_page_says_what_the_run_was_trained_to_do(said, classifier):
    code, page = said(classifier.folder.path)
    words = " ".join(page.split())
    assert code == 0
    assert f"trained to classify with {len(classifier.task.labels)} labels, context" in words
    assert "accuracy" in words
    assert "Heads(" in words


def test_json_has_the_spec_and_the_purpose(said, translator):
    code, text = said(translator.folder.path, "--json")
    found = json.loads(text)
    assert code == 0
    assert found["spec"] == spec_to_json(translator.model.spec)
    assert found["purpose"]["task"] == "translate"
    assert found["parameters"] == sum(one.numel() for one in translator.model.parameters())


@pytest.mark.slow
def test_a_spec_in_a_file_is_described_as_the_preset_it_is(spec_file):
    facts = gather_facts(str(spec_file), source=7, target=9)
    assert facts.costs == describe(presets.tiny(vocabulary=100), source=7, target=9)
    assert facts.purpose is None


def test_a_recipe_says_what_it_shall_be_trained_to_do(said, tmp_path, translator):
    path = tmp_path / "plan.json"
    write_recipe(replace(translator.folder.recipe(), parameters=30_000), path)
    code, page = said(path)
    assert code == 0
    assert "to be trained to translate, context" in page
    assert "size asked for: 30,000 parameters" in page


def test_what_describes_no_model_is_told_in_a_line(said, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a run folder: it has no model.json" in said(empty)[1]
    for content, why in (
        ("[1]", "expected a JSON object"),
        ("{", "Expecting property name"),
        ('{"model_type": "gpt2"}', "describes no model; expected the JSON of a spec or a recipe"),
        ('{"is": "Softmax", "temperature": 1.0}', "a model was expected"),
        ('{"spec": {}}', "describes no model"),
        ('{"is": "mine:Part"}', "mine:Part"),
    ):
        path = tmp_path / "odd.json"
        path.write_text(content, encoding="utf-8")
        code, told = said(path)
        assert (code, len(told.splitlines())) == (1, 1), told
        assert why in told
        assert str(path) in told
    code, told = said(tmp_path / "nowhere")
    assert code == 2
    assert "run folders and JSON files by their paths" in told


@pytest.mark.parametrize(
    ("field", "value"), [("d_model", 1 << 40), ("vocabulary", 1 << 62), ("d_model", 0), ("d_model", -4)]
)
def test_a_size_that_no_model_can_have_is_refused(said, spec_file, field, value):
    found = spec_to_json(presets.tiny(vocabulary=100).decoder)
    spec_file.write_text(json.dumps({**found, field: value}), encoding="utf-8")
    code, told = said(spec_file)
    assert code == 1
    assert len(told.splitlines()) == 1
    assert f"{spec_file}: the model cannot be built" in told


@pytest.mark.parametrize("option", [["--size", "10M"], ["--vocabulary", "9"]])
def test_sizes_are_for_names_only(said, spec_file, option):
    code, told = said(spec_file, *option)
    assert code == 2
    assert f"{option[0]}: goes with the name of a model" in told
    assert "has its own" in told


def test_a_changed_file_of_a_run_is_refused(tmp_path, translator):
    path = tmp_path / "recipe.json"
    content = json.loads(translator.folder.recipe_file.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "seed": 99}), encoding="utf-8")
    with pytest.raises(RunError, match="checksum"):
        gather_facts(str(path))
