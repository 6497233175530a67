"""From options to a recipe: what is not given is the default, what is given is in it, and the impossible is told."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from clearhead.attention import positions, weighting
from clearhead.errors import OptionError
from clearhead.model.outputs import Blanks, Classes
from clearhead.options import group_of, read_words
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.recipe import Budget, Open
from clearhead.training.recipe_options import WORDS, as_recipe, new_budget, recipe_of
from clearhead.training.schedules import Constant, CosineDecay, Ema, InverseSqrt, Last, Unaveraged, WarmupStableDecay
from clearhead.training.tasks import TASKS, default_recipe
from clearhead.training.text_options import TextOptions, as_corpus
from clearhead.training.train import train


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Text options for each task, on small files."""
    folder = tmp_path_factory.mktemp("text")
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("one two three\n" * 100)
    (folder / "t.tsv").write_text("text\tlabel\n" + "one\tx\ntwo\ty\n" * 50)
    a, b, table = (str(folder / name) for name in ("a.txt", "b.txt", "t.tsv"))
    return {
        "translate": {"source": [a], "target": [b]},
        "generate": {"text": [a]},
        "fill": {"text": [a]},
        "classify": {"table": [table]},
    }


@pytest.fixture
def recipe(text):
    """The recipe for a task, with these groups of options."""

    def made(task, **groups):
        given = {"task": task, **text[task]}
        for options in groups.values():
            given |= options
        return as_recipe(read_words(given, WORDS))

    return made


def refusal(made, task, **groups):
    with pytest.raises(OptionError) as caught:
        made(task, **groups)
    return str(caught.value)


@pytest.mark.parametrize("task", ["translate", "generate", "fill", "classify"])
def test_with_files_and_nothing_else_it_is_the_default(recipe, text, task):
    made, default = recipe(task), default_recipe(task, as_corpus(TASKS[task], group_of(TextOptions, text[task])))
    # The warm-up and the pace of evaluations go with the steps, which are the default's here.
    assert replace(made, checkpointing=default.checkpointing, machine=default.machine, open=()) == default
    assert set(made.open) == set(get_args(Open))
    assert made.machine.adapt_threads


@pytest.mark.parametrize(
    ("group", "options", "part", "wanted"),
    [
        ("optimizer", {"lr": 0.5}, lambda r: r.optimizer.lr, 0.5),
        ("optimizer", {"warmup": 7}, lambda r: r.optimizer.schedule, InverseSqrt(warmup=7)),
        (
            "optimizer",
            {"schedule": "cosine", "warmup": 7},
            lambda r: r.optimizer.schedule,
            CosineDecay(warmup=7),
        ),
        ("optimizer", {"schedule": "constant", "warmup": 0}, lambda r: r.optimizer.schedule, Constant()),
        (
            "optimizer",
            {"schedule": "wsd", "warmup": 7},
            lambda r: r.optimizer.schedule,
            WarmupStableDecay(warmup=7),
        ),
        ("optimizer", {"smoothing": 0.0}, lambda r: r.optimizer.smoothing, 0.0),
        ("optimizer", {"r_drop": 5.0}, lambda r: r.optimizer.r_drop, 5.0),
        ("optimizer", {"clip": 0.25}, lambda r: r.optimizer.clip, 0.25),
        ("optimizer", {"clip": 0.0}, lambda r: r.optimizer.clip, None),
        ("optimizer", {"weight_decay": 0.3}, lambda r: r.optimizer.weight_decay, 0.3),
        ("optimizer", {"average": "none"}, lambda r: r.optimizer.averaging, Unaveraged()),
        ("optimizer", {"average": "ema"}, lambda r: r.optimizer.averaging, Ema()),
        ("batches", {"batch_tokens": 512}, lambda r: r.batching.tokens, 512),
        ("batches", {"batch_tokens": 512, "micro_batch_tokens": 128}, lambda r: r.batching.passes, 4),
        ("batches", {"context": 32}, lambda r: r.batching.context, 32),
        ("checkpointing", {"evaluate_every": 3}, lambda r: r.checkpointing.evaluate, 3),
        ("checkpointing", {"save_every": 3}, lambda r: r.checkpointing.save, 3),
        ("checkpointing", {"log_every": 3}, lambda r: r.checkpointing.log, 3),
        ("checkpointing", {"keep": 3}, lambda r: r.checkpointing.checkpoints, 3),
        ("checkpointing", {"select": "last"}, lambda r: r.checkpointing.select, "last"),
        ("machine", {"device": "cpu"}, lambda r: r.machine.device, "cpu"),
        ("machine", {"precision": "bfloat16"}, lambda r: r.machine.precision, "bfloat16"),
        ("machine", {"compile": True}, lambda r: r.machine.compile, True),
        ("machine", {"deterministic": True}, lambda r: r.machine.deterministic, True),
        ("machine", {"threads": 3}, lambda r: r.machine.threads, 3),
        ("machine", {"seed": 0}, lambda r: r.seed, 0),
        ("tokenizer", {"tokenizer": "char"}, lambda r: r.tokenizing.kind, "char"),
        ("tokenizer", {"vocabulary": 500}, lambda r: r.tokenizing.size, 500),
        ("tokenizer", {"separate_tokenizers": True}, lambda r: r.tokenizing.shared, False),
        ("tokenizer", {"lower": True}, lambda r: r.tokenizing.lower, True),
        ("model", {"dropout": 0.4}, lambda r: r.model.decoder.blocks[0].dropout, 0.4),
        ("model", {"position": "rotary"}, lambda r: r.model.encoder.embedding.position, None),
        (
            "model",
            {"attention": "argmax"},
            lambda r: r.model.decoder.blocks[0].cross.weighting,
            weighting.Argmax(),
        ),
        (
            "model",
            {"preset": "base"},
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
    assert recipe("generate", optimizer={"average": "ema"}).optimizer.averaging == usual
    assert recipe("generate", optimizer={"average": "last"}).optimizer.averaging == Last()


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({"steps": 7}, Budget(steps=7, patience=10)),
        ({"minutes": 0.5, "patience": 3}, Budget(minutes=0.5, patience=3)),
        ({"epochs": 2.0, "patience": 0}, Budget(epochs=2.0)),
        ({"patience": 0}, Budget(steps=100)),
        ({}, None),
    ],
)
def test_a_budget_takes_the_place_of_another(options, budget):
    assert new_budget(options, Budget(steps=100, patience=10)) == budget


def test_a_shorter_run_warms_up_for_less_and_a_longer_one_for_no_more(recipe):
    usual = recipe("translate")
    short = recipe("translate", budget={"steps": usual.budget.steps // 5})
    long = recipe("translate", budget={"steps": 40 * usual.budget.steps})
    warmup = usual.optimizer.schedule.warmup
    assert [one.optimizer.schedule.warmup for one in (short, long)] == [warmup // 5, warmup]
    assert long.checkpointing.evaluate == long.budget.steps // 20


def test_a_wider_model_learns_at_a_lower_rate_unless_it_is_given(recipe):
    usual, base = recipe("translate"), recipe("translate", model={"preset": "base"})
    ratio = usual.model.encoder.d_model / base.model.encoder.d_model
    assert ratio < 1
    assert base.optimizer.lr == usual.optimizer.lr * ratio
    given = recipe("translate", model={"preset": "base"}, optimizer={"lr": 0.01})
    assert given.optimizer.lr == 0.01


def test_a_tokenizer_from_a_file_is_used_as_it_is(recipe, tmp_path):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train(["one two three"], "byte").save(path)
    assert recipe("generate", tokenizer={"tokenizer": str(path)}).tokenizing.given == str(path)
    for options in ({"vocabulary": 300}, {"lower": False}):
        said = refusal(recipe, "generate", tokenizer={"tokenizer": str(path), **options})
        assert "is decided by the tokeniser that is given" in said


@pytest.mark.parametrize(
    ("task", "group", "options", "said"),
    [
        ("translate", "model", {"preset": "huge"}, "preset: there is no 'huge'; there are tiny, base"),
        (
            "translate",
            "model",
            {"preset": "gpt2"},
            "preset: translate takes an encoder-decoder, and gpt2 is",
        ),
        ("generate", "model", {"preset": "bert"}, "preset: generate takes a decoder, and bert is none"),
        ("fill", "model", {"preset": "tiny"}, "preset: fill takes an encoder, and tiny is none"),
        ("fill", "model", {"preset": "bert", "size": "1M"}, "size: the preset bert has its own size"),
        ("fill", "model", {"size": "much"}, "size: 'much' is no number of parameters"),
        ("fill", "model", {"size": "10"}, "size: 10 parameters are too few"),
        (
            "fill",
            "model",
            {"attention": "hard"},
            "attention: there is no 'hard'; there are softmax, argmax",
        ),
        ("fill", "model", {"position": "polar"}, "position: there is no 'polar'; there are sinusoidal"),
        (
            "fill",
            "model",
            {"attention": "kernelized", "position": "alibi"},
            "attention with position: Kernelized attention has no score to add a bias to",
        ),
        ("fill", "tokenizer", {"tokenizer": "wordy"}, "tokenizer: there is no 'wordy'. Did you mean 'word'?"),
        ("fill", "tokenizer", {"separate_tokenizers": True}, "separate_tokenizers: is for translate"),
        ("fill", "optimizer", {"schedule": "linear"}, "schedule: there is no 'linear'"),
        (
            "fill",
            "optimizer",
            {"average": "mean"},
            "average: there is no 'mean'; there are none, ema",
        ),
        (
            "fill",
            "batches",
            {"batch_tokens": 8, "micro_batch_tokens": 9},
            "micro_batch_tokens: is more than a step has",
        ),
        ("fill", "budget", {"steps": 1, "epochs": 1.0}, "steps and epochs: each says when to stop"),
        (
            "fill",
            "checkpointing",
            {"select": "first"},
            "select: there is no 'first'; there are best, last",
        ),
        ("fill", "machine", {"device": "abacus"}, "device: there is no 'abacus'"),
        (
            "fill",
            "machine",
            {"precision": "int8"},
            "precision: there is no 'int8'; there are auto, float32",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_option(recipe, task, group, options, said):
    assert said in refusal(recipe, task, **{group: options})


def test_a_task_must_be_named(text):
    with pytest.raises(OptionError, match=r"task is missing: say what to learn \(translate, generate"):
        as_recipe(text["fill"])
    with pytest.raises(OptionError, match="task: there is no 'sing'"):
        as_recipe({"task": "sing", **text["fill"]})


def test_python_takes_the_words_of_the_command(text, tmp_path):
    words = {"task": "generate", "text": Path(text["generate"]["text"][0]), "lr": 0.01, "window": 8, "film": False}
    typed = {**words, "text": [str(words["text"])], "lr": "0.01", "window": "8"}
    assert recipe_of(words) == as_recipe(read_words(typed, WORDS))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, r"text is missing: generate takes text or table$"),
        ({"text": "a", "steps": "many"}, "steps: takes a whole number, 1 or more; came many"),
        ({"text": "a", "lora": 3}, "lora: goes with from_ RUN"),
        ({"text": "a", "batch_token": 3}, "batch_token: there is no such option. Did you mean 'batch_tokens'"),
        ({"text": "a", "micro_batch_tokens": 9, "batch_tokens": 8}, "more than a step has: 9 of batch_tokens 8"),
    ],
)
def test_errors_in_python_have_its_words(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("one two\n" * 20)
    with pytest.raises(OptionError, match=said):
        train("run", task="generate", **words)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_recipe_and_options_are_not_given_together(recipe, tmp_path):
    with pytest.raises(OptionError, match="there is a recipe, which says all of it: leave out steps"):
        train(tmp_path / "run", recipe("generate"), steps=3)


@pytest.mark.slow
def test_a_run_is_trained_by_options(text, tmp_path):
    small = {"steps": 2, "size": "20k", "tokenizer": "char", "threads": 1, "device": "cpu"}
    quiet = {"log": lambda _: None, "watcher": lambda _: None}
    run = train(tmp_path / "run", task="generate", text=text["generate"]["text"], **small, **quiet)
    assert (run.step, run.tokenizer.kind) == (2, "char")


@pytest.mark.parametrize(("task", "output"), [("fill", Blanks), ("classify", Classes)])
def test_an_encoder_by_name_or_size_keeps_the_output_of_the_task(recipe, task, output):
    for options in ({"preset": "bert"}, {"size": "1M"}):
        assert isinstance(recipe(task, model=options).model.output, output)


@pytest.mark.parametrize("kind", [None, "given"])
def test_a_size_is_met_with_the_vocabulary_that_is_to_be(recipe, kind, tmp_path):
    tokenizer = Tokenizer.train(["one two three"], "byte")
    tokenizer.save(tmp_path / "tokenizer.json")
    path = None if kind is None else str(tmp_path / "tokenizer.json")
    vocabulary = 2000 if kind is None else None
    options = {"tokenizer": path, "vocabulary": vocabulary}
    spec = recipe("generate", tokenizer=options, model={"size": "1M"}).model
    with torch.device("meta"):
        model = replace(spec, vocabulary=vocabulary or tokenizer.vocabulary).build()
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(1e6, rel=0.1)


def test_learned_positions_are_as_many_as_a_row_is_long(recipe):
    for options in ({}, {"preset": "gpt2"}, {"position": "learned"}):
        spec = recipe("generate", model=options, batches={"context": 48}).model
        assert spec.embedding.position == positions.Learned(48)
