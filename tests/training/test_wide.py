"""The wide part is fitted before training: right on what it saw, saved, resumed and traced with the rest."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from clearhead.interop.export.huggingface import HuggingFace
from clearhead.model import presets
from clearhead.model.lora import Lora
from clearhead.model.outputs import Classes
from clearhead.model.wide import NgramLogits
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.head_metrics import lens
from clearhead.training.checkpoints import remove_folder
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.linear import fit_logistic, linear_baseline
from clearhead.training.recipe import Budget, Machine
from clearhead.training.run import load
from clearhead.training.tasks.classify import MOST_WEIGHTS, fit_classes
from clearhead.training.tracing import trace
from clearhead.training.train import resume, train
from clearhead.training.wide import fit_wide
from tests.training import small_runs
from tests.training.tiny import differences, quiet, recipe_for, work_on

WIDE = Classes(2, pool="mean", ngrams=NgramLogits(buckets=256, transformer_scale=0.5))


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
    """A wide part, the rows that it was fitted to, and rows that it was not."""
    records = small_runs.labelled(300), small_runs.labelled(100, seed=1)
    texts, others = ([text for text, _ in part] for part in records)
    tokenizer = Tokenizer.train(texts, kind="metaspace", size=300)
    wanted = [torch.tensor([label == "beast" for _, label in part]).long() for part in records]
    part = NgramLogits(buckets=256).build(tokenizer.vocabulary, 2)
    rows = [tokenizer.encode_batch(one) for one in (texts, others)]
    fit_wide(part, rows[0], F.one_hot(wanted[0], 2).float(), tokenizer)
    return part, rows, wanted, (texts, others)


def answers(part, rows):
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return part(tokens, lengths)


def test_it_is_as_right_as_the_linear_model_on_words(fitted):
    part, rows, wanted, texts = fitted
    right = (answers(part, rows[1]).argmax(-1) == wanted[1]).float().mean().item()
    line = linear_baseline(texts[0], wanted[0].tolist(), texts[1], wanted[1].tolist(), classes=2)
    assert right >= line.accuracy == 1.0


def test_the_tables_give_what_logistic_regression_fitted(fitted, monkeypatch):
    """Letters are summed into their tokens, and idf into the rows: the logits are those of the sparse product."""
    part, rows, wanted, (texts, _) = fitted
    seen = {}

    def spy(x, target):
        seen["logits"] = x.logits(weights := fit_logistic(x, target))
        return weights

    monkeypatch.setattr("clearhead.training.wide.fit_logistic", spy)
    tokenizer = Tokenizer.train(texts, kind="metaspace", size=300)
    again = NgramLogits(buckets=256).build(tokenizer.vocabulary, 2)
    fit_wide(again, rows[0], F.one_hot(wanted[0], 2).float(), tokenizer)
    torch.testing.assert_close(answers(again, rows[0]), seen["logits"], rtol=1e-4, atol=1e-4)
    assert all(torch.equal(one, part.get_buffer(name)) for name, one in again.named_buffers())


def test_rows_without_tokens_and_tokens_without_rows(fitted):
    part, _, _, (texts, _) = fitted
    tokenizer = Tokenizer.train(texts, kind="metaspace", size=300)
    again = NgramLogits(buckets=3).build(tokenizer.vocabulary, 2)
    fit_wide(again, [[], [5], [6, 7]], torch.tensor([[1.0, 0], [0, 1], [1, 0]]), tokenizer)
    assert all(one.isfinite().all() for one in again.buffers())
    assert part(torch.zeros(1, 0, dtype=torch.long), torch.tensor([0])).isfinite().all()


def test_it_is_said_and_saved_and_loaded(run):
    made, said = run
    assert sum("the model has a wide part" in line for line in said) == 1
    again = load(made.folder.path, device="cpu")
    assert again.model.output.wide.get_buffer("table_token").abs().sum() > 0
    assert again.answer(["red plum", "old cow"]) == made.answer(["red plum", "old cow"])


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
    torch.testing.assert_close(found.value("encoder.output.logits"), deep * 0.5 + wide)
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


def test_many_classes_have_fewer_rows_for_pairs(tmp_path):
    work = work_on(wide_recipe(tmp_path), tmp_path)
    many = replace(work.task, labels=tuple(map(str, range(100_000))))
    assert fit_classes(work.task, work.spec).output.ngrams.buckets == 256
    assert fit_classes(many, work.spec).output.ngrams.buckets == MOST_WEIGHTS // 100_000
