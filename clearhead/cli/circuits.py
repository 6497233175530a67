"""`clearhead circuits`: the circuit of a run, and methods that find circuits, graded where the truth is known."""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from typer.core import TyperGroup

from clearhead.cli.craft_program import ProgramChanges, find_program, load_file
from clearhead.cli.line_io import Device, RunPath
from clearhead.cli.options import Parts, Sectioned, flatten_groups
from clearhead.cli.screen import bar, show, show_json
from clearhead.errors import WordError, naming_word
from clearhead.extras import check_extra
from clearhead.files import read_bytes, write_text
from clearhead.options import Option
from clearhead.plots.curves import draw_grades
from clearhead.rasp.programs import Program
from clearhead.text.lines import reason
from clearhead.training.claiming import check_output

if TYPE_CHECKING:
    from clearhead.circuits.bench import BenchReport
    from clearhead.circuits.truth import BenchSample

ABOUT = """Find which edges of a model make an answer, and grade the methods that find them.

An edge goes from what writes into the residual stream (an embedding, a head, a feed-forward) to what reads from it (a
query, a key, a value, a feed-forward, the output)."""
EXAMPLES = """\b
Examples:
  clearhead circuits runs/numbers vierundzwanzig --against fünfundzwanzig
  clearhead circuits bench --quick
  clearhead circuits bench --methods exact,eap,eap-ig -o bench.json"""
BENCH_EXAMPLES = """\b
Examples:
  clearhead circuits runs/numbers vierundzwanzig --against fünfundzwanzig
  clearhead circuits bench --quick
  clearhead circuits bench --methods exact,eap,eap-ig --axes argmax,rotated
  clearhead circuits bench --program mine.py --list-edges
  clearhead circuits bench -o bench.json --plot bench.svg"""
QUICK, WHOLE = 8, 120
QUICK_AXES = ("argmax", "argmax, no gradient", "constants", "softmax 10", "rotated", "decoys", "live norms")
KINDS = {
    "edges": "edges in all programs",
    "product": "with a product of weights",
    "constant": "of those carry constants alone",
    "needed": "of these an answer needs",
    "alone": "can change an answer by themselves",
    "jointly": "only with another edge",
    "never": "were never seen to",
}


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
    against: Annotated[str | None, Option("The text that patched edges carry.", takes="TEXT")] = None,
    table: Annotated[
        Path | None, Option("Many pairs: in each line a text, a tab, and the other text.", takes="FILE")
    ] = None,
    method: Annotated[str, Option("How edges are scored; `circuits bench` grades them.", takes="NAME")] = "eap-ig",
    edges: Annotated[int, Option("Edges of the circuit, at most.", takes="N", least=1)] = 40,
    unlike: Annotated[
        Path | None, Option("Another task's circuit, written with -o, for specificity.", takes="FILE")
    ] = None,
    output: Annotated[
        Path | None,
        Option("Write NAME.graphml, NAME.mib.json (decoders) and NAME.neuronpedia.json.", takes="NAME", short="o"),
    ] = None,
    device: Device = "auto",
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print the circuit and its card as one JSON object.", word="json")] = False,
) -> None:
    """Find the edges of a model by which it answers one text otherwise than another, and say how good they are.

    Both texts of a pair need as many tokens. Every edge is scored by what its loss would change; the circuit is the
    edges with the highest scores that make paths from the embeddings to the output. Its card says how much of the
    answer they keep, and how much is left without them. With -o, a search that was cut goes on from NAME.scores.
    """
    from clearhead.circuits.circuit import find_circuit, make_card
    from clearhead.circuits.files import read_circuit, write_circuit
    from clearhead.experiments.patching import contrast_texts
    from clearhead.training.run import load

    texts = read_pairs(text, against, table)
    check_method("method", method)
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
    try:
        content = read_bytes(table).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise WordError("table", f"{table}: {reason(error)}") from None
    lines = [line.split("\t") for line in content.splitlines() if line.strip()]
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


class RunOrBench(TyperGroup):
    """A group whose first word is a verb, or else a run, which is then `find`'s."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["RUN | bench", "[options]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and args[0] not in self.commands and not args[0].startswith("-")
        return super().parse_args(ctx, ["find", *args] if named else args)


app = typer.Typer(cls=RunOrBench, add_completion=False, rich_markup_mode=None)
app.command("find", cls=Sectioned, epilog=FIND_EXAMPLES, short_help="Find the circuit of a run (the same: RUN).")(
    flatten_groups(find)
)


@app.command("bench", cls=Sectioned, epilog=BENCH_EXAMPLES, short_help="Grade methods against exact truth.")
@flatten_groups
def bench(
    *,
    quick: Annotated[bool, Option("Eight programs and seven axes.", word="quick")] = False,
    methods: Annotated[str | None, Option("Methods, with commas between; without it all.", takes="NAMES")] = None,
    axes: Annotated[str | None, Option("Axes of realism, with commas between.", takes="NAMES")] = None,
    program: Annotated[
        str | None,
        Option(
            "Programs to grade on, with commas between: NAME, file.py:NAME, or file.py for each `Program` in it.",
            takes="NAMES",
        ),
    ] = None,
    list_edges: Annotated[
        bool, Option("For each of your programs, each edge with its truth and every method's rank.")
    ] = False,
    seed: Annotated[int, Option("Draws programs, pairs of texts and rotations.", takes="N")] = 0,
    output: Annotated[
        Path | None,
        Option("Write every figure as JSON. A bench that was cut goes on from FILE.rows.", takes="FILE", short="o"),
    ] = None,
    plot: Annotated[Path | None, Option("Draw the grades as SVG.", takes="FILE")] = None,
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print every figure as one JSON object.", word="json")] = False,
) -> None:
    """Grade methods that find circuits on compiled programs, whose true edges are known by enumeration.

    The table has the average precision of each method on each axis, with its 95 % interval: 1 if all true edges are
    ranked first. Passes are forward and backward. Edges whose weights do not meet are left out of the ranking.
    """
    from clearhead.circuits.bench import BenchLog, run_bench
    from clearhead.circuits.realism import AXES

    for path, option in ((output, "--output"), (plot, "--plot")):
        if path is not None:
            check_output(path, option=option)
    if plot is not None:
        check_extra("matplotlib", extra="plots", what="--plot")
    if list_edges and program is None:
        raise WordError("list-edges", "say with --program which programs; a bench of generated ones has thousands")
    names = read_methods(methods)
    chosen = list(QUICK_AXES if quick else AXES) if axes is None else read_axes(axes, list(AXES))
    own = [each for name in (program or "").split(",") if name.strip() for each in read_programs(name.strip())]
    samples, nothing = find_samples(own, quick=quick, seed=seed)
    rows = None if output is None else output.with_name(f"{output.name}.rows")
    some = 4 if quick else 24
    with BenchLog(rows, {"quick": quick, "seed": seed, "program": program}) as log:
        report = run_bench(samples, methods=names, axes=chosen, some=some, seed=seed + 1, log=log, progress=say)
        if output is not None:
            write_text(output, json.dumps(report.as_json(), indent=1))
            log.remove()
    if plot is not None:
        draw_grades(report.as_json()["means"], plot)
    if as_json:
        show_json(report.as_json())
        return
    show(*bench_page(report), *nothing)
    if list_edges:
        some = [name for name in names if name in report.methods]
        show(*(part for sample in samples for part in edges_page(sample, some, seed + 1)))


def read_methods(text: str | None) -> list[str]:
    """Return the methods that an option names; all of them without it."""
    from clearhead.circuits.methods import method_names

    names = method_names() if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        check_method("methods", name)
    return names


def check_method(word: str, name: str) -> None:
    """Raise an error of the option where there is no method of that name."""
    from clearhead.circuits.methods import find_method

    with naming_word(word):
        find_method(name)


def find_samples(own: list[Program], *, quick: bool, seed: int) -> "tuple[list[BenchSample], list[str]]":
    """Return the programs to grade on with their truth, and a line about those of the user's with nothing to rank."""
    from clearhead.circuits.bench import bench_samples

    say("finding the truth of the programs")
    samples = bench_samples(QUICK if quick else WHOLE, seed, own)
    if quick and not own:
        samples = [sample for sample in samples if len(sample.graph.edges) <= 200][:QUICK]
    left = [each.name for each in own if each.name not in {sample.program.name for sample in samples}]
    nothing = f"There is nothing to rank in {', '.join(left)}: none or all of the edges that could matter do."
    if not samples:
        raise WordError("program", nothing)
    return samples, [nothing] if left else []


def read_programs(name: str) -> list[Program]:
    """Return the program of a name, or every `Program` of a file that is named without one."""
    if not name.endswith(".py"):
        return [find_program(name, ProgramChanges()).program]
    values = vars(load_file(Path(name))).values()
    lists = (each if isinstance(each, list | tuple) else [each] for each in values)
    found = list({id(one): one for each in lists for one in each if isinstance(one, Program)}.values())
    if not found:
        raise WordError("program", f"{name} has no `Program(name=…, output=…, vocabulary=…, plain=…, length=…)`")
    if twice := [one for one, n in Counter(each.name for each in found).items() if n > 1]:
        raise WordError("program", f"{name}: {twice[0]!r} is the name of two programs")
    return found


def read_axes(text: str, known: list[str]) -> list[str]:
    """Return the axes that an option names; an axis whose name has a comma may be written without what follows it."""
    wanted = [name.strip() for name in text.split(",")]
    if "no gradient" in wanted:
        wanted = [name for name in wanted if name != "no gradient"] + ["argmax, no gradient"]
    if unknown := [name for name in wanted if name not in known]:
        raise WordError("axes", f"there is no axis {unknown[0]!r}. There are: {'; '.join(known)}")
    return wanted


def say(line: str) -> None:
    """Print progress, on a terminal over the line before."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def bench_page(report: "BenchReport") -> list[RenderableType]:
    """Return one table an axis: methods by average precision, with intervals, ROC, nodes and what they cost."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    page: list[RenderableType] = []
    for axis in report.axes:
        rows = [row for row in report.graded if row.axis == axis]
        n = len({row.program for row in rows})
        share = sum(row.share for row in rows) / len(rows)
        table = Table(box=None, pad_edge=False, collapse_padding=True, title_justify="left", header_style="")
        table.title = f"{axis}: {n} programs, {share:.0%} of the graded edges are true"
        for column in ("method", "average precision", "ROC", "nodes", "passes", "seconds", "programs"):
            table.add_column(
                column, justify="left" if column in ("method", "average precision") else "right", no_wrap=True
            )
        cells = [(method, report.cell(axis, method, lambda row: row.precision["size"])) for method in report.methods]
        for method, cell in sorted(cells, key=lambda item: -item[1].mean if item[1] else 0):
            if cell is not None:
                mine = [row for row in rows if row.method == method]
                mean = lambda figure, mine=mine: sum(figure(row) for row in mine) / len(mine)  # noqa: E731
                table.add_row(
                    method,
                    str(cell),
                    f"{mean(lambda row: row.roc['size']):.3f}",
                    f"{mean(lambda row: row.nodes):.3f}",
                    f"{mean(lambda row: row.forwards):.0f} + {mean(lambda row: row.backwards):.0f}",
                    f"{mean(lambda row: row.seconds):.2f}",
                    str(len(mine)),
                )
        page += [table, ""]
    total = {kind: sum(counts[kind] for counts in report.truths.values()) for kind in KINDS}
    page.append(", ".join(f"{total[kind]} {says}" for kind, says in KINDS.items()) + ".")
    if report.left_out:
        lost = ", ".join(f"{axis} {count}" for axis, count in report.left_out.items())
        page.append(f"Left out, since an answer was lost there or nothing was to be ranked: {lost}.")
    return page


def edges_page(sample: "BenchSample", methods: list[str], seed: int) -> list[RenderableType]:
    """Return the graded edges of a program, the true ones first, with the rank that each method gives them."""
    from clearhead.circuits.bench import make_contrast
    from clearhead.circuits.methods import find_method, score_edges

    truth, contrast = sample.truth, make_contrast(sample, seed=seed)
    numbers = truth.ranked.nonzero().flatten()
    scores = {name: score_edges(find_method(name), contrast).abs().mean(0)[numbers] for name in methods}
    ranks = {name: [int((values > value).sum()) + 1 for value in values] for name, values in scores.items()}
    letters = [chr(ord("a") + n) for n in range(len(methods))]
    table = Table(box=None, pad_edge=False, title_justify="left", header_style="")
    true = int(truth.alone[numbers].sum())
    title = f"{sample.program.name}: rank of each edge by each method; the first {true} are true"
    table.add_column("\ntruth")
    table.add_column("edge, and below it its ranks\n" + "".join(f"{letter:>4}" for letter in letters))
    order = sorted(range(len(numbers)), key=lambda at: not truth.alone[numbers[at]])
    for at in order:
        number = int(numbers[at])
        row = "".join(f"{ranks[name][at]:4}" for name in methods)
        table.add_row(truth.label(number), f"{sample.graph.edges[number]}\n{row}")
    legend = ", ".join(f"{letter} {name}" for letter, name in zip(letters, methods, strict=True))
    for number, edge in enumerate(sample.graph.edges):
        if truth.label(number) == "jointly":
            table.add_row("jointly", f"{edge}\n   (only with another edge: not graded)")
    return [title, table, f"Ranks: {legend}.", ""]


if TYPE_CHECKING:
    from clearhead.circuits.circuit import Circuit, CircuitCard
    from clearhead.experiments.patching import RunContrast
