"""A server of runs: `Server` with two tables of routes, the API (`Api`) and the explorer (`ExplorerPages`)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.serve.api.routes import Api
    from clearhead.serve.explorer_routes import ExplorerPages
    from clearhead.serve.logs import Logs
    from clearhead.serve.server import Server

__all__ = ["Api", "ExplorerPages", "Logs", "Server"]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first asked for: the explorer needs no API, and the API no explorer."""
    homes = {"Api": "api.routes", "Logs": "logs", "ExplorerPages": "explorer_routes", "Server": "server"}
    if name not in homes:
        raise AttributeError(f"module 'clearhead.serve' has no attribute {name!r}")
    return getattr(importlib.import_module(f"clearhead.serve.{homes[name]}"), name)
