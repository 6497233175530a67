"""The recipe: everything that decides what a run becomes, in one frozen tree that the run folder keeps."""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, final, get_args

from clearhead.calls import CodeRepr, public
from clearhead.errors import OptionError, RunError
from clearhead.files import check_format, os_errors_as_run_errors, read_json, read_sealed, write_sealed
from clearhead.model.lora import Lora
from clearhead.model.sizes import PARTS, Spec
from clearhead.options import OWN, check_declared, option
from clearhead.serialization import from_json, names_in, table_of, to_json
from clearhead.text.encoding import Corpus
from clearhead.text.mixing import read_mix
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Messages, Table
from clearhead.text.token_files import TokenFiles
from clearhead.training.schedules import AVERAGES, SCHEDULES, Averaging, CosineDecay, Schedule, Unaveraged

Select = Literal["best", "last"]
Method = Literal["adamw", "muon"]
Precision = Literal["auto", "float32", "bfloat16"]
ParallelWay = Literal["auto", "ddp", "fsdp"]
Open = Literal[
    "budget", "vocabulary", "model", "dropout", "decay", "batch", "lr", "schedule", "warmup", "evaluate", "log"
]
"""A choice that may be left open in a recipe, to be fitted to budget, text and machine when training begins."""


def positive(owner: object, *names: str) -> None:
    """Raise if one of these fields is not above zero, or infinite."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not value > 0:
            raise OptionError(f"{type(owner).__name__}: {name} must be above 0; came {value}")
        if value == float("inf"):
            raise OptionError(f"{type(owner).__name__}: {name} must be finite; came {value}")


class ParallelLayout(NamedTuple):
    """How processes train together, how many of them share a sequence, and how many share the maps of every layer."""

    way: ParallelWay = "auto"
    context: int = 1
    tensor: int = 1


def read_parallel(text: str) -> ParallelLayout:
    """Return the layout that `--parallel` names.

    >>> read_parallel("fsdp,context=4"), read_parallel("tensor=2")
    (ParallelLayout(way='fsdp', context=4, tensor=1), ParallelLayout(way='fsdp', context=1, tensor=2))
    """
    items = text.split(",")
    way = cast(ParallelWay, items.pop(0)) if items[0] in get_args(ParallelWay) else "auto"
    named = [item.partition("=") for item in items]
    whole = {name: number for name, _, number in named if number.isdecimal() and len(number) < 10}
    counts = {name: int(number) for name, number in whole.items() if name in ("context", "tensor")}
    if len(counts) < len(items):
        raise OptionError(
            "parallel: auto, ddp or fsdp, and how many processes share a sequence (context) or a layer (tensor), as "
            f"fsdp,context=2,tensor=2; came {text[:80]!r}"
        )
    layout = ParallelLayout(way, **counts)
    if min(layout.context, layout.tensor) < 1:
        raise OptionError(f"parallel: context and tensor are numbers of processes, 1 or more; came {text!r}")
    if layout.tensor > 1 and layout.way == "ddp":
        raise OptionError("parallel: tensor goes with fsdp, which shards what it does not divide; take fsdp,tensor=2")
    return layout._replace(way="fsdp") if layout.tensor > 1 else layout


@final
@public
@dataclass(frozen=True, kw_only=True)
class Optimizer(CodeRepr):
    """AdamW or Muon, its schedule, and what is added to the loss.

    Args:
        lr: Peak learning rate.
        schedule: How the rate changes over the steps.
        betas: Betas of AdamW.
        epsilon: Epsilon of AdamW.
        weight_decay: Weight decay.
        clip: Largest norm of the gradient; None turns clipping off.
        smoothing: Label smoothing.
        r_drop: Weight of the R-Drop loss; 0 turns it off.
        averaging: Average of the weights over steps.
        method: `adamw`, or `muon` for the linear maps inside blocks, with the same rate and decay, and AdamW for the
            rest.

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> optimizer = ch.training.Optimizer(lr=3e-4, averaging=ch.training.Ema())
    """

    lr: float = option(1e-3, "Peak learning rate.", takes="X", above=0)
    schedule: Schedule = option(
        CosineDecay(warmup=100),
        f"Learning rate schedule: {', '.join(SCHEDULES)}; {OWN}.",
        takes="NAME",
        names=SCHEDULES,
        own=True,
    )
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-8
    weight_decay: float = option(0.01, "Weight decay of AdamW.", takes="X", least=0)
    clip: float | None = option(1.0, "Clip the gradient norm to X; 0 turns it off.", takes="X", least=0, off=True)
    smoothing: float = option(0.0, "Label smoothing.", takes="X", least=0, below=1)
    r_drop: float = option(0.0, "Weight of the R-Drop loss; 0 turns it off.", takes="X", least=0)
    averaging: Averaging = option(
        Unaveraged(),
        f"Average the weights over steps: {', '.join(AVERAGES)}.",
        word="average",
        takes="NAME",
        names=AVERAGES,
    )
    method: Method = option(
        "adamw", "adamw, or muon for the linear maps inside blocks.", word="optimizer", takes="NAME"
    )

    def __post_init__(self) -> None:
        check_declared(self)
        positive(self, "epsilon")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise OptionError(f"betas lie from 0 to 1, 1 left out; came {self.betas}")


@final
@public
@dataclass(frozen=True, kw_only=True)
class Batching(CodeRepr):
    """The text of a step.

    Args:
        tokens: About how many tokens a step has.
        micro_batch_tokens: Most tokens of one pass; a step sums several (gradient accumulation). All of them if None.
        context: Tokens of the longest row.
        mix: Shares of the sources of training text, with commas between; and, after `;`, others from a part of the
            steps on. None for all text once an epoch.

    >>> import clearhead as ch
    >>> batching = ch.training.Batching(tokens=2048, context=128)
    """

    tokens: int = option(4096, "Batch size: tokens per step, about.", word="batch_tokens", takes="N", least=1)
    micro_batch_tokens: int | None = option(
        None, "Gradient accumulation: tokens per pass; a step sums several passes.", takes="N", least=1
    )
    context: int = option(256, "Context length, in tokens.", takes="N", least=1)
    mix: str | None = option(
        None,
        "Shares of the files of text in every batch, in the order they are given: 0.7,0.3; with 0.7,0.3;0.9:0,1 they "
        "change after 90 % of the steps.",
        takes="X,Y",
        several=True,
    )

    def __post_init__(self) -> None:
        check_declared(self)
        if self.mix is not None:
            read_mix(self.mix)

    @property
    def passes(self) -> int:
        """Return how many micro-batches make up a step."""
        return 1 if self.micro_batch_tokens is None else max(1, round(self.tokens / self.micro_batch_tokens))

    @property
    def at_once(self) -> int:
        return self.tokens if self.micro_batch_tokens is None else min(self.tokens, self.micro_batch_tokens)


@final
@public
@dataclass(frozen=True, kw_only=True)
class Budget(CodeRepr):
    """When training ends: after this many steps, minutes or epochs, whichever is given.

    Args:
        steps: Steps.
        minutes: Minutes.
        epochs: Passes over the text.
        patience: Early stopping: also end after this many evaluations without improvement.

    Raises:
        OptionError: If not exactly one of the three is given, or a number is out of range.

    >>> import clearhead as ch
    >>> budget = ch.training.Budget(steps=100, patience=5)
    """

    steps: int | None = option(None, "Train for N steps.", takes="N", least=1)
    minutes: float | None = option(None, "Train for X minutes.", takes="X", above=0)
    epochs: float | None = option(None, "Train for X epochs.", takes="X", above=0)
    patience: int | None = option(
        None,
        "Early stopping: end after N evaluations without improvement; 0 turns it off.",
        takes="N",
        least=0,
        off=True,
    )

    def __post_init__(self) -> None:
        check_declared(self)
        if sum(limit is not None for limit in (self.steps, self.minutes, self.epochs)) != 1:
            raise OptionError("give one of steps, minutes and epochs: they each say when to stop")


@final
@public
@dataclass(frozen=True, kw_only=True)
class Checkpointing(CodeRepr):
    """How often to log, evaluate and save; how many checkpoints to keep; which one to use in the end.

    Args:
        log: Steps between lines of metrics.
        evaluate: Steps between evaluations on the validation set.
        save: Steps between further checkpoints; none if None.
        checkpoints: How many of the newest to keep, besides the best.
        select: Which one to use: `best` or `last`.
        score_records: For how many validation records outputs are made and scored at each evaluation.
        samples: How many samples an evaluation logs.
        film: Keep weights at steps 0, 1, 2, 4, 8, … for the explorer; None: if they take at most 200 MB.

    Raises:
        OptionError: If a value is out of range.

    >>> import clearhead as ch
    >>> checkpointing = ch.training.Checkpointing(evaluate=50, film=False)
    """

    log: int = option(20, "Log metrics.", word="log_every", takes="STEPS", least=1)
    evaluate: int = option(200, "Evaluate on the validation set.", word="evaluate_every", takes="STEPS", least=1)
    save: int | None = option(
        None, "Save a checkpoint, besides those at evaluations.", word="save_every", takes="STEPS", least=1
    )
    checkpoints: int = option(2, "Keep the N newest checkpoints, and the best.", word="keep", takes="N", least=1)
    select: Select = option("best", "Which checkpoint to use: best or last.", takes="NAME")
    score_records: int = 200
    samples: int = 3
    film: bool | None = option(
        None,
        "Keep weights of steps 0, 1, 2, 4, 8, … for the explorer's step slider; default: if under 200 MB.",
        both=True,
    )

    def __post_init__(self) -> None:
        check_declared(self)
        if self.score_records < 0 or self.samples < 0:
            raise OptionError(f"score_records and samples are 0 or more; came {self!r}")


@final
@public
@dataclass(frozen=True, kw_only=True)
class Machine(CodeRepr):
    """Where and how a training runs.

    Args:
        device: `auto`, `cpu`, `cuda`, `cuda:1`.
        precision: `float32`, `bfloat16`, or `auto`.
        compile: Use torch.compile.
        graphs: On a GPU, capture a step once for each shape and replay it, which saves the launches of its kernels.
        deterministic: Reproduce a run bit for bit on the same machine, on a GPU too.
        threads: CPU threads; torch's choice if None. The number is recorded, and kept when resuming.
        adapt_threads: On a busy machine use fewer threads if that is quicker.
        activation_checkpointing: Keep only the inputs of blocks and compute the rest again in the backward pass: less
            memory for a third more work.
        splits: Compute each micro-batch in this many parts: the same step in less memory.
        parallel: How several processes train together: `ddp`, `fsdp` or `auto`, with `context` and `tensor`.
        keyed_dropout: Dropout masks that are the same on any number of processes; None: with several processes on a
            CPU.

    >>> import clearhead as ch
    >>> machine = ch.training.Machine(device="cpu", threads=1)
    """

    device: str = option("auto", "Device: auto, cpu, cuda, cuda:1.", takes="NAME", names=("auto", "cpu", "cuda"))
    precision: Precision = option("auto", "Numbers in training: auto, float32, bfloat16.", takes="NAME")
    compile: bool = option(False, "Use torch.compile, or not.", both=True)
    graphs: bool = True
    deterministic: bool = option(False, "Reproduce a run bit for bit on the same machine, also on a GPU.")
    threads: int | None = option(None, "CPU threads.", takes="N", least=1)
    adapt_threads: bool = False
    activation_checkpointing: bool = option(
        False,
        "Save memory: keep only the inputs of blocks, and recompute the rest in the backward pass.",
        both=True,
    )
    splits: int = 1
    parallel: str = option(
        "auto",
        "Several processes: ddp (each has the model), fsdp (each has a shard), auto (by size and memory); "
        "fsdp,context=4 splits each sequence over 4 of them, fsdp,tensor=2 the heads and networks over 2.",
        takes="WAY",
        names=get_args(ParallelWay),
    )
    keyed_dropout: bool | None = option(
        None,
        "Dropout that is the same on any number of processes.  [default: with several processes on a CPU]",
        both=True,
    )

    def __post_init__(self) -> None:
        check_declared(self)
        positive(self, "splits")
        read_parallel(self.parallel)


@dataclass(frozen=True, kw_only=True)
class Plan(CodeRepr):
    """How a budget of minutes is spent, measured on the machine when training begins.

    `steps` is how many steps it has time for, each of `step_seconds`; the schedule goes by it. `used_seconds` of the
    budget were gone when the plan was made, `reading_seconds` of them for reading text. Reading counts for half of the
    budget at most: the end comes later by the `late_seconds` beyond that. Evaluations compute the loss of `sample`
    batches of the dev text (None: of all), make samples if `shows_samples`, and are thought to take
    `evaluation_seconds`. The final one is of the whole dev text, makes outputs of `scored` records, and is thought to
    take `scoring_seconds`; `ending_seconds` go into the rest of the end. With `enough` the text bears no more steps: a
    quicker machine ends earlier.
    """

    steps: int
    step_seconds: float
    used_seconds: float = 0.0
    reading_seconds: float = 0.0
    late_seconds: float = 0.0
    sample: int | None = None
    shows_samples: bool = True
    evaluation_seconds: float = 0.0
    scored: int = 2000
    scoring_seconds: float = 0.0
    ending_seconds: float = 0.0
    enough: bool = False

    def __post_init__(self) -> None:
        positive(self, "steps", "step_seconds", "sample")
        if min(self.used_seconds, self.scored, self.scoring_seconds, self.evaluation_seconds) < 0:
            raise OptionError(f"Plan: times and counts are 0 or more; came {self!r}")


@dataclass(frozen=True, kw_only=True)
class FineTuning(CodeRepr):
    """The run whose weights and tokenisers a run starts from, and which of its parameters are trained.

    `source` is its folder, `run` its id, `step` the checkpoint that is taken and `sha256` the checksum of that
    checkpoint's weights. Parameters whose names `freeze` matches are not trained; with `lora` only adapters are, and a
    new output. `new_output` is found when training begins: the source has no output for this task and these labels.
    """

    source: str = option(
        MISSING,
        "Start from this run, trained or imported: its model, weights and tokenisers. The usual learning rate is a "
        "fifth of that from scratch.",
        word="from_",
        takes="RUN",
        names=("<run>",),
    )
    run: str | None
    step: int
    sha256: str
    freeze: tuple[str, ...] = option(
        (), "Do not train these parameters: embedding, blocks.0-3, '*.attention.*'. Repeatable.", takes="NAME"
    )
    lora: Lora | None = None
    new_output: bool = False


@final
@public
@dataclass(frozen=True, kw_only=True)
class Recipe(CodeRepr):
    """Everything that decides what a run becomes. `model` is the spec itself, so nothing depends on a version's
    defaults.

    Args:
        task: Name of the task.
        corpus: The text.
        tokenizing: How text becomes tokens.
        model: Spec of the model.
        optimizer: How weights are updated.
        batching: The text of a step.
        budget: When training ends.
        checkpointing: What is logged, evaluated and kept.
        machine: Where it runs.
        seed: Random seed.
        parameters: How many the model should have: width and depth are then chosen once the vocabulary is known.
        vectors: File of pre-trained word vectors that the token tables start from.
        fine_tuning: The run to start from; its tokenizers are used, whatever `tokenizing` says.
        open: Choices that `train` fits to the budget before the first step. A recipe that was written has none left.
        plan: How a budget in minutes is spent, once it was fitted; a resume follows it.
    """

    task: str
    corpus: Corpus
    tokenizing: Tokenizing
    model: Spec
    optimizer: Optimizer
    batching: Batching
    budget: Budget
    checkpointing: Checkpointing = Checkpointing()
    machine: Machine = Machine()
    seed: int = option(1, "Random seed.  [default: 1]", takes="N", least=0, below=2**64)
    parameters: int | None = None
    vectors: str | None = None
    fine_tuning: FineTuning | None = None
    open: tuple[Open, ...] = ()
    plan: Plan | None = None

    def __post_init__(self) -> None:
        check_declared(self)
        positive(self, "parameters")

    @property
    def has_given_length(self) -> bool:
        """True if its steps or epochs are the user's choice, and not what fits into minutes or reaches a quality."""
        return self.budget.minutes is None and "budget" not in self.open


@dataclass(frozen=True, kw_only=True)
class Origin(CodeRepr):
    """Where the weights of an imported run come from: its recipe.json holds this, since it was not trained here.

    `source` is what was given to `clearhead import`, `file_format` how its files were read, `architecture` its own
    name for its kind of model.
    """

    source: str
    file_format: str
    architecture: str
    task: str
    dtype: str
    parameters: int


SPECS = table_of(
    (
        *(Recipe, Origin, Corpus, Tokenizing, Optimizer, Batching, Budget, Checkpointing, Machine),
        *(Aligned, Table, Documents, Messages, TokenFiles, FineTuning, Lora, Plan),
    )
)
"""What a recipe is made of beside parts and the specs of models."""
CLASSES: Mapping[str, type] = ChainMap(SPECS, PARTS)  # pyright: ignore[reportArgumentType] - it is only read
"""Everything a recipe can have, by name: parts of users too."""


def write_recipe(recipe: Recipe | Origin, path: Path, *, run: str | None = None) -> None:
    """Write the recipe, or the origin of an imported run, as sealed JSON, bound to the run with this id."""
    content = to_json(recipe, CLASSES)
    with os_errors_as_run_errors(path):
        write_sealed(path, content if run is None else {"run": run, **content})


def load_recipe(path: Path) -> Recipe:
    """Return the recipe in a file that a person may have edited: its checksum is not looked at.

    What belongs to the run it is from is left out: its id, and the plan of its minutes.
    """
    content = read_json(path, error=OptionError)
    if not isinstance(content, dict):
        raise OptionError(f"{path}: expected the JSON object of a recipe; came {type(content).__name__}")
    if "format" in content:
        check_format(content, str(path), error=OptionError)
    plain = {name: value for name, value in content.items() if name not in ("format", "run", "sha256")}
    recipe = from_json(plain, CLASSES, where=str(path))
    if not isinstance(recipe, Recipe):
        raise OptionError(f"{path}: holds no recipe but {type(recipe).__name__}")
    return replace(recipe, plan=None)


def read_recipe(path: Path, *, check: Callable[[dict[str, Any]], object] | None = None) -> Recipe:
    """Read a recipe. `check` is given the file's content: a run folder's refuses the recipe of another run."""
    origin = read_origin(path, check=check)
    if isinstance(origin, Origin):
        raise RunError(
            f"{path.parent}: was imported from {origin.source}, so there is no training of its own to resume. "
            f"Train it further as a run of its own: clearhead train NEW --from {path.parent}"
        )
    return origin


def read_origin(path: Path, *, check: Callable[[dict[str, Any]], object] | None = None) -> Recipe | Origin:
    """Read what a run's weights come from: the recipe of their training, or the origin of an imported model."""
    try:
        sealed = read_sealed(path)
    except FileNotFoundError:
        raise RunError(
            f"{path.parent} is not a run folder: it has no {path.name}; `clearhead runs` lists those there are"
        ) from None
    content = {name: value for name, value in sealed.items() if name not in ("format", "run", "sha256")}
    origin = from_json(content, CLASSES, where=str(path))
    if not isinstance(origin, Recipe | Origin):
        raise RunError(f"{path}: holds no recipe but {type(origin).__name__}")
    if check is not None:
        check(sealed)
    return origin


def own_modules(recipe: Recipe) -> list[str]:
    """Return the names of the modules that the parts of the user's own in a recipe are in."""
    content = to_json(recipe, CLASSES)
    named = [*names_in(content), content["task"]]
    return sorted({name.partition(":")[0] for name in named if ":" in name})
