"""Imported encoder-decoders: what they write, and what it costs them, is what `transformers` gives."""

import pytest
import torch

import clearhead as ch
from clearhead.text.sources import Aligned
from tests.interop.saved_models import TRANSLATORS, Pair

SOURCES = ("the cat sat on the mat", "Der Hund, größer")
TARGETS = ("Der Hund", "die Katze: ein Haus am See.")


@pytest.fixture(scope="module", params=TRANSLATORS)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp(request.param.replace(" ", "-")))


@pytest.mark.slow
@torch.no_grad()
def test_greedy_translations_are_those_of_transformers(pair):
    for text in SOURCES:
        row = pair.exact.tokenizer.encode(text)
        [[mine]] = pair.exact.task.search(pair.exact.model, [row])
        made = pair.peer.generate(
            **pair.tokenizer(text, return_tensors="pt"), do_sample=False, num_beams=1, max_new_tokens=len(mine.tokens)
        )
        prefix = pair.exact.task.frame("target").before
        theirs = made[0].tolist()
        assert theirs[: len(prefix)] == list(prefix)
        theirs = theirs[len(prefix) :]
        assert list(mine.tokens)[: len(theirs)] == theirs
        assert len(theirs) >= min(len(mine.tokens), 40) - 1
        [said] = pair.exact.translate([text], beam=1)
        assert said == pair.tokenizer.decode(mine.tokens, skip_special_tokens=True)


@torch.no_grad()
@pytest.mark.slow
def test_the_loss_of_a_translation_is_that_of_transformers(pair, tmp_path):
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = Aligned(source=(str(tmp_path / "source"),), target=(str(tmp_path / "target"),))
    found = pair.exact.evaluate(files, beam=1)
    forced = pair.peer.generation_config.forced_bos_token_id is not None
    nats = places = 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        labels = pair.tokenizer(target)["input_ids"]
        ids = torch.tensor([[pair.peer.config.decoder_start_token_id, *labels[:-1]]])
        logits = pair.peer(**pair.tokenizer(source, return_tensors="pt"), decoder_input_ids=ids).logits[0]
        first = 1 if forced else 0  # a token that every output begins with is not asked for
        nats += torch.nn.functional.cross_entropy(logits[first:], torch.tensor(labels[first:]), reduction="sum").item()
        places += len(labels) - first
    assert found["tokens"] == places
    assert found["loss"] == pytest.approx(nats / places, rel=1e-5)


@torch.no_grad()
def test_a_trace_has_the_weights_of_transformers(pair):
    traced = ch.trace(pair.run, SOURCES[0], TARGETS[0])
    source = pair.tokenizer(SOURCES[0])["input_ids"]
    assert traced.sides["encoder"].ids == source
    ids = traced.sides["decoder"].ids
    labels = pair.tokenizer(TARGETS[0])["input_ids"]
    assert ids == [pair.peer.config.decoder_start_token_id, *labels[:-1]]
    eager = type(pair.peer)(pair.peer.config)
    eager.load_state_dict(pair.peer.state_dict())
    eager.set_attn_implementation("eager")
    theirs = eager.double().eval()(
        input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids]), output_attentions=True
    )
    for layer, weights in enumerate(theirs.cross_attentions):
        for head in range(weights.shape[1]):
            mine = traced.decoder[layer].cross.head[head].weight
            assert torch.allclose(mine.double(), weights[0, head], atol=1e-5), (layer, head)


@pytest.mark.slow
def test_its_own_output_is_traced_and_beams_are_searched(pair):
    traced = ch.trace(pair.run, SOURCES[0])
    assert len(traced.sides["decoder"].ids) > 1
    assert pair.run.translate(SOURCES[:1], beam=2)
    [answer] = pair.run.answer(SOURCES[:1])
    assert set(answer) == {"output", "score", "log_prob"}
