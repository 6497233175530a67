"""`clearhead look`: the explorer, in the browser."""

import os
import sys
import webbrowser
from typing import Annotated

import typer

from clearhead.cli.reading import Device, RunPath
from clearhead.cli.screen import write
from clearhead.training.run import load

__all__ = ["EXAMPLES", "look"]

EXAMPLES = """\b
Examples:
  clearhead look runs/demo
  clearhead look runs/de-en --no-open --port 8000"""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def look(
    run: RunPath,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.", metavar="N")] = 0,
    host: Annotated[str, typer.Option(help="Where to listen: this machine alone unless given.", metavar="NAME")] = (
        "127.0.0.1"
    ),
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
    device: Device = "auto",
) -> None:
    """Look into a run in the browser: every layer, head and number of what it makes of your text.

    The page is served on this machine, with a random token in its address; it needs no network. Ctrl-C ends it.
    """
    from clearhead.serve.explorer import Explorer
    from clearhead.serve.server import Server, check_page

    loaded = load(run, device=device)
    check_page()
    server = Server(Explorer(loaded), host=host, port=port)
    if host not in LOOPBACK:
        print(f"Whoever knows the address can reach this from the network: it listens on {host}.", file=sys.stderr)
    write(f"{server.place.address}\n")
    if not no_open and has_screen():
        webbrowser.open(server.place.address)
    server.run()


def has_screen() -> bool:
    """Whether a browser would have a window. Without a screen, one might open in this very terminal, and keep it."""
    shown = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in shown)
