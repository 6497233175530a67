"""The wide part is fitted before training: right on what it saw, saved, resumed and traced with the rest."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from clearhead.errors import RunError
from clearhead.interop.export.huggingface import HuggingFace
from clearhead.model import presets
from clearhead.model.int8 import count_weights
from clearhead.model.lora import Lora
from clearhead.model.outputs import Classes
from clearhead.model.wide import NgramLogits
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Table
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.head_metrics import lens
from clearhead.training.checkpoints import remove_folder
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.folder import RunFolder
from clearhead.training.linear import fit_linear
from clearhead.training.pretrained import read_header
from clearhead.training.recipe import Budget, Machine
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.tracing import trace
from clearhead.training.train import train
from clearhead.training.wide import choose_shares, fit_wide, score_logits
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
    """A wide part, the rows that it was fitted to, and rows that it was not."""
    records = small_runs.labelled(300), small_runs.labelled(100, seed=1)
    texts, others = ([text for text, _ in part] for part in records)
    tokenizer = Tokenizer.train(texts, kind="metaspace", size=300)
    wanted = [torch.tensor([label == "beast" for _, label in part]).long() for part in records]
    rows = [tokenizer.encode_batch(one) for one in (texts, others)]
    return fit_wide(rows[0], F.one_hot(wanted[0], 2).float(), tokenizer), rows, wanted, tokenizer


def answers(part, rows):
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return part(tokens, lengths)


def test_what_words_tell_is_learned(fitted):
    (_, part, _), rows, wanted, _ = fitted
    assert score_logits(answers(part, rows[1]), wanted[1]) == (1.0, 1.0)


def test_the_tables_give_what_was_fitted(fitted, monkeypatch):
    """Letters are summed into their tokens, and idf into the rows: the logits are those of the sparse product."""
    (spec, part, _), rows, wanted, tokenizer = fitted
    seen = {}

    def spy(x, target, class_weight, *, seconds):
        seen["logits"] = x.logits(weights := fit_linear(x, target, class_weight, seconds=seconds))
        return weights

    monkeypatch.setattr("clearhead.training.wide.fit_linear", spy)
    again = fit_wide(rows[0], F.one_hot(wanted[0], 2).float(), tokenizer)
    torch.testing.assert_close(answers(again[1], rows[0]), seen["logits"], rtol=1e-4, atol=1e-4)
    assert again[0] == spec
    assert all(torch.equal(one, part.get_buffer(name)) for name, one in again[1].named_buffers())


def test_no_row_is_without_use(fitted):
    """Half of the rows of hashed tables were zeros, and were saved with the others."""
    (spec, part, _), *_ = fitted
    for name, rows in (("pair", spec.pairs), ("triple", spec.triples)):
        assert torch.equal(part.get_buffer(f"slots_{name}").unique(), torch.arange(rows + 1, dtype=torch.int32))
        assert part.get_buffer(f"table_{name}")[1:].abs().sum(1).all()


def test_with_many_classes_only_frequent_ngrams_have_rows(fitted, monkeypatch):
    (spec, _, _), rows, wanted, tokenizer = fitted
    monkeypatch.setattr("clearhead.training.wide.MOST_WEIGHTS", 2 * 10)
    fewer, part, _ = fit_wide(rows[0], F.one_hot(wanted[0], 2).float(), tokenizer)
    assert 0 < fewer.pairs <= 10 < spec.pairs
    assert score_logits(answers(part, rows[1]), wanted[1]).accuracy == 1


def test_rows_without_tokens_and_classes_without_rows(fitted):
    (_, part, _), _, _, tokenizer = fitted
    _, odd, _ = fit_wide([[], [5], [6, 7]], torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0]]), tokenizer)
    assert all(one.isfinite().all() for one in odd.buffers())
    assert answers(odd, [[5], [6, 7]]).argmax(-1).tolist() == [1, 0]
    assert part(torch.zeros(1, 0, dtype=torch.long), torch.tensor([0])).isfinite().all()


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
