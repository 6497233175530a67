"""`clearhead trace`: trace a text through a run: in the terminal, as JSON, as a drawing, as a page for a browser."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.attention.reference import Steps
from clearhead.circuits.nodes import KINDS, NodeKind
from clearhead.cli.line_io import Device, RunPath
from clearhead.cli.options import Parts
from clearhead.cli.screen import show, show_json
from clearhead.cli.trace_page import (
    SurveyedTrace,
    WrittenFile,
    attribution_json,
    draw_head,
    patches_json,
    render_causes,
    render_files,
    render_page,
)
from clearhead.decoding import Beam
from clearhead.errors import WordError, no_such
from clearhead.experiments import patching, tracing
from clearhead.experiments.patching import attribute_trace
from clearhead.files import write_text
from clearhead.options import Option
from clearhead.serve.live import check_built
from clearhead.serve.questions.trace import AskTrace, meta_of
from clearhead.serve.recorded import saved_page
from clearhead.serve.traced import Traced
from clearhead.tracing.names import names_of
from clearhead.tracing.site import Head
from clearhead.tracing.survey import View, clearest, survey
from clearhead.training import load
from clearhead.training.claiming import check_output
from clearhead.training.reporting import replace_nonfinite
from clearhead.training.tasks.answering import split_pair

EXAMPLES = """\b
Examples:
  clearhead trace runs/demo vierundzwanzig
  clearhead trace runs/demo vierundzwanzig --site decoder.1.cross --head 3
  clearhead trace runs/demo vierundzwanzig --target-text twenty-five --json
  clearhead trace runs/demo vierundzwanzig --html page.html --svg head.svg
  clearhead trace runs/demo vierundzwanzig --attribute --place 0
  clearhead trace runs/demo vierundzwanzig --patch-from vierunddreissig --by head"""

MEAN = "mean"

Target = Annotated[str | None, Option("The output to trace; without it, the model's own greedy output.", takes="TEXT")]
BeamWidth = Annotated[
    int | None, Option("Trace the output of beam search with N beams, step by step.", takes="N", least=1)
]
SiteName = Annotated[
    str | None, Option("The attention layer to show: decoder.1.cross, encoder.0.attention …", takes="NAME")
]
HeadName = Annotated[str | None, Option("The head of that layer, counted from 0, or mean.", takes="N")]
Attributed = Annotated[bool, Option("Show what each head and feed-forward adds to the answer's logit.")]
PatchText = Annotated[
    str | None,
    Option("Show where the difference to another text arises: every place patched with its values.", takes="TEXT"),
]
PatchBy = Annotated[NodeKind, Option("patch-from: what is patched at each place.", names=KINDS, closed=True)]
AnswerWord = Annotated[
    str | None, Option("attribute, patch-from: the answer; without it, the likeliest.", takes="TOKEN")
]
OtherWord = Annotated[str | None, Option("attribute, patch-from: the answer it is compared with.", takes="TOKEN")]
Place = Annotated[
    int | None, Option("attribute, patch-from: the token whose answer it is, from 0, or -1 for the last.", takes="N")
]
MOST_NUMBERS = 100_000
"""The most weights that are given where nobody says which: a few MB of text."""
STEPS = ("query", "key", "value", "score", "scaled", "masked", "weight", "context")


def trace(
    run: RunPath,
    text: Annotated[str, typer.Argument(help="The text the model reads.", metavar="TEXT")],
    *,
    target_text: Target = None,
    beam: BeamWidth = None,
    site: SiteName = None,
    head: HeadName = None,
    html: Annotated[
        Path | None,
        Option(
            "Write the explorer, opened on this text, as one HTML file: up to 5 million parameters with the model "
            "in it, beyond with the weights of every head.",
            takes="FILE",
        ),
    ] = None,
    svg: Annotated[Path | None, Option("Write the head as an SVG drawing.", takes="FILE")] = None,
    attribute: Attributed = False,
    patch_from: PatchText = None,
    by: PatchBy = "layer",
    answer: AnswerWord = None,
    other: OtherWord = None,
    place: Place = None,
    pairs: Annotated[bool, Option("The text is two with a tab between: for models that read pairs.")] = False,
    device: Device = "auto",
    parts: Parts = None,
    as_json: Annotated[bool, Option("Print everything as one JSON object, weights too.", word="json")] = False,
) -> None:
    """Show what a model does with a text: tokens, attention layers, heads, and where the clearest head looks.

    The model runs with its fast kernels. The weights are computed afterwards from the recorded queries and keys, and
    the result is checked against what the kernels returned.
    """
    if html is not None and html == svg:
        raise WordError("svg", f"{svg} is also where --html goes; name another file")
    for option, path in (("--html", html), ("--svg", svg)):
        if path is not None:
            check_output(path, option=option)
    if html is not None:
        check_built()
    loaded = load(run, device=device)
    sites = names_of(loaded.model).sites
    among = select_sites(list(sites), site, head)
    chosen_head = None if head is None else select_head(sites[among[0]].shape.n_heads, among[0], head)
    method = None if beam is None else Beam(width=beam)
    texts = [split_pair(one) if pairs else one for one in (text, patch_from or text)]
    asked = {"answer": answer, "other": other, "place": place}
    traced = tracing.trace(loaded, texts[0], target_text, method=method)
    surveys = survey(traced)
    view = clearest({name: surveys[name] for name in among}) if head is None else View(among[0], chosen_head)
    target = target_text if beam is None else traced.sides["decoder"].ids[1:]
    request = AskTrace(source=text, target=target, step=loaded.step)
    looked = SurveyedTrace(traced=Traced(request, loaded, traced), surveys=surveys, view=view)
    files = write_files(looked, html=html, svg=svg)
    attribution = attribute_trace(loaded, traced, **asked) if attribute else None
    patches = None
    if patch_from is not None:
        patches = patching.patch(loaded, texts[0], texts[1], target_text, by=by, **asked)
    if as_json:
        causes = {} if attribution is None else {"attribution": attribution_json(attribution)}
        causes |= {} if patches is None else {"patched": patches_json(patches)}
        show_json({**as_object(looked, files, site=site, head=head), **causes})
    else:
        show(*(render_files(looked, files) if files else render_causes(attribution, patches) or render_page(looked)))


def select_sites(sites: Sequence[str], site: str | None, head: str | None) -> list[str]:
    """Return the sites to choose a head from: the one asked for, else cross-attentions, else all."""
    if site is None:
        if head is not None:
            raise WordError("head", f"a head of which attention? Say --site too: {', '.join(sites)}")
        return [name for name in sites if name.endswith(".cross")] or list(sites)
    if site not in sites:
        raise WordError("site", no_such(site, sites))
    return [site]


def select_head(n_heads: int, site: str, head: str) -> int | None:
    """Return the index of a head, None for the mean."""
    if head == MEAN:
        return None
    if not head.isdecimal() or len(head) > 9 or int(head) >= n_heads:
        raise WordError("head", f"{site} has heads 0 to {n_heads - 1}, and their mean; came {head[:40]}")
    return int(head)


def write_files(looked: SurveyedTrace, *, html: Path | None, svg: Path | None) -> Mapping[str, WrittenFile]:
    """Write the files that were asked for, each atomically."""
    files: dict[str, WrittenFile] = {}
    if svg is not None:
        files["svg"] = write_file(svg, draw_head(looked), looked.name)
    if html is not None:
        page, reason = saved_page(looked.traced, looked.view)
        held = "The model is in it" if reason is None else f"8-bit weights of every head: {reason}"
        files["html"] = write_file(html, page.text, held)
    return files


def write_file(path: Path, text: str, held: str) -> WrittenFile:
    write_text(path, text)
    return WrittenFile(path=path, size=path.stat().st_size, held=held)


def as_object(
    looked: SurveyedTrace, files: Mapping[str, WrittenFile], *, site: str | None, head: str | None
) -> dict[str, Any]:
    """Return the whole trace for a program; heads count from 0, the mean is null, and so is -inf."""
    meta = meta_of(looked.traced)
    heads, limited = given_weights(looked, site, head)
    weights: dict[str, dict[str, Any]] = {}
    for head_trace in heads:
        weights.setdefault(head_trace.site.name, {})[str(head_trace.index)] = head_trace.weight.tolist()
    return {
        "run": str(looked.traced.run.folder.path),
        "task": looked.trace.task,
        **{name: meta[name] for name in ("source", "target", "step", "kind", "notes", "answer", "sides")},
        "sites": [{**facts, **asdict(looked.surveys[facts["name"]])} for facts in meta["sites"]],
        "shown": {"site": looked.view.site, "head": looked.view.head, **shown_steps(looked)},
        "weight": weights,
        "limited": limited,
        "candidates": meta["candidates"],
        "files": {kind: {"path": str(file.path), "bytes": file.size} for kind, file in files.items()},
    }


def shown_steps(looked: SurveyedTrace) -> dict[str, Any]:
    """Return every step of the head that is shown; of a mean the weights, which is all it has."""
    if looked.view.head is None:
        return {"weight": looked.weight.tolist()}
    steps: Steps = looked.site.head[looked.view.head].rows()
    return {name: replace_nonfinite(getattr(steps, name).tolist()) for name in STEPS}


def given_weights(looked: SurveyedTrace, site: str | None, head: str | None) -> tuple[list[Head], str | None]:
    """Return the heads whose weights are given: those asked for, or all of them if they are not too many."""
    sites = [looked.trace[site]] if site else list(looked.trace.sites.values())
    heads = [head_trace for attention in sites for head_trace in attention.head]
    if head is not None:
        return [head_trace for head_trace in heads if looked.view.head in (None, head_trace.index)], None
    numbers = sum(head_trace.site.n_query * head_trace.site.n_key for head_trace in heads)
    if numbers <= MOST_NUMBERS:
        return heads, None
    note = f"{numbers:,} weights are too many for JSON: those of {looked.name} are given; --site and --head give others"
    return [looked.site.head[looked.view.head or 0]], note
