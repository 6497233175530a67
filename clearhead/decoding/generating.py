"""`generate`, `stream` and `score`: outputs of a model, token by token or whole, and what it thinks of given ones."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.calls import public
from clearhead.decoding.beam import Beam, beam_search
from clearhead.decoding.graph_cache import record_translation, replay_translation
from clearhead.decoding.greedy import greedy_search
from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.recorded import can_record_on, is_worth_recording
from clearhead.decoding.request import (
    Model,
    Request,
    Row,
    Rows,
    check_ids,
    check_length,
    is_row,
    make_request,
    token_rows,
)
from clearhead.decoding.rules import FORBIDDEN, USUAL_NEW, Rules, is_id
from clearhead.decoding.sampling import Chooser, Greedy
from clearhead.decoding.session import Session, open_session, pad_right
from clearhead.decoding.topk import top_candidates
from clearhead.devices import fewer_threads_if_busy
from clearhead.errors import OptionError


class Token(NamedTuple):
    """One new token of one sequence. `log_prob` is the model's own, whatever cuts a sample was drawn after."""

    sequence: int
    token: int
    log_prob: float
    ended: bool
    candidates: Candidates = ()


@overload
def generate(
    model: Model,
    inputs: Row,
    method: Chooser | Beam = ...,
    *,
    rules: Rules | None = ...,
    prefix: Row | Rows | None = ...,
    candidates: int = ...,
) -> list[Hypothesis]: ...
@overload
def generate(
    model: Model,
    inputs: Rows,
    method: Chooser | Beam = ...,
    *,
    rules: Rules | None = ...,
    prefix: Row | Rows | None = ...,
    candidates: int = ...,
) -> list[list[Hypothesis]]: ...
@public
def generate(
    model: Model,
    inputs: Row | Rows,
    method: Chooser | Beam = Greedy(),
    *,
    rules: Rules | None = None,
    prefix: Row | Rows | None = None,
    candidates: int = 0,
) -> list[Hypothesis] | list[list[Hypothesis]]:
    """Return the model's hypotheses for each input, the best first: one, or a beam's `n_best`.

    `inputs` are rows of token ids, in lists or a tensor, which may differ in length. One row alone is one input, and
    gives its hypotheses. A decoder continues `inputs`. An encoder-decoder translates them; its output begins with
    `prefix`, a start token and whatever else you want there: one row, or one for each input. Without `rules` there are
    64 new tokens, or as many as the model has positions for. `candidates` is how many of the likeliest tokens each step
    reports.

    >>> import torch
    >>> import clearhead as ch
    >>> _ = torch.manual_seed(0)
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> [best] = ch.generate(model, [5, 6, 7])
    >>> len(best.tokens)
    64
    >>> model = ch.presets.tiny(vocabulary=20).build()
    >>> found = ch.generate(
    ...     model, [[5, 6, 7], [8, 9]], ch.Beam(width=3, n_best=2), rules=ch.Rules(max_new=4), prefix=[1]
    ... )
    >>> [len(hypotheses) for hypotheses in found], len(found[0][0].tokens)
    ([2, 2], 4)
    """
    if not isinstance(method, Chooser | Beam):
        raise OptionError(f"method: expected Greedy(), Sample() or Beam(), made and not the class; came {method!r}")
    rules = usual_rules(model, inputs, prefix) if rules is None else rules
    request = check_request(model, inputs, prefix, rules, candidates)
    hypotheses = generate_rows(request, method, rules, candidates) if request.inputs else []
    return hypotheses[0] if is_row(inputs) else hypotheses


def generate_rows(request: Request, method: Chooser | Beam, rules: Rules, candidates: int) -> list[list[Hypothesis]]:
    """Return the hypotheses of each input of a checked request."""
    device, alone = request.decoder.embedding.table.device, len(request.inputs) == 1
    # These methods can choose on the device alone, where no rule and no caller must see each token as it is chosen.
    simple = not (rules.look_back or candidates) and is_worth_recording(rules.max_new - 1)
    on_device = method if simple and isinstance(method, Greedy | Beam) else None
    keeps = alone and can_record_on(device) and request.model.encoder is not None
    if keeps and on_device and (translation := replay_translation(request, on_device, rules)) is not None:
        return [translation]
    # Several sentences have steps that are large enough for all threads, on a busy machine too.
    with fewer_threads_if_busy(device) if alone else contextlib.nullcontext(), eval_mode(request.model):
        session = open_session(request.model, request.inputs, request.prompts, rules.max_new)
        if keeps and on_device and session.can_record():
            translation = record_translation(request, session, on_device, rules)
            if translation is not None:
                return [translation]
        if isinstance(method, Beam):
            return beam_search(session, request.prompts, method, rules, candidates)
        if on_device and session.can_record():
            return greedy_search(session, rules)
        return collect(decode_on(session, request.prompts, method, rules, candidates), len(request.inputs))


@public
def stream(
    model: Model,
    inputs: Row | Rows,
    method: Chooser = Greedy(),
    *,
    rules: Rules | None = None,
    prefix: Row | Rows | None = None,
    candidates: int = 0,
) -> Iterator[Token]:
    """Yield the tokens of `generate`, each as soon as it is chosen. Until the last, the model is in eval mode."""
    if isinstance(method, Beam):
        raise OptionError("a beam may change its mind until the end: stream Greedy() or Sample(), or use generate")
    if not isinstance(method, Chooser):
        raise OptionError(f"method: expected Greedy() or Sample(), made and not the class; came {method!r}")
    rules = usual_rules(model, inputs, prefix) if rules is None else rules
    request = check_request(model, inputs, prefix, rules, candidates)
    method.draws(len(request.inputs))  # raises here, and not at the first token
    return stream_tokens(request, method, rules, candidates) if request.inputs else iter(())


def usual_rules(model: Model, inputs: Row | Rows, prefix: Row | Rows | None) -> Rules:
    """Return the rules where none are given: `USUAL_NEW` tokens, or as many as there are positions for."""
    request = make_request(model, inputs, prefix, 1)
    position, longest = request.decoder.embedding.position, max(map(len, request.prompts), default=0)
    room = USUAL_NEW if position is None or position.length is None else position.length - longest + 1
    return Rules(max_new=min(USUAL_NEW, room))


def check_request(
    model: Model, inputs: Row | Rows, prefix: Row | Rows | None, rules: Rules, candidates: int
) -> Request:
    if not isinstance(rules, Rules):
        raise OptionError(f"rules: expected Rules(max_new=…); came {rules!r:.80}")
    request = make_request(model, inputs, prefix, rules.max_new)
    vocabulary = request.decoder.spec.vocabulary
    wrong = next((token for token in rules.end if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise OptionError(f"end: ids go from 0 to {vocabulary - 1} in this vocabulary; there is {wrong}")
    if not is_id(candidates) or candidates < 0:
        raise OptionError(f"candidates is how many likeliest tokens to give, 0 or more; came {candidates!r:.80}")
    return request


@torch.inference_mode()
def stream_tokens(request: Request, method: Chooser, rules: Rules, candidates: int) -> Iterator[Token]:
    with eval_mode(request.model):
        session = open_session(request.model, request.inputs, request.prompts, rules.max_new)
        yield from decode_on(session, request.prompts, method, rules, candidates)


def decode_on(
    session: Session, prompts: Sequence[Sequence[int]], method: Chooser, rules: Rules, candidates: int
) -> Iterator[Token]:
    rows = Rowwise(session, prompts, method, rules, candidates)
    for n_new in range(rules.max_new):
        yield from rows.step(n_new)
        if not rows.sequences:
            return
        if n_new + 1 < rules.max_new:
            session.extend(rows.chosen)


class Rowwise:
    """Rows that each choose by themselves, and leave when they have ended."""

    def __init__(
        self, session: Session, prompts: Sequence[Sequence[int]], method: Chooser, rules: Rules, candidates: int
    ) -> None:
        self.session, self.method, self.rules, self.candidates = session, method, rules, candidates
        self.sequences = list(range(len(prompts)))
        self.so_far = [list(prompt) for prompt in prompts]
        self.draws = method.draws(len(prompts))
        self.chosen = torch.empty(0)

    def step(self, n_new: int) -> list[Token]:
        """Return the next token of every live row."""
        log_probs = self.session.log_probs(self.rules, self.so_far)
        likeliest = top_candidates(log_probs, self.candidates)
        self.rules.forbid(log_probs, n_new, self.so_far)
        self.chosen = self.method.choose(log_probs, self.draws)
        chosen_log_probs = log_probs.gather(-1, self.chosen.unsqueeze(-1)).squeeze(-1)
        tokens = [
            Token(sequence, token, log_prob, token in self.rules.end, best)
            for sequence, token, log_prob, best in zip(
                self.sequences, self.chosen.tolist(), chosen_log_probs.tolist(), likeliest, strict=True
            )
        ]
        self.leave(tokens)
        return [token for token in tokens if token.log_prob != FORBIDDEN]  # nothing was allowed: it ends before it

    def leave(self, tokens: list[Token]) -> None:
        stays = [i for i, token in enumerate(tokens) if not token.ended and token.log_prob != FORBIDDEN]
        for i in stays if self.rules.look_back else ():
            self.so_far[i].append(tokens[i].token)
        if len(stays) == len(tokens):
            return
        self.sequences = [self.sequences[i] for i in stays]
        self.so_far = [self.so_far[i] for i in stays]
        self.draws = [self.draws[i] for i in stays] if self.draws else []
        if stays:
            rows = torch.tensor(stays, device=self.chosen.device)
            self.chosen = self.chosen[rows]
            self.session.select(rows, rows)


def collect(tokens: Iterator[Token], count: int) -> list[list[Hypothesis]]:
    rows: list[list[Token]] = [[] for _ in range(count)]
    for token in tokens:
        rows[token.sequence].append(token)
    return [
        [
            Hypothesis(
                tokens=tuple(token.token for token in row),
                log_probs=tuple(token.log_prob for token in row),
                score=sum((token.log_prob for token in row), 0.0),
                ended=bool(row) and row[-1].ended,
                candidates=tuple(token.candidates for token in row if token.candidates),
            )
        ]
        for row in rows
    ]


class Score(NamedTuple):
    """Log-probability of each token of an output, and their sum."""

    log_probs: tuple[float, ...]
    total: float


@overload
def score(model: Model, inputs: Row, outputs: Row, *, prefix: Row | Rows | None = ...) -> Score: ...
@overload
def score(model: Model, inputs: Rows, outputs: Rows, *, prefix: Row | Rows | None = ...) -> list[Score]: ...
@public
def score(
    model: Model, inputs: Row | Rows, outputs: Row | Rows, *, prefix: Row | Rows | None = None
) -> Score | list[Score]:
    """Return the log-probability of every token of outputs that you give, each after its input (and prefix).

    One row of inputs, with one of outputs, gives one score.
    """
    scores = score_rows(model, inputs, outputs, prefix)
    return scores[0] if is_row(inputs) else scores


def score_rows(model: Model, inputs: Row | Rows, outputs: Row | Rows, prefix: Row | Rows | None) -> list[Score]:
    output_rows = token_rows("outputs", outputs)
    request = make_request(model, inputs, prefix, 1)
    check_ids("outputs", output_rows, request.decoder.spec.vocabulary)
    if len(output_rows) != len(request.inputs):
        raise OptionError(f"there are {len(request.inputs)} inputs and {len(output_rows)} outputs; give one for each")
    if not output_rows:
        return []
    rows = [[*prompt, *output] for prompt, output in zip(request.prompts, output_rows, strict=True)]
    check_length("inputs and outputs", [row[:-1] for row in rows], request.decoder.embedding, 1)
    with eval_mode(model):
        log_probs = teacher_forced(request, rows)
    scores = []
    for row, prompt, output in zip(log_probs, request.prompts, output_rows, strict=True):
        values = tuple(row[len(prompt) - 1 : len(prompt) - 1 + len(output)].tolist())
        scores.append(Score(values, sum(values, 0.0)))
    return scores


def teacher_forced(request: Request, rows: list[list[int]]) -> Float[Tensor, "row n"]:
    """Return at each position the log-probability of the next token."""
    tokens, _ = pad_right(rows, request.decoder.embedding.table.device)
    read, targets = tokens[:, :-1], tokens[:, 1:]
    if request.model.encoder is None:
        logits = request.model(read)
    else:
        source, lengths = pad_right(request.inputs, tokens.device)
        logits = request.model(source, read, source_lengths=lengths)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return torch.log_softmax(logits, -1, dtype=wide).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch to inference and eval mode; every module then goes back to the mode it was in."""
    training = [module for module in model.modules() if module.training]
    if training:  # else there is nothing to switch, and a walk through a hundred modules takes as long as a token
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
