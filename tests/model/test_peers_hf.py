"""Whole models are Hugging Face's, on the same weights: logits, inner vectors, and the gradient of every weight.

GPT-2, BERT and Llama, made from a configuration, in float32 to 1e-5 and in float64 to 1e-10. Llama takes its norms, its
angles and (eager) its softmax in float32 whatever it is given, so it is compared in float32 alone.
"""

from dataclasses import replace

import pytest
import torch

from clearhead import masks
from clearhead.model import presets
from clearhead.model.feedforward import SwiGLU
from clearhead.model.outputs import Blanks, Classes, NextToken
from clearhead.model.presets import Size
from tests.model.copying import agree, asked, attention, built, copy, draw, dtypes, own, randomised, seen, under
from tests.peers import transformers
from tests.rounding import assert_equal_but_rounding

VOCABULARY, LENGTH = 29, 17
pytestmark = pytest.mark.slow

implementations = pytest.mark.parametrize("implementation", ["eager", "sdpa"])
sizes = pytest.mark.parametrize(
    ("size", "lengths"),
    [(Size(2, 24, 3, 3, 40), (9, 5, 1)), (Size(1, 20, 4, 4, 33), (LENGTH, LENGTH)), (Size(3, 14, 1, 1, 7), (1,))],
    ids=["padded", "whole", "one token"],
)


# GPT-2. Its maps are Conv1D, which have their weights the other way round.


def gpt2(size, dtype, *, implementation="sdpa", tied=True):
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_layer=size.n_layers,
        n_embd=size.d_model,
        n_head=size.n_heads,
        n_inner=size.d_ff,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=tied,
        attn_implementation=implementation,
    )
    spec = replace(presets.gpt2(size, vocabulary=VOCABULARY, length=LENGTH), output=NextToken(tied=tied))
    return randomised(transformers.GPT2LMHeadModel(config), dtype), built(spec, dtype)


def turned(conv):
    return conv.weight.T, conv.bias


def gpt2_weights(peer):
    body = peer.transformer
    weights = {
        "embedding": own(body.wte),
        "embedding.position": own(body.wpe),
        "stack.norm": own(body.ln_f),
        "output": own(peer.lm_head),
    }
    for i, block in enumerate(body.h):
        weight, bias = turned(block.attn.c_attn)
        query, key, value = zip(weight.chunk(3), bias.chunk(3), strict=True)
        weights |= under(
            f"stack.blocks.{i}",
            attention("attention", query, key, value, turned(block.attn.c_proj))
            | {
                "around_attention.norm": own(block.ln_1),
                "feed_forward.up": turned(block.mlp.c_fc),
                "feed_forward.down": turned(block.mlp.c_proj),
                "around_feed_forward.norm": own(block.ln_2),
            },
        )
    return weights


@dtypes
@implementations
@sizes
@pytest.mark.pairs
def test_gpt2(size, lengths, implementation, dtype):
    peer, ours = gpt2(size, dtype, implementation=implementation)
    batch = draw(lengths, VOCABULARY)
    theirs = peer(**asked(batch)).logits[batch.real]
    agree(ours, peer, gpt2_weights(peer), lambda model: model(batch.tokens)[batch.real], theirs)


@dtypes
def test_gpt2_with_an_output_of_its_own(dtype):
    peer, ours = gpt2(Size(2, 24, 3, 3, 40), dtype, tied=False)
    batch = draw((9, 5, 1), VOCABULARY)
    theirs = peer(**asked(batch)).logits[batch.real]
    agree(ours, peer, gpt2_weights(peer), lambda model: model(batch.tokens)[batch.real], theirs)


@dtypes
def test_gpt2_on_documents_in_one_row_is_gpt2_on_each_alone(dtype):
    peer, ours = gpt2(Size(2, 24, 3, 3, 40), dtype)
    parts = [draw((n,), VOCABULARY).tokens for n in (5, 1, 7)]
    theirs = torch.cat([peer(part, use_cache=False).logits for part in parts], 1)
    places = torch.cat([torch.arange(part.shape[1]) for part in parts])
    ids = torch.cat([torch.full((part.shape[1],), i) for i, part in enumerate(parts)])

    def answer(model):
        return model(torch.cat(parts, 1), positions=places, mask=masks.document(ids, ids))

    agree(ours, peer, gpt2_weights(peer), answer, theirs)


@dtypes
def test_gpt2_vectors_between_the_blocks(dtype):
    peer, ours = gpt2(Size(3, 24, 3, 3, 40), dtype)
    copy(ours, gpt2_weights(peer))
    batch = draw((9, 5, 1), VOCABULARY)
    theirs = peer(**asked(batch), output_hidden_states=True).hidden_states
    values = seen(ours, lambda model: model(batch.tokens))
    # In place of what comes out of the last block the peer gives it after the last norm.
    names = ["embedding.out", "stack.blocks.0.out", "stack.blocks.1.out", "stack.normed"]
    for name, vectors in zip(names, theirs, strict=True):
        assert_equal_but_rounding(values[name][batch.real], vectors[batch.real], name)


# BERT, for one segment: the vector of segment 0 is added to every position's, and the other gets no gradient.


def bert(peer_class, size, dtype, *, output, implementation="sdpa"):
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        num_hidden_layers=size.n_layers,
        hidden_size=size.d_model,
        num_attention_heads=size.n_heads,
        intermediate_size=size.d_ff,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
        num_labels=5,
        attn_implementation=implementation,
    )
    spec = presets.bert(size, vocabulary=VOCABULARY, length=LENGTH, output=output)
    return randomised(peer_class(config), dtype), built(spec, dtype)


def bert_weights(peer):
    body = peer.bert.embeddings
    weights = {
        "embedding": own(body.word_embeddings),
        "embedding.position": (body.position_embeddings.weight + body.token_type_embeddings.weight[0],),
        "embedding.norm": own(body.LayerNorm),
    }
    for i, layer in enumerate(peer.bert.encoder.layer):
        inner, output = layer.attention.self, layer.attention.output
        weights |= under(
            f"stack.blocks.{i}",
            attention("attention", own(inner.query), own(inner.key), own(inner.value), own(output.dense))
            | {
                "around_attention.norm": own(output.LayerNorm),
                "feed_forward.up": own(layer.intermediate.dense),
                "feed_forward.down": own(layer.output.dense),
                "around_feed_forward.norm": own(layer.output.LayerNorm),
            },
        )
    return weights


def bert_blanks(peer):
    head = peer.cls.predictions
    return bert_weights(peer) | {
        "output": own(head.decoder),
        "output.transform.0": own(head.transform.dense),
        "output.transform.2": own(head.transform.LayerNorm),
    }


def bert_classes(peer):
    return bert_weights(peer) | {"output.hidden": own(peer.bert.pooler.dense), "output.out": own(peer.classifier)}


@dtypes
@implementations
@sizes
@pytest.mark.pairs
def test_bert_for_blanks(size, lengths, implementation, dtype):
    peer, ours = bert(transformers.BertForMaskedLM, size, dtype, output=Blanks(), implementation=implementation)
    batch = draw(lengths, VOCABULARY)
    theirs = peer(batch.tokens, batch.attention_mask).logits[batch.real]
    agree(ours, peer, bert_blanks(peer), lambda model: model(batch.tokens, lengths=batch.lengths)[batch.real], theirs)


@dtypes
@implementations
@sizes
@pytest.mark.pairs
def test_bert_for_classes(size, lengths, implementation, dtype):
    output = Classes(5, hidden=True)
    peer, ours = bert(
        transformers.BertForSequenceClassification, size, dtype, output=output, implementation=implementation
    )
    batch = draw(lengths, VOCABULARY)
    theirs = peer(batch.tokens, batch.attention_mask).logits
    agree(ours, peer, bert_classes(peer), lambda model: model(batch.tokens, lengths=batch.lengths), theirs)


@dtypes
def test_bert_vectors_between_the_blocks(dtype):
    peer, ours = bert(transformers.BertForMaskedLM, Size(3, 24, 3, 3, 40), dtype, output=Blanks())
    copy(ours, bert_blanks(peer))
    batch = draw((9, 5, 1), VOCABULARY)
    theirs = peer(batch.tokens, batch.attention_mask, output_hidden_states=True).hidden_states
    values = seen(ours, lambda model: model(batch.tokens, lengths=batch.lengths))
    names = ["embedding.out", *(f"stack.blocks.{i}.out" for i in range(3))]
    for name, vectors in zip(names, theirs, strict=True):
        assert_equal_but_rounding(values[name][batch.real], vectors[batch.real], name)


# Llama, in float32 alone.


def llama(size, *, implementation="sdpa", tied=False, base=10_000.0, bias=False, d_head=None):
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=size.n_layers,
        hidden_size=size.d_model,
        num_attention_heads=size.n_heads,
        num_key_value_heads=size.n_kv_heads,
        head_dim=d_head,
        intermediate_size=size.d_ff,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attention_bias=bias,
        mlp_bias=bias,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=implementation,
    )
    spec = presets.llama(size, vocabulary=VOCABULARY, rotary_base=base, tied=tied)
    first = spec.blocks[0]
    heads = replace(first.attention.heads, d_head=d_head, bias=bias)
    block = replace(first, attention=replace(first.attention, heads=heads), feed_forward=SwiGLU(size.d_ff, bias=bias))
    peer = randomised(transformers.LlamaForCausalLM(config), torch.float32)
    with torch.no_grad():  # small vectors at the first norm, where its epsilon counts
        peer.model.embed_tokens.weight.mul_(0.1)
    return peer, built(replace(spec, blocks=(block,) * size.n_layers), torch.float32)


def llama_weights(peer):
    weights = {
        "embedding": own(peer.model.embed_tokens),
        "stack.norm": own(peer.model.norm),
        "output": own(peer.lm_head),
    }
    for i, layer in enumerate(peer.model.layers):
        inner, network = layer.self_attn, layer.mlp
        weights |= under(
            f"stack.blocks.{i}",
            attention("attention", own(inner.q_proj), own(inner.k_proj), own(inner.v_proj), own(inner.o_proj))
            | {
                "around_attention.norm": own(layer.input_layernorm),
                "feed_forward.gate": own(network.gate_proj),
                "feed_forward.up": own(network.up_proj),
                "feed_forward.down": own(network.down_proj),
                "around_feed_forward.norm": own(layer.post_attention_layernorm),
            },
        )
    return weights


@implementations
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("size", "lengths"),
    [(Size(2, 24, 4, 2, 40), (9, 5, 1)), (Size(1, 24, 3, 1, 33), (LENGTH, LENGTH)), (Size(3, 12, 2, 2, 7), (1,))],
    ids=["padded", "whole", "one token"],
)
@pytest.mark.pairs
def test_llama(size, lengths, tied, implementation):
    peer, ours = llama(size, implementation=implementation, tied=tied)
    batch = draw(lengths, VOCABULARY)
    theirs = peer(**asked(batch)).logits[batch.real]
    agree(ours, peer, llama_weights(peer), lambda model: model(batch.tokens)[batch.real], theirs)


@pytest.mark.parametrize("changed", [{"base": 500_000.0}, {"base": 30.0}, {"bias": True}, {"d_head": 10}], ids=str)
def test_llama_with_another_base_with_biases_and_with_heads_of_another_width(changed):
    peer, ours = llama(Size(2, 24, 4, 2, 40), **changed)
    batch = draw((LENGTH, 12), VOCABULARY)
    theirs = peer(**asked(batch)).logits[batch.real]
    agree(ours, peer, llama_weights(peer), lambda model: model(batch.tokens)[batch.real], theirs)


def test_llama_on_documents_in_one_row_is_llama_on_each_alone():
    """Its positions need not begin again: only the distance between two of them counts."""
    peer, ours = llama(Size(2, 24, 4, 2, 40))
    parts = [draw((n,), VOCABULARY).tokens for n in (5, 1, 7)]
    theirs = torch.cat([peer(part, use_cache=False).logits for part in parts], 1)
    ids = torch.cat([torch.full((part.shape[1],), i) for i, part in enumerate(parts)])
    agree(ours, peer, llama_weights(peer), lambda model: model(torch.cat(parts, 1), mask=masks.document(ids)), theirs)
