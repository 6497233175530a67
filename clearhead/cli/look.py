"""`clearhead look`: the explorer, in the browser."""

import contextlib
import html
import os
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.line_io import Device, RunPath
from clearhead.cli.options import Host, NoOpen, Parts, Port, Token
from clearhead.cli.screen import write
from clearhead.training.folder import RunFolder
from clearhead.training.run import load

EXAMPLES = """\b
Examples:
  clearhead look runs/demo
  clearhead look runs/de-en --no-open --port 8000
  clearhead look runs/baseline runs/larger
  CLEARHEAD_TOKEN=$(cat token.txt) clearhead look runs/demo --port 8000"""

OtherRun = Annotated[
    str | None,
    typer.Argument(
        help="A second run, to see both side by side and their difference.",
        metavar="[RUN]",
        show_default=False,
        autocompletion=complete_names([RUNS]),
    ),
]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DRAIN = 2.0
"""Seconds for answers under way once it is told to stop."""
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>Clearhead</title>
<a href="{address}">Open the explorer</a>
"""


def look(
    run: RunPath,
    other: OtherRun = None,
    *,
    port: Port = 0,
    host: Host = "127.0.0.1",
    token: Token = None,
    no_open: NoOpen = False,
    device: Device = "auto",
    parts: Parts = None,
) -> None:
    """Open a trained model in the browser: type a text, and see every layer, head and number.

    The page is served from this machine and needs no network. Its address holds a random token, or yours
    (--token). Ctrl-C stops it.
    """
    from clearhead.serve.explorer import Explorer, side_by_side
    from clearhead.serve.explorer_routes import ExplorerPages, check_page
    from clearhead.serve.guard import check_token
    from clearhead.serve.limits import Limits
    from clearhead.serve.logs import Tracebacks
    from clearhead.serve.server import Server, check_port

    check_page()
    if token is not None:
        check_token(token)
    for path in [run] if other is None else [run, other]:
        RunFolder(Path(path)).origin()
    check_port(host, port)
    loaded = load(run, device=device)
    explorer = Explorer(loaded) if other is None else side_by_side(loaded, load(other, device=device))
    limits = Limits(drain=DRAIN)
    server = Server(ExplorerPages(explorer), host=host, port=port, token=token, limits=limits, logs=Tracebacks())
    if host not in LOOPBACK:
        print(f"Listening on {host}: anyone on the network who has the address can open this page.", file=sys.stderr)
    write(f"{server.place.page}\n")
    # Without a screen, a browser might open in this very terminal.
    screens = [os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")]
    if no_open or not (sys.platform in ("darwin", "win32") or any(screens)):
        server.run()
        return
    with redirect_page(server.place.page) as page:
        webbrowser.open(page.as_uri())
        server.run()


@contextlib.contextmanager
def redirect_page(address: str) -> Iterator[Path]:
    """Yield a page that leads to the address, and that only this user can read; it is removed at the end.

    A browser's command line can be read by every user of a machine, and the address holds the token. `kill` ends the
    process as an exit does, so that the page is removed then too.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="clearhead-") as folder:  # mode 0700
            page = Path(folder) / "explorer.html"
            with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(REDIRECT.format(address=html.escape(address)))
            yield page
    finally:
        signal.signal(signal.SIGTERM, before)
