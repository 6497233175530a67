"""An LRU cache with a limit on the number of values and on their size."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar, final

__all__ = ["LRUCache"]

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


@final
class LRUCache(Generic[Name, Value]):
    """The values last asked for, by name. The oldest go when there are too many, or when they take too much room.

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
        with self.lock:
            if name in self.values:
                self.values.move_to_end(name)
            return self.values.get(name)

    def get_or_make(self, name: Name, make: Callable[[], Value]) -> Value:
        found = self.get(name)
        if found is None:
            found = make()
            with self.lock:
                self.values[name] = found
                self.evict()
        return found

    def evict(self) -> None:
        """Evict the oldest values until the rest fit; the newest stays, whatever its size."""
        while len(self.values) > 1 and (len(self.values) > self.most or self.full()):
            self.values.popitem(last=False)

    def full(self) -> bool:
        return self.room is not None and sum(map(self.size, self.values.values())) > self.room
