"""Models of Hugging Face's beside ours on the same random weights, and what their `generate` finds."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from clearhead import Heads, positions
from clearhead.decoding import Hypothesis, Rules, generate
from clearhead.model import presets
from clearhead.model.embedding import Embedding
from clearhead.model.outputs import NextToken
from clearhead.model.presets import AttentionSpec
from tests.model.copying import built, copy, randomised
from tests.model.test_peers_hf import gpt2_weights, llama_weights
from tests.model.test_peers_marian import marian_weights, unrounded
from tests.peers import transformers

START = 0
LENGTH = 24
"""Positions that a model has where it has learned them."""

WORDLESS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
EARLY_STOPPING = {"exact": "never", "heuristic": False, "early": True}


class Twins(NamedTuple):
    """One model twice: Hugging Face's and ours."""

    peer: torch.nn.Module
    ours: torch.nn.Module


def marian(size, vocabulary):
    config = transformers.MarianConfig(
        vocab_size=vocabulary,
        max_position_embeddings=LENGTH,
        d_model=size.d_model,
        encoder_layers=size.n_layers,
        decoder_layers=size.n_layers,
        encoder_attention_heads=size.n_heads,
        decoder_attention_heads=size.n_heads,
        encoder_ffn_dim=size.d_ff,
        decoder_ffn_dim=size.d_ff,
        activation_function="relu",
        scale_embedding=True,
        forced_eos_token_id=None,
        decoder_start_token_id=START,
        **WORDLESS,
    )
    spec = presets.classic(vocabulary, size=size, attention=AttentionSpec(heads=Heads(size.n_heads, bias=True)))
    embedding = Embedding(position=positions.Sinusoidal(layout="halves"))
    encoder = replace(spec.encoder, embedding=embedding)
    decoder = replace(spec.decoder, embedding=embedding, output=NextToken(bias=True))
    peer = unrounded(randomised(transformers.MarianMTModel(config), torch.float64))
    return peer, replace(spec, encoder=encoder, decoder=decoder), marian_weights


def gpt2(size, vocabulary):
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=LENGTH,
        n_layer=size.n_layers,
        n_embd=size.d_model,
        n_head=size.n_heads,
        n_inner=size.d_ff,
        **WORDLESS,
    )
    peer = randomised(transformers.GPT2LMHeadModel(config), torch.float64)
    return peer, presets.gpt2(size, vocabulary=vocabulary, length=LENGTH), gpt2_weights


def llama(size, vocabulary):
    """It takes its norms and angles in float32 whatever it is given; the rest of it is in float64."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        num_hidden_layers=size.n_layers,
        hidden_size=size.d_model,
        num_attention_heads=size.n_heads,
        num_key_value_heads=size.n_kv_heads,
        intermediate_size=size.d_ff,
        **WORDLESS,
    )
    peer = randomised(transformers.LlamaForCausalLM(config), torch.float64)
    return peer, presets.llama(size, vocabulary=vocabulary), llama_weights


KINDS = {"marian": marian, "gpt2": gpt2, "llama": llama}


def twins(kind, size, vocabulary, *, sharpness, end, lift):
    """A random model twice: a fresh one's logits, those of `end` raised by `lift`, and all times `sharpness`."""
    peer, spec, weights = KINDS[kind](size, vocabulary)
    with torch.no_grad():
        table = peer.get_output_embeddings().weight
        table[list(end)] += lift * one_higher(peer, vocabulary)
        table.mul_(sharpness)
    ours = built(spec, torch.float64)
    copy(ours, weights(peer))
    return Twins(peer, ours)


def one_higher(peer, vocabulary):
    """What to add to a token's output vector for its logit to rise by one, on average over random tokens."""
    tokens = torch.randint(vocabulary, (8, 8))
    if peer.config.is_encoder_decoder:
        states = peer(tokens, decoder_input_ids=tokens, output_hidden_states=True).decoder_hidden_states
    else:
        states = peer(tokens, output_hidden_states=True).hidden_states
    mean = states[-1].mean((0, 1))
    return mean / mean.dot(mean)


class Ask(NamedTuple):
    """What is asked of a model, whichever way its tokens are chosen."""

    inputs: list[list[int]]
    rules: Rules
    prefix: list[list[int]] | None = None

    def alone(self):
        """The same of each input by itself."""
        prefix = self.prefix or [None] * len(self.inputs)
        return [
            Ask([row], self.rules, start if start is None else [start])
            for row, start in zip(self.inputs, prefix, strict=True)
        ]


def found_here(ours, ask, method):
    """What ours finds."""
    return generate(ours, ask.inputs, method, rules=ask.rules, prefix=ask.prefix)


class Generated(NamedTuple):
    """What `generate` gives, in its own words, and the new tokens of each row up to the first that ends it."""

    given: Any
    tokens: list[tuple[int, ...]]


def generated(peer, ask, options):
    """Hugging Face's `generate`, told the same rules.

    Its `min_new_tokens` does not count the end token, and our `min_new` does. Padding is the first of the end tokens:
    no output goes on from one, so that no n-gram with padding in it is ever met again.
    """
    rules, prefix = ask.rules, ask.prefix
    filling = rules.end[0] if rules.end else START
    tokens, real = padded(ask.inputs, filling, left=prefix is None)
    config = transformers.GenerationConfig(
        max_new_tokens=rules.max_new,
        min_new_tokens=max(0, rules.min_new - 1) or None,
        no_repeat_ngram_size=rules.no_repeat or None,
        repetition_penalty=rules.repetition_penalty,
        eos_token_id=list(rules.end) or None,
        pad_token_id=filling,
        decoder_start_token_id=START,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **options,
    )
    start = {} if prefix is None else {"decoder_input_ids": torch.tensor(prefix)}
    given = peer.generate(input_ids=tokens, attention_mask=real, generation_config=config, **start)
    n_before = (tokens if prefix is None else start["decoder_input_ids"]).shape[1]
    return Generated(given, [up_to(rules.end, row) for row in given.sequences[:, n_before:].tolist()])


def padded(rows, filling, *, left):
    """Rows of token ids as one tensor, and 1 where they are."""
    n = max(len(row) for row in rows)
    tokens, real = torch.full((len(rows), n), filling), torch.zeros(len(rows), n, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(n - len(row), n) if left else slice(len(row))
        tokens[i, place], real[i, place] = torch.tensor(row), 1
    return tokens, real


def up_to(end, row):
    last = next((place for place, token in enumerate(row) if token in end), len(row) - 1)
    return tuple(row[: last + 1])


def beams(peer, ask, method):
    """Hypotheses of every input, as Hugging Face's beam search finds them."""
    options = {
        "num_beams": method.width,
        "num_return_sequences": method.n_best,
        "length_penalty": method.length_penalty,
        "early_stopping": EARLY_STOPPING[method.stop],
    }
    given, tokens = generated(peer, ask, options)
    assert [len(row) for row in tokens] == (given.beam_indices >= 0).sum(1).tolist()
    log_probs = peer.compute_transition_scores(given.sequences, given.scores, given.beam_indices).tolist()
    every = [
        Hypothesis(tokens=row, log_probs=tuple(steps[: len(row)]), score=score, ended=row[-1] in ask.rules.end)
        for row, steps, score in zip(tokens, log_probs, given.sequences_scores.tolist(), strict=True)
    ]
    return [every[first : first + method.n_best] for first in range(0, len(every), method.n_best)]
