"""What one request, one client and all of them together may ask of the server."""

from dataclasses import dataclass, field
from typing import ClassVar

from clearhead.options import option
from clearhead.serve.budget import share_of_memory


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the server, each with the status of what goes beyond it."""

    title: ClassVar[str] = "Limits"

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
    body: int = option(4_000_000, "Bytes of a request; more get status 413.", word="max_body", takes="N", least=1)
    text: int = option(100_000, "Characters of a text; more get status 413.", word="max_text", takes="N", least=1)
    texts: int = option(
        256, "Texts of a request, times its n; more get status 413.", word="max_texts", takes="N", least=1
    )
    tokens: int = option(4096, "Most new tokens of an output.", word="max_tokens", takes="N", least=1)
    attention: int = 1_000_000
    """Attention weights in one answer (413)."""
    queue: int = option(512, "Texts of a run that may wait or run; more get status 429.", takes="N", least=1)
    memory: int = field(default_factory=share_of_memory)
    """Bytes of KV caches of one run that are in use at once (503)."""
    seconds: float = option(120.0, "Time for one answer; longer gets status 504.", takes="S", above=0)
    unread: int = 1_000_000
    """Bytes of a stream that its client has not read yet; with more the client is dropped."""
    drain: float = option(
        30.0, "Time for requests under way once it is told to stop.", word="drain_seconds", takes="S", least=0
    )

    def within(self, files: int | None) -> int:
        """Return the maximum number of connections for a process that may open `files` files.

        >>> Limits().within(None), Limits().within(1024), Limits().within(256)
        (1024, 512, 128)
        """
        return self.connections if files is None else max(1, min(self.connections, files // 2))
