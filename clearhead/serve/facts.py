"""Facts about a run for the page's first view: its task, its layers, its checkpoints, and example texts."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from clearhead.attention.layer import Attention
from clearhead.errors import RunError
from clearhead.model.blocks import Block, BlockSpec
from clearhead.model.int8 import count_weights
from clearhead.model.transformers import Decoder, Encoder
from clearhead.serve.boxes import box_facts
from clearhead.serve.curves import Curves, is_training
from clearhead.serve.program import RunProgram, load_program
from clearhead.serve.tree import why_no_decoding
from clearhead.text.drawing import spread
from clearhead.text.store import Store
from clearhead.text.tokenizer import LOST
from clearhead.tracing.names import Names
from clearhead.tracing.neurons import why_no_units
from clearhead.training.run import Run
from clearhead.training.tasks.fill import BLANK

EXAMPLES = 5
TRIED = 200
"""Held-out texts that are looked at for examples without an unknown word."""


def run_facts(run: Run, curves: Curves) -> dict[str, Any]:
    names = Names(run.model)
    sides = names.sides
    opening = read_opening(run)
    facts = {
        "name": run.folder.path.resolve().name,
        "path": str(run.folder.path),
        "task": run.task.name,
        "context": run.task.context,
        "step": run.step,
        "steps": sorted(checkpoint.step for checkpoint in run.folder.checkpoints.all()),
        "film": run.folder.film.steps(),
        "kind": "-".join(sides),
        "parameters": count_weights(run.model),
        "vocabulary": [*sides.values()][-1][1].spec.vocabulary,
        "sides": [side_facts(side, part, names) for side, (_, part) in sides.items()],
        "target": run.task.target,
        "place": run.task.place,
        "fields": list(run.task.layout(run.task.context).texts),
        "examples": known_texts(opening.get("examples", ())) or examples(run, curves),
        "training": is_training(run.folder),
        **({"opening": {"site": opening["site"], "head": opening["head"]}} if opening else {}),
    }
    program = load_program(run)
    imported = program is None and is_imported(run)
    return {
        **facts,
        **({"imported": True} if imported else {}),
        "absent": absent_views(run, curves, program, imported=imported),
        **({"labels": list(run.task.labels)} if run.task.labels else {}),
        **({"program": program.facts(run), "directions": program.directions} if program else {}),
    }


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


def side_facts(side: str, part: Encoder | Decoder, names: Names) -> dict[str, Any]:
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


def layer_facts(spec: BlockSpec, block: Block, d_model: int) -> dict[str, Any]:
    network = spec.feed_forward
    description = None if network is None else f"{d_model} → {network.d_ff} → {d_model} {part_name(network)}"
    return {
        "attention": attention_facts(block.attention),
        **({} if block.cross is None else {"cross": attention_facts(block.cross)}),
        "feed_forward": description,
        "arrangement": part_name(spec.arrangement),
    }


def attention_facts(layer: Attention) -> dict[str, Any]:
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


def examples(run: Run, curves: Curves) -> list[dict[str, str]]:
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


def known_texts(texts: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return the first few texts without unknown words."""
    complete = (example for example in texts if not any(LOST in text for text in example.values()))
    return list(itertools.islice(complete, EXAMPLES))


def logged_examples(run: Run, curves: Curves) -> list[dict[str, str]]:
    logged = [line for line in curves.all() if line.get("samples")]
    pairs = [(sample["input"], sample.get("reference")) for sample in logged[-1]["samples"]] if logged else []
    paired = run.task.target == "writes"
    return [
        {"source": text, **({"target": target} if paired and target else {})}
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


def stored_examples(run: Run) -> Iterator[dict[str, str]]:
    """Yield held-out texts: a few from all over the data first, then others in case those have unknown words."""
    data = run.folder.read_description()["data"]
    if data is None:  # an imported run has no text of its own
        blank = run.task.place == "blank"
        texts = (text.replace(ANY_WORD, BLANK) if blank else text for text in ANY_TEXTS)
        return ({"source": text} for text in texts if not run.unseen(text))
    store = Store(run.folder.data / data / "dev")
    rows = dict.fromkeys([*spread(len(store), EXAMPLES), *spread(len(store), TRIED)])
    return run.task.examples(store, rows)
