"""`generate`, `stream` and `score`: outputs of a model, token by token or whole, and what it thinks of given ones."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.calls import public
from clearhead.decoding.continuous import ContinuousBatch, Waiting
from clearhead.decoding.device_search import open_search
from clearhead.decoding.graph_cache import record_translation, replay_translation
from clearhead.decoding.hypotheses import Candidates, Hypothesis
from clearhead.decoding.method import DecodingMethod, Watcher, check_method
from clearhead.decoding.recorded import can_record_on, is_worth_recording
from clearhead.decoding.request import (
    Model,
    Request,
    Row,
    Rows,
    check_ids,
    check_length,
    check_request,
    is_row,
    make_request,
    token_rows,
)
from clearhead.decoding.rules import USUAL_NEW, Rules
from clearhead.decoding.sampling import Greedy
from clearhead.decoding.scheduler import Chosen, Finished, Job
from clearhead.decoding.session import MakeSession, Session, check_masks, pad_right
from clearhead.errors import OptionError


class Token(NamedTuple):
    """One new token of one sequence; what `stream` yields.

    Attributes:
        sequence: Number of the input.
        token: Its id.
        log_prob: The model's log-probability, before any cut of sampling.
        ended: Whether the sequence ends with it.
        candidates: The most likely tokens and their log-probabilities, if asked for.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> [token.sequence for token in ch.stream(model, [5], rules=ch.Rules(max_new=2))]
    [0, 0]
    """

    sequence: int
    token: int
    log_prob: float
    ended: bool
    candidates: Candidates = ()


@overload
def generate(
    model: Model,
    inputs: Row,
    method: DecodingMethod = ...,
    *,
    rules: Rules | None = ...,
    prefix: Row | Rows | None = ...,
    candidates: int = ...,
) -> list[Hypothesis]: ...
@overload
def generate(
    model: Model,
    inputs: Rows,
    method: DecodingMethod = ...,
    *,
    rules: Rules | None = ...,
    prefix: Row | Rows | None = ...,
    candidates: int = ...,
) -> list[list[Hypothesis]]: ...
@public
def generate(
    model: Model,
    inputs: Row | Rows,
    method: DecodingMethod = Greedy(),
    *,
    rules: Rules | None = None,
    prefix: Row | Rows | None = None,
    candidates: int = 0,
) -> list[Hypothesis] | list[list[Hypothesis]]:
    """Return the model's hypotheses for each input, best first: one, or a beam's `n_best`.

    A decoder continues the inputs; an encoder-decoder translates them.

    Args:
        model: A decoder or an encoder-decoder.
        inputs: Rows of token ids, in lists or a tensor; they may differ in length. One row alone is one input.
        method: `Greedy`, `Sample` or `Beam`.
        rules: Limits and constraints. Without them there are 64 new tokens, or as many as the model has positions for.
        prefix: For an encoder-decoder: the start token and whatever else an output begins with; one row, or one for
            each input.
        candidates: How many of the most likely tokens each step reports.

    Returns:
        The hypotheses of one input; a list of them for several inputs.

    Raises:
        OptionError: If a token, a prefix or a rule does not fit the model.

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
    check_method(method)
    rules = usual_rules(model, inputs, prefix) if rules is None else rules
    request = check_request(model, inputs, prefix, rules, candidates)
    if not request.inputs:
        return []
    hypotheses = search_alone(request, method, rules, candidates) or decode(request, method, rules, candidates)
    return hypotheses[0] if is_row(inputs) else hypotheses


def search_alone(
    request: Request, method: DecodingMethod, rules: Rules, candidates: int
) -> list[list[Hypothesis]] | None:
    """Return what is found without a batch: by the method itself, or by a search that stays on the device; else None.

    The device chooses by itself if no rule and no caller must see each token as it is chosen.
    """
    if len(request.inputs) == 1 and not candidates:
        with eval_mode(request.model):
            if (one := method.decode_one(request, rules)) is not None:
                return [[one]]
    on_host = rules.need_host or candidates or not can_record_on(request.decoder.embedding.table.device)
    if on_host or not is_worth_recording(rules.max_new - 1):
        return None
    if (found := replay_translation(request, method, rules)) is not None:
        return [found]
    with eval_mode(request.model):
        steps = open_search(request, method, rules)
        if steps is not None and (found := record_translation(request, steps, method, rules)) is not None:
            return [found]
        return None if steps is None else steps.run(rules.max_new)


def decode(
    request: Request,
    method: DecodingMethod,
    rules: Rules,
    candidates: int,
    *,
    make_session: MakeSession = Session,
    watcher: Watcher | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each input: put them all into the slots of a batch, and step until they are done."""
    found: dict[int, list[Hypothesis]] = {}
    with eval_mode(request.model):
        batch = fill_batch(request, method, rules, candidates, make_session=make_session, watcher=watcher)
        with batch.threads():
            while batch.busy:
                done = [event for event in batch.advance() if isinstance(event, Finished)]
                found.update((event.ticket, event.hypotheses) for event in done)
    return [found[ticket] for ticket in sorted(found)]


def fill_batch(
    request: Request,
    method: DecodingMethod,
    rules: Rules,
    candidates: int,
    *,
    make_session: MakeSession = Session,
    watcher: Watcher | None = None,
) -> ContinuousBatch:
    """Return a batch that is as large as the inputs need, with all of them waiting: their tickets count from 1."""
    n, max_new = len(request.inputs), rules.max_new
    method.check(rules)
    draws, longest = method.draws(n), max(map(len, request.prompts))
    check_masks(request.decoder, n, longest + max_new - 1)
    batch = ContinuousBatch(
        request.model,
        slots=n * method.rows,
        columns=longest + max_new - 1,
        source_columns=max(map(len, request.inputs)),
        prompt_tokens=None,
        shared=method.rows,
        make_session=make_session,
    )
    for row, (inputs, prompt) in enumerate(zip(request.inputs, request.prompts, strict=True)):
        job = Job(inputs=tuple(inputs), rules=rules, method=method, candidates=candidates)
        batch.put(Waiting(job, prompt, draws[row : row + 1], watcher))
    return batch


@public
def stream(
    model: Model,
    inputs: Row | Rows,
    method: DecodingMethod = Greedy(),
    *,
    rules: Rules | None = None,
    prefix: Row | Rows | None = None,
    candidates: int = 0,
) -> Iterator[Token]:
    """Yield the tokens of `generate`, each as soon as it is chosen. Until the last, the model is in eval mode.

    Args:
        model: A decoder or an encoder-decoder.
        inputs: As in `generate`.
        method: `Greedy` or `Sample`.
        rules: As in `generate`.
        prefix: As in `generate`.
        candidates: As in `generate`.

    Returns:
        An iterator of tokens.

    Raises:
        OptionError: If the method cannot stream, as beam search cannot.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> sum(1 for _ in ch.stream(model, [5, 6], rules=ch.Rules(max_new=4)))
    4
    """
    check_method(method)
    if not method.streams:
        raise OptionError("a beam may change its mind until the end: stream Greedy() or Sample(), or use generate")
    rules = usual_rules(model, inputs, prefix) if rules is None else rules
    request = check_request(model, inputs, prefix, rules, candidates)
    method.draws(len(request.inputs))  # raises here, and not at the first token
    return decode_tokens(request, method, rules, candidates) if request.inputs else iter(())


def usual_rules(model: Model, inputs: Row | Rows, prefix: Row | Rows | None) -> Rules:
    """Return the rules where none are given: `USUAL_NEW` tokens, or as many as there are positions for."""
    request = make_request(model, inputs, prefix, 1)
    position, longest = request.decoder.embedding.position, max(map(len, request.prompts), default=0)
    room = USUAL_NEW if position is None or position.length is None else position.length - longest + 1
    return Rules(max_new=min(USUAL_NEW, room))


@torch.inference_mode()
def decode_tokens(
    request: Request,
    method: DecodingMethod,
    rules: Rules,
    candidates: int,
    *,
    make_session: MakeSession = Session,
) -> Iterator[Token]:
    """Yield the tokens of every input as they are chosen."""
    with eval_mode(request.model):
        batch = fill_batch(request, method, rules, candidates, make_session=make_session)
        while batch.busy:
            for event in batch.advance():
                if isinstance(event, Chosen):
                    ended = event.token in rules.end
                    yield Token(event.ticket - 1, event.token, event.log_prob, ended, event.candidates)


def collect(tokens: Iterator[Token], count: int) -> list[list[Hypothesis]]:
    """Return the hypothesis of each of `count` sequences, from all their tokens."""
    rows: list[list[Token]] = [[] for _ in range(count)]
    for token in tokens:
        rows[token.sequence].append(token)
    return [
        [
            Hypothesis.of(
                [token.token for token in row],
                [token.log_prob for token in row],
                [token.token for token in row if token.ended],
                [token.candidates for token in row if token.candidates],
            )
        ]
        for row in rows
    ]


class Score(NamedTuple):
    """Log-probability of each token of an output, and their sum; what `score` returns.

    Attributes:
        log_probs: One for each token.
        total: Their sum.

    >>> import clearhead as ch
    >>> len(ch.score(ch.presets.gpt2("tiny", vocabulary=20).build(), [5, 6], [7, 8]).log_probs)
    2
    """

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
    """Return the log-probability of every token of given outputs, each after its input (and prefix).

    Args:
        model: A decoder or an encoder-decoder.
        inputs: Rows of token ids, or one row.
        outputs: An output for each input.
        prefix: As in `generate`.

    Returns:
        One score for one row, else a list of them.

    Raises:
        OptionError: If there are not as many outputs as inputs, or a token is not in the vocabulary.

    >>> import clearhead as ch
    >>> model = ch.presets.gpt2("tiny", vocabulary=20).build()
    >>> found = ch.score(model, [5, 6], [7, 8])
    >>> len(found.log_probs), found.total == sum(found.log_probs)
    (2, True)
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
