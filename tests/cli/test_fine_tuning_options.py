"""`clearhead train RUN --from PRETRAINED`, with runs that were trained here and imported ones."""

import json
from pathlib import Path

import pytest

from clearhead.cli import run
from clearhead.training.folder import RunFolder
from clearhead.training.run import load
from tests.interop import saved_models
from tests.training import small_runs

SHORT = ("--steps", "4", "--device", "cpu", "--json")


@pytest.fixture(scope="module")
def blanks(tmp_path_factory):
    """A run that fills blanks."""
    return small_runs.trained(small_runs.filling, tmp_path_factory).folder.path


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Imported runs by name."""
    home = tmp_path_factory.mktemp("imported")
    for name in ("gpt2", "bert"):
        saved_models.save(name, home / f"{name}-source")
        assert run(["import", str(home / f"{name}-source"), str(home / name)]) == 0
    return home


@pytest.fixture
def table(tmp_path):
    """A table of texts with labels."""
    rows = [("the cat sat", "beast"), ("the mat sat", "thing"), ("a dog", "beast"), ("a hat", "thing")] * 12
    lines = [f"{text} {'on ' * (i % 7)}\t{label}" for i, (text, label) in enumerate(rows)]
    return small_runs.write_lines(tmp_path / "table.tsv", ["text\tlabel", *lines])


@pytest.mark.slow
def test_a_run_is_fine_tuned_with_adapters_and_resumed(blanks, table, tmp_path, command):
    new = tmp_path / "mood"
    code, out, error = command(
        *("train", new, "--from", blanks, "--task", "classify", "--table", table, *SHORT),
        *("--lora", 2, "--lora-maps", "query, down", "--lora-alpha", 3, "--freeze", "output.out.bias"),
    )
    assert code == 0, error
    assert "tensors taken; new: output.out.weight, output.out.bias" in error
    assert json.loads(out)["task"] == "classify"
    tuning = RunFolder(new).recipe().fine_tuning
    assert (tuning.source, tuning.lora.rank, tuning.lora.maps, tuning.lora.alpha) == (
        *(str(blanks), 2, ("query", "down"), 3.0),
    )
    assert tuning.freeze == ("output.out.bias",)
    assert load(new, device="cpu").model.output.out.bias.tolist() == [0.0, 0.0]
    code, _, error = command("train", new, "--resume", "--steps", 6, "--json")
    assert (code, "from step 4" in error) == (0, True)
    code, _, error = command("train", new, "--resume", "--from", blanks)
    assert code == 2
    assert "leave out --from" in error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_imported_models_are_fine_tuned_with_their_own_tokens(imported, table, tmp_path, command, name):
    new = tmp_path / "mood"
    code, _, error = command(
        "train", new, "--from", imported / name, "--task", "classify", "--table", table, "--lora", 2, *SHORT
    )
    assert code == 0, error
    before, after = load(imported / name, device="cpu"), load(new, device="cpu")
    assert after.tokenizer.encode("the cat sat") == before.tokenizer.encode("the cat sat")
    assert after.tokenizer.vocabulary == before.tokenizer.vocabulary
    assert after.task.frame().before == before.task.frame().before or name == "gpt2"
    assert after.classify(["the cat"])[0].label in ("beast", "thing")
    assert command("trace", new, "the cat sat")[0] == 0
    assert command("train", new, "--resume", "--steps", 6, "--json")[0] == 0


@pytest.mark.slow
def test_an_imported_decoder_goes_on_with_new_text(imported, tmp_path, command):
    lines = small_runs.write_lines(tmp_path / "lines.txt", ["the cat sat on the mat"] * 60)
    new = tmp_path / "more"
    code, _, error = command(
        "train", new, "--from", imported / "gpt2", "--text", lines, "--documents", "line", "--context", 16, *SHORT
    )
    assert code == 0, error
    assert "all " in error
    assert load(new, device="cpu").generate(["the cat"], max_new=3)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--size", "1M", "--tokenizer", "char"], "leave out --tokenizer, --size"),
        (["--vocabulary", "300"], "has its model and its tokenisers already: leave out --vocabulary"),
        (["--lora", "64"], "rank of 64 is too large"),
        (["--lora", "2", "--lora-maps", "gate"], "no block of this model has a plain linear map for gate"),
        (["--lora", "2", "--lora-maps", "sight"], "there is no map 'sight'"),
        (["--lora-maps", "query"], "goes with --lora RANK"),
        (["--lora-alpha", "2"], "goes with --lora RANK"),
        (["--freeze", "decoder"], "no parameter is called 'decoder'; there are embedding, blocks.0, norm, output"),
        (["--context", "64"], "was trained to read 32 tokens; came 64"),
        (["--task", "embed"], "nothing is trained to embed"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(blanks, table, command, options, why):
    given = [] if "--task" in options else ["--task", "classify"]
    new = Path(table).with_name("new")
    code, _, error = command("train", new, "--from", blanks, "--table", table, *given, *options)
    assert code == 2
    assert why in " ".join(error.split())
    assert not new.exists()


def test_options_of_fine_tuning_need_a_run_to_start_from(table, tmp_path, command):
    for options in (("--lora", 2), ("--freeze", "embedding")):
        code, _, error = command("train", tmp_path / "new", "--task", "classify", "--table", table, *options)
        assert code == 2
        assert "goes with --from RUN" in error
    code, _, error = command("train", tmp_path / "new", "--from", tmp_path / "none", "--table", table)
    assert code == 2
    assert "is not a run folder" in error
