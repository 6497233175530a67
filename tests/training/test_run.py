"""A run that is loaded: which weights it has, and its verbs."""

import html
import inspect
import json
import re
import shutil

import pytest
import torch

import clearhead as ch
from clearhead.decoding import Beam, Greedy, Sample
from clearhead.errors import ArgumentError, OptionError, RunError
from clearhead.model.int8 import int8_maps
from clearhead.text.sources import Aligned
from clearhead.training.evaluation import evaluate
from clearhead.training.recipe import Budget
from clearhead.training.run import load
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.small_runs import pairs, write_lines
from tests.training.tiny import quiet, recipe_for

SPOKEN = ["eins", "zwei null drei", "", "   ", "vier vier", "🙂", "eins " * 40]


def test_a_translation_for_each_text_in_order_and_a_blank_one_for_a_blank_one(translator):
    found = translator.translate(SPOKEN, beam=3)
    assert len(found) == len(SPOKEN)
    assert found[2] == found[3] == ""
    assert found == [translator.translate([text], beam=3)[0] for text in SPOKEN]
    assert translator.translate([]) == []


def test_a_str_is_one_text_and_gives_one_answer(translator, documents, filler, classifier):
    """And not the answers to its letters."""
    text, greedy = "zwei null drei", {"max_new": 5, "method": Greedy()}
    for verb in (translator.translate, translator.translations, translator.scored_translations, translator.answer):
        assert verb(text) == verb([text])[0]
        assert verb(texts=text) == verb(texts=[text])[0]
        assert verb(iter([text, "eins"])) == verb((text, "eins"))
    assert isinstance(translator.translate(text), str)
    for verb in (documents.generate, documents.scored_texts):
        assert verb("the", **greedy) == verb(["the"], **greedy)[0]
        assert verb(**greedy) == verb("", **greedy) == verb([""], **greedy)[0]
    assert filler.fill("the <mask> eats") == filler.fill(["the <mask> eats"])[0]
    assert classifier.classify("red plum") == classifier.classify(["red plum"])[0]
    assert filler.embed("the cat").shape == (filler.model.spec.d_model,)
    torch.testing.assert_close(filler.embed("the cat"), filler.embed(["the cat"])[0], rtol=0, atol=0)


@pytest.mark.plain
def test_what_is_no_text_is_told(translator, documents, filler, classifier):
    for verb in (translator.translate, translator.answer, documents.generate, filler.fill, filler.embed):
        name = next(iter(inspect.signature(verb).parameters))
        for wrong in (7, None, b"zwei"):
            with pytest.raises(OptionError, match=f"{name}: expected a str, or several of them in a list; came"):
                verb(wrong)
        for wrong in ([7], ["eins", None], [["eins"]]):
            with pytest.raises(OptionError, match=rf"{name}\[.\]: expected a text, a str.* came"):
                verb(wrong)
    with pytest.raises(OptionError, match=r"texts\[0\]: expected a text, a str, or a pair of two; came \('a',\)"):
        classifier.classify([("a",)])
    with pytest.raises(OptionError, match="prompt: expected a text, a str; came"):
        next(documents.stream(["the"]))


@pytest.mark.plain
def test_a_verb_s_wrong_arguments_are_told(translator, documents):
    with pytest.raises(ArgumentError, match=r"Run\.translate has no argument 'num_beams': write beam=4"):
        translator.translate("eins", num_beams=4)
    with pytest.raises(ArgumentError, match=r"Run\.generate has no argument 'max_new_tokens': write max_new=4"):
        documents.generate("the", max_new_tokens=4)
    with pytest.raises(ArgumentError, match=r"Run\.translate needs texts; came without"):
        translator.translate()
    with pytest.raises(ArgumentError, match=r"Run\.translate: texts is given twice"):
        translator.translate("eins", texts="zwei")
    with pytest.raises(OptionError, match="path: expected the folder of a run, a str or a Path; came Run"):
        load(translator)


def test_a_beam_of_one_is_greedy(translator):
    texts = [source for source, _ in pairs(6, seed=2)]
    rows = translator.tokenizer.encode_batch(texts)
    greedy = translator.task.search(translator.model, rows, Greedy())
    decode = translator.task.tokenizers["target"].decode
    assert translator.translate(texts, beam=1) == [decode(one.tokens) for [one] in greedy]


def test_the_best_translations_come_best_first_and_the_first_is_the_translation(translator):
    found = translator.scored_translations(SPOKEN, beam=4, n_best=3, length_penalty=0.7)
    assert translator.translations(SPOKEN, beam=4, n_best=3, length_penalty=0.7) == [
        [one.text for one in written] for written in found
    ]
    for text, written in zip(SPOKEN, found, strict=True):
        assert len(written) == 3
        scores = [one.score for one in written]
        assert scores == sorted(scores, reverse=True)
        assert text.strip() == "" or all(one.log_prob <= one.score < 0 for one in written)
    assert translator.translate(SPOKEN, beam=4, length_penalty=0.7) == [written[0].text for written in found]


@pytest.mark.parametrize("method", [Greedy(), Sample(temperature=1.2, seeds=3)])
@pytest.mark.slow
def test_a_stream_is_what_generate_gives(documents, stretch, method):
    for run in (documents, stretch):
        for prompt in ("the cow", "", "the dog eats the plum, größer\nthe"):
            pieces = list(run.stream(prompt, max_new=70, method=method))
            assert "".join(pieces) == run.generate([prompt], max_new=70, method=method)[0]
            assert all(pieces)


def test_beams_of_a_text_are_refused_by_name(documents):
    with pytest.raises(OptionError, match=r"by Greedy or Sample; came Beam\. For beams give clearhead\.generate"):
        documents.generate(["the cow"], max_new=3, method=Beam(width=2))


def test_a_continuation_begins_with_its_space(documents):
    [found] = documents.generate(["the cow"], max_new=3, method=Greedy())
    assert found.startswith(" eats the")


def test_scores_of_texts_are_the_log_probabilities_of_their_tokens(documents):
    prompts = ["the", "the cow"]
    found = documents.scored_texts(prompts, max_new=5, method=Sample(seeds=1))
    rows = documents.tokenizer.encode_batch(prompts)
    plain = documents.task.continue_rows(documents.model, rows, Sample(seeds=1), max_new=5)
    assert [one.log_prob for one in found] == pytest.approx([sum(one.log_probs) for [one] in plain])
    assert [one.text for one in found] == documents.generate(prompts, max_new=5, method=Sample(seeds=1))


def test_only_a_model_of_several_documents_has_seen_one_begin(documents, stretch):
    assert documents.task.opened
    assert not stretch.task.opened


def test_another_task_is_refused_and_the_right_verb_named(documents, translator):
    with pytest.raises(OptionError, match="was trained to generate, and was asked to translate; use `clearhead gen"):
        documents.translate(["a"])
    for verb in (translator.generate, translator.classify, translator.fill):
        with pytest.raises(OptionError, match="was trained to translate"):
            verb(["a"])


def test_it_says_what_it_is_and_what_it_has_not_seen(translator):
    assert repr(translator) == f"Run({str(translator.folder.path)!r}, task='translate', step=60)"
    assert translator.unseen("eins 🙂ß eins") == "🙂ß"
    assert not translator.model.training


def test_evaluate_is_the_one_of_the_module(translator, tmp_path):
    rows = pairs(5, seed=4)
    files = [write_lines(tmp_path / name, [row[i] for row in rows]) for i, name in enumerate("ab")]
    source = Aligned(source=(files[0],), target=(files[1],))
    found, plain = translator.evaluate(source), evaluate(translator, source)
    timed = ("seconds", "sentences_per_second")
    assert {name: value for name, value in found.items() if name not in timed} == {
        name: value for name, value in plain.items() if name not in timed
    }


@pytest.fixture
def several(translator, tmp_path):
    """A copy of the run with three checkpoints: 60 is the newest, 20 the best."""
    path = tmp_path / "run"
    shutil.copytree(translator.folder.path, path)
    folder = load(path, device="cpu").folder
    [newest] = folder.checkpoints.all()
    weights = newest.model()
    for step in (20, 40, 60):
        told = {name: value + step if name == next(iter(weights)) else value for name, value in weights.items()}
        state = {**newest.state, "best": {"step": 20, "score": 1.0}}
        folder.checkpoints.save(step, told, newest.training(), state)
    return folder


def test_weights_are_kept_in_memory_as_asked_and_saved_so(translator, tmp_path):
    path, texts = translator.folder.path, [source for source, _ in pairs(6, seed=3)]
    run = load(path, dtype="int8-dynamic")
    assert int8_maps(run.model.state_dict())
    assert run.translate(texts)
    again = run.save(tmp_path / "again")  # how inputs are rounded is not saved: it is asked for
    assert int8_maps(again.model.state_dict()) == int8_maps(run.model.state_dict())
    rounded = load(path, dtype="int8")
    assert again.translate(texts) == rounded.translate(texts)
    assert not int8_maps(load(tmp_path / "again", dtype="float32").model.state_dict())
    with pytest.raises(OptionError, match="dtype: there is no 'fp8'"):
        load(tmp_path / "nowhere", dtype="fp8")


def test_the_best_weights_are_taken_or_those_asked_for(several):
    assert load(several.path, device="cpu").step == 20
    assert load(several.path, device="cpu", step=40).step == 40
    name, saved = next(iter(several.checkpoints.all()[1].model().items()))
    loaded = dict(load(several.path, device="cpu", step=40).model.state_dict())
    assert torch.equal(loaded[name], saved)


def test_the_last_weights_are_taken_where_the_recipe_says_so(several):
    recipe = several.recipe()
    checkpointing = type(recipe.checkpointing)(select="last")
    several.begin(type(recipe)(**{**vars(recipe), "checkpointing": checkpointing}))
    assert load(several.path, device="cpu").step == 60


def test_a_broken_checkpoint_is_told_and_passed_over(several):
    told = []
    spoil(several, 20)
    assert load(several.path, device="cpu", log=told.append).step == 60
    spoil(several, 60)
    assert load(several.path, device="cpu", log=told.append).step == 40
    assert [line.count("checksum is wrong") for line in told] == [1, 1, 1]
    assert "step-00000020" in told[0]
    spoil(several, 40)
    with pytest.raises(RunError, match=r"no checkpoint can be used: .*checksum is wrong"):
        load(several.path, device="cpu", log=told.append)


def test_a_broken_checkpoint_that_was_asked_for_is_an_error(several):
    spoil(several, 40)
    with pytest.raises(RunError, match=r"step-00000040.*checksum is wrong"):
        load(several.path, device="cpu", step=40)


def spoil(folder, step):
    path = folder.checkpoints.folder / f"step-{step:08d}" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def test_a_step_that_is_not_there_is_told_with_those_that_are(several):
    with pytest.raises(RunError, match="no checkpoint of step 7; there are 20, 40, 60"):
        load(several.path, device="cpu", step=7)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        load(tmp_path)


def test_a_run_without_a_checkpoint(several):
    for path in several.checkpoints.folders():
        shutil.rmtree(path)
    with pytest.raises(RunError, match="no whole checkpoint yet; train it, or go on with --resume"):
        load(several.path)


def test_a_run_is_saved_with_the_weights_that_it_has_now(translator, tmp_path):
    with torch.no_grad():
        weight = next(translator.model.parameters())
        before = weight.clone()
        weight += 0.25
    try:
        saved = translator.save(tmp_path / "saved")
        again = load(tmp_path / "saved", device="cpu")
        for name, one in translator.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[name], one), name
        assert saved.translate(SPOKEN, beam=1) == translator.translate(SPOKEN, beam=1)
    finally:
        with torch.no_grad():
            weight.copy_(before)
    with pytest.raises(RunError, match="there is no training of its own to resume"):
        again.folder.recipe()
    assert sorted(path.name for path in (tmp_path / "saved").iterdir() if path.suffix == ".json") == [
        "model.json",
        "recipe.json",
        "run.json",
        "tokenizer.json",
    ]


def test_a_model_with_other_tensors_is_not_saved(translator, tmp_path):
    translator.model.register_parameter("more", torch.nn.Parameter(torch.zeros(2)))
    try:
        with pytest.raises(OptionError, match="has other tensors than the run was trained with"):
            translator.save(tmp_path / "saved")
    finally:
        del translator.model.more
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("given", ["run", "folder"])
@pytest.mark.slow
def test_training_starts_from_a_run(translator, tmp_path, given):
    recipe = recipe_for(small_runs.translating, tmp_path / "text", budget=Budget(steps=1))
    initial = translator if given == "run" else translator.folder.path
    tuned = train(tmp_path / "run", recipe, initial=initial, log=quiet, watcher=quiet)
    fine_tuning = tuned.folder.recipe().fine_tuning
    assert fine_tuning is not None
    assert fine_tuning.source == str(translator.folder.path)
    assert tuned.tokenizer.fingerprint() == translator.tokenizer.fingerprint()
    far = max((a - b).abs().max() for a, b in zip(tuned.model.parameters(), translator.model.parameters(), strict=True))
    assert far < 0.1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_runs.trained(small_runs.translating, tmp_path_factory)


def test_print_says_task_size_score_and_use(run):
    lines = str(run).splitlines()
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    assert lines[0] == f"Run {run.folder.path}"
    assert lines[1] == "  task    translate, with an encoder-decoder"
    assert lines[2].startswith(f"  size    {parameters:,} parameters: 1 + 1 blocks, ")
    assert lines[3] == f"  weights trained for {run.step} steps"
    assert re.fullmatch(r"  score   .*dev loss \d+\.\d{3} on held-out text", lines[4])
    assert re.fullmatch(r"  use     run\.translate\(\[.*\]\)", lines[5])
    assert lines[-1] == f"          clearhead translate {run.folder.path}"
    assert repr(run) == f"Run({str(run.folder.path)!r}, task='translate', step={run.step})"


def test_what_it_says_to_write_works(run):
    used, traced = (line.removeprefix("  use").strip() for line in str(run).splitlines()[5:7])
    assert len(eval(used, {"run": run})) == 1
    assert eval(traced, {"run": run, "ch": ch}).task == "translate"


def test_a_notebook_shows_the_same(run):
    shown = run._repr_html_()
    for line in str(run).splitlines()[1:]:
        assert html.escape(line[10:]) in shown
    assert "<script" not in shown


@pytest.mark.parametrize("kind", ["classifying", "documents", "filling"])
def test_other_tasks(kind, tmp_path_factory):
    run = small_runs.trained(getattr(small_runs, kind), tmp_path_factory)
    verb = {"classifying": "classify", "documents": "generate", "filling": "fill"}[kind]
    assert f"run.{verb}([" in str(run)
    assert " on held-out text" in str(run)


def test_a_damaged_file_is_said_and_does_not_stop_it(run, tmp_path):
    path = shutil.copytree(run.folder.path, tmp_path / "run", symlinks=True)
    run = ch.load(path, device="cpu")
    (path / "evaluation.json").write_text(json.dumps({"scores": {}}), encoding="utf-8")
    said = str(run)
    assert "evaluation.json" in said
    assert "score" not in said
    assert f"clearhead translate {path}" in said
    shutil.rmtree(path)
    assert "is not a run folder" in str(run)
