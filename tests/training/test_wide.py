"""The wide part is fitted before training: right on what it saw, saved, resumed and traced with the rest."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from clearhead.errors import RunError
from clearhead.experiments.tracing import trace
from clearhead.interop.export.huggingface import HuggingFace
from clearhead.model import presets
from clearhead.model.int8 import count_weights
from clearhead.model.lora import Lora
from clearhead.model.outputs import Classes, NgramLogits
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.head_metrics import lens
from clearhead.training.baseline import Figures
from clearhead.training.checkpoints import remove_folder
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Budget, Machine
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.train import train
from clearhead.training.weights import read_header
from clearhead.training.wide import (
    LETTERS,
    LinearFit,
    choose_fit,
    choose_shares,
    fit_ngrams,
    letters_of,
    make_features,
    score_logits,
)
from tests.training import small_runs
from tests.training.tiny import differences, quiet, recipe_for

WIDE = Classes(2, pool="mean", ngrams=NgramLogits())


def wide_recipe(folder, **changed):
    recipe = recipe_for(small_runs.classifying, folder, **changed)
    return replace(recipe, model=replace(recipe.model, output=WIDE))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a wide part, and what was said in training it."""
    folder, said = tmp_path_factory.mktemp("wide"), []
    made = train(folder / "run", wide_recipe(folder), log=said.append, watcher=quiet)
    return made, said


@pytest.fixture(scope="module")
def fitted():
    """A linear model, the rows that it was fitted to, rows that it was not, and the letters of its tokens."""
    records = small_runs.labelled(300), small_runs.labelled(100, seed=1)
    texts, others = ([text for text, _ in part] for part in records)
    tokenizer = Tokenizer.train(texts, kind="metaspace", size=300)
    wanted = [torch.tensor([label == "beast" for _, label in part]).long() for part in records]
    rows = [tokenizer.encode_batch(one) for one in (texts, others)]
    letters = letters_of(tokenizer)
    return fit_ngrams(rows[0], wanted[0], letters, 2), rows, wanted, letters


def answers(part, rows):
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return part(tokens, lengths)


def part_of(fit):
    return fit.features.to_part(fit.weights[0])


def test_what_words_tell_is_learned(fitted):
    fit, rows, wanted, _ = fitted
    assert score_logits(answers(part_of(fit), rows[1]), wanted[1]) == (1.0, 1.0)


@pytest.mark.parametrize("number", [0, 1])
def test_the_tables_give_what_was_fitted(fitted, number):
    """Letters are summed into their tokens, and idf into the rows: the logits are those of the sparse product."""
    fit, rows, *_ = fitted
    found, expected = fit.features.to_part(fit.weights[number]), fit.features.design.logits(fit.weights[number])
    torch.testing.assert_close(answers(found, rows[0]), expected, rtol=1e-4, atol=1e-4)


def test_groups_of_letters_are_those_of_each_token():
    tokenizer = Tokenizer.train(["a tall tall tale", "ßä 𝒳𝒳 日本語"], kind="metaspace")
    found, known = letters_of(tokenizer), {}
    for i in range(tokenizer.vocabulary):
        token = tokenizer.token(i)
        groups = [token[at : at + n] for n in LETTERS for at in range(len(token) - n + 1)]
        numbers = found.groups[found.starts[i] : found.starts[i + 1]].tolist()
        assert len(groups) == len(numbers)
        known.update(zip(groups, numbers, strict=True))
        assert [known[group] for group in groups] == numbers
    assert sorted(known.values()) == list(range(found.n_groups))


def test_no_row_is_without_use(fitted):
    """Half of the rows of hashed tables were zeros, and were saved with the others."""
    fit, *_ = fitted
    for name, rows in (("pair", fit.features.spec.pairs), ("triple", fit.features.spec.triples)):
        part = part_of(fit)
        assert torch.equal(part.get_buffer(f"slots_{name}").unique(), torch.arange(rows + 1, dtype=torch.int32))
        assert part.get_buffer(f"table_{name}")[1:].abs().sum(1).all()


def test_with_many_classes_only_frequent_ngrams_have_rows(fitted, monkeypatch):
    fit, rows, wanted, letters = fitted
    monkeypatch.setattr("clearhead.training.wide.MOST_WEIGHTS", 2 * 10)
    fewer = fit_ngrams(rows[0], wanted[0], letters, 2)
    assert 0 < fewer.features.spec.pairs <= 10 < fit.features.spec.pairs
    assert 0 < len(fewer.features.rows["letters"]) <= 10
    assert score_logits(answers(part_of(fewer), rows[1]), wanted[1]).accuracy == 1


def test_rows_without_tokens_and_classes_without_rows(fitted):
    fit, _, _, letters = fitted
    odd = part_of(fit_ngrams([[], [5], [6, 7]], torch.tensor([0, 1, 0]), letters, 3))
    assert all(one.isfinite().all() for one in odd.buffers())
    assert answers(odd, [[5], [6, 7]]).argmax(-1).tolist() == [1, 0]
    assert part_of(fit)(torch.zeros(1, 0, dtype=torch.long), torch.tensor([0])).isfinite().all()


@pytest.mark.parametrize(("weighted", "kept"), [((0.9, 0.8), 1), ((0.8, 0.9), 0), ((0.9, 0.7), 0)])
def test_weights_by_class_are_kept_where_the_dev_records_gain(fitted, weighted, kept, monkeypatch):
    """Always taken, they cost 1.8 points of macro F1 on 20,000 texts with 58 labels."""
    _, rows, wanted, letters = fitted
    features = make_features(rows[0], letters, 2)
    weights = [torch.full((features.design.width + 1, 2), float(number)) for number in (1, 2)]
    scores = iter([Figures(0.9, 0.7), Figures(*weighted), *[Figures(1.0, 1.0)] * 99])
    monkeypatch.setattr("clearhead.training.wide.score_logits", lambda *_: next(scores))
    found = choose_fit(LinearFit(features, weights, 300), rows[1], wanted[1], seconds=1.0)
    assert found.part.get_buffer("bias").tolist() == [kept + 1.0] * 2


def test_a_transformer_that_knows_nothing_counts_nothing():
    """The sum was kept with a fixed share, and lost to the linear model that was printed beside it."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (200,), generator=draw)
    good = F.one_hot(labels, 5) + 0.5 * torch.randn(200, 5, generator=draw)
    noise = 3 * torch.randn(200, 5, generator=draw)
    assert choose_shares(noise, good, labels)[0] == 0
    other = 4 * F.one_hot(labels, 5) + 2 * torch.randn(200, 5, generator=draw)
    of_deep, of_wide = choose_shares(other, good, labels)
    assert of_deep > 0
    both, line = score_logits(other * of_deep + good * of_wide, labels), score_logits(good, labels)
    assert both.accuracy >= line.accuracy
    assert both.macro_f1 >= line.macro_f1


def test_a_linear_model_that_is_worse_counts_less():
    """With three records of one label the Transformer was better by both scores, and the linear model was kept."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(5, (100,), generator=draw)
    wrong = F.one_hot((labels + 1) % 5, 5) * 3.0
    deep = 4.0 * F.one_hot(labels, 5) + torch.randn(100, 5, generator=draw)
    of_deep, of_wide = choose_shares(deep, wrong, labels)
    assert score_logits(deep * of_deep + wrong * of_wide, labels).accuracy >= score_logits(deep, labels).accuracy


def test_a_gain_in_accuracy_that_costs_macro_f1_is_none():
    labels = torch.tensor([0] * 18 + [1] * 2)
    wide = torch.tensor([[1.0, 0.0]] * 15 + [[0.0, 0.4]] * 3 + [[0.0, 0.3]] * 2)
    deep = torch.tensor([[5.0, 0.0]] * 20)  # always the frequent label
    both, line = (score_logits(one, labels) for one in (deep + wide, wide))
    assert both.accuracy > line.accuracy
    assert both.macro_f1 < line.macro_f1
    assert choose_shares(deep, wide, labels)[0] == 0


def test_it_is_told_weighed_and_loaded(run):
    made, said = run
    assert sum(line.startswith("kept is ") for line in said) == 1
    again = load(made.folder.path, device="cpu")
    assert again.model.output.wide.get_buffer("table_token").abs().sum() > 0
    assert again.answer(["red plum", "old cow"]) == made.answer(["red plum", "old cow"])
    evaluation = made.folder.read_evaluation()
    assert evaluation["accuracy"] >= evaluation["linear"]["accuracy"]
    assert evaluation["parameters"] == count_weights(made.model) > sum(one.numel() for one in made.model.parameters())
    assert evaluation["transformer"].keys() == {"accuracy", "macro_f1"}


def test_its_tables_are_stored_once(run):
    """They were in every checkpoint three times: 322 MB for a model of 1.2 M parameters."""
    made, _ = run
    files = [
        path for path in made.folder.path.rglob("*.safetensors") if any("wide" in name for name in read_header(path))
    ]
    assert files == [made.folder.ngrams_file]


@pytest.mark.parametrize("name", ["ngrams_file", "baseline"])
def test_a_file_of_it_that_is_missing_is_named(run, name, tmp_path):
    copied = RunFolder(Path(shutil.copytree(run[0].folder.path, tmp_path / "copied")))
    path = getattr(copied, name)
    path.unlink()
    with pytest.raises(RunError, match=rf"{path.name}: is not there.* Put it back"):
        load(copied.path, device="cpu", log=quiet)


def test_what_is_saved_from_memory_has_it_too(run, tmp_path):
    again = run[0].save(tmp_path / "saved")
    assert again.answer(["red plum"])[0]["probability"] == pytest.approx(run[0].answer(["red plum"])[0]["probability"])


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "lora"])
@pytest.mark.slow
def test_for_other_labels_it_is_fitted_to_the_new_text(run, lora, tmp_path):
    names, path = {"beast": "animal", "fruit": "plant"}, tmp_path / "others.tsv"
    records = [f"{text}\t{names[label]}\n" for text, label in small_runs.labelled(200)]
    path.write_text("text\tlabel\n" + "".join(records))
    source = Table(paths=(str(path),), columns=("text", "label"), fields=("text", "label"))
    recipe = fine_tuning_recipe(run[0].folder.path, Corpus(train=source), lora=lora)
    recipe = replace(recipe, budget=Budget(steps=2), machine=Machine(device="cpu", threads=1))
    made = load(train(tmp_path / "tuned", recipe, log=quiet, watcher=quiet).folder.path, device="cpu")
    assert [one["output"] for one in made.answer(["red plum", "old cow"])] == ["plant", "animal"]
    assert made.model.output.wide.get_buffer("table_token").abs().sum() > 0


def test_a_trace_has_both_parts_and_answers_as_the_run(run):
    made, _ = run
    found = trace(made, "red plum")
    answer = made.answer(["red plum"])[0]
    assert found.candidates[0][0].log_prob == pytest.approx(answer["score"], abs=1e-5)
    deep, wide = (found.value(f"encoder.output.{name}") for name in ("deep", "wide_logits"))
    of_deep, of_wide = made.model.output.wide.shares
    torch.testing.assert_close(found.value("encoder.output.logits"), deep * of_deep + wide * of_wide)
    assert wide.abs().max() > 0.1
    assert lens(found, made.model)[-1].rows[0][0].log_prob == pytest.approx(answer["score"], abs=1e-5)


def test_no_class_of_hugging_face_has_it():
    plain = replace(presets.bert("tiny", vocabulary=50), output=replace(WIDE, pool="first", hidden=True, ngrams=None))
    assert HuggingFace().blocks(plain, "classify") == []
    wide = replace(plain, output=replace(plain.output, ngrams=WIDE.ngrams))
    assert any("output.ngrams" in reason for reason in HuggingFace().blocks(wide, "classify"))


@pytest.mark.slow
def test_a_killed_run_resumes_exactly(tmp_path):
    recipe = wide_recipe(tmp_path)
    whole = train(tmp_path / "whole", recipe, log=quiet, watcher=quiet)
    other = train(tmp_path / "other", recipe, log=quiet, watcher=quiet)
    for folder in other.folder.checkpoints.all()[:1]:
        remove_folder(folder.folder)
    resume(tmp_path / "other", log=quiet, watcher=quiet)
    assert not differences(whole.folder, other.folder)
