"""Packages that only some users need: each comes with an extra, and where it is missing, the error says the command."""

import importlib
import importlib.util
import re
import warnings
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from clearhead.errors import OptionError


def has_package(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    It names the packages, not `clearhead[extra]`: so it works wherever Clearhead itself came from, a clone, a wheel or
    an index, and pip asks no index for a name that may be somebody else's.

    >>> how_to_install("plots")
    "pip install 'matplotlib>=3.10'"
    """
    try:
        required = requires("clearhead") or []
    except PackageNotFoundError:  # a clone on the path that was never installed
        return f"pip install '.[{extra}]', in the clone"
    named = [line.partition(";")[0].strip() for line in required if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return " ".join(["pip install", *(f"'{name}'" for name in named)])


def check_extra(package: str, *, extra: str, what: str) -> None:
    """Raise OptionError with the way to install a package, where it is not there. `what` is what needs it: "A plot"."""
    if not has_package(package):
        raise OptionError(f"{what} needs the package {package}, which is not installed: {how_to_install(extra)}")


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
