"""Probes: every example is right by another reckoning, nothing held out is trained on, and a model learns them."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearhead.errors import OptionError
from clearhead.experiments.probes import (
    PROBES,
    VALUES,
    Amount,
    RecallQuestion,
    distances,
    draw_examples,
    file_of,
    probe_recipe,
    questions,
    score_recall,
    write_probe,
)
from clearhead.model import presets
from clearhead.model.arrangements import PreNorm
from clearhead.model.presets import Size
from clearhead.text.kinds import SPECIALS
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Machine
from clearhead.training.run import Run
from clearhead.training.schedules import CosineDecay
from clearhead.training.tasks import Generate
from clearhead.training.tasks.texts import Framing
from clearhead.training.train import train

SMALL = Amount(longest=16, examples=60, held_out=12)
CPU = Machine(device="cpu", threads=1)
seeds = st.integers(0, 2**32)
lengths = st.integers(8, 80)


def pairs_of(text: str) -> list[tuple[str, str]]:
    words = text.split(" ")
    return list(zip(words[::2], words[1::2], strict=True))


@given(seeds, lengths)
def test_a_copy_is_the_same_sequence(seed, longest):
    source, target = PROBES["copy"].example(random.Random(seed), longest)
    assert source == target
    assert 5 <= len(source.split(" ")) <= longest


@given(seeds, lengths)
def test_sorted_letters_rise_and_are_the_same_ones(seed, longest):
    source, target = (text.split(" ") for text in PROBES["sort"].example(random.Random(seed), longest))
    assert all(one <= other for one, other in pairwise(target))
    assert Counter(source) == Counter(target)
    assert 5 <= len(source) <= longest


def test_letters_to_sort_repeat():
    sources = (PROBES["sort"].example(random.Random(seed), 40)[0].split() for seed in range(50))
    assert sum(len(set(letters)) < len(letters) for letters in sources) > 40


@given(seeds, lengths)
def test_in_a_text_to_recall_a_key_always_has_the_same_value(seed, longest):
    [text] = PROBES["recall"].example(random.Random(seed), longest)
    found = pairs_of(text)
    assert len(set(found)) == len({key for key, _ in found})
    assert 2 * len(found) + 1 <= PROBES["recall"].width(longest)
    assert all(key[0] == "k" and value[0] == "v" and int(value[1:]) < VALUES for key, value in found)


@given(seeds, lengths)
def test_questions_are_all_keys_that_came_before_with_the_nearest_distance(seed, longest):
    [text] = PROBES["recall"].example(random.Random(seed), longest)
    words, plain = text.split(), []
    for at in range(0, len(words), 2):
        before = [at - other for other in range(0, at, 2) if words[other] == words[at]]
        if before:
            plain.append((at // 2, min(before)))
    assert [tuple(question) for question in questions(text)] == plain
    assert all(4 <= distance <= longest for _, distance in plain)


def test_every_distance_is_asked_for():
    """All of them, so that a key's place in the text does not tell where to look."""
    texts = [PROBES["recall"].example(random.Random(seed), 256)[0] for seed in range(300)]
    found = [question for text in texts for question in questions(text)]
    assert {question.distance for question in found} == set(range(4, 257, 2))
    asked = Counter(question.reach for question in found)
    assert sorted(asked) == distances(256) == [4, 8, 16, 32, 64, 128, 256]
    assert min(asked.values()) > 200


@given(st.integers(4, 10_000))
def test_a_distance_is_scored_as_the_power_of_two_above(distance):
    reach = RecallQuestion(1, distance).reach
    assert reach // 2 < distance <= reach
    assert reach in distances(reach)


@pytest.mark.parametrize("name", PROBES)
def test_what_is_held_out_is_never_trained_on(name, tmp_path):
    probe = PROBES[name]
    write_probe(probe, tmp_path, SMALL)
    held, trained = (file_of(tmp_path, part, probe.files[0]).read_text().splitlines() for part in ("dev", "train"))
    assert (len(held), len(trained)) == (SMALL.held_out, SMALL.examples)
    assert len({*held, *trained}) == len(held) + len(trained)


def test_examples_to_do_without_are_drawn_by_chance_and_left_out():
    probe = replace(PROBES["sort"], example=lambda draw, longest: (draw.choice("abcdefgh"),) * 2)
    found = draw_examples(probe, 8, 3, seed=1, without={(letter,) * 2 for letter in "abcde"})
    assert sorted(found) == [("f", "f"), ("g", "g"), ("h", "h")]
    with pytest.raises(OptionError, match="sort: there are no 4 different examples of this length; ask for fewer"):
        draw_examples(probe, 8, 4, seed=1, without={(letter,) * 2 for letter in "abcde"})


@pytest.mark.parametrize("name", PROBES)
def test_the_files_are_the_same_bytes_each_time_and_not_written_twice(name, tmp_path):
    probe = PROBES[name]
    for folder in (tmp_path / "one", tmp_path / "other"):
        write_probe(probe, folder, SMALL)
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "other"))
    assert one == other
    first = file_of(tmp_path / "one", "train", probe.files[0])
    before = first.stat().st_mtime_ns
    write_probe(probe, tmp_path / "one", SMALL)
    assert first.stat().st_mtime_ns == before
    write_probe(probe, tmp_path / "one", replace(SMALL, examples=61))
    assert len(first.read_text().splitlines()) == 61


@pytest.mark.parametrize("wrong", [{"longest": 7}, {"examples": 0}, {"held_out": 0}])
def test_an_amount_that_cannot_be_is_told(wrong):
    with pytest.raises(OptionError, match="a probe is 8 tokens long or longer"):
        replace(SMALL, **wrong)


@pytest.mark.parametrize("name", PROBES)
def test_a_recipe_is_made_for_every_word_and_the_longest_row(name, tmp_path):
    probe = PROBES[name]
    recipe = probe_recipe(probe, tmp_path, replace(SMALL, examples=2000))
    words = {word for file in probe.files for word in file_of(tmp_path, "train", file).read_text().split()}
    assert recipe.tokenizing.size == len(words) + len(SPECIALS)
    assert recipe.batching.context >= probe.width(SMALL.longest)
    assert recipe.model.build()


class Reaching(nn.Module):
    """Knows the value of every key that came at most `reach` tokens ago, and says the end token for any other."""

    def __init__(self, reach: int, end: int, vocabulary: int) -> None:
        super().__init__()
        self.reach, self.end, self.vocabulary = reach, end, vocabulary
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        said = torch.full_like(tokens, self.end)
        for row, ids in enumerate(tokens.tolist()):
            for at, token in enumerate(ids):
                for back in range(max(0, at - self.reach), at):
                    if ids[back] == token:
                        said[row, at] = ids[back + 1]
        return nn.functional.one_hot(said, self.vocabulary).float()


@pytest.mark.parametrize(("reach", "framing"), [(0, None), (4, None), (16, None), (64, None), (16, (0, 3))])
def test_recall_is_scored_by_distance(reach, framing, tmp_path, monkeypatch):
    """Also of an imported run, which has its own tokens before a text."""
    monkeypatch.setattr(Generate, "logits", lambda task, model, batch: model(batch["tokens"]))
    draw = random.Random(0)
    texts = [PROBES["recall"].example(draw, 64)[0] for _ in range(30)]
    tokenizer = Tokenizer.train(texts, "word")
    own = None if framing is None else {"text": Framing(before=framing)}
    task = Generate(tokenizers={"text": tokenizer}, context=128, framing=own)
    model = Reaching(reach, tokenizer.end, tokenizer.vocabulary)
    found = score_recall(Run(RunFolder(tmp_path), task, model, 1), texts)
    assert found.by_distance == {distance: float(distance <= reach) for distance in (4, 8, 16, 32, 64)}
    assert found.accuracy == pytest.approx(sum(found.by_distance.values()) / 5)
    assert sum(found.asked.values()) == sum(len(list(questions(text))) for text in texts)


@pytest.mark.slow
def test_a_smaller_one_learns_to_sort_some_in_few_steps(tmp_path):
    """Hardly one in a million would be right by chance."""
    recipe = probe_recipe(PROBES["sort"], tmp_path / "probe", Amount(longest=8, examples=3_000, held_out=100), CPU)
    recipe = replace(
        recipe,
        model=presets.classic(64, size=Size(1, 48, 2, 2, 96), dropout=0.0, arrangement=PreNorm()),
        optimizer=replace(recipe.optimizer, lr=6e-3, schedule=CosineDecay(warmup=20, floor=0.05)),
        batching=replace(recipe.batching, tokens=1024),
        budget=Budget(steps=150),
    )
    run = train(tmp_path / "run", recipe, log=lambda _: None)
    assert json.loads(run.folder.evaluation.read_text())["exact_match"] > 0.4


@pytest.mark.slow
@pytest.mark.thorough
def test_a_small_model_learns_to_sort(tmp_path):
    amount = Amount(longest=10, examples=20_000, held_out=200)
    recipe = probe_recipe(PROBES["sort"], tmp_path / "probe", amount, CPU)
    recipe = replace(
        recipe,
        model=presets.classic(64, size=Size(2, 64, 2, 2, 128), dropout=0.0, arrangement=PreNorm()),
        batching=replace(recipe.batching, tokens=2048),
        budget=Budget(steps=400),
    )
    run = train(tmp_path / "run", recipe, log=lambda _: None)
    assert json.loads(run.folder.evaluation.read_text())["exact_match"] > 0.9
    assert run.translate(["d a c b a d"], beam=1) == ["a a b c d d"]
