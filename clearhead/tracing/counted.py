"""`Counted`: the layers of a trace and the heads of a site, which say how many there are where another is asked for."""

from collections.abc import Iterable
from typing import SupportsIndex, TypeVar, final, overload

from clearhead.errors import PlaceError

Item = TypeVar("Item")


@final
class Counted(list[Item]):
    """A list of the things called `what`; an index that is not there raises a PlaceError, which is an IndexError too.

    >>> Counted(["a", "b"], "decoder: layer")[7]
    Traceback (most recent call last):
    ...
    clearhead.errors.PlaceError: decoder: layer 7 is not there; there are 2, counted from 0
    """

    def __init__(self, items: Iterable[Item], what: str) -> None:
        super().__init__(items)
        self.what = what

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | list[Item]:
        try:
            return super().__getitem__(index)
        except (IndexError, TypeError):
            raise PlaceError(f"{self.what} {index!r} is not there; there are {len(self)}, counted from 0") from None
