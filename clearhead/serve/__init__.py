"""Servers of runs: the explorer, for a browser on this machine, and the API, whose server is `ApiServer`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.serve.api.logs import Logs
    from clearhead.serve.api.server import ApiServer

__all__ = ["ApiServer", "Logs"]


def __getattr__(name: str) -> Any:
    """Import a public name where it is first asked for: the explorer needs no API, and the API no explorer."""
    homes = {"ApiServer": "clearhead.serve.api.server", "Logs": "clearhead.serve.api.logs"}
    if name not in homes:
        raise AttributeError(f"module 'clearhead.serve' has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
