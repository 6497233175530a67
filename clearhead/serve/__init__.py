"""A server of runs: `Server` with the API's table of routes (`Api`). `clearhead look` adds the explorer's."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.serve.api.routes import Api
    from clearhead.serve.logs import Logs
    from clearhead.serve.server import Server

__all__ = ["Api", "Logs", "Server"]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first asked for: logs need no server."""
    homes = {"Api": "api.routes", "Logs": "logs", "Server": "server"}
    if name not in homes:
        raise AttributeError(f"module 'clearhead.serve' has no attribute {name!r}")
    return getattr(importlib.import_module(f"clearhead.serve.{homes[name]}"), name)
