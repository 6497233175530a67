"""`clearhead train`: from files to a run folder, on from where it stopped, and every wrong request told."""

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from clearhead.cli import run
from clearhead.serve.explorer import Explorer
from clearhead.training.run import load
from tests.covering import few
from tests.serve.asking import ask

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SMALL = ["--size", "40k", "--vocabulary", "300", "--batch-tokens", "256", "--context", "16", "--threads", "1"]
SHORT = [*SMALL, "--steps", "3"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A few hundred number words: aligned files, text, and a table with labels."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    rows = [[draw.randrange(10) for _ in range(draw.randint(2, 5))] for _ in range(300)]
    written = {
        "de.txt": [" ".join(GERMAN[i] for i in row) for row in rows],
        "en.txt": [" ".join(ENGLISH[i] for i in row) for row in rows],
        "t.tsv": [
            "words\tclass",
            *(f"{ENGLISH[row[0]]} {ENGLISH[row[1]]}\t{'odd' if row[0] % 2 else 'even'}" for row in rows),
        ],
    }
    for name, lines in written.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture
def files(corpus):
    """The arguments that name the task and its files."""
    return {
        "translate": ["--task", "translate", "--source", f"{corpus}/de.txt", "--target", f"{corpus}/en.txt"],
        "generate": ["--task", "generate", "--text", f"{corpus}/en.txt"],
        "fill": ["--task", "fill", "--text", f"{corpus}/en.txt"],
        "classify": ["--task", "classify", "--table", f"{corpus}/t.tsv", "--columns", "words,class"],
    }


@pytest.fixture
def command(capsys, plain_terminal):
    """Runs `clearhead train`: its exit code, what it printed, and what it said on stderr."""

    def ran(*args):
        code = run(["train", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(["char", "byte", "word"], 1))
def test_a_size_is_met_with_the_vocabulary_of_the_text(command, files, tmp_path, kind):
    """With characters 200k gave 49,632: the size was met for a vocabulary that the text does not have."""
    small = ["--batch-tokens", "64", "--context", "16", "--threads", "1", "--steps", "1", "--json"]
    code, out, err = command(tmp_path / "run", *files["generate"], "--size", "200k", "--tokenizer", kind, *small)
    assert code == 0, err
    assert json.loads(out)["evaluation"]["parameters"] == pytest.approx(200_000, rel=0.1)
    assert load(tmp_path / "run").folder.recipe().parameters == 200_000


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translate", "generate", "fill", "classify"])
def test_a_task_is_trained_from_files_in_one_command(command, files, tmp_path, task):
    code, out, err = command(tmp_path / "run", *files[task], *SHORT)
    assert code == 0, err
    for name in ("evaluation.json", "checkpoints", "curves.svg", "metrics.jsonl", "recipe.json"):
        assert (tmp_path / "run" / name).exists()
        assert str(tmp_path / "run" / name) in out
    assert f"clearhead {task} {tmp_path}/run" in out
    assert f"clearhead evaluate {tmp_path}/run" in out
    assert "step 3/3" in err
    assert "dev at step 3  loss" in err
    assert load(tmp_path / "run", device="cpu").step == 3


@pytest.mark.slow
def test_json_is_the_only_thing_on_stdout(command, files, tmp_path):
    code, out, err = command(tmp_path / "run", *files["classify"], *SHORT, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["path"] == str(tmp_path / "run")
    assert told["evaluation"] == json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert "dev at step 3" in err


@pytest.mark.slow
def test_a_dry_run_prints_the_recipe_as_it_would_be_followed(command, files, tmp_path):
    """With the vocabulary of the text and the steps timed: nothing is a placeholder, and nothing is left behind."""
    options = ["--vocabulary", "300", "--context", "16", "--threads", "1", "--steps", "40", "--dry-run"]
    code, out, _ = command(tmp_path / "deep" / "run", *files["translate"], *options)
    recipe = json.loads(out)
    assert code == 0
    assert recipe["model"]["decoder"]["vocabulary"] not in (64, None)
    assert recipe["open"] == []
    assert recipe["optimizer"]["schedule"]["warmup"] < 10
    assert recipe["machine"]["device"] != "auto"
    assert not (tmp_path / "deep").exists()


@pytest.mark.slow
def test_an_edited_recipe_is_followed(command, files, tmp_path):
    code, out, _ = command(tmp_path / "run", *files["generate"], *SHORT, "--dry-run")
    recipe = json.loads(out)
    recipe["budget"]["steps"], recipe["optimizer"]["lr"] = 2, 0.007
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(recipe))
    code, out, err = command(tmp_path / "run", "--recipe", path, "--seed", 5, "--json")
    assert (code, json.loads(out)["evaluation"]["step"]) == (0, 2), err
    written = load(tmp_path / "run").folder.recipe()
    assert (written.budget.steps, written.optimizer.lr, written.seed) == (2, 0.007, 5)
    # The file of a run is sealed; edited, it is refused there and taken here.
    sealed = json.loads((tmp_path / "run" / "recipe.json").read_text())
    sealed["budget"]["steps"] = 1
    path.write_text(json.dumps(sealed))
    assert command(tmp_path / "again", "--recipe", path)[0] == 0


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("{}", [], "--recipe"),
        ("[1]", [], "expected the JSON object of a recipe"),
        ("nonsense", [], "is not JSON"),
        (None, [], "there is no file"),
        ("{}", ["--lr", "0.1"], "says all of it: change it there, and leave out --lr"),
    ],
)
def test_a_recipe_that_is_none_is_refused_and_makes_no_folder(command, tmp_path, text, more, said):
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text)
    code, _, err = command(tmp_path / "run", "--recipe", path, *more)
    assert code == 2
    assert said in err
    assert not (tmp_path / "run").exists()


def test_a_refused_training_leaves_nothing_behind(command, tmp_path, corpus):
    bad = tmp_path / "bad.tsv"
    bad.write_text("text\tlabel\none\tx\ntwo\n" * 9)
    code, _, _ = command(tmp_path / "deep" / "run", "--task", "classify", "--table", bad)
    assert code == 1
    assert not (tmp_path / "deep").exists()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    assert command(kept, "--task", "classify", "--table", bad)[0] == 1
    assert [one.name for one in kept.iterdir()] == ["notes.txt"]


@pytest.mark.slow
def test_minutes_that_are_too_few_are_refused_and_leave_nothing(command, files, tmp_path):
    code, _, err = command(tmp_path / "run", *files["generate"], "--minutes", "0.0001", "--threads", "1")
    assert code == 2
    assert "minutes: in 0.0001 there is time for" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_resume_takes_smaller_micro_batches_and_evaluate_remembers_the_columns(
    command, files, tmp_path, corpus, capsys
):
    command(tmp_path / "run", *files["classify"], *SHORT)
    code, _, err = command(tmp_path / "run", "--resume", "--steps", "5", "--micro-batch-tokens", "100")
    assert code == 0, err
    recipe = load(tmp_path / "run").folder.recipe()
    assert (recipe.machine.splits, recipe.batching.micro_batch_tokens) == (3, None)
    assert run(["evaluate", str(tmp_path / "run"), "--table", str(corpus / "t.tsv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 300


@pytest.mark.slow
def test_a_table_without_a_header_and_a_header_read_as_data_are_told(command, corpus, tmp_path):
    rows = (corpus / "t.tsv").read_text().splitlines()
    (tmp_path / "bare.tsv").write_text("\n".join(rows[1:]) + "\n")
    code, _, err = command(tmp_path / "run", "--task", "classify", "--table", tmp_path / "bare.tsv", *SHORT)
    assert code == 1
    assert "If its first line is no header, give columns by number: --columns 1,2" in err
    named = ["--task", "classify", "--table", corpus / "t.tsv", "--columns", "1,2"]
    code, _, err = command(tmp_path / "run", *named, *SHORT)
    assert "WARNING: the label 'class' occurs once and is named like a column" in err


@pytest.mark.slow
def test_stdin_is_kept_in_the_run(command, tmp_path, monkeypatch, corpus):
    text = (corpus / "en.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    code, _, err = command(tmp_path / "run", "--task", "generate", "--text", "-", *SHORT)
    assert code == 0, err
    assert (tmp_path / "run" / "data" / "stdin").read_bytes() == text


VARIANTS = [
    ["--heads", "sliced", "--scale", "none", "--block", "none", "--feed-forward", "none"],
    ["--value-rank", "3", "--d-value", "20", "--block", "single-residual", "--scale", "0.5"],
]


@pytest.mark.slow
@pytest.mark.parametrize("variant", few(VARIANTS, 1), ids=lambda one: one[1])
def test_a_variant_is_trained_resumed_evaluated_translated_with_and_looked_into(
    command, files, tmp_path, variant, capsys
):
    path = tmp_path / "run"
    code, _, err = command(path, *files["translate"], *SMALL, "--steps", 2, "--select", "last", *variant)
    assert code == 0, err
    begun = load(path, device="cpu").model.spec
    code, _, err = command(path, "--resume", "--steps", 3)
    assert (code, "from step 2" in err) == (0, True)
    now = load(path, device="cpu")
    assert (now.step, now.model.spec) == (3, begun)
    one = str(tmp_path / "one.txt")
    (tmp_path / "one.txt").write_text("eins zwei\n")
    assert run(["evaluate", str(path), "--source", one, "--target", one, "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] >= 0
    assert run(["translate", str(path), one, "--beam", "2", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    found = ask(Explorer(now), "trace", {"source": "eins zwei"})
    assert {site["name"].split(".")[-1] for site in found["sites"]} == {"attention", "cross"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "written"),
    [
        (
            ["--heads", "sliced", "--block", "pre", "--scale", "none", "--feed-forward", "swiglu"],
            [{"is": "SlicedHeads", "count": 4}, {"is": "PreNorm"}, {"is": "Dot"}, {"is": "SwiGLU", "d_ff": 256}],
        ),
        (
            ["--value-rank", "8", "--d-value", "64", "--block", "single-residual", "--scale", "0.25"],
            [
                {"is": "Heads", "value_rank": 8, "d_value": 64},
                {"is": "SingleResidualNorm"},
                {"is": "ScaledDot", "factor": 0.25},
            ],
        ),
        pytest.param(["--block", "post"], [{"is": "PostNorm"}], marks=pytest.mark.thorough),
        pytest.param(["--block", "none"], [{"is": "NoNorm"}], marks=pytest.mark.thorough),
    ],
    ids=lambda one: "-".join(one) if isinstance(one[0], str) else "",
)
def test_a_variant_stands_in_the_recipe(command, files, tmp_path, variant, written):
    # Few tokens: a dry run times some steps.
    code, out, err = command(tmp_path / "run", *files["translate"], *variant, "--batch-tokens", 64, "--dry-run")
    assert code == 0, err
    model = json.loads(out)["model"]
    for block in (*model["encoder"]["blocks"], *model["decoder"]["blocks"]):
        parts = (
            block["attention"]["heads"],
            block["attention"]["similarity"],
            block["arrangement"],
            block["feed_forward"],
        )
        for one in written:
            assert any(part is not None and part.items() >= one.items() for part in parts), one


@pytest.fixture
def vectors(tmp_path):
    """Vectors of six numbers for most of the words, as GloVe's text."""
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {place} 1 2 3 4 5\n" for place, word in enumerate(ENGLISH[:7])))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_starts_from_word_vectors_frozen_or_not(command, files, tmp_path, vectors, freeze):
    options = [
        "--vectors",
        vectors,
        *["--freeze-vectors"] * freeze,
        "--context",
        16,
        "--batch-tokens",
        256,
        "--steps",
        2,
    ]
    code, _, err = command(tmp_path / "run", *files["classify"], *options, "--threads", 1, "--select", "last")
    assert code == 0, err
    assert f"vectors: 7 of 15 words of the text are in {vectors}, which has 7" in err
    done = load(tmp_path / "run", device="cpu")
    assert (done.model.spec.d_model, done.tokenizer.kind, done.folder.recipe().vectors) == (6, "word", str(vectors))
    [row] = done.tokenizer.encode("three")
    entered = done.model.embedding.table[row] * done.model.embedding.factor
    same = torch.allclose(entered, torch.tensor([3.0, 1, 2, 3, 4, 5]), atol=1e-5)
    assert (same, done.model.embedding.table.requires_grad) == (freeze, not freeze)
    vectors.unlink()
    assert command(tmp_path / "run", "--resume", "--steps", 3)[0] == 0


@pytest.mark.slow
def test_a_run_goes_on_with_a_new_budget(command, files, tmp_path):
    command(tmp_path / "run", *files["classify"], *SHORT)
    code, _, err = command(tmp_path / "run", "--resume", "--steps", 5)
    assert code == 0
    assert "from step 3" in err
    assert "dev at step 5" in err
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["budget"]["steps"] == 5


def test_a_resume_takes_nothing_that_would_make_it_another_run(command, files, tmp_path):
    others = ["--seed", "2", "--warmup", "3", "--size", "1M", "--batch-tokens", "9"]
    code, out, err = command(tmp_path / "run", "--resume", *files["fill"], *others, "--lr", "1", "--steps", "9")
    assert (code, out) == (2, "")
    listed = "--task, --text, --size, --warmup, --batch-tokens, --seed"
    assert f"--resume: goes on with what the run was begun with: leave out {listed}\n" in err
    code, _, err = command(tmp_path / "run", "--resume")
    assert code == 1
    assert "is not a run folder" in err


@pytest.mark.slow
def test_a_resume_takes_another_rate_and_machine_and_a_new_place_for_its_checkpoints(command, files, tmp_path):
    path, disk = tmp_path / "run", tmp_path / "disk"
    assert command(path, *files["classify"], *SHORT)[0] == 0
    (path / "checkpoints").rename(disk)
    code, _, err = command(path, "--resume")
    assert code == 1
    assert "checkpoints of this run cannot be reached there" in err
    changed = ["--lr", "0.005", "--threads", "1", "--precision", "bfloat16", "--no-compile", "--device", "cpu"]
    code, out, err = command(path, "--resume", "--steps", 5, *changed, "--checkpoints", disk)
    assert code == 0, err
    assert "from step 3" in err
    assert str(disk) in out
    recipe = load(path, device="cpu", step=5).folder.recipe()
    assert (recipe.optimizer.lr, recipe.machine.precision, recipe.budget.steps) == (0.005, "bfloat16", 5)


@pytest.mark.slow
def test_checkpoints_are_kept_in_another_folder(command, files, tmp_path):
    path, disk = tmp_path / "run", tmp_path / "disk" / "run"
    code, out, err = command(path, *files["classify"], *SHORT, "--checkpoints", disk)
    assert code == 0, err
    assert str(disk) in out
    assert (disk / "step-00000003").is_dir()
    assert not (path / "checkpoints").exists()


def test_a_folder_of_other_things_is_refused_before_anything_is_read_or_written(command, tmp_path, monkeypatch):
    (tmp_path / "mine" / "step-00000004").mkdir(parents=True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    code, out, err = command(tmp_path / "mine", "--task", "generate", "--text", "-", *SHORT)
    assert (code, out) == (1, "")
    assert "holds step-00000004, and is no run of Clearhead's; nothing was touched" in " ".join(err.split())
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["mine", "mine/step-00000004"]
    assert sys.stdin.buffer.read() == b"one\ntwo\n"


def test_vectors_of_another_width_than_the_model_that_was_chosen_are_told(command, files, tmp_path, vectors):
    code, out, err = command(tmp_path / "run", *files["fill"], "--vectors", vectors, "--preset", "bert-tiny")
    assert (code, out) == (2, "")
    said = "has vectors of 6 numbers, and the model is 128 wide; leave out --preset, and it becomes 6 wide"
    assert said in " ".join(err.split())


@pytest.mark.slow
def test_a_run_that_is_there_is_left_alone(command, files, tmp_path, monkeypatch):
    command(tmp_path / "run", *files["classify"], *SHORT)
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*") if path.name != ".lock")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    code, _, err = command(tmp_path / "run", "--task", "generate", "--text", "-", *SHORT, "--tensorboard")
    assert code == 1
    assert "there is a run already; go on with --resume, or choose another folder" in err
    after = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "run").rglob("*") if path.name != ".lock")
    assert after == before


@pytest.mark.slow
def test_tensorboard_gets_the_numbers_too(command, files, tmp_path):
    pytest.importorskip("tensorboard")
    assert command(tmp_path / "run", *files["classify"], *SHORT, "--tensorboard")[0] == 0
    [events] = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"dev/accuracy" in events.read_bytes()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--text", "a.txt"], "Missing option --task: say what to learn (translate"),
        (["--task", "sing"], "--task: there is no 'sing'; there are translate, generate, fill, classify"),
        (["--task", "translate", "--source", "a"], "Missing option --target: --source needs its other side"),
        (["--task", "translate", "--text", "a"], "--text: translate takes --source with --target or --table"),
        (["--task", "generate"], "Missing option --text: generate takes --text or --table"),
        (["--task", "generate", "--text", "a", "--columns", "b"], "--columns: goes with --table"),
        (["--task", "fill", "--text", "a", "--lr", "0"], "--lr: takes a number, above 0; came 0"),
        (
            ["--task", "fill", "--text", "a", "--dropout", "1"],
            "--dropout: takes a number, 0 or more and less than 1; came 1",
        ),
        (["--task", "fill", "--text", "a", "--steps", "0"], "--steps: takes a whole number, 1 or more; came 0"),
        (["--task", "fill", "--text", "a", "--nonsense"], "No such option: --nonsense"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_two_lines_before_anything_is_read(command, tmp_path, args, said):
    code, out, err = command(tmp_path / "run", *args)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--steps", "3", "--minutes", "1"], "--steps and --minutes: each says when to stop: give one of them"),
        (["--preset", "tiny"], "--preset: fill takes an encoder, and tiny is none"),
        (["--attention", "hard"], "--attention: there is no 'hard'"),
        (["--heads", "round"], "--heads: there is no 'round'; there are whole, sliced"),
        (
            ["--block", "single-residual", "--feed-forward", "none"],
            "--feed-forward: SingleResidualNorm is norm(FFN(a) + a): this block has",
        ),
        (["--attention", "cosine", "--scale", "none"], "--scale: it multiplies the dot product of query and key"),
        (["--freeze-vectors"], "--freeze-vectors: goes with --vectors"),
        (["--vectors", "none.txt"], "--vectors: none.txt: there is no such file"),
        (["--vectors", "none.txt", "--tokenizer", "bpe"], "--vectors: they are of words: leave out --tokenizer bpe"),
        (["--scale", "0"], "--scale: expected sqrt, none, or a number above 0 such as 0.125; came '0'"),
        (["--d-value", "x"], "--d-value: expected a whole number from 1 to 999,999,999; came 'x'"),
        (["--device", "abacus"], "--device: there is no 'abacus'"),
    ],
)
def test_what_cannot_go_with_the_task_makes_no_folder(command, files, tmp_path, args, said):
    code, out, err = command(tmp_path / "run", *files["fill"], *args)
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_bad_lines_are_told_by_file_and_line_and_can_be_skipped(command, tmp_path, corpus):
    lines = (corpus / "de.txt").read_bytes().splitlines(keepends=True)
    lines[6], lines[41] = b"\xff\n", b"\n"
    (tmp_path / "de.txt").write_bytes(b"".join(lines))
    args = ["--task", "translate", "--source", tmp_path / "de.txt", "--target", corpus / "en.txt", *SHORT]
    code, out, err = command(tmp_path / "run", *args)
    assert (code, out) == (1, "")
    assert f"{tmp_path}/de.txt:7: invalid UTF-8" in err
    assert f"{tmp_path}/de.txt:42: the line is empty" in err
    assert "pass --skip-bad to leave them out" in err
    assert "Traceback" not in err
    code, _, err = command(tmp_path / "run", *args, "--skip-bad")
    assert code == 0
    assert "298 records" in err


def test_a_file_or_a_column_that_is_not_there_is_told(command, tmp_path, corpus):
    code, _, err = command(tmp_path / "run", "--task", "fill", "--text", tmp_path / "no.txt")
    assert code == 1
    assert "no.txt: there is no such file" in err
    code, _, err = command(tmp_path / "run", "--task", "classify", "--table", corpus / "t.tsv", *SHORT)
    assert code == 1
    assert "there is no column 'text'; its columns are 'words', 'class'" in err


def test_the_help_fits_the_page_and_has_an_example_of_every_task(command):
    code, out, _ = command("--help")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    for task in ("translate", "generate", "fill", "classify"):
        assert f"--task {task} " in out
    sections = ("Text (", "Tokeniser:", "Model:", "Optimizer:", "Batches:", "Budget (", "Checkpointing:", "Machine:")
    places = [out.index(f"\n{section}") for section in sections]
    assert places == sorted(places)


SLOWED = """
import sys, time
from clearhead.training import checkpoints

def slowly(stage):
    print(stage, flush=True)
    time.sleep(1000)

checkpoints.between_writes = slowly
from clearhead.cli import main
main(sys.argv[1:])
"""


@contextlib.contextmanager
def begun(program, args, said):
    """A process that trains, once it has said so on stderr; it does not outlive its test."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *program, "train", *map(str, args)]
    with subprocess.Popen(command, **streams, env=env, text=True) as process:
        try:
            heard = ""
            while said not in heard:
                line = process.stderr.readline()
                assert line, f"it ended: {heard}"
                heard += line
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.thorough)]
)
def test_a_signal_saves_and_leaves_and_the_run_goes_on(command, files, tmp_path, number, code):
    long = [*SMALL, "--steps", "100000", "--log-every", "1", "--evaluate-every", "100000"]
    with begun(["-m", "clearhead"], [tmp_path / "run", *files["translate"], *long], "step 1/") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (code, "")
    assert f"and saved; go on with: clearhead train {tmp_path}/run --resume\n" in err
    assert "Traceback" not in err
    [checkpoint] = (tmp_path / "run" / "checkpoints").glob("step-*")
    done = json.loads((checkpoint / "state.json").read_text())["step"]
    code, _, err = command(tmp_path / "run", "--resume", "--steps", done + 2)
    assert code == 0, err
    assert f"from step {done}" in err
    assert (tmp_path / "run" / "evaluation.json").exists()


@pytest.mark.slow
def test_a_second_interrupt_leaves_at_once(files, tmp_path):
    long = [*SMALL, "--steps", "100000", "--log-every", "1", "--evaluate-every", "100000"]
    with begun(["-c", SLOWED], [tmp_path / "run", *files["translate"], *long], "step 1/") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "model.safetensors\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (130, "")
    assert "and saved;" not in err
    assert "Traceback" not in err
