"""From options to a recipe: what is not given is the default, what is given is in it, and the impossible is told."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
import typer

from clearhead.attention import positions, weighting
from clearhead.cli.model_options import ModelOptions
from clearhead.cli.recipe_options import (
    BatchOptions,
    BudgetOptions,
    CheckpointingOptions,
    Choices,
    MachineOptions,
    OptimizerOptions,
    TokenizerOptions,
    as_recipe,
    new_budget,
)
from clearhead.cli.texts import TextOptions, as_corpus
from clearhead.model.outputs import Blanks, Classes
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.averaging import Ema, Last, Unaveraged
from clearhead.training.defaults import default_recipe
from clearhead.training.recipe import Budget, Open
from clearhead.training.schedules import Constant, CosineDecay, InverseSqrt, WarmupStableDecay
from clearhead.training.tasks import TASKS


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Text options for each task, on small files."""
    folder = tmp_path_factory.mktemp("text")
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("one two three\n" * 100)
    (folder / "t.tsv").write_text("text\tlabel\n" + "one\tx\ntwo\ty\n" * 50)
    a, b, table = (str(folder / name) for name in ("a.txt", "b.txt", "t.tsv"))
    return {
        "translate": TextOptions(source=[a], target=[b]),
        "generate": TextOptions(text=[a]),
        "fill": TextOptions(text=[a]),
        "classify": TextOptions(table=[table]),
    }


@pytest.fixture
def recipe(text):
    """The recipe for a task, with these groups of options."""

    def made(task, **groups):
        return as_recipe(Choices(task=task, text=text[task], **groups))

    return made


def refusal(made, task, **groups):
    with pytest.raises(typer.BadParameter) as caught:
        made(task, **groups)
    return f"{caught.value.param_hint}: {caught.value.message}"


@pytest.mark.parametrize("task", ["translate", "generate", "fill", "classify"])
def test_with_files_and_nothing_else_it_is_the_default(recipe, text, task):
    made, default = recipe(task), default_recipe(task, as_corpus(TASKS[task], text[task]))
    # The warm-up and the pace of evaluations go with the steps, which are the default's here.
    assert replace(made, checkpointing=default.checkpointing, machine=default.machine, open=()) == default
    assert set(made.open) == set(get_args(Open))
    assert made.machine.adapt_threads


@pytest.mark.parametrize(
    ("group", "options", "part", "wanted"),
    [
        ("optimizer", OptimizerOptions(lr=0.5), lambda r: r.optimizer.lr, 0.5),
        ("optimizer", OptimizerOptions(warmup=7), lambda r: r.optimizer.schedule, InverseSqrt(warmup=7)),
        (
            "optimizer",
            OptimizerOptions(schedule="cosine", warmup=7),
            lambda r: r.optimizer.schedule,
            CosineDecay(warmup=7),
        ),
        ("optimizer", OptimizerOptions(schedule="constant", warmup=0), lambda r: r.optimizer.schedule, Constant()),
        (
            "optimizer",
            OptimizerOptions(schedule="wsd", warmup=7),
            lambda r: r.optimizer.schedule,
            WarmupStableDecay(warmup=7),
        ),
        ("optimizer", OptimizerOptions(smoothing=0.0), lambda r: r.optimizer.smoothing, 0.0),
        ("optimizer", OptimizerOptions(r_drop=5.0), lambda r: r.optimizer.r_drop, 5.0),
        ("optimizer", OptimizerOptions(clip=0.25), lambda r: r.optimizer.clip, 0.25),
        ("optimizer", OptimizerOptions(clip=0.0), lambda r: r.optimizer.clip, None),
        ("optimizer", OptimizerOptions(weight_decay=0.3), lambda r: r.optimizer.weight_decay, 0.3),
        ("optimizer", OptimizerOptions(average="none"), lambda r: r.optimizer.averaging, Unaveraged()),
        ("optimizer", OptimizerOptions(average="ema"), lambda r: r.optimizer.averaging, Ema()),
        ("batches", BatchOptions(tokens=512), lambda r: r.batching.tokens, 512),
        ("batches", BatchOptions(tokens=512, micro_batch_tokens=128), lambda r: r.batching.passes, 4),
        ("batches", BatchOptions(context=32), lambda r: r.batching.context, 32),
        ("checkpointing", CheckpointingOptions(evaluate_every=3), lambda r: r.checkpointing.evaluate, 3),
        ("checkpointing", CheckpointingOptions(save_every=3), lambda r: r.checkpointing.save, 3),
        ("checkpointing", CheckpointingOptions(log_every=3), lambda r: r.checkpointing.log, 3),
        ("checkpointing", CheckpointingOptions(keep=3), lambda r: r.checkpointing.checkpoints, 3),
        ("checkpointing", CheckpointingOptions(select="last"), lambda r: r.checkpointing.select, "last"),
        ("machine", MachineOptions(device="cpu"), lambda r: r.machine.device, "cpu"),
        ("machine", MachineOptions(precision="bfloat16"), lambda r: r.machine.precision, "bfloat16"),
        ("machine", MachineOptions(compile=True), lambda r: r.machine.compile, True),
        ("machine", MachineOptions(deterministic=True), lambda r: r.machine.deterministic, True),
        ("machine", MachineOptions(threads=3), lambda r: r.machine.threads, 3),
        ("machine", MachineOptions(seed=0), lambda r: r.seed, 0),
        ("tokenizer", TokenizerOptions(tokenizer="char"), lambda r: r.tokenizing.kind, "char"),
        ("tokenizer", TokenizerOptions(vocabulary=500), lambda r: r.tokenizing.size, 500),
        ("tokenizer", TokenizerOptions(separate_tokenizers=True), lambda r: r.tokenizing.shared, False),
        ("tokenizer", TokenizerOptions(lower=True), lambda r: r.tokenizing.lower, True),
        ("model", ModelOptions(dropout=0.4), lambda r: r.model.decoder.blocks[0].dropout, 0.4),
        ("model", ModelOptions(position="rotary"), lambda r: r.model.encoder.embedding.position, None),
        (
            "model",
            ModelOptions(attention="argmax"),
            lambda r: r.model.decoder.blocks[0].cross.weighting,
            weighting.Argmax(),
        ),
        (
            "model",
            ModelOptions(preset="base"),
            lambda r: (r.model.encoder.d_model, len(r.model.decoder.blocks)),
            (512, 6),
        ),
    ],
)
def test_what_is_given_is_in_the_recipe(recipe, group, options, part, wanted):
    before, after = part(recipe("translate")), part(recipe("translate", **{group: options}))
    assert after == wanted
    assert before != wanted


def test_an_average_by_name_is_the_usual_one_where_that_has_the_name(recipe):
    usual = recipe("generate").optimizer.averaging
    assert usual == Ema(0.99) != Ema()
    assert recipe("generate", optimizer=OptimizerOptions(average="ema")).optimizer.averaging == usual
    assert recipe("generate", optimizer=OptimizerOptions(average="last")).optimizer.averaging == Last()


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        (BudgetOptions(steps=7), Budget(steps=7, patience=10)),
        (BudgetOptions(minutes=0.5, patience=3), Budget(minutes=0.5, patience=3)),
        (BudgetOptions(epochs=2.0, patience=0), Budget(epochs=2.0)),
        (BudgetOptions(patience=0), Budget(steps=100)),
        (BudgetOptions(), None),
    ],
)
def test_a_budget_takes_the_place_of_another(options, budget):
    assert new_budget(options, Budget(steps=100, patience=10)) == budget


def test_a_shorter_run_warms_up_for_less_and_a_longer_one_for_no_more(recipe):
    usual = recipe("translate")
    short = recipe("translate", budget=BudgetOptions(steps=usual.budget.steps // 5))
    long = recipe("translate", budget=BudgetOptions(steps=40 * usual.budget.steps))
    warmup = usual.optimizer.schedule.warmup
    assert [one.optimizer.schedule.warmup for one in (short, long)] == [warmup // 5, warmup]
    assert long.checkpointing.evaluate == long.budget.steps // 20


def test_a_wider_model_learns_at_a_lower_rate_unless_it_is_given(recipe):
    usual, base = recipe("translate"), recipe("translate", model=ModelOptions(preset="base"))
    ratio = usual.model.encoder.d_model / base.model.encoder.d_model
    assert ratio < 1
    assert base.optimizer.lr == usual.optimizer.lr * ratio
    given = recipe("translate", model=ModelOptions(preset="base"), optimizer=OptimizerOptions(lr=0.01))
    assert given.optimizer.lr == 0.01


@pytest.mark.parametrize(("task", "output"), [("fill", Blanks), ("classify", Classes)])
def test_an_encoder_by_name_or_size_keeps_the_output_of_the_task(recipe, task, output):
    for options in (ModelOptions(preset="bert"), ModelOptions(size="1M")):
        assert isinstance(recipe(task, model=options).model.output, output)


@pytest.mark.parametrize("kind", [None, "given"])
def test_a_size_is_met_with_the_vocabulary_that_is_to_be(recipe, kind, tmp_path):
    tokenizer = Tokenizer.train(["one two three"], "byte")
    tokenizer.save(tmp_path / "tokenizer.json")
    path = None if kind is None else str(tmp_path / "tokenizer.json")
    vocabulary = 2000 if kind is None else None
    options = TokenizerOptions(tokenizer=path, vocabulary=vocabulary)
    spec = recipe("generate", tokenizer=options, model=ModelOptions(size="1M")).model
    with torch.device("meta"):
        model = replace(spec, vocabulary=vocabulary or tokenizer.vocabulary).build()
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(1e6, rel=0.1)


def test_learned_positions_are_as_many_as_a_row_is_long(recipe):
    for options in (ModelOptions(), ModelOptions(preset="gpt2"), ModelOptions(position="learned")):
        spec = recipe("generate", model=options, batches=BatchOptions(context=48)).model
        assert spec.embedding.position == positions.Learned(48)


def test_a_tokenizer_from_a_file_is_used_as_it_is(recipe, tmp_path):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train(["one two three"], "byte").save(path)
    assert recipe("generate", tokenizer=TokenizerOptions(tokenizer=str(path))).tokenizing.given == str(path)
    for options in ({"vocabulary": 300}, {"lower": False}):
        said = refusal(recipe, "generate", tokenizer=TokenizerOptions(tokenizer=str(path), **options))
        assert "is decided by the tokeniser that is given" in said


@pytest.mark.parametrize(
    ("task", "group", "options", "said"),
    [
        ("translate", "model", ModelOptions(preset="huge"), "--preset: there is no 'huge'. There are: tiny, base"),
        (
            "translate",
            "model",
            ModelOptions(preset="gpt2"),
            "--preset: translate takes an encoder-decoder, and gpt2 is",
        ),
        ("generate", "model", ModelOptions(preset="bert"), "--preset: generate takes a decoder, and bert is none"),
        ("fill", "model", ModelOptions(preset="tiny"), "--preset: fill takes an encoder, and tiny is none"),
        ("fill", "model", ModelOptions(preset="bert", size="1M"), "--size: the preset bert has its own size"),
        ("fill", "model", ModelOptions(size="much"), "--size: 'much' is no number of parameters"),
        ("fill", "model", ModelOptions(size="10"), "--size: 10 parameters are too few"),
        (
            "fill",
            "model",
            ModelOptions(attention="hard"),
            "--attention: there is no 'hard'; there are softmax, argmax",
        ),
        ("fill", "model", ModelOptions(position="polar"), "--position: there is no 'polar'; there are sinusoidal"),
        (
            "fill",
            "model",
            ModelOptions(attention="kernelized", position="alibi"),
            "--attention with --position: Kernelized attention has no score to add a bias to",
        ),
        ("fill", "tokenizer", TokenizerOptions(tokenizer="wordy"), "--tokenizer: there is no kind and no file 'wordy'"),
        ("fill", "tokenizer", TokenizerOptions(separate_tokenizers=True), "--separate-tokenizers: is for translate"),
        ("fill", "optimizer", OptimizerOptions(schedule="linear"), "--schedule: there is no 'linear'"),
        (
            "fill",
            "optimizer",
            OptimizerOptions(average="mean"),
            "--average: there is no 'mean'. There are: none, ema",
        ),
        (
            "fill",
            "batches",
            BatchOptions(tokens=8, micro_batch_tokens=9),
            "--micro-batch-tokens: is more than a step has",
        ),
        ("fill", "budget", BudgetOptions(steps=1, epochs=1.0), "--steps and --epochs: each says when to stop"),
        (
            "fill",
            "checkpointing",
            CheckpointingOptions(select="first"),
            "--select: there is no 'first'. There are: best, last",
        ),
        ("fill", "machine", MachineOptions(device="abacus"), "--device: there is no 'abacus'"),
        (
            "fill",
            "machine",
            MachineOptions(precision="int8"),
            "--precision: there is no 'int8'. There are: auto, float32",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_option(recipe, task, group, options, said):
    assert said in refusal(recipe, task, **{group: options})


def test_a_task_must_be_named(text):
    with pytest.raises(typer.BadParameter, match=r"say what to learn \(translate, generate"):
        as_recipe(Choices(text=text["fill"]))
    with pytest.raises(typer.BadParameter, match="there is no 'sing'"):
        as_recipe(Choices(task="sing", text=text["fill"]))
