"""`one_or_several`: a run's verbs take one text, a str, and give one answer; or several, and give a list of answers.

A str is a sequence of its letters to Python, so without it `run.translate("zwei")` would translate four letters.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, get_args, overload, runtime_checkable

from torch import Tensor

from clearhead.calls import public
from clearhead.errors import OptionError

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
