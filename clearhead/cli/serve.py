"""`clearhead serve`: runs over HTTP, in OpenAI's form where it has one."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
import typer

from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.line_io import Device, Dtype
from clearhead.cli.options import HOST, LOCAL, Parts
from clearhead.cli.screen import write
from clearhead.errors import ClearheadError, OptionError, WordError
from clearhead.files import read_bytes
from clearhead.options import Option, option
from clearhead.serve.limits import Limits
from clearhead.training.folder import RunFolder
from clearhead.training.run import load

if TYPE_CHECKING:
    from clearhead.serve.server import Tls

EXAMPLES = """\b
Examples:
  clearhead serve runs/demo
  clearhead serve runs/de-en runs/shakespeare --port 8000
  clearhead serve runs/demo --host 0.0.0.0 --token-file token.txt --log-format json"""

SWITCH = 0.0005
"""Seconds after which a thread of Python lets another go on. Between two of its many small operations the model's
thread would wait 5 ms for the thread that reads requests, the usual value, as long as there are any to read."""

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Run folders; each is served as a model.", metavar="RUN...", autocompletion=complete_names([RUNS])
    ),
]
Names = Annotated[
    list[str] | None,
    Option("Name of a run, instead of its folder's name; once for each run.", word="name", takes="NAME"),
]


AdapterRuns = Annotated[
    list[str] | None,
    Option(
        "Run that was fine-tuned by LoRA from one that is served: it answers at NAME:FOLDER, in the same batch.",
        word="adapter",
        takes="RUN",
    ),
]


Explore = Annotated[
    bool,
    Option(
        "Serve the explorer too, of the first run or the first two side by side. There is always a token then: "
        "yours, or a random one in the second address.",
        word="explore",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where it listens, and whom it answers."""

    title: ClassVar[str] = "Network"

    host: str = option(LOCAL, HOST, takes="NAME")
    port: int = option(8000, "Port to listen on; 0 picks a free one.", takes="N", least=0, most=65535)
    token: str | None = option(
        None,
        "Token that clients must send (`Authorization: Bearer TOKEN`). Other users of this machine can read a "
        "command line; CLEARHEAD_TOKEN in the environment they cannot.",
        takes="TOKEN",
        env="CLEARHEAD_TOKEN",
    )
    token_file: Path | None = option(None, "File with the token, instead of --token.", takes="FILE")
    cors: list[str] | None = option(
        None, "Let pages of this origin ask from a browser: https://example.org.", takes="ORIGIN"
    )
    ssl_certfile: Path | None = option(None, "Certificate, to serve HTTPS.", takes="FILE")
    ssl_keyfile: Path | None = option(None, "Key of the certificate.", takes="FILE")

    def read_token(self) -> str | None:
        """Return the token; OptionError if its file cannot be read or holds none."""
        if self.token_file is None:
            return self.token or None
        if self.token is not None:
            raise WordError("token_file", "there is a --token (or CLEARHEAD_TOKEN) too: leave one of them out")
        try:
            token = read_bytes(self.token_file).decode().strip()
        except (OSError, UnicodeDecodeError, ClearheadError) as error:
            raise OptionError(f"--token-file: {self.token_file} cannot be read ({error})") from None
        if not token:
            raise OptionError(f"--token-file: {self.token_file} is empty")
        return token

    def read_tls(self) -> "Tls | None":
        """Return the certificate and its key, once they have been checked; None for plain HTTP."""
        from clearhead.serve.server import Tls

        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise WordError("ssl_keyfile", "needs its certificate: add --ssl-certfile")
            return None
        tls = Tls(certificate=self.ssl_certfile, key=self.ssl_keyfile)
        tls.check()
        return tls


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many sequences it decodes at a time, and the memory that they may take."""

    title: ClassVar[str] = "Capacity"

    slots: int = option(32, "Sequences of a run that are decoded together.", takes="N", least=1, most=1024)
    replicas: int = option(
        1, "Processes that decode a run on the CPU, each with slots of its own.", takes="N", least=1, most=64
    )
    memory: int | None = option(
        None, "MB of KV caches of a run; more get status 503. [default: 1/4 of all]", takes="MB", least=1
    )

    def share_threads(self) -> int:
        """Return the threads of each model's process, and leave one to this process until those are forked."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a fork does not take threads along
        if "OMP_NUM_THREADS" in os.environ:
            return threads
        # Threads that share a core wait for one another. A single process leaves one core to the requests; of several,
        # whichever is on that core gives way.
        return max(1, threads - 1 if self.replicas == 1 else threads // self.replicas)


def serve(
    runs: Runs,
    *,
    names: Names = None,
    adapters: AdapterRuns = None,
    device: Device = "auto",
    dtype: Dtype = None,
    parts: Parts = None,
    log_format: Annotated[
        Literal["text", "json"], Option("Form of the log on stderr. It never has the users' text.")
    ] = "text",
    explore: Explore = False,
    listening: Listening,
    capacity: Capacity,
    limits: Limits,
) -> None:
    """Serve trained models over HTTP: translation, text, chat, classes, blanks and vectors.

    Addresses are those of OpenAI's API where it has one: /v1/completions, /v1/chat/completions, /v1/embeddings,
    /v1/models. /v1/translate, /v1/classify, /v1/fill and /v1/answer are ours. `"attention": true` in a request
    returns the attention weights too. Ctrl-C stops it once the requests under way are answered.
    """
    from clearhead.serve.api.routes import Api
    from clearhead.serve.api.served import batched, names_of
    from clearhead.serve.app import Service
    from clearhead.serve.explorer import Explorer, side_by_side, with_own_modules
    from clearhead.serve.explorer_routes import ExplorerPages, check_page
    from clearhead.serve.guard import check_token
    from clearhead.serve.logs import Logs
    from clearhead.serve.server import Server, check_port

    token = listening.read_token()
    if token is not None:
        check_token(token)
    tls = listening.read_tls()
    folders = [RunFolder(Path(run)) for run in runs]
    names_of(folders, names or ())
    for folder in folders:
        folder.origin()
    check_port(listening.host, listening.port, private=token is None and not explore)
    if explore:
        check_page()
    threads = capacity.share_threads()
    sys.setswitchinterval(SWITCH)
    if capacity.memory is not None:
        limits = replace(limits, memory=capacity.memory * 1_000_000)
    loaded = [load(run, device=device, dtype=dtype) for run in runs]
    tuned = [load(run, device=device, dtype=dtype, merge=False) for run in adapters or ()]
    api = Api(
        loaded,
        names=names or (),
        adapters=tuned,
        scheduler=batched(capacity.slots),
        model_threads=threads,
        replicas=capacity.replicas,
    )
    services: list[Service] = [api]
    if explore:
        first, *others = (with_own_modules(one) for one in loaded[:2])
        services.append(ExplorerPages(side_by_side(first, others[0]) if others else Explorer(first)))
    server = Server(
        *services,
        host=listening.host,
        port=listening.port,
        token=token,
        cors=tuple(listening.cors or ()),
        tls=tls,
        limits=limits,
        logs=Logs(log_format),
    )
    write(f"{server.address}\n")
    if explore:
        write(f"{server.place.page}\n")
    server.run()
