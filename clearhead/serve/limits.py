"""What one request, one client and all of them together may ask of the server."""

from dataclasses import dataclass, field
from typing import final

from clearhead.serve.budget import share_of_memory


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the server, each with the status of what goes beyond it."""

    connections: int = 1024
    """Connections at once; one more closes the one that has kept the server waiting longest (503 where none does)."""
    bodies: int = 512
    """Connections that have sent a part of a body; one more closes the one that began first."""
    head: float = 10.0
    """Seconds for the whole head of a request, from when it is accepted or has sent the first byte."""
    arrival: float = 20.0
    """Seconds for the whole body (408)."""
    idle: float = 30.0
    """Seconds for which a connection may be silent between two requests."""
    reading: float = 60.0
    """Seconds for a reply that is not read."""
    body: int = 4_000_000
    """Bytes of a request's body (413)."""
    text: int = 100_000
    """Characters of one text (413)."""
    texts: int = 256
    """Texts of one request, times its `n` (413)."""
    tokens: int = 4096
    """New tokens of one output (400)."""
    attention: int = 1_000_000
    """Attention weights in one answer (413)."""
    queue: int = 512
    """Texts of one run that wait or are computed at once (429)."""
    memory: int = field(default_factory=share_of_memory)
    """Bytes of KV caches of one run that are in use at once (503)."""
    seconds: float = 120.0
    """Seconds for one answer (504)."""
    unread: int = 1_000_000
    """Bytes of a stream that its client has not read yet; with more the client is dropped."""
    drain: float = 30.0
    """Seconds in which requests under way may end once the server is told to stop."""

    def within(self, files: int | None) -> int:
        """Return the maximum number of connections for a process that may open `files` files.

        >>> Limits().within(None), Limits().within(1024), Limits().within(256)
        (1024, 512, 128)
        """
        return self.connections if files is None else max(1, min(self.connections, files // 2))
