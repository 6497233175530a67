"""What a trained model answers: translations, continuations, classes, fillings; in batches of similar length.

What a text is answered does not depend on the texts beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, cast

import torch
from torch import nn

from clearhead.decoding import Beam, Greedy, Hypothesis, Rules, Sample, Token, generate, stream
from clearhead.decoding.generating import collect, eval_mode
from clearhead.decoding.request import Model
from clearhead.decoding.session import right_padded
from clearhead.devices import widest_float
from clearhead.errors import OptionError
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import Classify, Fill, Generate, Translate

__all__ = [
    "BLANK",
    "Class",
    "Filling",
    "Spoken",
    "Written",
    "classify",
    "continue_texts",
    "continued",
    "fill",
    "in_batches",
    "one_line",
    "stream_texts",
    "translate",
    "window",
]

Answer = TypeVar("Answer")
ON_CPU, ON_GPU = 4096, 65_536
"""Tokens of a batch, hypotheses counted."""
BLANK = "<mask>"
"""How a blank is written in a text."""
LOST = "\ufffd"
"""What a tokeniser gives for bytes that are no character, or none yet."""
NEXT_ROUND = 1_000_003
"""What a seed grows by when the model goes on from a text it wrote itself."""


class Written(NamedTuple):
    """A text, its log-probability, and the score it was ranked by: in a beam, that over a power of its length."""

    text: str
    log_prob: float
    score: float


class Class(NamedTuple):
    """A label, its probability, and that of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Filling(NamedTuple):
    """A text with its blanks filled; for each blank the likeliest pieces and their probabilities."""

    text: str
    blanks: list[list[tuple[str, float]]]


def in_batches(
    lengths: Sequence[int],
    model: nn.Module,
    answer: Callable[[list[int]], list[Answer]],
    *,
    width: int = 1,
    apart: Callable[[int], int] = lambda length: 0,
) -> list[Answer]:
    """The answers to rows of these lengths, in order. `answer` is asked for those of a few at a time, by number.

    Rows of similar length go together, and only those of lengths that `apart` makes the same of.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    tokens = (ON_GPU if next(model.parameters()).device.type == "cuda" else ON_CPU) // width
    answers: dict[int, Answer] = {}
    for batch in cut(order, lengths, tokens, apart):
        answers |= zip(batch, answer(batch), strict=True)
    return [answers[i] for i in range(len(lengths))]


def cut(order: Sequence[int], lengths: Sequence[int], tokens: int, apart: Callable[[int], int]) -> Iterator[list[int]]:
    batch: list[int] = []
    for i in order:
        full = (len(batch) + 1) * max(lengths[i], 16) > tokens
        if batch and (full or apart(lengths[i]) != apart(lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def translate(
    model: nn.Module, task: Translate, rows: Sequence[Sequence[int]], method: Greedy | Beam = Greedy()
) -> list[list[Hypothesis]]:
    """Of each row of source ids (without end token) the hypotheses. A row longer than the context is cut."""
    source, target = task.tokenizers["source"], task.tokenizers["target"]
    closed = [[*row[: task.context - 1], source.end] for row in rows]

    def answer(batch: list[int]) -> list[list[Hypothesis]]:
        rules = Rules(max_new=min(task.context, reach(len(closed[batch[0]]))), end=(target.end,))
        return generate(cast(Model, model), [closed[i] for i in batch], method, rules=rules, prefix=[[target.start]])

    width = method.width if isinstance(method, Beam) else 1
    return in_batches([len(row) for row in closed], model, answer, width=width, apart=reach)


def reach(length: int) -> int:
    """How many tokens the translation of a text may have, the same for texts of similar length.

    A beam's search depends on it, so a text must be given the same whatever stands beside it.

    >>> [reach(n) for n in (3, 16, 17, 50)]
    [48, 48, 80, 144]
    """
    return 2 * max(16, 1 << (length - 1).bit_length()) + 16


def window(context: int, max_new: int) -> tuple[int, int]:
    """How many tokens of a text so far are read, and how many are then written before it is read again.

    >>> window(128, 28), window(128, 500)
    ((100, 28), (64, 64))
    """
    written = min(max_new, max(1, context - context // 2))
    return max(1, context - written), written


def stream_texts(
    model: nn.Module,
    task: Generate,
    rows: Sequence[Sequence[int]],
    method: Greedy | Sample,
    *,
    max_new: int,
    opened: bool,
) -> Iterator[Token]:
    """Goes on from each row, token by token. Where the context is full, it goes on from the last half of it.

    `opened`: the model saw documents begin with an end token, so each row does too, and an end token ends it.
    """
    end = task.tokenizers["text"].end
    read, written = window(task.context, max_new)
    texts = [[*([end] if opened or not row else []), *row] for row in rows]
    going = list(range(len(rows)))
    for begun in range(0, max_new if rows else 0, written):
        rules = Rules(max_new=min(written, max_new - begun), end=(end,) if opened else ())
        tokens = stream(
            cast(Model, model), [texts[i][-read:] for i in going], drawing(method, going, begun), rules=rules
        )
        ended = set()
        for token in tokens:
            i = going[token.sequence]
            texts[i].append(token.token)
            ended |= {i} if token.ended else set()
            yield token._replace(sequence=i)
        going = [i for i in going if i not in ended]
        if not going:
            return


def drawing(method: Greedy | Sample, rows: Sequence[int], begun: int) -> Greedy | Sample:
    """The method for these of the rows, each with its own seed; in a later round with another one."""
    if isinstance(method, Greedy):
        return method
    first = method.seeds
    seeds = (first + i if isinstance(first, int) else first[i] for i in rows)
    return replace(method, seeds=tuple(seed + begun * NEXT_ROUND for seed in seeds))


def continue_texts(
    model: nn.Module,
    task: Generate,
    rows: Sequence[Sequence[int]],
    method: Greedy | Sample,
    *,
    max_new: int,
    opened: bool,
) -> list[list[Hypothesis]]:
    """What `stream_texts` writes, whole. Row i draws from the i-th seed, whatever the batches are."""
    if isinstance(method, Sample):
        method.draws(len(rows))  # raises where there are not as many seeds as rows

    def answer(batch: list[int]) -> list[list[Hypothesis]]:
        own = drawing(method, batch, 0)
        tokens = stream_texts(model, task, [rows[i] for i in batch], own, max_new=max_new, opened=opened)
        return collect(tokens, len(batch))

    read, written = window(task.context, max_new)
    return in_batches([min(len(row), read) + written for row in rows], model, answer)


def continued(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of tokens that follow others: a space between the two belongs to it."""
    first, both = tokenizer.decode(before), tokenizer.decode([*before, *tokens])
    return both[len(first) :] if both.startswith(first) else tokenizer.decode(tokens)


def one_line(text: str) -> str:
    """The text with its ends of line as spaces.

    >>> one_line("to be,\\r\\nor not")
    'to be, or not'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


class Spoken:
    """Text as its tokens come. What may still change with the next token, such as half a character, is held back."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self.tokenizer, self.ids = tokenizer, list(before)
        self.told, self.given = 0, len(self.ids)

    def add(self, token: int) -> str:
        """The text that is new with this token, if it is certain."""
        self.ids.append(token)
        piece = self.rest()
        if not piece or piece.endswith(LOST):
            return ""
        self.told, self.given = self.given, len(self.ids)
        return piece

    def rest(self) -> str:
        """What is held back. The piece before it, which ends with a character, tells how it begins."""
        return continued(self.tokenizer, self.ids[self.told : self.given], self.ids[self.given :])


def classify(model: nn.Module, task: Classify, rows: Sequence[Sequence[int]]) -> list[Class]:
    """The class of each row of ids. A row longer than the context is cut."""
    opened = [[task.tokenizers["text"].start, *row[: task.context - 1]] for row in rows]

    def answer(batch: list[int]) -> list[Class]:
        tokens, lengths = right_padded([opened[i] for i in batch], next(model.parameters()).device)
        with eval_mode(model):
            logits = model(tokens, lengths=lengths)
            probabilities = logits.to(widest_float(logits.device)).softmax(-1).tolist()
        return [named(row, task.labels) for row in probabilities]

    return in_batches([len(row) for row in opened], model, answer)


def named(probabilities: list[float], labels: Sequence[str]) -> Class:
    best = max(range(len(labels)), key=probabilities.__getitem__)
    return Class(labels[best], probabilities[best], dict(zip(labels, probabilities, strict=True)))


def fill(model: nn.Module, task: Fill, texts: Sequence[str], *, shown: int = 5) -> list[Filling]:
    """Fills each `<mask>` of each text with the likeliest token, all blanks at once; the rest stays as it is.

    Of a text longer than the context the beginning is read, and only the blanks in it are filled.
    """
    tokenizer = task.tokenizers["text"]
    if shown < 1:
        raise OptionError(f"shown is how many pieces to give for a blank, 1 or more; came {shown}")
    rows = [[tokenizer.start, *with_blanks(task, text)[: task.context - 2], tokenizer.end] for text in texts]
    never = [tokenizer.pad, tokenizer.unknown, tokenizer.start, tokenizer.end, tokenizer.mask]

    def answer(batch: list[int]) -> list[Filling]:
        tokens, lengths = right_padded([rows[i] for i in batch], next(model.parameters()).device)
        with eval_mode(model):
            probabilities = model(tokens, lengths=lengths).float().softmax(-1)
            probabilities[..., never] = 0
            best = torch.topk(probabilities, min(shown, tokenizer.vocabulary), -1)
        found = zip(batch, best.values.tolist(), best.indices.tolist(), strict=True)
        return [filled(tokenizer, texts[i], rows[i], values, ids) for i, values, ids in found]

    return in_batches([len(row) for row in rows], model, answer)


def with_blanks(task: Fill, text: str) -> list[int]:
    """The ids of a text, a mask token for each blank. Where a token has its space in front, a blank has it too."""
    tokenizer = task.tokenizers["text"]
    first, *others = parts(tokenizer, text)
    if not others:
        raise OptionError(f"there is no blank to fill in {text[:60]!r}: write {BLANK} where one is")
    ids = tokenizer.encode(first)
    for part in others:
        ids += [tokenizer.mask, *inside(tokenizer, part)]
    return ids


def parts(tokenizer: Tokenizer, text: str) -> list[str]:
    """What stands before, between and after the blanks, less the space that belongs to a blank."""
    *before, last = text.split(BLANK)
    alone = tokenizer.kind in ("byte", "char")
    return [*(part if alone else part.removesuffix(" ") for part in before), last]


def inside(tokenizer: Tokenizer, part: str) -> list[int]:
    """The ids of what stands within a text: some tokenisers put a space before whatever they are given."""
    line_end = tokenizer.encode("\n")
    both = tokenizer.encode(f"\n{part}")
    return both[len(line_end) :] if both[: len(line_end)] == line_end else tokenizer.encode(part)


def filled(
    tokenizer: Tokenizer, text: str, row: Sequence[int], values: list[list[float]], ids: list[list[int]]
) -> Filling:
    """The text with the likeliest piece in each blank; a space that stands before a blank is not put there twice."""
    blanks = [place for place, token in enumerate(row) if token == tokenizer.mask]
    likeliest = [ids[place][0] if place in blanks else token for place, token in enumerate(row)]
    made, *others = text.split(BLANK)
    for place, part in zip(blanks, others, strict=False):
        piece = continued(tokenizer, likeliest[:place], likeliest[place : place + 1])
        made += (piece.removeprefix(" ") if made == "" or made.endswith(" ") else piece) + part
    made = BLANK.join([made, *others[len(blanks) :]])
    pieces = [list(zip(tokenizer.pieces(ids[place]), values[place], strict=True)) for place in blanks]
    return Filling(made, pieces)
