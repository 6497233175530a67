"""Tasks: what each reads of a store, against the same written plainly; and that no document sees another."""

import random as plain_random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from clearhead.attention import positions
from clearhead.attention.heads import Heads
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec
from clearhead.model.outputs import Blanks, Classes
from clearhead.model.presets import Size
from clearhead.text.batches import ByLength, Rows, Windows
from clearhead.text.store import StoreWriter
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.losses import NOTHING
from clearhead.training.tasks import TASKS, Classify, Fill, Generate, Translate
from clearhead.training.tasks.generate import restarting

SIZE = Size(2, 16, 2, 2, 24)
ONE = Tokenizer.train(["abc"], "byte")
TWO = Tokenizer.train(["eine andere Seite"], "char")
TEXT_IDS = range(5, 14)
"""Ids of text, for both tokenizers: the special ones are 0 to 4."""
CONTEXT = 12
RECORDS = st.lists(
    st.tuples(*(st.lists(st.sampled_from(TEXT_IDS), min_size=1, max_size=10) for _ in range(2))), min_size=1, max_size=9
)
LISTS = st.lists(st.lists(st.sampled_from(TEXT_IDS), min_size=1, max_size=9), min_size=1, max_size=9)

TRANSLATE = Translate(tokenizers={"source": ONE, "target": TWO}, context=CONTEXT)
GENERATE = Generate(tokenizers={"text": ONE}, context=CONTEXT)
FILL = Fill(tokenizers={"text": ONE}, context=CONTEXT)
CLASSIFY = Classify(tokenizers={"text": ONE}, context=CONTEXT, labels=("a", "b", "c"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks") / "store"


def stored(folder, records, *names):
    with StoreWriter(folder, dict.fromkeys(names, 300)) as writer:
        for record in records:
            writer.add(dict(zip(names, record, strict=True)), {})
        return writer.close({})


def batches(task, store, *, filled=False, tokens=40):
    """Every batch of an epoch, with its rows."""
    for rows in task.planner(store, tokens, seed=3).epoch(0):
        yield rows, task.read(store, rows, np.random.default_rng(5), filled=filled)


def in_width(row, width, filler):
    return row + [filler] * (width - len(row))


@given(records=RECORDS)
def test_translate_reads_pairs(folder, records):
    store = stored(folder, records, "source", "target")
    for rows, batch in batches(TRANSLATE, store):
        pairs = [records[i] for i in rows.which]
        widths = [max(len(pair[side]) for pair in pairs) + 1 for side in (0, 1)]
        assert batch["source"].tolist() == [in_width([*source, ONE.end], widths[0], ONE.pad) for source, _ in pairs]
        assert batch["source_lengths"].tolist() == [len(source) + 1 for source, _ in pairs]
        assert batch["wanted"].tolist() == [in_width([*target, TWO.end], widths[1], NOTHING) for _, target in pairs]
        shifted = [[TWO.start, *target, TWO.end, *[TWO.pad] * 9][: widths[1]] for _, target in pairs]
        assert batch["tokens"].tolist() == shifted


def documents_of(tokens):
    """Number and place of each token, slowly: an end token opens the next document."""
    number, place, found = 0, 0, []
    for i, token in enumerate(tokens):
        if token == ONE.end:
            number, place = number + 1, 0
        elif i:
            place += 1
        found.append((number, place))
    return found


@given(documents=LISTS.filter(lambda documents: len(documents) > 1))
def test_generate_reads_stretches_of_documents(folder, documents):
    store = stored(folder, [([*document, ONE.end],) for document in documents], "text")
    stream = [token for document in documents for token in (*document, ONE.end)]
    for rows, batch in batches(GENERATE, store):
        for i, start in enumerate(rows.which):
            tokens = batch["tokens"][i].tolist()
            assert tokens == stream[start : start + rows.width]
            assert batch["wanted"][i].tolist() == stream[start + 1 : start + rows.width + 1]
            told = zip(batch["documents"][i].tolist(), restarting(batch["documents"])[i].tolist(), strict=True)
            assert list(told) == documents_of(tokens)


def test_one_document_is_not_told_apart(folder):
    store = stored(folder, [([7] * 30,)], "text")
    assert all(batch.keys() == {"tokens", "wanted"} for _, batch in batches(GENERATE, store))


@given(texts=LISTS, seed=st.integers(0, 99))
def test_fill_asks_for_text_and_nothing_else(folder, texts, seed):
    store = stored(folder, [(text,) for text in texts], "text")
    for rows in FILL.planner(store, 40, seed=3).epoch(0):
        batch = FILL.read(store, rows, np.random.default_rng(seed), filled=False)
        whole = [[ONE.start, *texts[i], ONE.end] for i in rows.which]
        width = max(map(len, whole))
        assert batch["lengths"].tolist() == list(map(len, whole))
        for tokens, wanted, row in zip(batch["tokens"].tolist(), batch["wanted"].tolist(), whole, strict=True):
            asked = [place for place, token in enumerate(wanted) if token != NOTHING]
            assert asked
            assert set(asked) <= set(range(1, len(row) - 1)), "never a start, an end or padding"
            assert [wanted[place] for place in asked] == [row[place] for place in asked]
            padded = in_width(row, width, ONE.pad)
            assert [token for place, token in enumerate(tokens) if place not in asked] == [
                token for place, token in enumerate(padded) if place not in asked
            ]


def test_fill_asks_for_three_in_twenty_and_shows_most_as_blanks(folder):
    n = 20_000
    store = stored(folder, [(np.random.default_rng(0).integers(5, 261, n).tolist(),)], "text")
    rows = Rows(np.array([0]), n + 2, 1)
    batch = FILL.read(store, rows, np.random.default_rng(1), filled=False)
    asked = batch["wanted"][0] != NOTHING
    shown, wanted = batch["tokens"][0][asked], batch["wanted"][0][asked]
    assert asked.double().mean().item() == pytest.approx(0.15, abs=0.01)
    assert (shown == ONE.mask).double().mean().item() == pytest.approx(0.8, abs=0.03)
    assert (shown == wanted).double().mean().item() == pytest.approx(0.1, abs=0.03)


@given(texts=LISTS)
def test_classify_reads_a_start_and_the_text(folder, texts):
    store = stored(folder, [(text, [i % 3]) for i, text in enumerate(texts)], "text", "label")
    for rows, batch in batches(CLASSIFY, store):
        whole = [[ONE.start, *texts[i]] for i in rows.which]
        assert batch["tokens"].tolist() == [in_width(row, max(map(len, whole)), ONE.pad) for row in whole]
        assert batch["lengths"].tolist() == list(map(len, whole))
        assert batch["wanted"].tolist() == [i % 3 for i in rows.which]


def decoder(position, context=CONTEXT):
    """A small decoder with positions added to the embeddings, or in attention."""
    if isinstance(position, positions.Learned | positions.Sinusoidal):
        spec = presets.gpt2(SIZE, length=context, dropout=0.0)
        return replace(spec, embedding=replace(spec.embedding, position=position))
    return presets.llama(SIZE, attention=AttentionSpec(heads=Heads(2), position=position))


def model_of(task, spec):
    torch.manual_seed(1)
    return task.fitted(spec).build().double().eval()


POSITIONS = [
    positions.Learned(CONTEXT),
    positions.Sinusoidal(),
    positions.Rotary(),
    positions.ALiBi(),
    positions.T5Bias(),
]


@pytest.mark.parametrize("position", POSITIONS, ids=lambda one: type(one).__name__)
@pytest.mark.slow
def test_a_document_among_others_is_as_it_is_alone(folder, position):
    """A row that packs several documents gives each token the logits it has in its document alone."""
    draw = plain_random.Random(0)
    documents = [[draw.choice(TEXT_IDS) for _ in range(draw.randint(1, 6))] for _ in range(40)]
    store = stored(folder, [([*document, ONE.end],) for document in documents], "text")
    model = model_of(GENERATE, decoder(position))
    several = 0
    for _, batch in batches(GENERATE, store):
        packed = GENERATE.logits(model, batch)
        for i, tokens in enumerate(batch["tokens"]):
            for number in batch["documents"][i].unique():
                inside = batch["documents"][i] == number
                alone = model(tokens[inside].unsqueeze(0))[0]
                torch.testing.assert_close(packed[i][inside], alone, rtol=0, atol=1e-9)
            several += len(batch["documents"][i].unique()) > 1
    assert several > 5


def test_a_document_would_see_others_if_it_were_let(folder):
    """The check above can fail: without the mask, the logits are others."""
    store = stored(folder, [([7, 8, ONE.end],), ([9, 9, 9, 9, ONE.end],)], "text")
    model = model_of(GENERATE, decoder(positions.Rotary()))
    [(_, batch)] = batches(GENERATE, store)
    unmasked = GENERATE.logits(model, {name: batch[name] for name in ("tokens", "wanted")})
    assert (GENERATE.logits(model, batch) - unmasked).abs().max() > 1e-3


def encoder(output):
    return presets.bert(SIZE, length=CONTEXT, output=output, dropout=0.0)


CASES = {
    "translate": (TRANSLATE, presets.classic(64, size=SIZE, dropout=0.0), ("source", "target")),
    "generate": (GENERATE, decoder(positions.Learned(CONTEXT)), ("text",)),
    "fill": (FILL, encoder(Blanks()), ("text",)),
    "classify": (CLASSIFY, encoder(Classes(2, pool="mean")), ("text", "label")),
}


def some_records(name, n=31):
    draw = plain_random.Random(2)
    texts = [[draw.choice(TEXT_IDS) for _ in range(draw.randint(1, CONTEXT - 2))] for _ in range(2 * n)]
    if name == "translate":
        return list(zip(texts[:n], texts[n:], strict=True))
    if name == "classify":
        return [(text, [i % 3]) for i, text in enumerate(texts[:n])]
    return [([*text, ONE.end] if name == "generate" else text,) for text in texts[:n]]


@pytest.mark.parametrize("name", CASES)
def test_a_filled_batch_has_the_same_loss(folder, name):
    """Every batch of a width has one shape, no wider than the context, and what was added asks for nothing."""
    task, spec, fields = CASES[name]
    store = stored(folder, some_records(name), *fields)
    model = model_of(task, spec)
    shapes = {}
    for (rows, bare), (_, full) in zip(batches(task, store), batches(task, store, filled=True), strict=True):
        shapes.setdefault(rows.width, set()).add(tuple(full["tokens"].shape))
        assert full["tokens"].shape == (rows.full, rows.width)
        assert rows.width <= CONTEXT
        places = [int((batch["wanted"] != NOTHING).sum()) for batch in (bare, full)]
        assert places[0] == places[1] > 0
        losses = [
            cross_entropy(
                task.logits(model, batch).flatten(0, -2),
                batch["wanted"].flatten(),
                ignore_index=NOTHING,
                reduction="sum",
            )
            for batch in (bare, full)
        ]
        torch.testing.assert_close(*losses, rtol=1e-10, atol=0)
    assert all(len(found) == 1 for found in shapes.values())


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_give_the_same_batch(folder, name):
    task, _, fields = CASES[name]
    store = stored(folder, some_records(name), *fields)
    for (_, one), (_, two) in zip(batches(task, store), batches(task, store), strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", ["translate", "fill"])
@pytest.mark.parametrize("filled", [False, True])
def test_a_row_that_is_too_long_is_cut_and_ends(folder, name, filled):
    task, _, fields = CASES[name]
    store = stored(folder, [tuple([7] * 30 for _ in fields)], *fields)
    [(rows, batch)] = batches(task, store, filled=filled)
    assert rows.width == CONTEXT
    assert batch["tokens"].shape[1] == CONTEXT
    ended = batch["wanted"][0, -1] if name == "translate" else batch["tokens"][0, -1]
    assert ended == ONE.end


def test_layouts_leave_room_for_what_is_added():
    assert {name: task.layout(64).most for name, task in TASKS.items()} == {
        "translate": 63,
        "generate": 64,
        "fill": 62,
        "classify": 63,
        "classify-pairs": 64,
        "label": 63,
        "tag": 63,
    }
    with pytest.raises(OptionError, match="raise --context"):
        Fill.layout(2)


def test_planners_are_by_length_or_windows(folder):
    store = stored(folder, [([7] * 30,)], "text")
    assert GENERATE.planner(store, 40, 1) == Windows(n_tokens=30, width=CONTEXT, rows=3, seed=1)
    assert replace(GENERATE, context=64).planner(store, 40, 1) == Windows(n_tokens=30, width=29, rows=1, seed=1)
    assert isinstance(FILL.planner(store, 40, 1), ByLength)
    with pytest.raises(OptionError, match="do not fit into 1"):
        GENERATE.planner(stored(folder, [([7],)], "text"), 40, 1)


def test_a_spec_is_fitted_to_the_tokenisers():
    spec = TRANSLATE.fitted(presets.classic(64, size=SIZE))
    assert (spec.encoder.vocabulary, spec.decoder.vocabulary, spec.tied) == (ONE.vocabulary, TWO.vocabulary, "two")
    shared = Translate(tokenizers={"source": ONE, "target": ONE}, context=CONTEXT)
    assert shared.fitted(presets.classic(64, size=SIZE)).tied == "three"
    assert shared.fitted(presets.classic(64, size=SIZE, tied="none")).tied == "none"
    assert GENERATE.fitted(presets.gpt2(SIZE)).vocabulary == ONE.vocabulary
    assert FILL.fitted(encoder(Blanks())).vocabulary == ONE.vocabulary
    assert CLASSIFY.fitted(encoder(Classes(7, pool="last"))).output == Classes(3, pool="last")


@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("translate", presets.gpt2(SIZE), "to translate takes an encoder-decoder; the model is a Decoder"),
        ("generate", encoder(Blanks()), "to generate takes a decoder; the model is a Encoder"),
        ("fill", presets.gpt2(SIZE), "to fill blanks takes an encoder; the model is a Decoder"),
        ("classify", encoder(Blanks()), "to classify takes an encoder with Classes for output"),
    ],
)
def test_a_model_of_another_kind_is_refused(name, spec, told):
    with pytest.raises(OptionError, match=told):
        CASES[name][0].fitted(spec)


@given(ends=st.lists(st.booleans(), min_size=1, max_size=20))
@settings(max_examples=20)
def test_positions_begin_again_with_each_document(ends):
    tokens = [ONE.end if end else 7 for end in ends]
    documents = torch.tensor([[number for number, _ in documents_of(tokens)]])
    assert restarting(documents).tolist() == [[place for _, place in documents_of(tokens)]]
