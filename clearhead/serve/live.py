"""The live page: one HTML file with the model in it, which runs in the browser. It opens from disk, offline.

The page is the explorer with the engine of web/src/live/ in place of the server. Into it go the run's facts, the plan
of its model (`live_plan`), its tokenisers and task (`live_text`) and its weights: float32 up to a million parameters,
beyond that float16, rounded to the nearest. Earlier steps of the training, where they are asked for, are rounded to 11
bits (`packing`). Where the model cannot be in it, answers about one text are (`recorded`).
"""

import copy
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from clearhead.errors import OptionError, RunError
from clearhead.model.int8 import count_weights
from clearhead.model.sizes import build_for_shapes
from clearhead.serve.curves import Curves
from clearhead.serve.live_plan import Planner, known_weightings
from clearhead.serve.live_text import task_plan, tokenizer_plan
from clearhead.serve.packing import deflate, pack_steps, pack_tensors, script_json
from clearhead.serve.questions.positions import PositionsMessage, positions
from clearhead.serve.questions.run import CurveLine, CurvesMessage, Example, Opening, RunFacts, run_facts
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, load

TEMPLATE = Path(__file__).parent / "static" / "live.html"
"""The page without a model, as `make web` builds it."""
PLACE = '<script type="application/json" id="clearhead-data">'
"""The tag after which the run's facts and the plan go."""
WEIGHTS = '<script type="text/plain" id="clearhead-weights">'
"""The tag after which the weights go, those of earlier steps in the lines after their own."""
POSITIONS = 64
"""How many the page shows of each kind (web/src/views/Positions.svelte)."""
EXACT = 1_000_000
"""Up to so many parameters the weights stay float32; beyond, they are float16."""
MOST = 30_000_000
"""The most parameters of a live page: 60 MB of weights, and a few seconds for a text of 64 tokens."""
MOST_FILM = 12_000_000
"""The most characters that the film takes in a page; the demo's takes 6.7 million."""
MOST_LINES = 2_000
"""The most lines of the training's log in a page: more than its curves have pixels."""
LARGEST = 65_504
"""The largest number in float16: a tensor with a larger one stays float32."""
VERSION = 1


class PinnedText(NamedTuple):
    """A text that a page opens on, and the head that it shows of it."""

    example: Example
    opening: Opening


class PageFilm(NamedTuple):
    """Earlier steps of the training in a page. `tensors` and `lines` are as in `packing.PackedSteps`."""

    steps: dict[int, dict[str, Any]]
    """Those in the page, each with what of it is not as in the run."""
    of: int
    """How many the run has: a page may have room for fewer."""
    tensors: dict[str, list[int]]
    lines: list[str]

    @property
    def facts(self) -> dict[str, Any] | None:
        """Return what the page's JSON says of it; None for a run without a film."""
        steps = [{"step": step, **words} for step, words in self.steps.items()]
        return {"of": self.of, "tensors": self.tensors, "steps": steps} if self.of else None


NO_FILM = PageFilm({}, 0, {}, [])


class LivePage(NamedTuple):
    """What goes into a page: JSON without a "<" in it, and the weights in base64; `text` is the page itself."""

    data: str
    weights: str
    parameters: int
    dtype: str
    """What the weights are stored as; "uint8" where they are those of attention, and the model is not in the page."""
    film: PageFilm = NO_FILM

    @property
    def text(self) -> str:
        before, between, after = read_template(TEMPLATE, PLACE, WEIGHTS)
        return before + self.data + between + "\n".join([self.weights, *self.film.lines]) + after


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


def live_page(
    run: Run,
    pinned: PinnedText | None = None,
    *,
    most: int | None = None,
    exercises: dict[str, Any] | None = None,
    film: bool = False,
) -> LivePage:
    """Return the page of a run, which opens on the pinned text, with an answer key of exercises (`answer_key`), and
    with as much of the run's film as there is room for.

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
    words = step_words(run, planner)
    filmed = page_film(run, words, wanted=film)
    data = {
        "version": VERSION,
        "run": page_facts(run, pinned) | {"weightings": list(weightings), "film": list(filmed.steps)},
        "plan": words["plan"],
        "task": task_plan(run) | {"tokenizer": [[*tokenizers].index(mark) for mark in marks]},
        "tokenizers": [tokenizer_plan(tokenizer) for tokenizer in tokenizers.values()],
        "weightings": weightings,
        "tensors": listed,
        "positions": words["positions"],
        "film": filmed.facts,
        "curves": page_curves(run) if pinned is None else None,
        "dtype": str(dtype).removeprefix("torch."),
        "exercises": exercises,
    }
    return LivePage(script_json(data), deflate(block), parameters, data["dtype"], filmed)


def step_words(run: Run, planner: Planner) -> dict[str, Any]:
    """Return what of a page depends on the weights, but for the weights themselves."""
    return {"plan": planner.plan, "positions": position_words(run), "program": task_plan(run)["program"]}


def page_film(run: Run, own: dict[str, Any], *, wanted: bool) -> PageFilm:
    """Return the film of a run in a page. If it has no room for all steps it has every second one, or every fourth."""
    taken = [step for step in run.folder.film.steps() if step != run.step]
    steps = taken if wanted else []
    words: dict[int, dict[str, Any]] = {}

    def load_step(step: int) -> dict[str, Tensor]:
        loaded = load(run.folder.path, device="cpu", step=step)
        planner = Planner(loaded.model)
        words[step] = {name: value for name, value in step_words(loaded, planner).items() if value != own[name]}
        return planner.tensors

    parameters = count_weights(run.model)
    while steps:
        # A number of the first step takes more than a character, one of a later step half of one on average.
        if parameters * (1 + len(steps)) // 2 <= MOST_FILM:
            packed = pack_steps(steps, load_step)
            if sum(map(len, packed.lines)) <= MOST_FILM:
                return PageFilm({step: words[step] for step in steps}, len(taken), *packed)
        steps = steps[::2] if len(steps) > 1 else []
    return NO_FILM._replace(of=len(taken))


def position_words(run: Run) -> PositionsMessage:
    """Return what is said of each kind of position; the page makes the tables itself."""
    facts = positions(run, 2)
    for kind in facts["kinds"]:
        kind["table"], kind["similarity"] = None, []
    facts["bias"] = positions(run, POSITIONS)["bias"]
    return facts


def page_curves(run: Run) -> CurvesMessage:
    """Return the log of a run for a page: every evaluation, and at most MOST_LINES of the others, evenly spread."""
    lines = Curves(run.folder.metrics).after(-1)
    steps = [line["step"] for line in lines if line["kind"] == "training"]
    kept = set(steps[:: -max(1, -(-len(steps) // MOST_LINES))])  # the last one is among them
    told = [line for line in lines if line["kind"] != "training" or line["step"] in kept]
    return {
        "lines": cast(list[CurveLine], told),
        "training": False,
        "last": max((one["step"] for one in told), default=None),
    }


def page_facts(run: Run, pinned: PinnedText | None = None) -> RunFacts:
    """Return the facts of a run for a page: without its path on disk, and without checkpoints."""
    facts = run_facts(run, Curves(run.folder.metrics))
    facts["path"], facts["steps"], facts["film"] = run.folder.path.resolve().name, [run.step], []
    facts["training"] = False
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
