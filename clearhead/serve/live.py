"""The live page: one HTML file with the model in it, which runs in the browser. It opens from disk, offline.

The page is the explorer with the engine of web/src/live/ in place of the server. Into it go the run's facts, the plan
of its model (`live_plan`), its tokenisers and task (`live_text`) and its weights: float32 up to a million parameters,
beyond that float16, rounded to the nearest. Where the model cannot be in it, answers about one text are (`recorded`).
"""

import base64
import copy
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.errors import OptionError, RunError
from clearhead.model.int8 import count_weights
from clearhead.model.sizes import build_for_shapes
from clearhead.serve.curves import Curves
from clearhead.serve.live_plan import Planner, known_weightings
from clearhead.serve.live_text import task_plan, tokenizer_plan
from clearhead.serve.questions.positions import PositionsMessage, positions
from clearhead.serve.questions.run import Example, Opening, RunFacts, run_facts
from clearhead.training.folder import RunFolder
from clearhead.training.reporting import replace_nonfinite
from clearhead.training.run import Run

TEMPLATE = Path(__file__).parent / "static" / "live.html"
"""The page without a model, as `make web` builds it."""
PLACE = '<script type="application/json" id="clearhead-data">'
"""The tag after which the run's facts and the plan go."""
WEIGHTS = '<script type="text/plain" id="clearhead-weights">'
"""The tag after which the weights go."""
POSITIONS = 64
"""How many the page shows of each kind (web/src/views/Positions.svelte)."""
EXACT = 1_000_000
"""Up to so many parameters the weights stay float32; beyond, they are float16."""
MOST = 30_000_000
"""The most parameters of a live page: 60 MB of weights, and a few seconds for a text of 64 tokens."""
LARGEST = 65_504
"""The largest number in float16: a tensor with a larger one stays float32."""
VERSION = 1


class PinnedText(NamedTuple):
    """A text that a page opens on, and the head that it shows of it."""

    example: Example
    opening: Opening


class LivePage(NamedTuple):
    """What goes into a page: JSON without a "<" in it, and the weights in base64; `text` is the page itself."""

    data: str
    weights: str
    parameters: int
    dtype: str
    """What the weights are stored as; "uint8" where they are those of attention, and the model is not in the page."""

    @property
    def text(self) -> str:
        before, between, after = read_template(TEMPLATE, PLACE, WEIGHTS)
        return before + self.data + between + self.weights + after


def is_built() -> bool:
    return TEMPLATE.is_file()


def check_built() -> None:
    """Raise RunError where the page without a model is not built."""
    read_template(TEMPLATE, PLACE, WEIGHTS)


def check_size(folder: RunFolder) -> None:
    """Raise OptionError where a run's model is too large for a page, before its weights are read."""
    folder.origin()
    check_count(folder, sum(parameter.numel() for parameter in build_for_shapes(folder.spec()).parameters()), MOST)


def check_count(folder: RunFolder, parameters: int, most: int) -> None:
    if parameters > most:
        raise OptionError(
            f"{folder.path}: has {parameters:,} parameters, and a page that runs by itself holds {most:,} at most. "
            "Open the run with `clearhead look`, or save one text with `clearhead trace RUN TEXT --html FILE`"
        )


def read_template(file: Path, *tags: str) -> list[str]:
    """Return the text of a built page in pieces, cut after each of these tags: what goes there goes between them."""
    if not file.is_file():
        raise RunError(f"the page is not built: there is no {file}; run `make web`")
    pieces = [file.read_text(encoding="utf-8")]
    for tag in tags:
        before, tag_found, after = pieces.pop().partition(tag)
        if not tag_found:
            raise RunError(f"{file}: has no place for the numbers; run `make web`")
        pieces += [before + tag_found, after]
    return pieces


def script_json(data: object) -> str:
    """Return JSON that can be inside a script: there is no "<" in it, so nothing ends the script."""
    text = json.dumps(replace_nonfinite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def deflate(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 6)).decode()


def live_page(
    run: Run, pinned: PinnedText | None = None, *, most: int | None = None, exercises: dict[str, Any] | None = None
) -> LivePage:
    """Return the page of a run, which opens on the pinned text, with an answer key of exercises (`answer_key`).

    OptionError where the run has more than `most` parameters (None: MOST), or a part that the page cannot compute.
    """
    parameters = count_weights(run.model)
    check_count(run.folder, parameters, MOST if most is None else most)
    dtype = page_dtype(parameters)
    model = copy.deepcopy(run.model)  # the plan is of the rounded weights, and the run keeps its own
    round_weights(model)
    planner = Planner(model)
    listed, block = pack_tensors(planner.tensors, dtype)
    marks = [tokenizer.fingerprint() for tokenizer in run.task.tokenizers.values()]
    tokenizers = dict(zip(marks, run.task.tokenizers.values(), strict=True))
    weightings = known_weightings()
    data = {
        "version": VERSION,
        "run": page_facts(run, pinned) | {"weightings": list(weightings)},
        "plan": planner.plan,
        "task": task_plan(run) | {"tokenizer": [[*tokenizers].index(mark) for mark in marks]},
        "tokenizers": [tokenizer_plan(tokenizer) for tokenizer in tokenizers.values()],
        "weightings": weightings,
        "tensors": listed,
        "positions": position_words(run),
        "dtype": str(dtype).removeprefix("torch."),
        "exercises": exercises,
    }
    return LivePage(script_json(data), deflate(block), parameters, data["dtype"])


def position_words(run: Run) -> PositionsMessage:
    """Return what is said of each kind of position; the page makes the tables itself."""
    facts = positions(run, 2)
    for kind in facts["kinds"]:
        kind["table"], kind["similarity"] = None, []
    facts["bias"] = positions(run, POSITIONS)["bias"]
    return facts


def page_facts(run: Run, pinned: PinnedText | None = None) -> RunFacts:
    """Return the facts of a run for a page: without its path on disk, and without checkpoints."""
    facts = run_facts(run, Curves(run.folder.metrics))
    facts["path"], facts["steps"], facts["training"] = run.folder.path.resolve().name, [run.step], False
    if pinned is not None:
        facts["examples"], facts["opening"] = [pinned.example], pinned.opening
    return facts


def page_dtype(parameters: int) -> torch.dtype:
    return torch.float32 if parameters <= EXACT else torch.float16


def round_weights(model: nn.Module) -> None:
    """Round a model's weights as its page has them, so that a trace of it can be compared with the page."""
    dtype = page_dtype(count_weights(model))
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point() and (not value.numel() or float(value.abs().max()) <= LARGEST):
                value.copy_(value.to(dtype))


def pack_tensors(tensors: dict[str, Tensor], dtype: torch.dtype) -> tuple[dict[str, Any], bytes]:
    """Return where each tensor lies in one block of bytes, little-endian and aligned to 4, and the block.

    What float16 does not hold exactly, as a product of two rounded matrices, is float32 in any case.
    """
    listed: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name, value in tensors.items():
        stored_as = dtype if torch.equal(value.to(dtype).float(), value) else torch.float32
        array = value.to(stored_as).contiguous().numpy()
        content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        content += bytes(-len(content) % 4)
        listed[name] = {"shape": list(value.shape), "dtype": str(stored_as).removeprefix("torch."), "offset": offset}
        parts.append(content)
        offset += len(content)
    return listed, b"".join(parts)
