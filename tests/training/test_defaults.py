"""What a recipe is when files are named and nothing else: it trains, whatever the task and the size of the text."""

from dataclasses import replace

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.training.machine import resolve_machine
from clearhead.training.recipe import Budget, Checkpointing, Machine, decoder, encoder, epochs, read_recipe, text_bytes
from clearhead.training.tasks import TASKS
from clearhead.training.train import train
from clearhead.training.train_step import BatchStream, TrainState
from clearhead.training.variants import (
    ATTENTIONS,
    POSITIONS,
    default_recipe,
    with_attention,
    with_dropout,
    with_position,
)
from tests.training import small_runs
from tests.training.small_runs import write_lines
from tests.training.tiny import quiet, work_on

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = Machine(device="cpu", threads=1)
KINDS = {
    "translate": small_runs.translating,
    "generate": small_runs.documents,
    "fill": small_runs.filling,
    "classify": small_runs.classifying,
}
SIZES = [1e3, 1e6, 1e8, 1e10]
tasks = pytest.mark.parametrize("task", KINDS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("defaults")
    return {task: kind(folder)[1] for task, kind in KINDS.items()}


def small(spec):
    """As large as a test has patience for."""
    return {
        "EncoderDecoderSpec": lambda: presets.classic(64, size=Size(1, 16, 2, 2, 32), dropout=0.1),
        "DecoderSpec": lambda: decoder(Size(1, 16, 2, 2, 32), 32, 0.1),
        "EncoderSpec": lambda: encoder(Size(1, 16, 2, 2, 32), spec.output, 0.1),
    }[type(spec).__name__]()


@tasks
@pytest.mark.slow
def test_it_trains_as_it_is(task, sources, tmp_path):
    recipe = default_recipe(task, Corpus(train=sources[task]), CPU)
    recipe = replace(
        recipe,
        tokenizing=replace(recipe.tokenizing, size=300),
        batching=replace(recipe.batching, tokens=256),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(score_records=1, samples=1),
    )
    run = train(tmp_path / "run", recipe, log=quiet)
    assert run.step == 2
    kept = read_recipe(tmp_path / "run" / "recipe.json")
    assert kept.model == run.model.spec
    assert kept == replace(recipe, model=kept.model, machine=kept.machine)


@tasks
@pytest.mark.pairs(1)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.slow
def test_every_size_of_text_has_a_recipe(task, on_gpu, sources):
    corpus = Corpus(train=sources[task])
    found = [TASKS[task].default_recipe(corpus, int(size), on_gpu) for size in SIZES]
    steps = [recipe.budget.steps for recipe in found]
    assert steps == sorted(steps)
    assert 100 <= steps[0] <= steps[-1] <= 20_000
    for recipe in found:
        assert recipe.task == task
        assert recipe.optimizer.schedule.warmup < recipe.budget.steps
        assert recipe.checkpointing.evaluate < recipe.budget.steps
    with torch.device("meta"):
        sizes = [sum(one.numel() for one in recipe.model.build().parameters()) for recipe in found]
    assert sizes == sorted(sizes)


@pytest.mark.slow
def test_a_gpu_affords_a_larger_model(sources):
    with torch.device("meta"):
        for task in ("translate", "generate", "fill"):
            corpus = Corpus(train=sources[task])
            on_cpu, on_gpu = (
                sum(one.numel() for one in TASKS[task].default_recipe(corpus, 10**8, gpu).model.build().parameters())
                for gpu in (False, True)
            )
            assert on_gpu > 3 * on_cpu


def test_a_task_that_is_none(sources):
    with pytest.raises(OptionError, match="task: there is no 'juggle'; there are translate, generate, fill, classify"):
        default_recipe("juggle", Corpus(train=sources["fill"]))


def test_the_size_of_a_text_is_that_of_its_files(tmp_path):
    plain = write_lines(tmp_path / "a.txt", ["x" * 99])
    packed = tmp_path / "b.gz"
    packed.write_bytes(b"x" * 50)
    assert text_bytes(Corpus(train=small_runs.Documents(paths=(plain,), unit="line"))) == 100
    assert text_bytes(Corpus(train=small_runs.Documents(paths=(plain, str(packed)), unit="line"))) == 100 + 3 * 50


def test_steps_of_epochs():
    assert epochs(10, 100_000.0, 1000) == 1000
    assert epochs(10, 1.0, 1000) == 500
    assert epochs(10, 1e12, 1000) == 20_000
    assert epochs(10, 125_000.0, 1000) == 1200


CHANGES = (
    [(f"attention {name}", lambda spec, name=name: with_attention(spec, name)) for name in ATTENTIONS]
    + [(f"position {name}", lambda spec, name=name: with_position(spec, name, 32)) for name in POSITIONS]
    + [(f"dropout {share}", lambda spec, share=share: with_dropout(spec, share)) for share in (0.0, 0.5)]
)


@tasks
@pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])
@pytest.mark.pairs(1)
def test_every_kind_of_model_trains_two_steps(task, change, sources, tmp_path_factory):
    recipe = default_recipe(task, Corpus(train=sources[task]), CPU)
    spec = change(small(recipe.model))
    home = tmp_path_factory.getbasetemp() / "ids"
    recipe = replace(
        recipe,
        model=spec,
        tokenizing=Tokenizing(kind="bpe", size=300),
        batching=replace(recipe.batching, tokens=256, context=32),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(log=5, evaluate=5, score_records=0, samples=0),
    )
    losses = steps_of(recipe, home)
    assert all(0 < loss < 20 for loss in losses)


def steps_of(recipe, home):
    """The losses of two steps, without a run folder."""
    work = work_on(recipe, home)
    train_state = TrainState(work.spec.build().train(), work.task, recipe.optimizer, resolve_machine(recipe.machine))
    batches = BatchStream(work.recipe, work.task, work.prepared.train, filled=False).batches(0)
    losses = []
    for _ in range(2):
        train_state.step([next(batches)], 1e-3)
        total = train_state.totals()
        losses.append(total.nll / total.places)
        assert train_state.is_finite()
    return losses


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: with_attention(spec, "hard"), "attention: there is no 'hard'; there are softmax, argmax"),
        (lambda spec: with_position(spec, "gps", 5), "position: there is no 'gps'; there are sinusoidal, learned"),
    ],
)
def test_a_name_that_is_none(change, message):
    with pytest.raises(OptionError, match=message):
        change(decoder(Size(1, 16, 2, 2, 32), 32, 0.0))


def test_changes_reach_every_block_and_every_slot():
    spec = presets.classic(64, size=Size(2, 16, 2, 2, 32), dropout=0.1)
    changed = with_dropout(with_position(with_attention(spec, "cosine"), "rotary", 32), 0.7)
    blocks = [*changed.encoder.blocks, *changed.decoder.blocks]
    slots = [slot for block in blocks for slot in (block.attention, block.cross) if slot is not None]
    assert len(slots) == 6
    assert {type(slot.similarity) for slot in slots} == {type(ATTENTIONS["cosine"].similarity)}
    assert {block.dropout for block in blocks} == {0.7}
    assert {side.embedding.dropout for side in (changed.encoder, changed.decoder)} == {0.7}
    assert {side.embedding.position for side in (changed.encoder, changed.decoder)} == {None}
    assert all(block.attention.position is not None for block in blocks)
    assert all(block.cross is None or block.cross.position is None for block in blocks)
    assert with_position(with_position(spec, "none", 32), "sinusoidal", 32) == with_position(spec, "sinusoidal", 32)
