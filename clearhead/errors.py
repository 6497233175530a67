"""The errors that Clearhead raises for a user's request: one family, so that `except ClearheadError` catches them all.

A message says what was expected, what came, and what to do.
"""

import contextlib
import difflib
from collections.abc import Iterable, Iterator

__all__ = [
    "ArgumentError",
    "ClearheadError",
    "DataError",
    "DeviceError",
    "DtypeError",
    "NotBuiltError",
    "OptionError",
    "PlaceError",
    "ProgramError",
    "RunError",
    "ShapeError",
    "TraceError",
    "UnsupportedError",
    "WordError",
]


class ClearheadError(Exception):
    """Base class of every error that Clearhead raises for a request it cannot serve."""


class ShapeError(ClearheadError, ValueError):
    """A tensor has the wrong shape, or the shapes of two tensors do not match.

    >>> import torch, clearhead as ch
    >>> try:
    ...     ch.attend(torch.ones(2, 3), torch.ones(2, 4), torch.ones(2, 4))
    ... except ch.errors.ShapeError:
    ...     print("refused")
    refused
    """


class DtypeError(ClearheadError, ValueError):
    """A tensor has the wrong dtype, or the dtypes of two tensors differ.

    >>> import torch, clearhead as ch
    >>> try:
    ...     ch.masks.tensor(torch.ones(2, 2))
    ... except ch.errors.DtypeError:
    ...     print("refused")
    refused
    """


class DeviceError(ClearheadError, ValueError):
    """Tensors that belong together are on different devices.

    >>> import torch, clearhead as ch
    >>> try:
    ...     ch.attend(torch.ones(2, 4), torch.ones(2, 4, device="meta"), torch.ones(2, 4))
    ... except ch.errors.DeviceError:
    ...     print("refused")
    refused
    """


class OptionError(ClearheadError, ValueError):
    """An option has an unknown name or an invalid value: an unknown kernel, zero heads, a negative temperature."""


class ArgumentError(OptionError, TypeError):
    """A call has an argument that the function does not take, one of another type, or lacks one that it needs.

    >>> import clearhead as ch
    >>> try:
    ...     ch.Heads("eight")
    ... except ch.errors.ArgumentError:
    ...     print("refused")
    refused
    """


class WordError(OptionError):
    """An option is not allowed, or is missing.

    Args:
        words: What the user calls it: `lr`, `steps and minutes`.
        problem: What is wrong with it.
        is_missing: Whether it is missing.

    >>> from clearhead.errors import WordError
    >>> isinstance(WordError("lr", "must be above 0"), ValueError)
    True
    """

    def __init__(self, words: str, problem: str, *, is_missing: bool = False) -> None:
        self.words, self.problem, self.is_missing = words, problem, is_missing
        super().__init__(f"{words} is missing: {problem}" if is_missing else f"{words}: {problem}")


class PlaceError(OptionError, IndexError):
    """There is no layer, head or row with this number.

    >>> import clearhead as ch
    >>> try:
    ...     ch.Edit(at="decoder.0.attention", step="context", head=-1, to=0)
    ... except ch.errors.PlaceError:
    ...     print("refused")
    refused
    """


class NotBuiltError(ClearheadError, RuntimeError):
    """A part with learned parameters was used before it was built.

    >>> import torch, clearhead as ch
    >>> try:
    ...     ch.attend(*[torch.ones(2, 4)] * 3, similarity=ch.similarity.Additive())
    ... except ch.errors.NotBuiltError:
    ...     print("refused")
    refused
    """


class UnsupportedError(ClearheadError, RuntimeError):
    """The request is valid, but the named kernel cannot compute it.

    >>> import torch, clearhead as ch
    >>> try:
    ...     ch.attend(*[torch.ones(2, 4)] * 3, kernel="argmax")
    ... except ch.errors.UnsupportedError:
    ...     print("refused")
    refused
    """


class DataError(ClearheadError, ValueError):
    """A user's file cannot be used: the message names the file and the line.

    >>> import clearhead as ch
    >>> issubclass(ch.errors.DataError, ch.ClearheadError)
    True
    """


class ShardError(DataError):
    """A file of another machine cannot be had just now: what was prepared of the others stays, for another try."""


class RunError(ClearheadError, RuntimeError):
    """A run folder cannot be used: another process uses it, it is damaged, not a run, or not writable.

    >>> import clearhead as ch
    >>> try:
    ...     ch.load("no/such/folder")
    ... except ch.errors.RunError:
    ...     print("refused")
    refused
    """


class TraceError(ClearheadError, RuntimeError):
    """A trace cannot be used: recomputed values differ from the recorded ones, or it belongs to another model.

    >>> import clearhead as ch
    >>> issubclass(ch.errors.TraceError, ch.ClearheadError)
    True
    """


class ProgramError(ClearheadError, ValueError):
    """A RASP program or a designed head is invalid: its types do not match, or attention cannot compute it.

    >>> from clearhead import errors, rasp
    >>> try:
    ...     rasp.aggregate(rasp.select(rasp.indices, rasp.source_indices, lambda key, query: True), rasp.source_tokens)
    ... except errors.ProgramError:
    ...     print("refused")
    refused
    """


@contextlib.contextmanager
def naming_word(word: str, said: str | None = None) -> Iterator[None]:
    """Re-raise an error of the package as one of the option `word`; `said`: what the error begins with, if not that."""
    try:
        yield
    except ClearheadError as error:
        raise WordError(word, str(error).removeprefix(f"{said or word}: ")) from error


@contextlib.contextmanager
def errors_as(kind: type[ClearheadError], where: object) -> Iterator[None]:
    """Re-raise an OptionError as an error of another kind that says where it came up."""
    try:
        yield
    except OptionError as error:
        raise kind(f"{where}: {error}") from None


@contextlib.contextmanager
def unreadable(
    path: object, *others: type[Exception], error: type[ClearheadError] = RunError, after: str = ""
) -> Iterator[None]:
    """Re-raise an OSError, or one of `others`, as an `error` that says which file cannot be read, and why."""
    try:
        yield
    except (OSError, *others) as problem:
        why = getattr(problem, "strerror", None) or f"{problem!s:.300}"
        raise error(f"{path}: cannot be read ({why}){after}") from None


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, None where none is like it."""
    return next(iter(difflib.get_close_matches(name, [*names], 1)), None)


def no_such(name: str, names: Iterable[str], more: str = "") -> str:
    """Say that there is no such name, which one is near, and which there are; `more` follows them.

    >>> no_such("cosin", ["constant", "cosine"])
    "there is no 'cosin'. Did you mean 'cosine'? There are constant, cosine"
    >>> no_such("step", ["constant", "cosine"])
    "there is no 'step'; there are constant, cosine"
    """
    listed = [*names]
    near = nearest(name, listed)
    between = f". Did you mean {near!r}? There" if near else "; there"
    return f"there is no {name!r:.80}{between} are {', '.join(listed)}{more}"
