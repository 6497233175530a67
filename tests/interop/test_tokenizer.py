"""The tokenizer of an imported model gives the ids, and the text, that `transformers` gives."""

import json

import pytest
from tokenizers import normalizers

from clearhead.errors import DataError, OptionError
from clearhead.interop.tokenizer import read_tokenizer
from tests.interop.saved_models import TOKENIZERS, draw_texts, llama_tokenizer, unigram_tokenizer
from tests.peers import late

[AutoTokenizer] = late("transformers", "AutoTokenizer")


@pytest.fixture(scope="module", params=TOKENIZERS)
def pair(request, tmp_path_factory):
    """A tokenizer of `transformers`, as it loads it again, and ours of the same folder."""
    home = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    saved = TOKENIZERS[request.param]()
    saved.save_pretrained(home)
    theirs = AutoTokenizer.from_pretrained(home)
    return theirs, read_tokenizer(home, len(theirs) + 3, start=None, end=None)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_ids_and_text_are_those_of_transformers(pair, seed):
    theirs, mine = pair
    special = [token for token in theirs.all_special_tokens if token]
    for text in draw_texts(seed, 300, special):
        ids = theirs(text)["input_ids"]
        assert [*mine.before, *mine.tokenizer.encode(text), *mine.after] == ids, text
        spoken = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert mine.tokenizer.decode(ids) == spoken, text


def test_texts_together_are_as_each_alone(pair):
    texts = list(draw_texts(5, 20))
    tokenizer = pair[1].tokenizer
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_special_ids_are_theirs_and_the_vocabulary_is_the_tables(pair):
    theirs, mine = pair
    ids = mine.tokenizer.imported
    assert ids.vocabulary == mine.tokenizer.vocabulary == len(theirs) + 3
    assert ids.pad == theirs.pad_token_id
    assert ids.mask == theirs.mask_token_id
    assert ids.start == (theirs.cls_token_id if theirs.bos_token_id is None else theirs.bos_token_id)
    assert ids.end == (theirs.sep_token_id if theirs.eos_token_id is None else theirs.eos_token_id)
    assert mine.tokenizer.special == set(theirs.all_special_ids)


def test_saved_and_loaded_it_is_the_same(pair, tmp_path):
    mine = pair[1].tokenizer
    mine.save(tmp_path / "tokenizer.json")
    again = type(mine).load(tmp_path / "tokenizer.json", special=mine.imported)
    assert again.fingerprint() == mine.fingerprint()
    for text in draw_texts(2, 30, ["<s>", "</s>"]):
        assert again.encode(text) == mine.encode(text)


def test_ids_that_no_token_has_are_left_out(pair):
    theirs, mine = pair
    assert mine.tokenizer.decode([len(theirs), len(theirs) + 1]) == theirs.decode([len(theirs), len(theirs) + 1]) == ""
    assert mine.tokenizer.pieces([len(theirs)]) == [f"<id:{len(theirs)}>"]


@pytest.fixture
def folder(tmp_path):
    unigram_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def change(folder, file, **changes):
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("around", [(True, True), (True, False), (False, False)])
def test_the_post_processor_says_what_is_around_a_text_whatever_the_settings_say(folder, around):
    change(folder, "tokenizer_config.json", add_bos_token=around[0], add_eos_token=around[1])
    theirs = AutoTokenizer.from_pretrained(folder)
    mine = read_tokenizer(folder, 200, start=None, end=None)
    assert [*mine.before, *mine.tokenizer.encode("the cat"), *mine.after] == theirs("the cat")["input_ids"]


def test_an_added_token_without_a_row_is_left_out(folder):
    saved = AutoTokenizer.from_pretrained(folder)
    rows = len(saved)
    saved.add_tokens(["<more>"], special_tokens=True)
    saved.save_pretrained(folder)
    tokenizer = read_tokenizer(folder, rows, start=None, end=None).tokenizer
    assert max(tokenizer.encode("the <more> cat")) < rows
    assert read_tokenizer(folder, rows + 1, start=None, end=None).tokenizer.encode("<more>") == [rows]


def test_special_tokens_that_only_the_settings_name_are_parsed(folder):
    change(folder, "tokenizer.json", added_tokens=[])
    theirs = AutoTokenizer.from_pretrained(folder)
    mine = read_tokenizer(folder, 200, start=None, end=None)
    assert mine.tokenizer.encode("the </s> cat") == theirs("the </s> cat", add_special_tokens=False)["input_ids"]


def test_chat_templates_are_read_from_either_place(tmp_path):
    saved = llama_tokenizer()
    saved.save_pretrained(tmp_path / "file")
    saved.save_pretrained(tmp_path / "settings")
    text = (tmp_path / "settings" / "chat_template.jinja").read_text()
    (tmp_path / "settings" / "chat_template.jinja").unlink()
    change(tmp_path / "settings", "tokenizer_config.json", chat_template=text)
    several = [{"name": "tools", "template": "-"}, {"name": "default", "template": text}]
    for home, found in ((tmp_path / "file", None), (tmp_path / "settings", text), (tmp_path / "settings", several)):
        if found is not None:
            change(home, "tokenizer_config.json", chat_template=found)
        chat = read_tokenizer(home, 500, start=None, end=None).chat
        assert chat.text == text
        assert chat.tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("file", "changes", "error", "message"),
    [
        ("tokenizer_config.json", {"bos_token": 3}, OptionError, "tokenizer_config.json: bos_token: expected a token"),
        ("tokenizer_config.json", {"split_special_tokens": True}, OptionError, "split_special_tokens: True is not"),
        ("tokenizer_config.json", {"chat_template": 5}, OptionError, "chat_template: expected a text; came 5"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {}}}, OptionError, "added_tokens_decoder: 9"),
        ("tokenizer.json", {"model": {"type": "GPT"}}, DataError, "tokenizer.json: JSON, but not a tokenizer.json"),
    ],
)
def test_what_cannot_be_used_is_named(folder, file, changes, error, message):
    change(folder, file, **changes)
    with pytest.raises(error, match=message):
        read_tokenizer(folder, 200, start=None, end=None)


def test_a_table_too_small_and_a_missing_file_are_named(folder):
    with pytest.raises(DataError, match=r"has the id \d+, and the model's table has only 20 rows"):
        read_tokenizer(folder, 20, start=None, end=None)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"has no tokenizer.json. Write one: transformers\.AutoTokenizer"):
        read_tokenizer(folder, 200, start=None, end=None)


def test_an_added_token_is_spoken_as_the_normaliser_writes_it(tmp_path):
    """`tool` is added to a tokenizer that puts ▁ before every text: it is read, and spoken, as ▁tool."""
    saved = unigram_tokenizer()
    saved.backend_tokenizer.normalizer = normalizers.Prepend("▁")
    saved.add_tokens(["tool"])
    saved.save_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    mine = read_tokenizer(tmp_path, len(theirs), start=None, end=None).tokenizer
    ids = [mine.encode("the")[0], theirs.convert_tokens_to_ids("tool"), mine.encode("cat")[0]]
    assert mine.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
