"""Decoding: a model's outputs by greedy choice, sampling or beam search, on caches.

>>> import torch
>>> from clearhead.decoding import Rules, Sample, stream
>>> from clearhead.model import presets
>>> _ = torch.manual_seed(0)
>>> model = presets.gpt2("tiny", vocabulary=20).build()
>>> len([token.token for token in stream(model, [[1, 2, 3]], Sample(top_k=5), rules=Rules(max_new=4))])
4
"""

from clearhead.decoding.beam import Beam
from clearhead.decoding.generating import Score, Token, generate, score, stream
from clearhead.decoding.grammar import Grammar, TokenBytes
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.rules import Rules
from clearhead.decoding.sampling import Greedy, Sample
from clearhead.decoding.session import use_int8_cache, which_step

__all__ = [
    "Beam",
    "Grammar",
    "Greedy",
    "Hypothesis",
    "Rules",
    "Sample",
    "Score",
    "Token",
    "TokenBytes",
    "generate",
    "score",
    "stream",
    "use_int8_cache",
    "which_step",
]
