"""What one request, one client and all of them together may ask of the server."""

from dataclasses import dataclass, field
from typing import final

from clearhead.serve.budget import share_of_memory


@final
@dataclass(frozen=True, kw_only=True)
class ApiLimits:
    """The limits of the API, each with the status of what goes beyond it."""

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
