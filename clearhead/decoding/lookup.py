"""Speculative decoding by n-gram look-up: what followed the last tokens before is proposed, and checked in one pass.

A pass over a few tokens takes hardly longer than over one. Proposals that are what greedy decoding would choose are
kept, so the output is greedy's; the rest of a pass is thrown away. It pays where outputs repeat their prompts: changed
code, quoted text.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.decoding.clock import SessionSize
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.request import Request
from clearhead.decoding.rules import FORBIDDEN, Rules
from clearhead.decoding.session import EVERYTHING, Session

N_GRAM = 2
"""Tokens that are looked up."""


class NGrams:
    """A sequence, and where each of its n-grams last stood.

    >>> seen = NGrams([1, 2, 3, 4, 1, 2])
    >>> seen.draft(6), seen.draft(1)
    ([3, 4, 1, 2, 3, 4], [3])
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        """Where what followed an n-gram begins."""
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        self.after[tuple(self.tokens[-N_GRAM:])] = len(self.tokens)
        self.tokens.append(token)

    def draft(self, most: int) -> list[int]:
        """Return what followed the last n-gram where it stood before."""
        start, draft = self.after.get(tuple(self.tokens[-N_GRAM:])), list[int]()
        while start is not None and len(draft) < most:  # what goes in circles is proposed round by round
            place = start + len(draft) - len(self.tokens)
            draft.append(self.tokens[place] if place < 0 else draft[place])
        return draft


def greedy_by_lookup(request: Request, rules: Rules, most: int) -> Hypothesis | None:
    """Return what greedy decoding gives for one input, with at most `most` proposals in a pass.

    None if a layer's cache cannot take back what was read, or a grammar is asked for.
    """
    [prompt], [inputs] = request.prompts, request.inputs
    session = Session(request.model, SessionSize(1, len(prompt) + rules.max_new + most, len(inputs)))
    if rules.grammar is not None or not all(cache.can_share for cache, _ in session.caches.own):
        return None
    prefill = session.open_prefill([prompt], [inputs], EVERYTHING)
    if not prefill.done:
        prefill.read_next()
    seen, log_probs, decoder = NGrams(prompt), list[float](), request.decoder
    while len(log_probs) < rules.max_new:
        draft = seen.draft(most)
        columns = torch.tensor([[seen.tokens[-1], *draft]], device=decoder.embedding.table.device)
        logits = decoder.output(prefill.read(columns))[0]
        if not accept(logits, draft, seen, rules, log_probs):
            break
        prefill.take_back(len(seen.tokens) - 1)
    return Hypothesis.of(seen.tokens[len(prompt) :], log_probs, rules.end)


def accept(logits: Tensor, draft: Sequence[int], seen: NGrams, rules: Rules, log_probs: list[float]) -> bool:
    """Add the tokens that greedy decoding chooses, up to the first that is not the draft's; return whether it goes on.

    `logits` are those after the last token and after each of the draft.
    """
    for row, proposed in zip(logits.split(1), [*draft, None], strict=True):
        n_new = len(log_probs)
        changed = rules.change(row, [seen.tokens], [seen.tokens[len(seen.tokens) - n_new :]])
        wide = torch.promote_types(changed.dtype, torch.float32)
        values = torch.log_softmax(changed, -1, dtype=wide)[0]
        values[rules.forbidden(n_new, seen.tokens)] = FORBIDDEN
        value, token = float(values.max()), int(values.argmax())
        if value == FORBIDDEN:
            return False
        seen.add(token)
        log_probs.append(value)
        if token in rules.end or len(log_probs) == rules.max_new:
            return False
        if token != proposed:
            break
    return True
