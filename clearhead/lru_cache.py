"""`LRUCache`: the values asked for last, up to a number of them and to a size in all."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Name, Value]):
    """A least-recently-used cache: the values asked for last, by name.

    The oldest are dropped when there are more than `most`, or when their sizes add up to more than `room`.

    >>> cache = LRUCache[str, int](most=2)
    >>> [cache.get_or_make(name, lambda: len(name)) for name in ("one", "three", "one", "seven!")]
    [3, 5, 3, 6]
    >>> cache.get("three"), cache.get("one")
    (None, 3)
    """

    def __init__(self, *, most: int, room: int | None = None, size: Callable[[Value], int] = lambda value: 0) -> None:
        self.most, self.room, self.size = most, room, size
        self.values: OrderedDict[Name, Value] = OrderedDict()
        self.lock = Lock()

    def get(self, name: Name) -> Value | None:
        """Return the value of that name, or None; it is then the last to be dropped."""
        with self.lock:
            if name in self.values:
                self.values.move_to_end(name)
            return self.values.get(name)

    def get_or_make(self, name: Name, make: Callable[[], Value]) -> Value:
        """Return the value of that name; if there is none, make it and keep it."""
        value = self.get(name)
        if value is None:
            value = make()
            with self.lock:
                self.values[name] = value
                self.drop_oldest()
        return value

    def keep_only(self, wanted: Callable[[Value], bool]) -> None:
        """Drop every value that is not wanted.

        >>> cache = LRUCache[str, int](most=3)
        >>> _ = [cache.get_or_make(name, lambda: len(name)) for name in ("one", "three")]
        >>> cache.keep_only(lambda value: value > 3)
        >>> list(cache.values)
        ['three']
        """
        with self.lock:
            for name in [name for name, value in self.values.items() if not wanted(value)]:
                del self.values[name]

    def drop_oldest(self) -> None:
        """Drop what is too many or too large in all; the newest stays, whatever its size."""
        while len(self.values) > 1 and (len(self.values) > self.most or self.is_full()):
            self.values.popitem(last=False)

    def is_full(self) -> bool:
        return self.room is not None and sum(map(self.size, self.values.values())) > self.room
