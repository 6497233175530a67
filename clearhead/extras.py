"""Packages that only some users need: each comes with an extra, and where it is missing, the error says which."""

import importlib.util

from clearhead.errors import OptionError

__all__ = ["check_extra", "has_package", "how_to_install"]


def has_package(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra.

    >>> how_to_install("plots")
    "pip install 'clearhead[plots]'"
    """
    return f"pip install 'clearhead[{extra}]'"


def check_extra(package: str, *, extra: str, what: str) -> None:
    """Raise OptionError with the way to install a package, where it is not there. `what` is what needs it: "A plot"."""
    if not has_package(package):
        raise OptionError(f"{what} needs the package {package}, which is not installed: {how_to_install(extra)}")
