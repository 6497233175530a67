"""`clearhead circuits RUN`: the edges of a trained model that make it answer one text otherwise than another."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from clearhead.cli.line_io import Device, RunPath
from clearhead.cli.options import Parts
from clearhead.cli.screen import bar, show, show_json
from clearhead.errors import OptionError, WordError
from clearhead.files import read_bytes
from clearhead.options import Option
from clearhead.training.claiming import check_output

if TYPE_CHECKING:
    from clearhead.circuits.circuit import Circuit, CircuitCard
    from clearhead.training.patching import RunContrast

FIND_EXAMPLES = """\b
Examples:
  clearhead circuits runs/numbers vierundzwanzig --against fünfundzwanzig
  clearhead circuits runs/gpt2 --table pairs.tsv --method exact --edges 100
  clearhead circuits runs/numbers vier --against neun -o four"""
ENDINGS = (".graphml", ".mib.json", ".neuronpedia.json")


def find(
    run: RunPath,
    text: Annotated[str | None, typer.Argument(help="The text whose answer is explained.", metavar="TEXT")] = None,
    *,
    against: Annotated[str | None, Option(help="The text that patched edges carry.", takes="TEXT")] = None,
    table: Annotated[
        Path | None, Option(help="Many pairs: in each line a text, a tab, and the other text.", takes="FILE")
    ] = None,
    method: Annotated[str, Option(help="How edges are scored; `circuits bench` grades them.", takes="NAME")] = "eap-ig",
    edges: Annotated[int, Option(help="Edges of the circuit, at most.", takes="N", least=1)] = 40,
    unlike: Annotated[
        Path | None, Option(help="Another task's circuit, written with -o, for specificity.", takes="FILE")
    ] = None,
    output: Annotated[
        Path | None,
        Option(help="Write NAME.graphml, NAME.mib.json (decoders) and NAME.neuronpedia.json.", takes="NAME", short="o"),
    ] = None,
    device: Device = "auto",
    parts: Parts = None,
    as_json: Annotated[bool, Option(help="Print the circuit and its card as one JSON object.", word="json")] = False,
) -> None:
    """Find the edges of a model by which it answers one text otherwise than another, and say how good they are.

    Both texts of a pair need as many tokens. Every edge is scored by what its loss would change; the circuit is the
    edges with the highest scores that make paths from the embeddings to the output. Its card says how much of the
    answer they keep, and how much is left without them. With -o, a search that was cut goes on from NAME.scores.
    """
    from clearhead.circuits.circuit import find_circuit, make_card
    from clearhead.circuits.files import read_circuit, write_circuit
    from clearhead.circuits.methods import find_method
    from clearhead.training.patching import contrast_texts
    from clearhead.training.run import load

    texts = read_pairs(text, against, table)
    try:
        find_method(method)
    except OptionError as error:
        raise WordError("method", str(error)) from None
    loaded = load(run, device=device)
    found = contrast_texts(loaded, *zip(*texts, strict=True))
    contrast = found.contrast
    wanted = min(edges, len(contrast.graph.edges))
    files = [] if output is None else [Path(f"{output}{ending}") for ending in ENDINGS]
    if set(contrast.graph.names.sides) != {"decoder"}:
        files = [path for path in files if not path.name.endswith(".mib.json")]
    for path in files:
        check_output(path, option="--output")
    other = None if unlike is None else read_circuit(contrast.graph, unlike)
    partial = None if output is None else Path(f"{output}.scores")
    circuit = find_circuit(contrast, method=method, edges=wanted, progress=SearchProgress(), checkpoint=partial)
    card = make_card(contrast, circuit, unlike=other)
    for path in files:
        write_circuit(circuit, path, tokens=found.tokens)
    if as_json:
        show_json(as_object(circuit, card, found))
    else:
        show(*circuit_page(circuit, card, found, files))


def read_pairs(text: str | None, against: str | None, table: Path | None) -> list[tuple[str, str]]:
    """Return the pairs of texts that the options name."""
    if table is None:
        if text is None or against is None:
            raise WordError("against", "a circuit is found with a text and --against another, or with --table")
        return [(text, against)]
    if text is not None or against is not None:
        raise WordError("table", "leave out the text and --against: the file has the texts")
    lines = [line.split("\t") for line in read_bytes(table).decode().splitlines() if line.strip()]
    if not lines or any(len(line) != 2 for line in lines):
        raise WordError("table", f"{table}: expected a text, a tab and another text in every line")
    return [(one, two) for one, two in lines]


class SearchProgress:
    """A bar on a terminal's stderr, with the time that is left; nothing anywhere else."""

    def __init__(self) -> None:
        self.began, self.first = time.monotonic(), -1

    def __call__(self, done: int, of: int) -> None:
        if not sys.stderr.isatty():
            return
        self.first = done if self.first < 0 else self.first  # a search that goes on begins in the middle
        spent, made = time.monotonic() - self.began, done - self.first
        left = f", {spent / made * (of - done):.0f} s left" if made else ""
        line = f"scoring edges {bar(done / of, 30):30} {done} of {of}{left}" if done < of else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def as_object(circuit: "Circuit", card: "CircuitCard", found: "RunContrast") -> dict[str, Any]:
    return {
        "method": circuit.method,
        "answers": [list(pair) for pair in found.answers],
        "edges": [{"edge": str(edge), "score": score} for edge, score in circuit.edges],
        "card": {**vars(card), "says": card.says},
    }


def circuit_page(
    circuit: "Circuit", card: "CircuitCard", found: "RunContrast", files: list[Path]
) -> list[RenderableType]:
    """Return the circuit's edges, the strongest first, and its card."""
    pairs = [f"{clean!r} rather than {other!r}" for clean, other in dict.fromkeys(found.answers)]
    answers = "; ".join(pairs[:3]) + (f"; and {len(pairs) - 3} more" if len(pairs) > 3 else "")
    edges = Table(box=None, pad_edge=False, header_style="")
    for column in ("sender", "receiver", "change"):
        edges.add_column(column, justify="right" if column == "change" else "left")
    for edge, score in circuit.edges:
        edges.add_row(edge.sender, edge.receiver, f"{score:+.3f}")
    figures = Table(box=None, pad_edge=False, show_header=False)
    for row in card.rows():
        figures.add_row(*row)
    written = [f"Written: {', '.join(map(str, files))}"] if files else []
    title = f"The edges by which it answers {answers}, by {circuit.method}:"
    return [title, "", edges, "", figures, "", card.says, *written]
