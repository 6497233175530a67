"""From options to a recipe: what the user gave, and for all the rest the defaults for the task and its text."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, cast, final, get_args

import typer

from clearhead.cli.completion import complete_names
from clearhead.cli.fine_tuning_options import FineTuningOptions, as_freeze, as_lora
from clearhead.cli.model_options import ModelOptions, as_model
from clearhead.cli.options import (
    DEVICES,
    above_zero,
    given_flags,
    import_named,
    missing,
    one_of,
    share,
    wrong,
    zero_or_more,
)
from clearhead.cli.part_options import part_option
from clearhead.cli.texts import TextOptions, as_corpus, check_text
from clearhead.devices import choose_device
from clearhead.errors import ClearheadError, OptionError
from clearhead.model.sizes import Spec, parse_count
from clearhead.registry import parse
from clearhead.text.kinds import KINDS
from clearhead.text.preparing import Tokenizing
from clearhead.text.tokenizer import Tokenizer, least_size
from clearhead.text.vectors import vector_size
from clearhead.training import defaults, variants
from clearhead.training.averaging import AVERAGES
from clearhead.training.fine_tuning import fine_tuning_recipe, open_source
from clearhead.training.recipe import (
    Batching,
    Budget,
    Checkpointing,
    Machine,
    Method,
    Open,
    Optimizer,
    Precision,
    Recipe,
    Select,
)
from clearhead.training.schedules import SCHEDULES, Schedule
from clearhead.training.tasks import OTHERS, TASKS, Embed, Task, name_of, task_named

EVALUATIONS = 20
"""How many there are over a run whose steps are given, unless that makes them less than LEAST steps apart."""
LEAST = 100
METHODS: dict[str, Method] = {name: name for name in get_args(Method)}


Name = str | None
Count = int | None
Number = float | None


@final
@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """How text becomes tokens."""

    title: ClassVar[str] = "Tokeniser"

    tokenizer: Annotated[
        Name,
        typer.Option(
            metavar="KIND",
            autocompletion=complete_names(KINDS),
            help=f"Kind of tokeniser: {', '.join(KINDS)}; or the path of a tokenizer.json.",
        ),
    ] = None
    vocabulary: Annotated[
        Count, typer.Option(min=1, metavar="N", help="Size of the vocabulary.  [default: chosen from the text]")
    ] = None
    separate_tokenizers: Annotated[
        bool,
        typer.Option("--separate-tokenizers", help="translate: one tokeniser per language, instead of one for both."),
    ] = False
    lower: Annotated[bool | None, typer.Option("--lower/--no-lower", help="Lower-case all text, or not.")] = None
    vectors: Annotated[
        Name,
        typer.Option(
            metavar="FILE", help="Start from pre-trained word vectors, in the text format of word2vec or GloVe."
        ),
    ] = None
    freeze_vectors: Annotated[bool, typer.Option("--freeze-vectors", help="vectors: do not train the embeddings.")] = (
        False
    )


@final
@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """How it learns."""

    title: ClassVar[str] = "Optimizer"

    optimizer: Annotated[
        Name,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_names(METHODS),
            help="adamw, or muon for the linear maps inside blocks.",
        ),
    ] = None
    lr: Annotated[Number, typer.Option(metavar="X", callback=above_zero, help="Peak learning rate.")] = None
    schedule: Annotated[
        Name, part_option("--schedule", f"Learning rate schedule: {', '.join(SCHEDULES)}", SCHEDULES)
    ] = None
    warmup: Annotated[Count, typer.Option(min=0, metavar="STEPS", help="Warm-up steps.")] = None
    smoothing: Annotated[Number, typer.Option(metavar="X", callback=share, help="Label smoothing.")] = None
    r_drop: Annotated[
        Number, typer.Option(callback=zero_or_more, metavar="X", help="Weight of the R-Drop loss; 0 turns it off.")
    ] = None
    clip: Annotated[
        Number, typer.Option(callback=zero_or_more, metavar="X", help="Clip the gradient norm to X; 0 turns it off.")
    ] = None
    weight_decay: Annotated[Number, typer.Option(callback=zero_or_more, metavar="X", help="Weight decay of AdamW.")] = (
        None
    )
    average: Annotated[
        Name,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_names(AVERAGES),
            help=f"Average the weights over steps: {', '.join(AVERAGES)}.",
        ),
    ] = None


@final
@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How much text at a time."""

    title: ClassVar[str] = "Batches"

    tokens: Annotated[Count, typer.Option(min=1, metavar="N", help="Batch size: tokens per step, about.")] = None
    micro_batch_tokens: Annotated[
        Count,
        typer.Option(min=1, metavar="N", help="Gradient accumulation: tokens per pass; a step sums several passes."),
    ] = None
    context: Annotated[Count, typer.Option(min=8, metavar="N", help="Context length, in tokens.")] = None


@final
@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """When it ends. One of steps, minutes and epochs."""

    title: ClassVar[str] = "Budget (how long to train: give one of steps, minutes, epochs)"

    steps: Annotated[Count, typer.Option(min=1, metavar="N", help="Train for N steps.")] = None
    minutes: Annotated[Number, typer.Option(metavar="X", callback=above_zero, help="Train for X minutes.")] = None
    epochs: Annotated[Number, typer.Option(metavar="X", callback=above_zero, help="Train for X epochs.")] = None
    patience: Annotated[
        Count,
        typer.Option(
            min=0, metavar="N", help="Early stopping: end after N evaluations without improvement; 0 turns it off."
        ),
    ] = None


@final
@dataclass(frozen=True, kw_only=True)
class CheckpointingOptions:
    """What is written, and how often."""

    title: ClassVar[str] = "Checkpointing"

    evaluate_every: Annotated[Count, typer.Option(min=1, metavar="STEPS", help="Evaluate on the validation set.")] = (
        None
    )
    save_every: Annotated[
        Count, typer.Option(min=1, metavar="STEPS", help="Save a checkpoint, besides those at evaluations.")
    ] = None
    log_every: Annotated[Count, typer.Option(min=1, metavar="STEPS", help="Log metrics.")] = None
    keep: Annotated[Count, typer.Option(min=1, metavar="N", help="Keep the N newest checkpoints, and the best.")] = None
    select: Annotated[
        Name,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_names(get_args(Select)),
            help="Which checkpoint to use: best or last.",
        ),
    ] = None
    film: Annotated[
        bool | None,
        typer.Option(
            "--film/--no-film",
            help="Keep weights of steps 0, 1, 2, 4, 8, … for the explorer's step slider; default: if under 200 MB.",
        ),
    ] = None


@final
@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where it runs."""

    title: ClassVar[str] = "Machine"

    device: Annotated[
        Name,
        typer.Option(metavar="NAME", autocompletion=complete_names(DEVICES), help="Device: auto, cpu, cuda, cuda:1."),
    ] = None
    precision: Annotated[
        Name,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_names(get_args(Precision)),
            help=f"Numbers in training: {', '.join(get_args(Precision))}.",
        ),
    ] = None
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile, or not.")] = None
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Reproduce a run bit for bit on the same machine, also on a GPU.")
    ] = False
    activation_checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--activation-checkpointing/--no-activation-checkpointing",
            help="Save memory: keep only the inputs of blocks, and recompute the rest in the backward pass.",
        ),
    ] = None
    keyed_dropout: Annotated[
        bool | None,
        typer.Option(
            "--keyed-dropout/--no-keyed-dropout",
            help="Dropout that is the same on any number of processes.  [default: with several processes on a CPU]",
        ),
    ] = None
    threads: Annotated[Count, typer.Option(min=1, metavar="N", help="CPU threads.")] = None
    seed: Annotated[Count, typer.Option(min=0, metavar="N", help="Random seed.  [default: 1]")] = None


@final
@dataclass(frozen=True, kw_only=True)
class Choices:
    """Everything about a run that can be chosen. What is not given is left to the defaults."""

    task: Annotated[
        Name,
        typer.Option(
            metavar="NAME",
            callback=import_named("--task"),
            autocompletion=complete_names([*TASKS, "instruct"]),
            help=f"What to learn: {', '.join(TASKS)}, with --from also instruct; or your own, module:Class.",
        ),
    ] = None
    text: TextOptions = field(default_factory=TextOptions)
    fine_tuning: FineTuningOptions = field(default_factory=FineTuningOptions)
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    batches: BatchOptions = field(default_factory=BatchOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    checkpointing: CheckpointingOptions = field(default_factory=CheckpointingOptions)
    machine: MachineOptions = field(default_factory=MachineOptions)


def find_task(name: str) -> type[Task]:
    """Return the task that `--task` names."""
    try:
        return task_named(name)
    except OptionError as error:
        raise wrong("--task", str(error).removeprefix("task: ")) from error


def as_recipe(choices: Choices) -> Recipe:
    """Return the recipe that was asked for; raise for what cannot be before any text is read."""
    if choices.fine_tuning.from_ is not None:
        return as_fine_tuned(choices, choices.fine_tuning.from_)
    if choices.task is None:
        raise missing("--task", f"say what to learn ({', '.join(TASKS)})")
    task = find_task(choices.task)
    if task in OTHERS.values():
        raise wrong("--task", f"{task.name} is for a model that has learned already: give it, --from RUN")
    check_text(task, choices.text)
    machine = as_machine(choices.machine)
    default = defaults.default_recipe(choices.task, as_corpus(task, choices.text), machine)
    seed = default.seed if choices.machine.seed is None else choices.machine.seed
    return replace(override_recipe(choices, default), seed=seed, open=list_open(choices))


def list_open(choices: Choices) -> tuple[Open, ...]:
    """Return what the options leave to be fitted to the budget."""
    model, optimizer, budget, tokenizer = choices.model, choices.optimizer, choices.budget, choices.tokenizer
    is_given_by_name: dict[Open, bool] = {
        "budget": any(value is not None for value in (budget.steps, budget.minutes, budget.epochs)),
        "vocabulary": tokenizer.vocabulary is not None or choices.fine_tuning.from_ is not None,
        "model": bool(model.preset or model.size or tokenizer.vectors or choices.fine_tuning.from_),
        "dropout": model.dropout is not None or model.preset is not None or choices.fine_tuning.from_ is not None,
        "decay": optimizer.weight_decay is not None or choices.fine_tuning.from_ is not None,
        "batch": bool(choices.batches.tokens or choices.fine_tuning.from_),
        "lr": bool(optimizer.lr or choices.fine_tuning.from_),
        "schedule": optimizer.schedule is not None,
        "warmup": optimizer.warmup is not None or (optimizer.schedule is not None and "(" in optimizer.schedule),
        "evaluate": choices.checkpointing.evaluate_every is not None,
        "log": choices.checkpointing.log_every is not None,
    }
    return tuple(name for name, is_given in is_given_by_name.items() if not is_given)


def as_fine_tuned(choices: Choices, path: str) -> Recipe:
    """Return the recipe of a run that starts from the weights of another one; raise for what would change its model."""
    if extra := [*given_flags(choices.tokenizer), *given_flags(replace(choices.model, dropout=None))]:
        raise wrong("--from", f"{path} has its model and its tokenisers already: leave out {', '.join(extra)}")
    try:
        source = open_source(path)
    except ClearheadError as error:
        raise wrong("--from", str(error)) from error
    name = choices.task or name_of(type(source.task))
    task = find_task(name)
    context = choices.batches.context
    if context is not None and context > source.task.context:
        raise wrong("--context", f"{path} was trained to read {source.task.context} tokens; came {context}")
    lora, freeze, machine = as_lora(choices.fine_tuning), as_freeze(choices.fine_tuning), as_machine(choices.machine)
    if task is Embed:
        raise wrong("--task", f"nothing is trained to embed: say what to learn from {path}: {', '.join(TASKS)}")
    check_text(task, choices.text)
    corpus = as_corpus(task, choices.text)
    try:
        default = fine_tuning_recipe(source, corpus, task=name, lora=lora, freeze=freeze, machine=machine)
    except OptionError as error:
        option, _, message = str(error).partition(": ")
        raise wrong(
            {"task": "--task", "freeze": "--freeze", "Lora": "--lora"}.get(option, "--from"), message
        ) from error
    budget = new_budget(choices.budget, default.budget) or default.budget
    dropout, seed = choices.model.dropout, choices.machine.seed
    return replace(
        default,
        model=default.model if dropout is None else defaults.with_dropout(default.model, dropout),
        optimizer=as_optimizer(choices.optimizer, default, default.model, budget),
        batching=as_batching(choices.batches, default.batching),
        budget=budget,
        checkpointing=as_checkpointing(choices.checkpointing, default.checkpointing, budget),
        seed=default.seed if seed is None else seed,
        open=list_open(choices),
    )


def override_recipe(choices: Choices, default: Recipe) -> Recipe:
    """Return a recipe with what was given in place of its own; text, machine and seed are left alone."""
    if extra := given_flags(choices.fine_tuning):
        raise wrong(extra[0], "goes with --from RUN" if choices.fine_tuning.from_ is None else "is not for this")
    tokenizing = as_tokenizing(choices.tokenizer, default)
    batching = as_batching(choices.batches, default.batching)
    budget = new_budget(choices.budget, default.budget) or default.budget
    changed = replace(default, tokenizing=tokenizing, batching=batching)
    model = as_model(choices.model, replace(changed, model=with_vectors(choices, changed.model)))
    check_vectors(choices, model)
    if choices.tokenizer.freeze_vectors:
        model = defaults.map_embeddings(model, lambda embedding: replace(embedding, frozen=True))
    # The width of a model with given vectors is theirs, so --size cannot choose it.
    size = choices.model.size if choices.tokenizer.vectors is None else None
    return replace(
        default,
        vectors=choices.tokenizer.vectors,
        tokenizing=tokenizing,
        model=model,
        optimizer=as_optimizer(choices.optimizer, default, model, budget),
        batching=batching,
        budget=budget,
        checkpointing=as_checkpointing(choices.checkpointing, default.checkpointing, budget),
        parameters=None if size is None else parse_count(size),
    )


def drop_missing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def as_machine(options: MachineOptions) -> Machine:
    one_of("--precision", options.precision or "auto", dict.fromkeys(get_args(Precision)))
    try:
        choose_device(options.device or "auto")
    except OptionError as error:
        raise wrong("--device", str(error).removeprefix("device: ")) from error
    return new_machine(options, Machine(adapt_threads=True))


def new_machine(options: MachineOptions, old: Machine) -> Machine:
    """Return a machine with what was given in place of its own."""
    names = ("device", "precision", "compile", "threads", "activation_checkpointing", "keyed_dropout")
    changed = drop_missing({name: getattr(options, name) for name in names})
    adapts = old.adapt_threads and options.threads is None and not options.deterministic
    return replace(old, **changed, adapt_threads=adapts, deterministic=options.deterministic or old.deterministic)


def as_tokenizing(options: TokenizerOptions, recipe: Recipe) -> Tokenizing:
    task, default = task_named(recipe.task), recipe.tokenizing
    if options.separate_tokenizers and len(task.layout(recipe.batching.context).texts) < 2:
        raise wrong("--separate-tokenizers", f"is for translate, which has two sides; {task.name} has one")
    shared = default.shared and not options.separate_tokenizers
    if options.vectors is not None and options.tokenizer in KINDS and options.tokenizer != "word":
        raise wrong("--vectors", f"they are of words: leave out --tokenizer {options.tokenizer}, or choose word")
    name = options.tokenizer or (default.kind if options.vectors is None else "word")
    if name in KINDS:
        if options.vocabulary is not None and options.vocabulary < (least := least_size(name)):
            raise wrong("--vocabulary", f"the tokeniser {name} has at least {least} tokens; came {options.vocabulary}")
        lower = default.lower if options.lower is None else options.lower
        size = options.vocabulary or (default.size if name == default.kind else None)
        return replace(default, kind=name, size=size, shared=shared, lower=lower)
    if not os.path.exists(name):
        raise wrong("--tokenizer", f"there is no kind and no file {name!r}. The kinds are: {', '.join(KINDS)}")
    for option, value in (
        ("--vocabulary", options.vocabulary),
        ("--lower", options.lower is not None),
        ("--separate-tokenizers", not shared),
    ):
        if value:
            raise wrong(option, f"is decided by the tokeniser that is given, {name}")
    try:
        kind = Tokenizer.load(name).kind
    except ClearheadError as error:
        raise wrong("--tokenizer", str(error)) from error
    if options.vectors is not None and kind != "word":
        raise wrong("--vectors", f"they are of words, and {name} is a tokeniser of kind {kind!r}: leave it out")
    return replace(default, given=name)


def with_vectors(choices: Choices, spec: Spec) -> Spec:
    """Return the model as wide as the vectors are, unless its size was chosen."""
    if choices.tokenizer.vectors is None:
        if choices.tokenizer.freeze_vectors:
            raise wrong("--freeze-vectors", "goes with --vectors, which says what to freeze")
        return spec
    if choices.model.preset is not None or choices.model.size is not None:
        return spec
    return variants.with_width(spec, size_of_vectors(choices.tokenizer.vectors))


def check_vectors(choices: Choices, spec: Spec) -> None:
    path = choices.tokenizer.vectors
    if path is not None and (size := size_of_vectors(path)) != spec.d_model:
        sized_by = "--preset" if choices.model.preset else "--size"
        raise wrong(
            "--vectors",
            f"{path} has vectors of {size} numbers, and the model is {spec.d_model} wide; leave out {sized_by}, and it "
            f"becomes {size} wide",
        )


def size_of_vectors(path: str) -> int:
    try:
        return vector_size(path)
    except ClearheadError as error:
        raise wrong("--vectors", str(error)) from error


def as_optimizer(options: OptimizerOptions, default: Recipe, model: Spec, budget: Budget) -> Optimizer:
    """Return the optimizer as given. The usual rate is lower for a wider model, the warm-up shorter in a short run."""
    usual = default.optimizer
    rate = usual.lr * min(1.0, default.model.d_model / model.d_model)
    average = one_of("--average", options.average, AVERAGES) if options.average else usual.averaging
    schedule = usual.schedule
    warmup = schedule.warmup if options.warmup is None else options.warmup
    if options.warmup is None and budget.steps is not None and default.budget.steps is not None:
        warmup = round(warmup * min(1.0, budget.steps / default.budget.steps))
    if options.schedule is not None:
        schedule = as_schedule(options.schedule, schedule, warmup)
    else:
        schedule = replace(schedule, warmup=warmup)
    return replace(
        usual,
        **drop_missing({name: getattr(options, name) for name in ("smoothing", "r_drop", "weight_decay")}),
        method=usual.method if options.optimizer is None else one_of("--optimizer", options.optimizer, METHODS),
        lr=options.lr or rate,
        schedule=schedule,
        clip=usual.clip if options.clip is None else options.clip or None,
        averaging=usual.averaging if type(average) is type(usual.averaging) else average,
    )


def as_schedule(text: str, usual: Schedule, warmup: int) -> Schedule:
    """Return the schedule that is named, with this warm-up unless its text says another."""
    try:
        parsed = parse(text, "schedule")
        if isinstance(usual, parsed.cls) and not parsed.fields:
            return replace(usual, warmup=warmup)
        return parsed.make(warmup=warmup)
    except OptionError as error:
        raise wrong("--schedule", str(error)) from error


def as_batching(options: BatchOptions, default: Batching) -> Batching:
    if options.tokens and options.micro_batch_tokens and options.micro_batch_tokens > options.tokens:
        raise wrong(
            "--micro-batch-tokens",
            f"is more than a step has: {options.micro_batch_tokens} of --tokens {options.tokens}",
        )
    names = ("tokens", "micro_batch_tokens", "context")
    return replace(default, **drop_missing({name: getattr(options, name) for name in names}))


def new_budget(options: BudgetOptions, old: Budget) -> Budget | None:
    """Return the budget that is asked for, in place of another one; None where nothing was asked."""
    limits = drop_missing({"steps": options.steps, "minutes": options.minutes, "epochs": options.epochs})
    if len(limits) > 1:
        flags = " and ".join(f"--{name}" for name in limits)
        raise wrong(flags, "each says when to stop: give one of them")
    patience = old.patience if options.patience is None else options.patience or None
    if limits:
        return Budget(**limits, patience=patience)
    return None if options.patience is None else replace(old, patience=patience)


def as_checkpointing(options: CheckpointingOptions, default: Checkpointing, budget: Budget) -> Checkpointing:
    if options.select is not None:
        one_of("--select", options.select, dict.fromkeys(get_args(Select)))
    every = default.evaluate if budget.steps is None else max(LEAST, budget.steps // EVALUATIONS)
    return replace(
        default,
        **drop_missing(
            {"log": options.log_every, "save": options.save_every, "checkpoints": options.keep, "film": options.film}
        ),
        evaluate=options.evaluate_every or every,
        select=cast(Select, options.select or default.select),
    )
