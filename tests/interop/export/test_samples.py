"""Texts that exports are checked on, and special tokens as other programs have them."""

import json

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

import clearhead as ch
from clearhead import presets
from clearhead.errors import OptionError
from clearhead.interop.export.ctranslate2 import decoding_options
from clearhead.interop.export.ctranslate2_peer import open_with
from clearhead.interop.export.gguf import special_metadata
from clearhead.interop.export.huggingface import framed_tokenizer, token_ids, tokenizer_config
from clearhead.interop.export.onnx import notes
from clearhead.interop.export.samples import decoding_of, draw_samples, save_tokenizers, special_tokens, token_names
from clearhead.interop.gguf_file import tokenizer_metadata
from clearhead.text.tokenizer import SpecialIds, Tokenizer
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import Framing, Generate
from tests.interop.export.random_runs import CONTEXT, TOKENIZER, draw_spec, run_of
from tests.interop.saved_models import save


def test_texts_are_those_of_the_run_where_it_has_any(documents, tmp_path):
    real, drawn = draw_samples(documents, 5), draw_samples(run_of(draw_spec("decoder", 0), tmp_path), 5)
    assert (real.drawn, drawn.drawn) == (False, True)
    assert len(real.decoder) == len(drawn.decoder) == 5
    assert all(1 <= len(row) <= CONTEXT for row in drawn.decoder)


def test_every_id_has_a_name():
    for kind in ("char", "bpe", "unigram"):
        tokenizer = Tokenizer.train(["ab ab abc", "b c d e f g h"] * 3, kind=kind)
        names = token_names(tokenizer)
        assert len(names) == len(set(names)) == tokenizer.vocabulary
        assert names[tokenizer.end] == "</s>"


def test_source_and_target_have_a_file_each_where_they_differ(tmp_path):
    run = run_of(draw_spec("encoder-decoder", 0), tmp_path)
    save_tokenizers(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    run.task.tokenizers["target"] = Tokenizer(TOKENIZER.to_json())
    save_tokenizers(run, tmp_path)
    assert {"source.tokenizer.json", "target.tokenizer.json"} < {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_an_imported_translator_starts_with_its_own_token_in_every_export(tmp_path):
    """Marian starts from its padding token."""
    save("marian", tmp_path / "theirs")
    run = ch.import_model(tmp_path / "theirs", tmp_path / "run")
    special = special_tokens(run)
    assert run.tokenizer.start != special.start
    assert special.start == special.pad == run.task.frame("target").before[0]
    assert special.source_end == special.end == run.tokenizer.end
    ch.export(run, to="hf", path=tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["decoder_start_token_id"] == special.start
    ch.export(run, to="ctranslate2", path=tmp_path / "ctranslate2")
    told = json.loads((tmp_path / "ctranslate2" / "config.json").read_text())
    assert told["decoder_start_token"] == token_names(run.tokenizer)[special.start]


def imported_run(folder, *, around="$A", added=(), **framing):
    """A decoder as it is imported: `!` is id 0 as in GPT-2, no token is for padding, and `around` frames a text."""
    made = Library(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(
        ["wow!! great! the cat"],
        trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    made.add_special_tokens(["<a>", "<b>", "<c>", "<d>"])
    made.add_tokens(list(added))
    ids = [(name, made.token_to_id(name)) for name in ("<a>", "<b>")]
    made.post_processor = processors.TemplateProcessing(single=around, pair=f"{around} $B", special_tokens=ids)
    count = made.get_vocab_size()
    tokenizer = Tokenizer(made.to_str(), special=SpecialIds(vocabulary=count, start=ids[0][1], end=ids[1][1]))
    task = Generate(tokenizers={"text": tokenizer}, context=20, framing={"text": Framing(**framing)})
    return Run(RunFolder(folder), task, presets.llama("tiny", vocabulary=count).build().eval(), 0)


def test_a_token_that_pads_only_here_is_not_named_elsewhere(tmp_path):
    """Were `!` a special token there, texts would lose it."""
    run = imported_run(tmp_path)
    assert run.tokenizer.pad == 0
    assert run.tokenizer.token(0) == "!"
    assert special_tokens(run).pad is None
    assert "pad_token" not in tokenizer_config(run)
    assert token_ids(run)["pad_token_id"] is None
    assert "tokenizer.ggml.padding_token_id" not in special_metadata(run)


@pytest.mark.parametrize("around", ["$A", "<a> $A", "$A <b>", "<a> <b> $A <a>"])
@pytest.mark.parametrize("before", [0, 1])
def test_texts_are_framed_as_the_run_frames_them(around, before, tmp_path):
    run = imported_run(tmp_path, around=around)
    first = run.tokenizer.start
    run = imported_run(tmp_path, around=around, before=(first,) * before)
    made = Library.from_str(framed_tokenizer(run))
    ids = run.tokenizer.encode("the cat!")
    assert made.encode("the cat!").ids == [*(first,) * before, *ids]
    if around == "<a> $A" and before:  # what it does by itself is kept, and so is what it does with two texts
        assert made.encode("the", "cat").ids[0] == first


@pytest.mark.parametrize(
    ("framing", "message"),
    [
        ({"before": (257, 258)}, "a text begins with 2 special tokens here, and in llama.cpp with one"),
        ({"never": (3, 4)}, "2 tokens are never to be written, and GGUF has no key"),
        ({"ends": (1, 2, 3, 4)}, "4 tokens end a text, and GGUF has keys for 3"),
    ],
)
def test_what_gguf_has_no_key_for_is_refused(framing, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        special_metadata(imported_run(tmp_path, **framing))


def test_every_end_goes_to_gguf(tmp_path):
    said = special_metadata(imported_run(tmp_path, ends=(5, 6)))
    assert [said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")] == [5, 6, None]


def test_an_added_token_that_takes_spaces_is_refused_by_gguf(tmp_path):
    run = imported_run(tmp_path, added=[AddedToken("tool", lstrip=True)])
    with pytest.raises(OptionError, match=r"the added token 'tool' with lstrip: llama\.cpp cuts texts without that"):
        tokenizer_metadata(json.loads(run.tokenizer.to_json()), token_names(run.tokenizer))


@pytest.mark.slow
def test_an_export_says_how_the_run_writes(tmp_path):
    """Marian would write its padding token all the time, were it allowed to; the check decodes by the same rules."""
    save("marian", tmp_path / "theirs")
    run = ch.import_model(tmp_path / "theirs", tmp_path / "run")
    [pad] = decoding_of(run).never
    name, text = run.tokenizer.token(pad), "the cat sat on the mat"
    made = ch.export(run, to="ctranslate2", path=tmp_path / "ct2")
    assert made.figures.same == made.figures.outputs > 0
    options = json.loads((tmp_path / "ct2" / "clearhead.json").read_text())
    assert options == {"suppress_sequences": [[name]]}
    words = [run.tokenizer.token(one) for one in run.tokenizer.encode(text)]
    [found] = open_with("Translator", tmp_path / "ct2", "float32").translate_batch(
        [words], beam_size=1, max_decoding_length=10, **options
    )
    ids = {token: place for place, token in enumerate(token_names(run.tokenizer))}
    theirs = run.tokenizer.decode([ids[one] for one in found.hypotheses[0]])
    assert run.translate([text], beam=1)[0].startswith(theirs)
    assert theirs
    said = notes(run)
    assert (said["before"], said["never"], said["ends"]) == ([pad], [pad], [run.tokenizer.end])


def test_a_run_that_writes_as_usual_needs_no_options(tmp_path):
    assert decoding_options(run_of(draw_spec("encoder-decoder", 0), tmp_path)) == {}
    assert decoding_options(run_of(draw_spec("encoder", 0), tmp_path)) == {}
    run = imported_run(tmp_path, ends=(1, 2), never=(3,))
    assert decoding_options(run) == {"end_token": ['"', "#"], "suppress_sequences": [["$"]]}
    assert decoding_of(run) == ((), (1, 2), (3,))


@pytest.mark.slow
@pytest.mark.parametrize("pad", [None, "<unk>"])
def test_positions_begin_where_the_model_begins_them_whatever_the_tokenizer_pads_with(pad, tmp_path):
    save("roberta", tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": pad}))
    run = ch.import_model(tmp_path / "theirs", tmp_path / "run")
    assert special_tokens(run).pad == (None if pad is None else run.tokenizer.unknown)
    ch.export(run, to="hf", path=tmp_path / "hf")
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "hf"))
    assert after["pad_token_id"] == before["pad_token_id"] == 1
