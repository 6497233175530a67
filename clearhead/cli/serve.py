"""`clearhead serve`: runs over HTTP, in OpenAI's form where it has one."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, final

import typer

from clearhead.cli.completion import RUNS, complete_names
from clearhead.cli.line_io import Device, Dtype
from clearhead.cli.options import Host, Parts, above_zero, wrong
from clearhead.cli.screen import write
from clearhead.errors import ClearheadError, OptionError
from clearhead.files import read_bytes
from clearhead.training.folder import RunFolder
from clearhead.training.run import load

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
        help="Run folders; each is a model of its own.", metavar="RUN...", autocompletion=complete_names([RUNS])
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name", help="What a run is called, instead of its folder's name; once for each run.", metavar="NAME"
    ),
]


Explore = Annotated[
    bool,
    typer.Option(
        "--explore",
        help="Serve the explorer too, of the first run or the first two side by side. There is always a token then: "
        "yours, or a random one in the second address.",
    ),
]


@final
@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where it listens, and whom it answers."""

    title: ClassVar[str] = "Network"

    host: Host = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.", metavar="N")] = (
        8000
    )
    token: Annotated[
        str | None,
        typer.Option(
            help="Token that clients must send (`Authorization: Bearer TOKEN`). Other users of this machine can read a "
            "command line; CLEARHEAD_TOKEN in the environment they cannot.",
            envvar="CLEARHEAD_TOKEN",
            show_envvar=False,
            metavar="TOKEN",
        ),
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token, instead of --token.", metavar="FILE")
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Let pages of this origin ask from a browser: https://example.org.", metavar="ORIGIN"),
    ] = None
    ssl_certfile: Annotated[Path | None, typer.Option(help="Certificate, to serve HTTPS.", metavar="FILE")] = None
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Key of the certificate.", metavar="FILE")] = None

    def read_token(self) -> str | None:
        """Return the token; OptionError where its file cannot be read or holds none."""
        if self.token_file is None:
            return self.token or None
        if self.token is not None:
            raise wrong("--token-file", "there is a --token (or CLEARHEAD_TOKEN) too: leave one of them out")
        try:
            token = read_bytes(self.token_file).decode().strip()
        except (OSError, UnicodeDecodeError, ClearheadError) as error:
            raise OptionError(f"--token-file: {self.token_file} cannot be read ({error})") from None
        if not token:
            raise OptionError(f"--token-file: {self.token_file} is empty")
        return token


@final
@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What may be asked of it."""

    title: ClassVar[str] = "Limits"

    slots: Annotated[
        int, typer.Option(min=1, max=1024, help="Sequences of a run that are decoded together.", metavar="N")
    ] = 32
    replicas: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Processes that decode a run on the CPU, each with slots of its own.", metavar="N"
        ),
    ] = 1
    queue: Annotated[
        int, typer.Option(min=1, help="Texts of a run that may wait or run; more get status 429.", metavar="N")
    ] = 512
    seconds: Annotated[
        float, typer.Option(callback=above_zero, help="Time for one answer; longer gets status 504.", metavar="S")
    ] = 120.0
    max_text: Annotated[int, typer.Option(min=1, help="Characters of a text; more get status 413.", metavar="N")] = (
        100_000
    )
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request; more get status 413.", metavar="N")] = (
        4_000_000
    )
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request; more get status 413.", metavar="N")] = 256
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of an output.", metavar="N")] = 4096
    memory: Annotated[
        int | None,
        typer.Option(min=1, help="MB of KV caches of a run; more get status 503. [default: 1/4 of all]", metavar="MB"),
    ] = None
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Time for requests under way once it is told to stop.", metavar="S")
    ] = 30.0


def serve(
    runs: Runs,
    *,
    names: Names = None,
    device: Device = "auto",
    dtype: Dtype = None,
    parts: Parts = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Form of the log on stderr. It never has the users' text.")
    ] = "text",
    explore: Explore = False,
    listening: Listening,
    bounds: Bounds,
) -> None:
    """Serve trained models over HTTP: translation, text, chat, classes, blanks and vectors.

    Addresses are those of OpenAI's API where it has one: /v1/completions, /v1/chat/completions, /v1/embeddings,
    /v1/models. /v1/translate, /v1/classify, /v1/fill and /v1/answer are ours. `"attention": true` in a request
    returns the attention weights too. Ctrl-C stops it once the requests under way are answered.
    """
    import os
    from dataclasses import replace

    import torch

    from clearhead.serve.api.routes import Api
    from clearhead.serve.api.served import batched, names_of
    from clearhead.serve.app import Service
    from clearhead.serve.guard import check_token
    from clearhead.serve.limits import Limits
    from clearhead.serve.logs import Logs
    from clearhead.serve.server import Server, Tls, check_port

    token = listening.read_token()
    if token is not None:
        check_token(token)
    if listening.ssl_keyfile is not None and listening.ssl_certfile is None:
        raise wrong("--ssl-keyfile", "needs its certificate: add --ssl-certfile")
    certificate = listening.ssl_certfile
    tls = None if certificate is None else Tls(certificate=certificate, key=listening.ssl_keyfile)
    if tls is not None:
        tls.check()
    folders = [RunFolder(Path(run)) for run in runs]
    names_of(folders, names or ())
    for folder in folders:
        folder.origin()
    check_port(listening.host, listening.port, private=token is None and not explore)
    if explore:
        from clearhead.serve.explorer_routes import check_page

        check_page()
    threads = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:  # threads that share a core wait for one another
        # A single process leaves one core to the requests; of several, whichever is on that core gives way.
        threads = max(1, threads - 1 if bounds.replicas == 1 else threads // bounds.replicas)
    torch.set_num_threads(1)  # until the models have their processes: a fork does not take threads along
    sys.setswitchinterval(SWITCH)
    limits = Limits(
        body=bounds.max_body,
        text=bounds.max_text,
        texts=bounds.max_texts,
        tokens=bounds.max_tokens,
        queue=bounds.queue,
        seconds=bounds.seconds,
        drain=bounds.drain_seconds,
    )
    limits = limits if bounds.memory is None else replace(limits, memory=bounds.memory * 1_000_000)
    loaded = [load(run, device=device, dtype=dtype) for run in runs]
    scheduler, replicas = batched(bounds.slots), bounds.replicas
    services: list[Service] = [
        Api(loaded, names=names or (), scheduler=scheduler, model_threads=threads, replicas=replicas)
    ]
    if explore:
        from clearhead.serve.explorer import Explorer, side_by_side
        from clearhead.serve.explorer_routes import ExplorerPages

        services.append(ExplorerPages(Explorer(loaded[0]) if len(loaded) == 1 else side_by_side(loaded[0], loaded[1])))
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
