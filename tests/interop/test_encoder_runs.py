"""Imported encoders: what they fill, classify and embed is what `transformers` gives."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.interop.run import import_model
from clearhead.text.sources import Table
from clearhead.training.tasks.texts import Framing
from tests.interop import saved_models
from tests.interop.saved_models import CLASSIFIERS, EMBEDDERS, FILLERS, LABELS, Pair, draw_texts
from tests.rounding import ROUNDING, assert_equal_but_rounding

BLANKS = ("the cat <mask> on the mat", "<mask>", "Der <mask>, die <mask>: ein Haus", "a window in the <mask>.")
TEXTS = ("the cat sat on the mat", "größer 😀 dog", "the window in the rain opens", "a")


def pairs_of(names):
    @pytest.fixture(scope="module", params=names)
    def pair(request, tmp_path_factory):
        return Pair(request.param, tmp_path_factory.mktemp(request.param))

    return pair


filler, classifier, embedder = (pairs_of(names) for names in (FILLERS, CLASSIFIERS, EMBEDDERS))


def read_by_peer(pair, texts):
    """What `transformers` reads of texts, padded together."""
    return pair.tokenizer(list(texts), padding=True, return_tensors="pt")


@torch.no_grad()
def test_blanks_are_filled_as_by_transformers(filler):
    mask, special = filler.tokenizer.mask_token, filler.tokenizer.all_special_ids
    for text in BLANKS:
        written = text.replace("<mask>", mask)
        ids = filler.tokenizer(written)["input_ids"]
        [found] = filler.exact.fill([text], shown=3)
        shares = filler.peer(torch.tensor([ids])).logits[0].softmax(-1)
        shares[:, special] = 0
        best = torch.topk(
            shares[[place for place, token in enumerate(ids) if token == filler.tokenizer.mask_token_id]], 3
        )
        mine = [[share for _, share in blank] for blank in found.blanks]
        assert torch.allclose(torch.tensor(mine, dtype=torch.float64), best.values, atol=1e-6)
        pieces = [filler.exact.tokenizer.pieces(row) for row in best.indices.tolist()]
        assert [[piece for piece, _ in blank] for blank in found.blanks] == pieces
        assert filler.exact.fill([written], shown=3) == [found]
        assert mask not in found.text


def test_a_text_with_its_own_mask_token_is_a_text_with_a_blank(filler):
    mask = filler.tokenizer.mask_token
    ours, theirs = filler.run.answer(["the cat <mask>", f"the cat {mask}"])
    assert ours["output"] == theirs["output"]
    assert ours["score"] == pytest.approx(theirs["score"], abs=ROUNDING[torch.float32])
    (mine,), (other,) = ours["blanks"], theirs["blanks"]
    assert [one["piece"] for one in mine] == [one["piece"] for one in other]
    assert (
        ch.trace(filler.run, f"the cat {mask}").sides["encoder"].ids
        == ch.trace(filler.run, "the cat <mask>").sides["encoder"].ids
    )


@torch.no_grad()
def test_classes_are_those_of_transformers(classifier):
    found = classifier.exact.classify(TEXTS)
    for text, one in zip(TEXTS, found, strict=True):
        shares = classifier.peer(**classifier.tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        assert one.label == LABELS[int(shares.argmax())]
        assert list(one.probabilities) == list(LABELS.values())
        assert list(one.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-6)


def test_classes_are_evaluated(classifier, tmp_path):
    found = classifier.run.classify(TEXTS)
    file = tmp_path / "test.tsv"
    file.write_text("".join(f"{one.label}\t{text}\n" for one, text in zip(found, TEXTS, strict=True)))
    source = Table(paths=(str(file),), fields=("label", "text"), columns=("1", "2"))
    scores = classifier.run.evaluate(source)
    assert scores["accuracy"] == 1
    nats = -sum(math.log(one.probability) for one in found) / len(found)
    assert scores["loss"] == pytest.approx(nats, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@torch.no_grad()
def test_vectors_are_those_of_transformers(embedder, pooling):
    texts = [*TEXTS, *draw_texts(3, 20)]
    read = read_by_peer(embedder, texts)
    states = embedder.peer(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).last_hidden_state
    inside = read["attention_mask"].unsqueeze(-1)
    theirs = states[:, 0] if pooling == "first" else (states * inside).sum(1) / inside.sum(1)
    assert torch.allclose(embedder.run.embed(texts, pooling=pooling).double(), theirs, atol=1e-5)
    unit = embedder.run.embed(texts, pooling=pooling, normalize=True).double()
    assert torch.allclose(unit, torch.nn.functional.normalize(theirs, dim=-1), atol=1e-5)


def test_any_encoder_embeds(filler, classifier):
    for pair in (filler, classifier):
        vectors = pair.run.embed(TEXTS)
        assert vectors.shape == (len(TEXTS), 24)
        assert pair.run.embed([]).shape == (0, 24)
        alone = torch.cat([pair.run.embed([text]) for text in TEXTS])
        assert torch.allclose(vectors, alone, atol=1e-6)


def test_a_run_that_embeds_answers_is_traced_and_is_not_scored(embedder, tmp_path):
    [answer] = embedder.run.answer([TEXTS[0]])
    assert answer["vector"] == embedder.run.embed([TEXTS[0]])[0].tolist()
    assert answer["output"].endswith("…")
    made = ch.trace(embedder.run, TEXTS[0])
    ids = embedder.tokenizer(TEXTS[0])["input_ids"]
    assert made.sides["encoder"].ids == ids
    assert made.candidates == []
    (tmp_path / "t").write_text("x")
    with pytest.raises(OptionError, match="a run that embeds is not scored"):
        embedder.run.evaluate(Table(paths=(str(tmp_path / "t"),), fields=("text",), columns=("1",), form="tsv"))


@torch.no_grad()
def test_a_trace_has_the_weights_of_transformers(filler):
    text = BLANKS[0]
    traced = ch.trace(filler.run, text)
    ids = filler.tokenizer(text.replace("<mask>", filler.tokenizer.mask_token))["input_ids"]
    assert traced.sides["encoder"].ids == ids
    assert traced.sides["encoder"].tokens[0] == filler.tokenizer.convert_ids_to_tokens(ids[0])
    assert traced.sides["encoder"].tokens.count("<mask>") == 1
    eager = type(filler.peer)(filler.peer.config)
    eager.load_state_dict(filler.peer.state_dict())
    eager.set_attn_implementation("eager")
    theirs = eager.double().eval()(torch.tensor([ids]), output_attentions=True)
    for layer, weights in enumerate(theirs.attentions):
        for head in range(weights.shape[1]):
            mine = traced.encoder[layer].attention.head[head].weight
            assert torch.allclose(mine.double(), weights[0, head], atol=1e-5), (layer, head)


def test_blanks_of_a_file_are_scored(filler, tmp_path):
    from clearhead.text.sources import Documents

    (tmp_path / "t.txt").write_text("\n".join(saved_models.TEXTS[:3]), encoding="utf-8")
    found = filler.run.evaluate(Documents(paths=(str(tmp_path / "t.txt"),), unit="line"))
    assert found["blanks"] > 0
    assert math.isfinite(found["loss"])


def test_a_text_past_the_context_is_cut_with_what_is_around_it(embedder):
    text = "the cat sat on the mat " * 30
    [vector] = embedder.exact.embed([text])
    ids = embedder.tokenizer(text)["input_ids"]
    kept = [*ids[: embedder.exact.task.context - 1], ids[-1]]
    with torch.no_grad():
        theirs = embedder.peer(torch.tensor([kept])).last_hidden_state[0].mean(0)
    assert torch.allclose(vector.double(), theirs, atol=1e-6)


def test_labels_that_are_no_names_are_refused(tmp_path):
    saved_models.save("classifier", tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "id2label": {"0": "a", "1": "a", "2": "b"}}))
    with pytest.raises(OptionError, match="id2label: two classes have one name"):
        import_model(tmp_path / "source", tmp_path / "run")


PAIRS = [("the cat sat on", "Der Hund, größer"), ("a", "the window"), ("plums " * 40, "the"), ("the", "mat " * 40)]
PAIRS += [(a, b) for a, b in itertools.pairwise(draw_texts(7, 12)) if a.strip() and b.strip()]


@torch.no_grad()
def test_pairs_are_classified_as_by_transformers(classifier):
    """Both segments; of texts that are too long, the longer one is cut."""
    how = {"truncation": True, "max_length": classifier.exact.task.context, "return_tensors": "pt"}
    for pair, one in zip(PAIRS, classifier.exact.classify(PAIRS), strict=True):
        read = classifier.tokenizer(*pair, **how)
        assert read["token_type_ids"].max() == 1
        made = classifier.exact.task.frame_items(classifier.exact.model, [pair])
        assert made.rows == read["input_ids"].tolist()
        assert made.segments == read["token_type_ids"].tolist()
        shares = classifier.peer(**read).logits[0].softmax(-1)
        assert list(one.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedder", "distilbert", "roberta"])
@torch.no_grad()
def test_pairs_are_embedded_as_by_transformers(name, tmp_path):
    """RoBERTa has two tokens between; DistilBERT has no segments."""
    pair = Pair(name, tmp_path)
    body = getattr(pair.peer, "roberta", pair.peer)
    vectors = pair.exact.embed(PAIRS)
    for texts, vector in zip(PAIRS, vectors, strict=True):
        read = pair.tokenizer(*texts, truncation=True, max_length=pair.exact.task.context, return_tensors="pt")
        known = {key: value for key, value in read.items() if name != "distilbert" or key != "token_type_ids"}
        assert_equal_but_rounding(vector, body(**known).last_hidden_state[0].mean(0).float())


def test_pairs_where_there_are_none_to_read(classifier):
    with pytest.raises(OptionError, match="some of the texts are pairs and some are not"):
        classifier.run.classify(["the cat", ("the", "cat")])
    with pytest.raises(OptionError, match="some of the texts are pairs and some are not"):
        classifier.run.embed(["the cat", ("the", "cat")])
    task = replace(classifier.run.task, framing={"text": Framing(before=(2,), after=(3,))})
    with pytest.raises(OptionError, match="the model reads no pairs of texts"):
        task.classify(classifier.run.model, [("the", "cat")])
