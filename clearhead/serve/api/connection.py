"""Connections of the API: read by httptools, a parser in C, where it is installed, and by h11 where not.

h11 is written in Python, and takes longer for a request than all that the API does with it but for the model's work.
"""

from collections.abc import Callable
from typing import Any, final

from clearhead.serve.connections import Connection, Deadlines

MOST_HEAD = 65_536
"""Bytes of a request's head: h11's limit; httptools has none."""


def connection_class() -> Callable[..., Any]:
    """Return the class of connections; it takes limits first, then what uvicorn gives."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return Connection

    @final
    class FastConnection(Deadlines, HttpToolsProtocol):  # pyright: ignore[reportIncompatibleVariableOverride]
        """A connection whose requests are read by httptools."""

        head = 0
        """Bytes that came since the last request was complete, of a head that is not."""

        def data_received(self, data: bytes) -> None:
            self.head += len(data)
            super().data_received(data)
            if self.head > MOST_HEAD and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.head = 0

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            self.head = 0

    return FastConnection
