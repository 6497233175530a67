"""The recipe: through its file and back, and what cannot be is told at once."""

import errno
import json
import math
import os
from dataclasses import dataclass, replace

import pytest

from clearhead import files
from clearhead.errors import OptionError, RunError
from clearhead.files import write_sealed
from clearhead.model.variants import ATTENTIONS, POSITIONS, with_attention, with_position
from clearhead.serialization import to_json
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import (
    CLASSES,
    Batching,
    Budget,
    Checkpointing,
    Machine,
    Optimizer,
    read_recipe,
    write_recipe,
)
from clearhead.training.schedules import SCHEDULES, Ema, Last, Schedule, Unaveraged
from clearhead.training.tasks import default_recipe

TASKS = {
    "translate": lambda path: Aligned(source=(path,), target=(path,)),
    "generate": lambda path: Documents(paths=(path,), unit="file"),
    "fill": lambda path: Documents(paths=(path,), unit="line"),
    "classify": lambda path: Table(paths=(path,), columns=("a", "b"), fields=("text", "label")),
}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "größer.txt"
    path.write_text("a line\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def recipe(text):
    return default_recipe("generate", Corpus(train=TASKS["generate"](text)), Machine(device="cpu"))


def there_and_back(recipe, path):
    write_recipe(recipe, path)
    return read_recipe(path)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_comes_back(task, text, tmp_path):
    source = TASKS[task](text)
    for corpus in (Corpus(train=source), Corpus(train=source, dev=source, skip_bad=True)):
        recipe = default_recipe(task, corpus, Machine(device="cpu"))
        assert there_and_back(recipe, tmp_path / "recipe.json") == recipe


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_comes_back(name, recipe, tmp_path):
    """Attention's Cosine and the schedule's are two classes, and neither may be taken for the other."""
    recipe = replace(recipe, model=with_attention(recipe.model, name))
    back = there_and_back(recipe, tmp_path / "recipe.json")
    assert back == recipe
    kinds = [type(getattr(back.model.blocks[0].attention, part)) for part in ("similarity", "weighting")]
    assert kinds == [type(ATTENTIONS[name].similarity), type(ATTENTIONS[name].weighting)]
    assert type(back.optimizer.schedule) is SCHEDULES["cosine"]


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_comes_back(name, recipe, tmp_path):
    recipe = replace(recipe, model=with_position(recipe.model, name, 64))
    assert there_and_back(recipe, tmp_path / "recipe.json") == recipe


@pytest.mark.parametrize("averaging", [Unaveraged(), Ema(0.5), Last(share=0.1, every=3)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_and_average_comes_back(schedule, averaging, recipe, tmp_path):
    optimizer = Optimizer(lr=0.1 + 0.2, schedule=SCHEDULES[schedule](warmup=7), averaging=averaging, clip=None)
    recipe = replace(
        recipe,
        optimizer=optimizer,
        budget=Budget(minutes=1e-3, patience=2),
        tokenizing=Tokenizing(kind="word", size=100, shared=False, lower=True, given="x"),
        batching=Batching(micro_batch_tokens=7),
        checkpointing=Checkpointing(save=3, select="last"),
        machine=Machine(device="cuda:1", precision="bfloat16", compile=True, graphs=False, deterministic=True),
        seed=0,
    )
    assert there_and_back(recipe, tmp_path / "recipe.json") == recipe


def test_no_two_classes_share_a_name():
    assert len(set(CLASSES.values())) == len(CLASSES)
    assert all(name == one.__name__ for name, one in CLASSES.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"recipe\.json: is not JSON as Clearhead writes it"),
        ('{"is": "Recipe"}', r"recipe\.json: the field 'task' is missing; Recipe has task, corpus"),
        ('{"is": "Rezept"}', "there is no 'Rezept' in this version of Clearhead"),
        (
            '{"is": "Budget", "steps": 3, "minutes": null, "epochs": null, "patience": null}',
            r"recipe\.json: holds no recipe but Budget",
        ),
        ("[1]", r"recipe\.json: expected a JSON object; came list"),
    ],
)
def test_a_file_that_is_no_recipe(content, message, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(files.seal(json.loads(content))) if content.startswith('{"') else content)
    with pytest.raises(RunError, match=message):
        read_recipe(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "recipe.json").mkdir()
    with pytest.raises(RunError, match=r"recipe\.json: cannot be read .*no regular file"):
        read_recipe(tmp_path / "recipe.json")


def test_a_full_disk_leaves_the_recipe_as_it_was(recipe, tmp_path, monkeypatch):
    path = tmp_path / "recipe.json"
    write_recipe(recipe, path)

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(RunError, match=r"recipe\.json: could not be written .*No space left"):
        write_recipe(replace(recipe, seed=5), path)
    assert read_recipe(path) == recipe


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("optimizer", "lr"), "fast", r"optimizer\.lr: expected a number; came 'fast'"),
        (("optimizer", "lr"), -1, r"optimizer: Optimizer: lr must be above 0; came -1"),
        (("optimizer", "schedule"), {"is": "Softmax", "temperature": 1}, r"schedule: expected a Schedule; came Soft"),
        (("optimizer", "betas"), [0.9], r"optimizer\.betas: expected a list of 2; came tuple \(0\.9,\)"),
        (("model", "blocks", 0, "dropout"), True, r"model\.blocks\[0\]\.dropout: expected a number; came True"),
        (("seed",), 10**30, "seed: expected a whole number; came a number of 100 bits"),
        (("checkpointing", "select"), "worst", r"checkpointing\.select: expected 'best' or 'last'; came 'worst'"),
        (("colour",), "red", "there is no field 'colour' in this version of Clearhead; Recipe has task"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_its_file(recipe, tmp_path, path, value, message):
    file = tmp_path / "recipe.json"
    write_recipe(recipe, file)
    content = inner = json.loads(file.read_text(encoding="utf-8"))
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    files.write_sealed(file, {name: one for name, one in content.items() if name not in ("format", "sha256")})
    with pytest.raises(RunError, match=rf"recipe\.json: .*{message}"):
        read_recipe(file)


def test_a_field_that_is_missing_has_no_default_of_today(recipe, tmp_path):
    file = tmp_path / "recipe.json"
    content = to_json(replace(recipe, vectors="glove.txt"), CLASSES)
    del content["vectors"]
    files.write_sealed(file, content)
    with pytest.raises(RunError, match=r"recipe\.json: the field 'vectors' is missing"):
        read_recipe(file)


def test_a_change_by_hand_is_told(recipe, tmp_path):
    file = tmp_path / "recipe.json"
    write_recipe(recipe, file)
    file.write_text(file.read_text(encoding="utf-8").replace('"seed": 1', '"seed": 2'), encoding="utf-8")
    with pytest.raises(RunError, match=r"recipe\.json: was changed since it was written"):
        read_recipe(file)


def test_a_recipe_belongs_to_its_run(recipe, tmp_path):
    file = tmp_path / "recipe.json"
    write_recipe(recipe, file, run="0a1b")
    assert json.loads(file.read_text(encoding="utf-8"))["run"] == "0a1b"
    assert read_recipe(file) == recipe
    write_sealed(tmp_path / "run.json", {"run": "0a1b"})
    assert RunFolder(tmp_path).recipe() == recipe
    write_sealed(tmp_path / "run.json", {"run": "ffff"})
    with pytest.raises(RunError, match=r"recipe\.json: is of another run \(0a1b; this is ffff\)"):
        RunFolder(tmp_path).recipe()


def test_a_path_that_is_no_unicode_is_written_and_read(recipe, tmp_path):
    odd = replace(recipe, vectors=os.fsdecode(b"vectors-\xff.txt"))
    write_recipe(odd, tmp_path / "recipe.json")
    assert read_recipe(tmp_path / "recipe.json") == odd


def test_a_part_that_no_one_could_read_again_is_not_written(recipe, tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Mine(Schedule):
        def after(self, step, total):
            return 1.0

    with pytest.raises(OptionError, match="cannot be written to a file: Mine is not registered"):
        write_recipe(replace(recipe, optimizer=Optimizer(schedule=Mine())), tmp_path / "recipe.json")
    assert not (tmp_path / "recipe.json").exists()


def test_the_file_is_for_people_too(recipe, tmp_path):
    write_recipe(recipe, tmp_path / "recipe.json")
    written = (tmp_path / "recipe.json").read_text(encoding="utf-8")
    assert "größer.txt" in written
    assert json.loads(written)["optimizer"]["schedule"] == {"is": "CosineDecay", "warmup": 100, "floor": 0.1}


@pytest.mark.parametrize(
    ("batching", "passes", "at_once"),
    [
        (Batching(tokens=100), 1, 100),
        (Batching(tokens=100, micro_batch_tokens=25), 4, 25),
        (Batching(tokens=100, micro_batch_tokens=30), 3, 30),
        (Batching(tokens=100, micro_batch_tokens=300), 1, 100),
    ],
)
def test_passes(batching, passes, at_once):
    assert (batching.passes, batching.at_once) == (passes, at_once)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimizer(lr=0.0), "Optimizer: lr must be above 0; came 0.0"),
        (lambda: Optimizer(lr=math.nan), "Optimizer: lr must be above 0; came nan"),
        (lambda: Optimizer(lr=math.inf), "Optimizer: lr must be finite; came inf"),
        (lambda: Optimizer(clip=-1.0), "Optimizer: clip must be above 0"),
        (lambda: Optimizer(smoothing=1.0), r"smoothing must be 0 or more and less than 1"),
        (lambda: Optimizer(r_drop=-1.0), "(r_drop|weight_decay) must be 0 or more"),
        (lambda: Optimizer(betas=(0.9, 1.0)), r"betas lie from 0 to 1, 1 left out; came \(0.9, 1.0\)"),
        (lambda: Batching(tokens=0), "Batching: tokens must be 1 or more; came 0"),
        (lambda: Batching(micro_batch_tokens=-5), "Batching: micro_batch_tokens must be 1 or more"),
        (Budget, "give one of steps, minutes and epochs"),
        (lambda: Budget(steps=1, minutes=1.0), "give one of steps, minutes and epochs"),
        (lambda: Budget(steps=0), "Budget: steps must be 1 or more; came 0"),
        (lambda: Budget(steps=5, patience=0), "Budget: patience must be above 0"),
        (lambda: Checkpointing(log=0), "Checkpointing: log must be 1 or more"),
        (lambda: Checkpointing(samples=-1), "score_records and samples are 0 or more"),
        (lambda: Machine(threads=0), "Machine: threads must be 1 or more; came 0"),
    ],
)
def test_what_cannot_be_is_told(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_is_one_that_torch_takes(recipe, seed):
    with pytest.raises(OptionError, match=rf"seed must be 0 or more and less than 2\^64; came {seed}"):
        replace(recipe, seed=seed)
