"""Fine-tuning: what is taken from a run, what is trained, and that a run of it resumes as exactly as any other."""

import random
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.errors import DataError, OptionError, RunError
from clearhead.model.lora import AdaptedLinear, Lora, is_adapter
from clearhead.model.outputs import Blanks, Classes
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Documents, Table
from clearhead.training.checkpoints import MODEL, TRAINING
from clearhead.training.fine_tuning import fine_tuning_recipe, open_source
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.schedules import CosineDecay, Ema
from clearhead.training.tasks import default_recipe
from clearhead.training.tasks.learning import encoder
from clearhead.training.train import train
from tests.covering import few
from tests.training import small_runs
from tests.training.tiny import assert_same_run, quiet

pytestmark = pytest.mark.slow

STEPS = 6
CPU = Machine(device="cpu", threads=1)
KEEPING = Checkpointing(log=2, evaluate=3, save=2, score_records=0, samples=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders to start from, by what they do."""
    kinds = {
        "fill": small_runs.filling,
        "generate": small_runs.documents,
        "classify": small_runs.classifying,
        "translate": small_runs.translating,
    }
    return {name: small_runs.trained(kind, tmp_path_factory).folder.path for name, kind in kinds.items()}


def labelled(folder, rows=None):
    """A corpus of labelled lines, in a file of this folder."""
    lines = ["\t".join(row) for row in [("text", "label"), *(rows or small_runs.labelled(60))]]
    path = small_runs.write_lines(folder / "labelled.tsv", lines)
    return Corpus(train=Table(paths=(path,), columns=("text", "label"), fields=("text", "label")))


def lines(folder, texts):
    path = small_runs.write_lines(folder / "lines.txt", texts)
    return Corpus(train=Documents(paths=(path,), unit="line"))


def tune(path, source, corpus, *, log=quiet, changed=None, **options):
    """Fine-tune for a few steps."""
    recipe = fine_tuning_recipe(source, corpus, machine=CPU, **options)
    fields = {"budget": Budget(steps=STEPS), "checkpointing": KEEPING, **(changed or {})}
    return train(path, replace(recipe, **fields), log=log)


def start_of(run):
    return load_file(run.folder.pretrained_file)


@pytest.mark.parametrize("source", ["fill", "generate", "classify"])
def test_the_body_is_taken_and_the_output_is_new(runs, tmp_path, source):
    rows = [(text, {"fruit": "plant", "beast": "animal"}[label]) for text, label in small_runs.labelled(60)]
    told = []
    made = tune(tmp_path / "run", runs[source], labelled(tmp_path, rows), task="classify", log=told.append)
    before, start = load(runs[source], device="cpu").model.state_dict(), start_of(made)
    body = [name for name in start if not name.startswith("output.")]
    assert len(body) > 10
    assert all(torch.equal(start[name], before[name]) for name in body)
    assert "output.out.weight" in start
    assert not torch.equal(start["output.out.weight"], before.get("output.out.weight", torch.zeros(())))
    assert any("tensors taken; new: output.out.weight, output.out.bias" in line for line in told)
    assert any(line.startswith("all ") and "peak learning rate of 0.0002" in line for line in told)
    assert made.task.tokenizer.fingerprint() == load(runs[source], device="cpu").tokenizer.fingerprint()
    assert {one.label for one in made.classify(["red plum", "old cow"])} <= {"plant", "animal"}
    assert made.folder.recipe().fine_tuning.new_output
    trace = ch.trace(made, "red plum")
    assert [one.text for one in trace.candidates[-1]]


def test_the_same_task_with_the_same_labels_takes_everything(runs, tmp_path):
    told = []
    made = tune(tmp_path / "run", runs["classify"], labelled(tmp_path), log=told.append)
    before = load(runs["classify"], device="cpu")
    assert all(torch.equal(one, before.model.state_dict()[name]) for name, one in start_of(made).items())
    assert any(line.endswith("tensors taken") for line in told)
    tuning = made.folder.recipe().fine_tuning
    assert (tuning.run, tuning.step, tuning.new_output) == (before.folder.id(), before.step, False)
    assert tuning.sha256 == before.folder.checkpoints.at(before.step).sums[MODEL]


@pytest.mark.parametrize("task", ["generate", "fill", "translate"])
def test_every_task_goes_on_with_new_text(runs, tmp_path, task):
    if task == "translate":
        corpus = Corpus(train=small_runs.translating(tmp_path)[1])
    else:
        corpus = lines(tmp_path, small_runs.sentences(60, seed=5))
    made = tune(tmp_path / "run", runs[task], corpus, lora=Lora(rank=2, maps=("all",)))
    before = load(runs[task], device="cpu")
    assert {name: one.fingerprint() for name, one in made.task.tokenizers.items()} == {
        name: one.fingerprint() for name, one in before.task.tokenizers.items()
    }
    assert made.answer(["null eins <mask>" if task == "fill" else "null eins"])[0]["output"]
    assert made.step in (3, 6)


def test_adapters_are_a_small_file_of_their_own_and_merge_when_loaded(runs, tmp_path):
    optimizer = replace(fine_tuning_recipe(runs["fill"], labelled(tmp_path), task="classify").optimizer, lr=0.02)
    made = tune(
        tmp_path / "run",
        runs["fill"],
        labelled(tmp_path),
        task="classify",
        lora=Lora(rank=4),
        changed={"optimizer": optimizer},
    )
    checkpoint = made.folder.checkpoints.at(made.step)
    saved, state = load_file(checkpoint.folder / MODEL), load_file(checkpoint.folder / TRAINING)
    assert {name for name in saved if not is_adapter(name)} == {"output.out.weight", "output.out.bias"}
    assert len(saved) == 2 + 2 * 2
    assert not any(name.endswith("linear.weight.exp_avg") or "embedding" in name for name in state)
    assert (checkpoint.folder / MODEL).stat().st_size < 6000
    assert not any(isinstance(one, AdaptedLinear) for one in made.model.modules())
    assert all(one.requires_grad for one in made.model.parameters())
    apart = load(made.folder.path, device="cpu", merge=False)
    assert sum(isinstance(one, AdaptedLinear) for one in apart.model.modules()) == 2
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        one, other = made.model(tokens), apart.model(tokens)
        plain = load(runs["fill"], device="cpu").model.states(tokens)
        assert (made.model.states(tokens) - plain).abs().max() > 1e-3
    assert (one - other).abs().max() < 1e-5
    traced = ch.trace(apart, "red plum").candidates[-1][0], ch.trace(made, "red plum").candidates[-1][0]
    assert traced[0].log_prob == pytest.approx(traced[1].log_prob, abs=1e-5)


def test_frozen_parts_stay_as_they_were(runs, tmp_path):
    made = tune(tmp_path / "run", runs["fill"], labelled(tmp_path), task="classify", freeze=("embedding", "blocks.0"))
    start, after = start_of(made), made.model.state_dict()
    moved = {name for name, one in start.items() if not torch.equal(one, after[name])}
    assert moved
    assert not any("embedding" in name or "blocks.0" in name for name in moved)
    saved = load_file(made.folder.checkpoints.at(made.step).folder / MODEL)
    assert set(saved) == {name for name in start if "embedding" not in name and "blocks.0" not in name}


RESUMED = {
    "whole": (0, {}),
    "lora": (4, {"lora": Lora(rank=3, maps=("query", "value", "down"))}),
    "frozen, bfloat16": (4, {"freeze": ("blocks.*.attention",)}),
    "lora, bfloat16": (0, {"lora": Lora(rank=3)}),
}
"""The step of the checkpoint to resume from, 0 for none yet, and what is trained."""


@pytest.mark.parametrize("name", few(["whole", "lora, bfloat16", "lora", "frozen, bfloat16"], 2))
def test_a_stopped_run_resumes_exactly_without_the_folder_it_started_from(runs, tmp_path, name):
    stop, options = RESUMED[name]
    source = shutil.copytree(runs["fill"], tmp_path / "source")
    corpus = labelled(tmp_path)
    recipe = fine_tuning_recipe(source, corpus, task="classify", machine=CPU, **options)
    recipe = replace(
        recipe,
        model=replace(recipe.model, blocks=tuple(replace(one, dropout=0.1) for one in recipe.model.blocks)),
        budget=Budget(steps=STEPS),
        checkpointing=KEEPING,
        optimizer=replace(recipe.optimizer, lr=1e-2, averaging=Ema(0.9)),
        machine=replace(CPU, precision="bfloat16" if "bfloat16" in name else "float32"),
    )
    whole = train(tmp_path / "whole", recipe, log=quiet)

    def fail(line):
        if line["kind"] == ("saved" if stop else "step") and line["step"] >= max(stop, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", recipe, log=quiet, watcher=fail)
    assert bool(RunFolder(tmp_path / "stopped").checkpoints.all()) == (stop > 0)
    shutil.rmtree(source)
    stopped = resume(tmp_path / "stopped", log=quiet)
    assert_same_run(whole.folder, stopped.folder)
    tokens = torch.arange(12).reshape(1, 12)
    assert torch.equal(whole.model(tokens), stopped.model(tokens))


def test_a_fine_tuned_run_can_be_fine_tuned_again(runs, tmp_path):
    first = tune(tmp_path / "first", runs["fill"], labelled(tmp_path), task="classify", lora=Lora(rank=2))
    second = tune(tmp_path / "second", first.folder.path, labelled(tmp_path), lora=Lora(rank=2, maps=("key",)))
    start = start_of(second)
    assert all(torch.equal(one, first.model.state_dict()[name]) for name, one in start.items())


def test_what_the_tokeniser_does_not_know_is_told_or_refused(runs, tmp_path):
    told = []
    some = [(f"{text} ж" if i % 3 == 0 else text, label) for i, (text, label) in enumerate(small_runs.labelled(60))]
    tune(tmp_path / "some", runs["classify"], labelled(tmp_path, some), log=told.append)
    assert any("unknown to the pretrained tokeniser" in line and "%" in line for line in told)
    strange = [(f"жук {'щука' * (i % 5 + 1)}", label) for i, (_, label) in enumerate(small_runs.labelled(60))]
    with pytest.raises(DataError, match="of the tokens of the text are unknown to the pretrained tokeniser"):
        tune(tmp_path / "strange", runs["classify"], labelled(tmp_path, strange))


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("translate", {"task": "classify"}, "takes an encoder, and .* is an encoder-decoder that was trained to trans"),
        ("fill", {"task": "generate"}, "to generate takes a decoder, and .* is an encoder that was trained to fill"),
        ("generate", {"task": "fill"}, "to fill takes an encoder, and .* is a decoder"),
        ("fill", {"task": "embed"}, "nothing is trained to embed"),
        ("fill", {"task": "classify", "lora": Lora(rank=99)}, "a rank of 99 is too large"),
        ("fill", {"task": "classify", "freeze": ("decoder",)}, "no parameter is called 'decoder'; there are embedding"),
    ],
)
def test_what_cannot_be_is_refused_before_any_text_is_read(runs, tmp_path, source, options, why):
    with pytest.raises(OptionError, match=why):
        fine_tuning_recipe(runs[source], labelled(tmp_path), machine=CPU, **options)


def test_a_longer_context_than_the_source_has_is_refused(runs, tmp_path):
    with pytest.raises(OptionError, match=f"trained to read {small_runs.CONTEXT} tokens; came 64"):
        tune(
            tmp_path / "run",
            runs["fill"],
            labelled(tmp_path),
            task="classify",
            changed={"batching": Batching(tokens=512, context=64)},
        )


def test_damaged_files_are_told(runs, tmp_path):
    made = tune(tmp_path / "run", runs["fill"], labelled(tmp_path), task="classify", lora=Lora(rank=2))
    path = made.folder.pretrained_file
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(RunError, match=r"pretrained.safetensors: was changed since the run began"):
        load(made.folder.path, device="cpu")
    path.unlink()
    with pytest.raises(RunError, match=r"pretrained.safetensors"):
        load(made.folder.path, device="cpu", log=quiet)
    save_file({"odd": torch.zeros(2)}, path)
    with pytest.raises(RunError, match="its tensors are not this model's"):
        load(made.folder.path, device="cpu", log=quiet)


def test_a_source_that_has_changed_since_is_refused(runs, tmp_path):
    recipe = fine_tuning_recipe(runs["fill"], labelled(tmp_path), task="classify", machine=CPU)
    changed = replace(recipe, fine_tuning=replace(recipe.fine_tuning, sha256="0" * 64))
    with pytest.raises(RunError, match="not those that the recipe was made for"):
        train(tmp_path / "run", changed, log=quiet)
    with pytest.raises(RunError, match="is not a run folder"):
        open_source(tmp_path / "nothing")


TOPICS = {topic: [f"{topic}{i}" for i in range(60)] for topic in ("sea", "land")}


def about(n, seed):
    """Lines of four words of one topic, and the topic."""
    draw = random.Random(seed)
    return [(" ".join(draw.choices(TOPICS[topic], k=4)), topic) for topic in ("sea", "land") * (n // 2)]


@pytest.mark.thorough  # docs/fine-tuning.md says so too, and is run
def test_a_pretrained_encoder_needs_fewer_labels_than_one_from_scratch(tmp_path):
    """Eight labelled lines show a fifth of the words; filling blanks has shown which words belong together."""
    texts = [text for text, _ in about(1500, 1)]
    source, tokenizing, size = lines(tmp_path, texts), Tokenizing(kind="word"), small_runs.SIZE
    usual = default_recipe("fill", source, CPU)
    changed = {"tokenizing": tokenizing, "batching": Batching(tokens=1024, context=16)}
    fast = replace(usual.optimizer, lr=1e-2, schedule=CosineDecay(warmup=5))
    keeping = Checkpointing(evaluate=150, log=150, score_records=0, samples=0)
    filling = replace(usual, model=encoder(size, Blanks(), 0.0), optimizer=fast, budget=Budget(steps=150), **changed)
    train(tmp_path / "blanks", replace(filling, checkpointing=keeping), log=quiet)
    (tmp_path / "dev").mkdir()
    corpus = replace(labelled(tmp_path, about(8, 101)), dev=labelled(tmp_path / "dev", about(200, 201)).train)
    scratch = default_recipe("classify", corpus, CPU)
    slow = replace(scratch.optimizer, schedule=CosineDecay(warmup=3), r_drop=0.0)
    last = {"budget": Budget(steps=30), "checkpointing": replace(keeping, evaluate=30, log=30), "optimizer": slow}
    scratch = replace(scratch, model=encoder(size, Classes(2, pool="mean"), 0.0), **changed, **last)
    alone = train(tmp_path / "scratch", scratch, log=quiet)
    tuned = tune(tmp_path / "tuned", tmp_path / "blanks", corpus, task="classify", changed=last)
    few = tune(tmp_path / "few", tmp_path / "blanks", corpus, task="classify", changed=last, lora=Lora(rank=4))
    accuracy = {run.folder.path.name: run.folder.read_evaluation()["accuracy"] for run in (alone, tuned, few)}
    assert accuracy["tuned"] > accuracy["scratch"] + 0.15
    assert accuracy["few"] > accuracy["scratch"] + 0.15
