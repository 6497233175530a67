"""What a run is: its task, its layers, its checkpoints, example texts, and its curves."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NotRequired, TypedDict, cast

from clearhead import installed_version
from clearhead.attention.layer import Attention
from clearhead.errors import RunError
from clearhead.model.blocks import Block, BlockSpec
from clearhead.model.int8 import count_weights
from clearhead.model.transformers import Decoder, Encoder
from clearhead.serve.curves import Curves, is_training
from clearhead.serve.explorer import Explorer
from clearhead.serve.params import bounded
from clearhead.serve.program import RunProgram, load_program
from clearhead.serve.python_lines import load_lines
from clearhead.serve.questions.question import Question
from clearhead.text.store import Store
from clearhead.text.tokenizer import LOST
from clearhead.text.validation_split import spread
from clearhead.tracing.names import DiagramBox, Names
from clearhead.tracing.neurons import why_no_units
from clearhead.training.run import Run
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.fill import BLANK

SideName = Literal["encoder", "decoder"]
Slot = Literal["attention", "cross"]
ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
WeightingKind = Literal["softmax", "kernelized", "argmax", "rows"]
BoxKind = Literal["token", "position", "norm", "attention", "cross", "add", "feed_forward", "output"]
EXAMPLES = 5
TRIED = 200
"""Held-out texts that are looked at for examples without an unknown word."""


class AttentionFacts(TypedDict):
    n_heads: int
    n_kv_heads: int
    d_head: int
    weighting: str
    similarity: str
    position: str


class LayerSpec(TypedDict):
    attention: AttentionFacts
    cross: NotRequired[AttentionFacts]
    feed_forward: str | None
    arrangement: str


class BoxValue(TypedDict):
    """A named value that is made in a box, and how it follows from others."""

    name: str
    """Its name in the trace: "encoder.0.feed_forward.hidden"."""
    formula: str
    """In words, or with its operands in braces: "{gamma} · {normalized} + {beta}"."""
    operands: dict[str, str]
    """From what stands in braces to the name of that value."""
    map: str
    """The linear map that makes it of the value `of`; "" where none does."""
    of: str
    rows: Literal["query", "key", "none", "whole"]
    """What its rows are; "none": one for all tokens, "whole": one made of all of them."""
    columns: Literal["unit", "key"]
    per_head: bool
    neutral: float
    """The number that changes nothing, around which the value is painted: 1 in gamma."""


class BoxSpec(TypedDict):
    """A box of the model's picture, with every value that is made in it."""

    name: str
    kind: BoxKind
    layer: int | None
    values: list[BoxValue]


class EmbeddingSpec(TypedDict):
    position: str | None
    scaled: bool


class SideSpec(TypedDict):
    side: SideName
    n_layers: int
    d_model: int
    layers: list[LayerSpec]
    boxes: list[BoxSpec]
    embedding: EmbeddingSpec


class Example(TypedDict):
    source: str
    target: NotRequired[str]


class ProgramHead(TypedDict):
    site: str
    head: int
    words: str


class ProgramUnit(TypedDict):
    words: str


class ProgramLayer(TypedDict):
    side: SideName
    layer: int
    heads: list[ProgramHead]
    units: int
    network: list[ProgramUnit]


class ProgramFacts(TypedDict):
    """The program that was compiled into a run."""

    name: str
    about: str
    listing: list[str]
    """The program, a line for each sequence it computes."""
    layers: list[ProgramLayer]
    exact: bool
    """Whether the weights are still those that were compiled."""


class Opening(TypedDict):
    """The head that a page opens on."""

    site: str
    head: int | Literal["mean"]
    target: NotRequired[str | list[int]]
    """The output of the first example that a saved page shows, where it is not the model's own."""


class RunFacts(TypedDict):
    version: str
    """Of Clearhead: captions of figures have it."""
    name: str
    path: str
    task: str
    context: int
    step: int
    steps: list[int]
    """The steps whose checkpoints are kept."""
    film: list[int]
    """The steps of the training's film: weights that are kept for the explorer alone."""
    beside: NotRequired[str]
    """The name of a second run to compare it with, which is asked under b/api/."""
    kind: ModelKind
    parameters: int
    vocabulary: int
    sides: list[SideSpec]
    target: Literal["none", "writes", "continues"]
    """Whether a text has a target: none, one that the model writes, or one that continues the text."""
    place: Literal["first", "last", "blank"]
    """The place of a text whose answer is shown first."""
    fields: list[str]
    labels: NotRequired[list[str]]
    examples: list[Example]
    """Texts to look at; a page opens on the first."""
    opening: NotRequired[Opening]
    """What a page opens on; the model's picture where there is none."""
    training: bool
    imported: NotRequired[bool]
    """Whether it was trained elsewhere: it has no steps of its own."""
    absent: NotRequired[dict[str, str]]
    """Views that would have nothing to show for this run, each with the reason."""
    weightings: NotRequired[list[str]]
    """What can be put in the place of a weighting, by name; a saved page has none."""
    directions: NotRequired[list[str]]
    """Of a compiled program: what each direction of the residual stream is called."""
    program: NotRequired[ProgramFacts]


@dataclass(frozen=True, kw_only=True)
class AskRun(Question[RunFacts]):
    """What a run is."""

    turn: ClassVar = "files"

    def answer(self, explorer: "Explorer") -> RunFacts:
        facts = run_facts(explorer.run, explorer.metrics)
        facts["weightings"] = explorer.weightings
        if explorer.beside is not None:
            facts["beside"] = explorer.beside.run.folder.path.resolve().name
        return facts

    def python(self, explorer: "Explorer") -> list[str]:
        return [*load_lines(explorer.run), "print(run)", "sum(one.numel() for one in run.model.parameters())"]


def run_facts(run: Run, curves: Curves) -> RunFacts:
    names = Names(run.model)
    sides = names.sides
    opening = read_opening(run)
    program = load_program(run)
    imported = program is None and is_imported(run)
    facts: RunFacts = {
        "version": installed_version(),
        "name": run.folder.path.resolve().name,
        "path": str(run.folder.path),
        "task": run.task.name,
        "context": run.task.context,
        "step": run.step,
        "steps": saved_steps(run),
        "film": run.folder.film.steps(),
        "kind": cast(ModelKind, "-".join(sides)),
        "parameters": count_weights(run.model),
        "vocabulary": [*sides.values()][-1][1].spec.vocabulary,
        "sides": [side_facts(cast(SideName, side), part, names) for side, (_, part) in sides.items()],
        "target": run.task.target,
        "place": run.task.place,
        "fields": list(run.task.layout(run.task.context).texts),
        "examples": known_texts(opening.get("examples", ())) or examples(run, curves),
        "training": is_training(run.folder),
        "absent": absent_views(run, curves, program, imported=imported),
    }
    if opening:
        facts["opening"] = {"site": opening["site"], "head": opening["head"]}
    if imported:
        facts["imported"] = True
    if run.task.labels:
        facts["labels"] = list(run.task.labels)
    if program is not None:
        facts["program"], facts["directions"] = program_facts(program, run), program.directions
    return facts


def program_facts(program: RunProgram, run: Run) -> ProgramFacts:
    """Return what a page shows of a compiled program. `exact`: the weights are still those that were compiled."""
    layers = cast(list[ProgramLayer], program.layers)
    described: ProgramFacts = {
        "name": program.program,
        "about": program.about,
        "listing": program.listing,
        "layers": layers,
        "exact": run.step == 0,
    }
    return described


def saved_steps(run: Run) -> list[int]:
    """Return the steps whose checkpoints are kept; a run that was never saved has none."""
    saved = run.folder.run_file.exists()
    return sorted(checkpoint.step for checkpoint in run.folder.checkpoints.all()) if saved else []


def is_imported(run: Run) -> bool:
    """Return whether the run was trained elsewhere: its folder has no data. A run that was never saved has none."""
    try:
        return run.folder.read_description()["data"] is None
    except RunError:
        return False


def read_opening(run: Run) -> dict[str, Any]:
    """Return what the run's maker chose for pages to open on; nothing where nobody chose."""
    file = run.folder.opening_file
    return run.folder.read_own(file) if file.exists() else {}


def absent_views(run: Run, curves: Curves, program: RunProgram | None, *, imported: bool) -> dict[str, str]:
    """Return the views that would have nothing to show for this run, each with the reason."""
    logged = any(line.get("kind") == "step" for line in curves.all())
    compiled = program is not None and not logged and not is_training(run.folder)
    untrained = {
        "compiled from a program, not trained, so it has no curves and no earlier checkpoints": compiled,
        "imported: it was trained elsewhere, so its curves and earlier checkpoints are not here": imported,
    }
    reasons = {
        "decoding": why_no_decoding(run),
        "training": next((f"this run was {reason}" for reason, holds in untrained.items() if holds), None),
        "neurons": why_no_units(Names(run.model)),
    }
    return {view: reason for view, reason in reasons.items() if reason is not None}


def why_no_decoding(run: Run) -> str | None:
    """Say why there is no decoding of this run to see; None where there is."""
    if run.task.target == "none":
        return one_step(run.task)
    program = load_program(run)
    if program is not None and run.task.target == "continues" and not program.continues_texts:
        return (
            f"the program {program.program} answers each token with something that is no token itself, so no text is "
            "continued with its answers"
        )
    return None


def one_step(task: Task) -> str:
    return (
        f"this run answers in one step ({task.name}): there is no decoding to see. Runs that translate or generate "
        "have one"
    )


def side_facts(side: SideName, part: Encoder | Decoder, names: Names) -> SideSpec:
    spec = part.spec
    blocks = zip(spec.blocks, part.stack.blocks, strict=True)
    position = spec.embedding.position
    return {
        "side": side,
        "n_layers": len(spec.blocks),
        "d_model": spec.d_model,
        "layers": [layer_facts(block_spec, block, spec.d_model) for block_spec, block in blocks],
        "boxes": [box_facts(box) for box in names.boxes.values() if box.side == side],
        "embedding": {
            "position": None if position is None else part_name(position),
            "scaled": spec.embedding.scaled,
        },
    }


def box_facts(box: DiagramBox) -> BoxSpec:
    """Return a box's name, its values, and how each value follows from others."""
    values = cast(list[BoxValue], [asdict(value) for value in box.values])
    return {"name": box.name, "kind": cast(BoxKind, box.kind), "layer": box.layer, "values": values}


def layer_facts(spec: BlockSpec, block: Block, d_model: int) -> LayerSpec:
    network = spec.feed_forward
    description = None if network is None else f"{d_model} → {network.d_ff} → {d_model} {part_name(network)}"
    layer: LayerSpec = {
        "attention": attention_facts(block.attention),
        "feed_forward": description,
        "arrangement": part_name(spec.arrangement),
    }
    if block.cross is not None:
        layer["cross"] = attention_facts(block.cross)
    return layer


def attention_facts(layer: Attention) -> AttentionFacts:
    return {
        "n_heads": layer.shape.n_heads,
        "n_kv_heads": layer.shape.n_kv_heads,
        "d_head": layer.shape.d_head,
        "weighting": part_name(layer.weighting),
        "similarity": part_name(layer.similarity),
        "position": part_name(layer.position),
    }


def part_name(part: object) -> str:
    """Return the name of a part, built or not."""
    return type(part).__name__.removeprefix("Learned") or "Learned"


def examples(run: Run, curves: Curves) -> list[Example]:
    """Return texts of the run's own: those its last evaluation logged, else held-out ones, else some of its tokens.

    Both were decoded from token ids, so a word that the tokeniser does not know has become "\ufffd" in them, and asking
    for that would show another text than the one in the data. Only texts without it are examples.
    """
    try:
        texts = known_texts(logged_examples(run, curves)) or known_texts(stored_examples(run))
    except RunError:
        texts = []
    if texts:
        return texts
    tokenizer = run.tokenizer
    special = {tokenizer.pad, tokenizer.unknown, tokenizer.start, tokenizer.end, tokenizer.mask}
    ids = [token for token in range(min(tokenizer.vocabulary, 64)) if token not in special][-4:]
    return [{"source": run.task.example_text(ids)}]


def known_texts(texts: Iterable[Example]) -> list[Example]:
    """Return the first few texts without unknown words."""
    complete = (example for example in texts if LOST not in example["source"] + example.get("target", ""))
    return list(itertools.islice(complete, EXAMPLES))


def logged_examples(run: Run, curves: Curves) -> list[Example]:
    logged = [line for line in curves.all() if line.get("samples")]
    pairs = [(sample["input"], sample.get("reference")) for sample in logged[-1]["samples"]] if logged else []
    paired = run.task.target == "writes"
    return [
        {"source": text, "target": target} if paired and target else {"source": text}
        for text, target in pairs
        if isinstance(text, str) and text.strip()
    ]


ANY_WORD = "window"
ANY_TEXTS = (
    "The cat sat by the window and watched the rain.",
    "She opened the window, and he closed the window.",
    "Whoever built this window did not like the sea.",
)
"""Texts to look at with a model that came without any; one word of them is a blank to fill."""


def stored_examples(run: Run) -> Iterator[Example]:
    """Yield held-out texts: a few from all over the data first, then others in case those have unknown words."""
    data = run.folder.read_description()["data"]
    if data is None:  # an imported run has no text of its own
        blank = run.task.place == "blank"
        texts = (text.replace(ANY_WORD, BLANK) if blank else text for text in ANY_TEXTS)
        return ({"source": text} for text in texts if not run.unseen(text))
    store = Store(run.folder.data / data / "dev")
    rows = dict.fromkeys([*spread(len(store), EXAMPLES), *spread(len(store), TRIED)])
    return cast(Iterator[Example], run.task.examples(store, rows))


class CurveLine(TypedDict):
    """A line of the log. It holds more than is said here: the scores of its task."""

    kind: str
    step: int
    loss: NotRequired[float | None]


class CurvesMessage(TypedDict):
    lines: list[CurveLine]
    training: bool
    last: int | None


@dataclass(frozen=True, kw_only=True)
class AskCurves(Question[CurvesMessage]):
    """The lines of the log after a step."""

    turn: ClassVar = "files"
    after: int = bounded(-1, least=-1)

    def answer(self, explorer: "Explorer") -> CurvesMessage:
        lines = explorer.metrics.after(self.after)
        last = max((line["step"] for line in lines), default=None)
        return {"lines": cast(list[CurveLine], lines), "training": is_training(explorer.run.folder), "last": last}

    def python(self, explorer: "Explorer") -> list[str]:
        found = f"Path({str(explorer.run.folder.path)!r}).glob({explorer.run.folder.metrics.name!r})"
        lines = "for line in path.read_text(encoding='utf-8').splitlines()"
        return ["import json", "from pathlib import Path", "", f"[json.loads(line) for path in {found} {lines}]"]
