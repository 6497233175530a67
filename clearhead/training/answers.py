"""What the answers of all tasks share: batches of similar length, the text that token ids stand for, and verbs that
take one text, a str, or several.

A text's answer does not depend on the texts beside it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    overload,
    runtime_checkable,
)

from torch import Tensor

from clearhead.calls import public
from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.text.tokenizer import Tokenizer

Result = TypeVar("Result")
ON_CPU, ON_GPU = 4096, 65_536
"""Tokens of a batch, hypotheses counted."""


class Written(NamedTuple):
    """A text, its log-probability, and the score it was ranked by: in a beam, that over a power of its length."""

    text: str
    log_prob: float
    score: float


def in_batches(
    lengths: Sequence[int],
    model: Transformer,
    answer: Callable[[list[int]], list[Result]],
    *,
    width: int = 1,
    apart: Callable[[int], int] = lambda length: 0,
) -> list[Result]:
    """Return the answers to rows of these lengths, in order. `answer` is asked for a few at a time, by number.

    Rows of similar length go together, and only those of lengths that `apart` makes the same of.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    tokens = (ON_GPU if next(model.parameters()).device.type == "cuda" else ON_CPU) // width
    answers: dict[int, Result] = {}
    for batch in cut(order, lengths, tokens, apart):
        answers |= zip(batch, answer(batch), strict=True)
    return [answers[i] for i in range(len(lengths))]


def cut(order: Sequence[int], lengths: Sequence[int], tokens: int, apart: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield the numbers of rows in batches of about so many tokens."""
    batch: list[int] = []
    for i in order:
        full = (len(batch) + 1) * max(lengths[i], 16) > tokens
        if batch and (full or apart(lengths[i]) != apart(lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def continued(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of tokens that follow others: a space between the two belongs to it."""
    first, joined = tokenizer.decode(before), tokenizer.decode([*before, *tokens])
    return joined[len(first) :] if joined.startswith(first) else tokenizer.decode(tokens)


def one_line(text: str) -> str:
    """Return the text with its ends of line as spaces.

    >>> one_line("to be,\\r\\nor not")
    'to be, or not'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of text that tokens stand for, special tokens by their names.

    Those of an imported model have its own names, but for the mask: a blank is written `<mask>` everywhere.
    """
    special = {tokenizer.mask: "<mask>"}
    if tokenizer.imported is None:
        special |= {
            tokenizer.start: "<s>",
            tokenizer.end: "</s>",
            tokenizer.pad: "<pad>",
            tokenizer.unknown: "<unk>",
        }
    return [special.get(token) or tokenizer.pieces([token])[0] for token in ids]


Item_contra = TypeVar("Item_contra", contravariant=True)
Answer = TypeVar("Answer")
Options = ParamSpec("Options")


@runtime_checkable
class BoundVerb(Protocol, Generic[Item_contra, Options, Answer]):
    """A verb of one run: a str gives one answer."""

    @overload
    def __call__(self, texts: str = "", /, *args: Options.args, **options: Options.kwargs) -> Answer: ...
    @overload
    def __call__(
        self, texts: Iterable[Item_contra], /, *args: Options.args, **options: Options.kwargs
    ) -> list[Answer]: ...  # pyright: ignore[reportOverlappingOverload] - a str is told apart first


@runtime_checkable
class Verb(Protocol, Generic[Item_contra, Options, Answer]):
    """A verb in the class: `run.verb` is a `BoundVerb`."""

    def __get__(self, run: Any, owner: Any = None) -> BoundVerb[Item_contra, Options, Answer]: ...


def one_or_several(
    check: Callable[[str, object], Item_contra],
) -> Callable[
    [Callable[Concatenate[Any, Sequence[Item_contra], Options], list[Answer]]], Verb[Item_contra, Options, Answer]
]:
    """Let a verb that answers a list of texts answer one str too. `check` raises for an item that is no text."""

    def decorate(verb: Callable[..., list[Any]]) -> Verb[Any, Any, Any]:
        answer_all, signature = public(verb), inspect.signature(verb)
        name, parameter = list(signature.parameters.items())[1]

        @functools.wraps(verb)
        def ask(run: Any, *args: Any, **options: Any) -> Any:
            texts = args[0] if args else options.get(name, parameter.default)
            if texts is parameter.empty:
                return answer_all(run, **options)  # which raises: there are no texts
            rest = {key: value for key, value in options.items() if key != name or args}
            if isinstance(texts, str):
                [answer] = answer_all(run, [texts], *args[1:], **rest)
                return answer
            return answer_all(run, check_list(name, texts, check), *args[1:], **rest)

        shown = [
            each.replace(annotation=str | each.annotation) if each.name == name else each
            for each in signature.parameters.values()
        ]
        [answer_type] = get_args(signature.return_annotation)
        vars(ask)["__signature__"] = signature.replace(
            parameters=shown, return_annotation=answer_type | signature.return_annotation
        )
        return cast(Verb[Any, Any, Any], ask)

    return decorate


def check_list(name: str, texts: object, check: Callable[[str, object], Item_contra]) -> list[Item_contra]:
    """Return several texts as a list, after checking each; OptionError where they are none."""
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Tensor):
        raise OptionError(f"{name}: expected a str, or several of them in a list; came {type(texts).__name__}")
    return [check(f"{name}[{index}]", text) for index, text in enumerate(texts)]


def check_max_new(max_new: object) -> int:
    if not isinstance(max_new, int) or isinstance(max_new, bool) or max_new < 1:
        raise OptionError(f"max_new: at least one token must be asked for, a whole number; came {max_new!r:.80}")
    return max_new


def check_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise OptionError(f"{name}: expected a text, a str; came {text!r:.80}")
    return text


def check_text_or_pair(name: str, text: object) -> str | tuple[str, str]:
    if isinstance(text, str):
        return text
    if not isinstance(text, tuple | list) or len(text) != 2 or not all(isinstance(part, str) for part in text):
        raise OptionError(f"{name}: expected a text, a str, or a pair of two; came {text!r:.80}")
    return text[0], text[1]
