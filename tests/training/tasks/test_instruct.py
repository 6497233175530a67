"""To follow instructions: the loss is on the answer alone, and prompts are rendered as they will be asked."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from clearhead.decoding import Greedy
from clearhead.errors import OptionError
from clearhead.interop.run import import_model
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Messages, Table
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.losses import NOTHING
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.schedules import CosineDecay
from clearhead.training.train import load_prepared, train
from tests.interop import saved_models
from tests.training import small_runs
from tests.training.tiny import quiet

pytestmark = pytest.mark.slow

CPU = Machine(device="cpu", threads=1)
PAIRS = [
    (f"the {beast} eats", f"the {fruit}") for beast, fruit in zip(small_runs.BEASTS, small_runs.FRUIT, strict=True)
]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A run that generates sentences in which a beast eats any fruit."""
    return small_runs.trained(small_runs.documents, tmp_path_factory).folder.path


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """An imported decoder with a chat template."""
    home = tmp_path_factory.mktemp("talker")
    saved_models.save("llama", home / "source")
    return import_model(home / "source", home / "run", device="cpu").folder.path


def pairs(folder, rows=PAIRS):
    """A corpus of prompts and answers as JSON lines."""
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in rows] * 20
    path = small_runs.write_lines(folder / "pairs.jsonl", lines)
    fields = ("prompt", "answer")
    source = Table(paths=(path,), columns=fields, fields=fields)
    return Corpus(train=source, dev=source)


def tune(path, source, corpus, *, steps=4, lr=None, context=32):
    recipe = fine_tuning_recipe(source, corpus, task="instruct", machine=CPU)
    return train(
        path,
        replace(
            recipe,
            optimizer=replace(recipe.optimizer, lr=lr or recipe.optimizer.lr, schedule=CosineDecay(warmup=3)),
            batching=Batching(tokens=512, context=context),
            budget=Budget(steps=steps),
            checkpointing=Checkpointing(log=steps, evaluate=steps, samples=1),
        ),
        log=quiet,
    )


def first_batch(run, filled=False):
    prepared = load_prepared(run.folder.data, run.folder, run.folder.recipe(), run.task)
    rows = next(iter(run.task.planner(prepared.train, 256, 0).in_order()))
    return run.task.read(prepared.train, rows, np.random.default_rng(0), filled=filled)


def test_a_run_learns_the_answers_and_is_asked_for_them_alone(decoder, tmp_path):
    run = tune(tmp_path / "run", decoder, pairs(tmp_path), steps=120, lr=5e-3)
    batch = first_batch(run)
    tokenizer = run.tokenizer
    for tokens, wanted in zip(batch["tokens"].tolist(), batch["wanted"].tolist(), strict=True):
        asked = [token for token in wanted if token != NOTHING]
        prompt = tokens[: wanted.index(asked[0]) + 1]
        assert (tokenizer.decode(prompt), tokenizer.decode(asked)) in PAIRS
        assert (prompt[0], asked[-1]) == (tokenizer.end, tokenizer.end)
    found = run.generate([prompt for prompt, _ in PAIRS], method=Greedy(), max_new=12)
    assert [text.strip() for text in found] == [answer for _, answer in PAIRS]
    scores = run.evaluate(pairs(tmp_path).train)
    assert scores["loss"] < 0.3
    assert scores["loss"] == pytest.approx(run.folder.read_evaluation()["loss"], rel=1e-4)


def test_padding_changes_no_loss(decoder, tmp_path):
    run = tune(tmp_path / "run", decoder, pairs(tmp_path))
    losses = []
    for filled in (False, True):
        batch = first_batch(run, filled)
        with torch.no_grad():
            logits = run.task.logits(run.model, batch).flatten(0, 1)
        losses.append(torch.nn.functional.cross_entropy(logits, batch["wanted"].flatten(), ignore_index=NOTHING))
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)


def test_prompts_are_rendered_by_the_chat_template(talker, tmp_path):
    before = load(talker, device="cpu")
    run = tune(tmp_path / "run", talker, pairs(tmp_path, [("the cat", "sat")]), context=64)
    batch = first_batch(run)
    told = before.tokenizer.encode(before.chat_text([{"role": "user", "content": "the cat"}]))
    assert batch["tokens"][0, : len(told)].tolist() == told
    wanted = [token for token in batch["wanted"][0].tolist() if token != NOTHING]
    assert wanted == [*before.tokenizer.encode("sat"), before.task.frame().ends[0]]
    assert run.chat_text([{"role": "user", "content": "x"}]) == before.chat_text([{"role": "user", "content": "x"}])
    assert isinstance(run.chat([{"role": "user", "content": "the cat"}], max_new=2), str)
    assert resume(run.folder.path, budget=Budget(steps=6), log=quiet).step == 6


def test_messages_are_conversations_whose_last_message_is_the_answer(talker, decoder, tmp_path):
    said = [{"role": "system", "content": "be"}, {"role": "user", "content": "cat"}]
    lines = [json.dumps({"messages": [*said, {"role": "assistant", "content": "sat"}]})] * 30
    source = Messages(paths=(small_runs.write_lines(tmp_path / "chats.jsonl", lines),))
    run = tune(tmp_path / "run", talker, Corpus(train=source, dev=source), context=64)
    told = run.tokenizer.encode(run.chat_text(said))
    assert first_batch(run)["tokens"][0, : len(told)].tolist() == told
    with pytest.raises(OptionError, match="messages are for a run that came with a chat template"):
        tune(tmp_path / "other", decoder, Corpus(train=source))


def test_of_a_long_prompt_the_end_is_read(decoder, tmp_path):
    long = "the cat eats the plum the cow"
    run = tune(tmp_path / "run", decoder, pairs(tmp_path, [(long, "the cow eats")]), context=10)
    batch, encode = first_batch(run), run.tokenizer.encode
    prompt, answer = encode(long), encode("the cow eats")
    assert 1 + len(prompt) + len(answer) > 10
    assert batch["tokens"][0].tolist() == [run.tokenizer.end, *[*prompt, *answer][-9:]]
    assert batch["wanted"][0].tolist() == [NOTHING] * (9 - len(answer)) + [*answer, run.tokenizer.end]
