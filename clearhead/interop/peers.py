"""The packages of other programs: imported where they are needed, and named where they are missing."""

import importlib
import warnings
from importlib.metadata import version
from typing import Any

from clearhead.errors import OptionError
from clearhead.extras import how_to_install


def import_peer(name: str) -> Any:
    """Import a package of another program; OptionError with the way to install it where it is not there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what packages say of each other when they are imported
            return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"this needs the package {name.partition('.')[0]} ({error}); install it with `{how_to_install('export')}`"
        ) from None


def peer_version(name: str) -> str:
    """Return a package's name and version, to be printed with the figures of a check."""
    return f"{name} {version(name)}"
