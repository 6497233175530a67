"""From options to a recipe: what the user gave, and for all the rest the defaults for the task and its text. The
options that choose a model are declared here: a preset or a size, and the parts in it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clearhead import devices, registry
from clearhead.attention.positions import Learned
from clearhead.errors import OptionError, WordError, naming_word, no_such
from clearhead.model import variants
from clearhead.model.lora import Lora
from clearhead.model.sizes import PRESETS, Spec, build_for_shapes, named, parse_count, resized, sized
from clearhead.options import (
    OWN,
    Given,
    Option,
    flag,
    flags,
    given_of,
    group_of,
    option,
    override,
    read_words,
    words_of,
)
from clearhead.registry import options as part_names
from clearhead.text.kinds import KINDS, SPECIALS
from clearhead.text.preparing import Tokenizing
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.vectors import vector_size
from clearhead.text.vocabulary_size import expected_size, least_size
from clearhead.training.fine_tuning import fine_tuning_recipe, open_source
from clearhead.training.recipe import Batching, Budget, Checkpointing, FineTuning, Machine, Open, Optimizer, Recipe
from clearhead.training.schedules import AVERAGES, Schedule
from clearhead.training.tasks import OTHERS, TASKS, Embed, default_recipe, name_of, task_named
from clearhead.training.tasks.learning import PLACEHOLDER, text_bytes, with_article
from clearhead.training.text_options import TITLE as TEXT_TITLE
from clearhead.training.text_options import TextOptions, as_corpus, check_text


def part_option(text: str, names: Iterable[str]) -> Any:
    """Return an option that names a part: one of these, or one of the user's own."""
    return option(None, f"{text}: {', '.join(names)}; {OWN}.", takes="NAME", names=names, several=True, own=True)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What learns."""

    preset: str | None = option(
        None, "A model by name: tiny, base, gpt2, bert, … (clearhead describe).", takes="NAME", names=PRESETS
    )
    size: str | None = option(None, "Or a model with about this many parameters: 300k, 10M, 1.5B.", takes="COUNT")
    attention: str | None = part_option("Kind of attention", variants.ATTENTIONS)
    position: str | None = part_option("Positional encoding", variants.POSITIONS)
    heads: str | None = option(
        None,
        "whole: each head sees the whole input; sliced: its own slice of it.",
        takes="NAME",
        names=variants.HEADS,
        several=True,
    )
    value_rank: str | None = option(None, "Low-rank values: d_model to N to d_value, in each head.", takes="N")
    d_value: str | None = option(None, "Width of a head's values.  [default: the width of its keys]", takes="N")
    block: str | None = part_option("Where the norm is", part_names("arrangement"))
    norm: str | None = part_option("Kind of norm", part_names("norm"))
    scale: str | None = option(
        None,
        "What q·k is multiplied by: sqrt (1/√d_head), none, or a number.",
        takes="X",
        names=variants.SCALES,
        several=True,
    )
    feed_forward: str | None = part_option("Activation", [*part_names("feed-forward"), "none"])
    mask: str | None = part_option("A mask in self-attention besides the usual one", ["none"])
    window: str | None = option(
        None, "Self-attention sees N tokens: itself and those before, in an encoder as many after.", takes="N"
    )
    dropout: float | None = option(None, "Dropout rate, 0 to 1.", takes="X", least=0, below=1)


FEW_TOKENS = {"char": PLACEHOLDER, "byte": 256 + len(SPECIALS)}


def as_model(options: ModelOptions, recipe: Recipe) -> Spec:
    """Return the model by preset, by size, or the task's own; then with what else was given."""
    if options.preset and options.size:
        raise WordError("size", f"the preset {options.preset} has its own size; give one of the two")
    context = recipe.batching.context
    spec = with_context(base_model(options, recipe), context)
    if options.dropout is not None:
        spec = variants.with_dropout(spec, options.dropout)
    parts = {name: value for name in variants.PARTS if (value := getattr(options, name)) is not None}
    return with_parts(spec, parts, context) if parts else spec


def with_parts(spec: Spec, parts: Mapping[str, str], context: int) -> Spec:
    """Return the model with other parts. Whether they go together is found out by building it of nothing."""
    for name in variants.PARTS:
        if name in parts:
            with naming_word(name):
                spec = variants.with_part(spec, name, parts[name], context=context)
    with naming_word(" with ".join(parts)):
        build_for_shapes(spec)
    return spec


def base_model(options: ModelOptions, recipe: Recipe) -> Spec:
    task = task_named(recipe.task)
    if options.preset is not None:
        if options.preset not in PRESETS:
            raise WordError("preset", no_such(options.preset, PRESETS))
        spec = named(options.preset, PLACEHOLDER)
        if spec.kind != task.family:
            raise WordError("preset", f"{task.name} takes {with_article(task.family)}, and {options.preset} is none")
    elif options.size is not None:
        with naming_word("size"):
            spec = sized(task.family, parse_count(options.size), likely_vocabulary(recipe))
            if not recipe.tokenizing.shared:
                # Two vocabularies take more tables of tokens: the least size is larger.
                resized(spec.with_own_tables(), parse_count(options.size))
    else:
        return recipe.model
    if spec.decoder is None and recipe.model.decoder is None:
        return replace(spec, output=recipe.model.output)
    return spec


SURELY_ENOUGH = 500_000
"""Bytes of text in which a tokeniser finds as many tokens as it is asked for."""


def likely_vocabulary(recipe: Recipe) -> int:
    """Return how many tokens there will be, before the tokeniser is trained.

    Once it is trained, the size is met (`Recipe.parameters`). Characters and bytes are few, however long the text is.
    """
    tokenizing = recipe.tokenizing
    if tokenizing.given is not None:
        return Tokenizer.load(tokenizing.given).vocabulary
    if tokenizing.kind in FEW_TOKENS:
        return FEW_TOKENS[tokenizing.kind]
    # Of a large corpus a sample is read, of at most twice this many megabytes.
    n_bytes = min(text_bytes(recipe.corpus), 2_000_000 * tokenizing.sample_mb)
    # A short text has too few different words for all the tokens that a factor asks for. It is also read in a moment,
    # so a size that is too small for them is refused early enough when they are known.
    factor = tokenizing.size_factor if n_bytes >= SURELY_ENOUGH else 1.0
    return tokenizing.size or expected_size(n_bytes, factor)


def with_context(spec: Spec, context: int) -> Spec:
    """Return the same with as many learned positions as rows are long: those beyond would never be trained."""
    return variants.map_embeddings(
        spec,
        lambda embedding: (
            replace(embedding, position=Learned(context)) if isinstance(embedding.position, Learned) else embedding
        ),
    )


EVALUATIONS = 20
"""How many there are over a run whose steps are given, unless that makes them less than LEAST steps apart."""
LEAST = 100


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """Word vectors to start from."""

    vectors: str | None = option(
        None, "Start from pre-trained word vectors, in the text format of word2vec or GloVe.", takes="FILE"
    )
    freeze_vectors: bool = option(False, "vectors: do not train the embeddings.")


TASK = Option(
    word="task",
    help=f"What to learn: {', '.join(TASKS)}, with --from also instruct; {OWN}.",
    takes="NAME",
    names=[*TASKS, "instruct"],
    own=True,
)
GROUPS: Mapping[str, Mapping[str, Option]] = {
    "Options": {"task": TASK},
    TEXT_TITLE: words_of(TextOptions),
    "Fine-tuning": words_of(FineTuning, Lora),
    "Tokeniser": words_of(Tokenizing, VectorOptions),
    "Model": words_of(ModelOptions),
    "Optimizer": words_of(Optimizer, Schedule),
    "Batches": words_of(Batching),
    "Budget (how long to train: give one of steps, minutes, epochs)": words_of(Budget),
    "Checkpointing": words_of(Checkpointing),
    "Machine": words_of(Machine, Recipe),
}
"""Every option of a recipe, under the titles that the help gives them."""
WORDS = {word: declared for group in GROUPS.values() for word, declared in group.items()}


def recipe_of(words: Given) -> Recipe:
    """Return the recipe for the words of `clearhead train`, given in Python: errors name them as Python writes them."""
    try:
        return as_recipe(read_words(words, WORDS))
    except WordError as error:
        words = {flag(word): word for word in WORDS}
        problem = re.sub(r"--[a-z][a-z-]*", lambda typed: words.get(typed[0], typed[0]), error.problem)
        raise WordError(error.words, problem, is_missing=error.is_missing) from error


def as_recipe(given: Given) -> Recipe:
    """Return the recipe that was asked for; raise for what cannot be before any text is read."""
    if "from_" in given:
        return as_fine_tuned(given)
    if "task" not in given:
        raise WordError("task", f"say what to learn ({', '.join(TASKS)})", is_missing=True)
    task, text = task_named(given["task"]), group_of(TextOptions, given)
    if task in OTHERS.values():
        raise WordError("task", f"{task.name} is for a model that has learned already: give it, --from RUN")
    check_text(task, text)
    default = default_recipe(given["task"], as_corpus(task, text), as_machine(given))
    return replace(override_recipe(given, default), seed=given.get("seed", default.seed), open=list_open(given))


def list_open(given: Given) -> tuple[Open, ...]:
    """Return what the options leave to be fitted to the budget."""
    decided_by: dict[Open, tuple[str, ...]] = {
        "budget": ("steps", "minutes", "epochs"),
        "vocabulary": ("vocabulary", "from_"),
        "model": ("preset", "size", "vectors", "from_"),
        "dropout": ("dropout", "preset", "from_"),
        "decay": ("weight_decay", "from_"),
        "batch": ("batch_tokens", "from_"),
        "lr": ("lr", "from_"),
        "schedule": ("schedule",),
        "warmup": ("warmup",),
        "evaluate": ("evaluate_every",),
        "log": ("log_every",),
    }
    decided = {name for name, words in decided_by.items() if any(word in given for word in words)}
    if "(" in given.get("schedule", ""):
        decided.add("warmup")
    return tuple(name for name in decided_by if name not in decided)


def as_fine_tuned(given: Given) -> Recipe:
    """Return the recipe of a run that starts from the weights of another one; raise for what would change its model."""
    path = given["from_"]
    if extra := [word for word in given_of(given, Tokenizing, VectorOptions, ModelOptions) if word != "dropout"]:
        raise WordError("from_", f"{path} has its model and its tokenisers already: leave out {flags(extra)}")
    with naming_word("from_"):
        source = open_source(path)
    name = given.get("task") or name_of(type(source.task))
    task, text = task_named(name), group_of(TextOptions, given)
    if given.get("context", 0) > source.task.context:
        raise WordError("context", f"{path} was trained to read {source.task.context} tokens; came {given['context']}")
    lora, freeze, machine = as_lora(given), as_freeze(given), as_machine(given)
    if task is Embed:
        raise WordError("task", f"nothing is trained to embed: say what to learn from {path}: {', '.join(TASKS)}")
    check_text(task, text)
    try:
        default = fine_tuning_recipe(
            source, as_corpus(task, text), task=name, lora=lora, freeze=freeze, machine=machine
        )
    except OptionError as error:
        word, _, problem = str(error).partition(": ")
        raise WordError({"task": "task", "freeze": "freeze", "Lora": "lora"}.get(word, "from_"), problem) from error
    budget = new_budget(given, default.budget) or default.budget
    return replace(
        default,
        model=variants.with_dropout(default.model, given["dropout"]) if "dropout" in given else default.model,
        optimizer=as_optimizer(given, default, default.model, budget),
        batching=as_batching(given, default.batching),
        budget=budget,
        checkpointing=as_checkpointing(given, default.checkpointing, budget),
        seed=given.get("seed", default.seed),
        open=list_open(given),
    )


def as_lora(given: Given) -> Lora | None:
    """Return the adapters that are asked for, None if there are none."""
    if "lora" not in given:
        for word in given_of(given, Lora):
            raise WordError(word, "goes with --lora RANK")
        return None
    maps = {"maps": tuple(name.strip() for name in given["lora_maps"].split(","))} if "lora_maps" in given else {}
    with naming_word("lora_maps", "Lora"):
        return Lora(rank=given["lora"], alpha=given.get("lora_alpha"), **maps)


def as_freeze(given: Given) -> tuple[str, ...]:
    """Return the patterns of names to freeze; one text may hold several, with commas between."""
    patterns = [name.strip() for text in given.get("freeze", ()) for name in text.split(",")]
    return tuple(name for name in patterns if name)


def override_recipe(given: Given, default: Recipe) -> Recipe:
    """Return a recipe with what was given in place of its own; text, machine and seed are left alone."""
    if extra := given_of(given, FineTuning, Lora):
        raise WordError(extra[0], "is not for this" if "from_" in given else "goes with --from RUN")
    vectors = group_of(VectorOptions, given)
    if vectors.freeze_vectors and vectors.vectors is None:
        raise WordError("freeze_vectors", "goes with --vectors, which says what to freeze")
    tokenizing, batching = as_tokenizing(given, default), as_batching(given, default.batching)
    budget = new_budget(given, default.budget) or default.budget
    options = group_of(ModelOptions, given)
    base = replace(default, tokenizing=tokenizing, batching=batching)
    # The width of a model with given vectors is theirs, so --size cannot choose it.
    if vectors.vectors is not None and options.preset is None and options.size is None:
        base = replace(base, model=variants.with_width(base.model, size_of_vectors(vectors.vectors)))
    model = as_model(options, base)
    if vectors.vectors is not None:
        check_vectors(vectors.vectors, model, "--preset" if options.preset else "--size")
    if vectors.freeze_vectors:
        model = variants.map_embeddings(model, lambda embedding: replace(embedding, frozen=True))
    has_size = options.size is not None and vectors.vectors is None
    return replace(
        base,
        vectors=vectors.vectors,
        model=model,
        optimizer=as_optimizer(given, default, model, budget),
        budget=budget,
        checkpointing=as_checkpointing(given, default.checkpointing, budget),
        parameters=parse_count(options.size or "") if has_size else None,
    )


def as_machine(given: Given) -> Machine:
    devices.choose_device(given.get("device", "auto"))
    return new_machine(given, Machine(adapt_threads=True))


def new_machine(given: Given, old: Machine) -> Machine:
    """Return a machine with what was given in place of its own."""
    adapts = old.adapt_threads and "threads" not in given and not given.get("deterministic")
    return replace(override(old, given), adapt_threads=adapts)


def as_tokenizing(given: Given, recipe: Recipe) -> Tokenizing:
    task, default = task_named(recipe.task), recipe.tokenizing
    if given.get("separate_tokenizers") and len(task.layout(recipe.batching.context).texts) < 2:
        raise WordError("separate_tokenizers", f"is for translate, which has two sides; {task.name} has one")
    has_vectors, kind = "vectors" in given, given.get("tokenizer")
    if has_vectors and kind in KINDS and kind != "word":
        raise WordError("vectors", f"they are of words: leave out --tokenizer {kind}, or choose word")
    name = kind or ("word" if has_vectors else default.kind)
    if name not in KINDS:
        return replace(default, given=check_tokenizer(name, given))
    if (size := given.get("vocabulary")) is not None and size < (least := least_size(name)):
        raise WordError("vocabulary", f"the tokeniser {name} has at least {least} tokens; came {size}")
    return replace(
        default,
        kind=name,
        size=size or (default.size if name == default.kind else None),
        shared=default.shared and not given.get("separate_tokenizers"),
        lower=given.get("lower", default.lower),
    )


def check_tokenizer(path: str, given: Given) -> str:
    """Return the path of a given tokeniser; raise if there is none, or if other options contradict it."""
    if not os.path.exists(path):
        raise WordError("tokenizer", no_such(path, KINDS, ", or the path of a file"))
    for word in ("vocabulary", "lower", "separate_tokenizers"):
        if word in given:
            raise WordError(word, f"is decided by the tokeniser that is given, {path}")
    with naming_word("tokenizer"):
        kind = Tokenizer.load(path).kind
    if "vectors" in given and kind != "word":
        raise WordError("vectors", f"they are of words, and {path} is a tokeniser of kind {kind!r}: leave it out")
    return path


def check_vectors(path: str, spec: Spec, sized_by: str) -> None:
    if (size := size_of_vectors(path)) != spec.d_model:
        raise WordError(
            "vectors",
            f"{path} has vectors of {size} numbers, and the model is {spec.d_model} wide; leave out {sized_by}, and it "
            f"becomes {size} wide",
        )


def size_of_vectors(path: str) -> int:
    with naming_word("vectors"):
        return vector_size(path)


def as_optimizer(given: Given, default: Recipe, model: Spec, budget: Budget) -> Optimizer:
    """Return the optimizer as given. The usual rate is lower for a wider model, the warm-up shorter in a short run."""
    usual = default.optimizer
    plain = {word: value for word, value in given.items() if word not in ("schedule", "average")}
    warmup = given.get("warmup", usual.schedule.warmup)
    if "warmup" not in given and budget.steps is not None and default.budget.steps is not None:
        warmup = round(warmup * min(1.0, budget.steps / default.budget.steps))
    averaging = usual.averaging
    if "average" in given:
        if given["average"] not in AVERAGES:
            raise WordError("average", no_such(given["average"], AVERAGES))
        named = AVERAGES[given["average"]]
        averaging = averaging if type(named) is type(averaging) else named
    return replace(
        override(usual, plain),
        lr=given.get("lr", usual.lr * min(1.0, default.model.d_model / model.d_model)),
        schedule=as_schedule(given.get("schedule"), usual.schedule, warmup),
        averaging=averaging,
    )


def as_schedule(text: str | None, usual: Schedule, warmup: int) -> Schedule:
    """Return the schedule that is named, or the usual one; with this warm-up unless its text says another."""
    if text is None:
        return replace(usual, warmup=warmup)
    with naming_word("schedule"):
        parsed = registry.parse(text, "schedule")
        if isinstance(usual, parsed.cls) and not parsed.fields:
            return replace(usual, warmup=warmup)
        return parsed.make(warmup=warmup)


def as_batching(given: Given, default: Batching) -> Batching:
    tokens, micro = given.get("batch_tokens"), given.get("micro_batch_tokens")
    if tokens and micro and micro > tokens:
        raise WordError("micro_batch_tokens", f"is more than a step has: {micro} of --batch-tokens {tokens}")
    return override(default, given)


def new_budget(given: Given, old: Budget) -> Budget | None:
    """Return the budget that is asked for, in place of another one; None if nothing was asked."""
    limits = {word: given[word] for word in ("steps", "minutes", "epochs") if word in given}
    if len(limits) > 1:
        raise WordError(" and ".join(limits), "each says when to stop: give one of them")
    if limits:
        return override(Budget(**limits, patience=old.patience), given)
    return override(old, given) if "patience" in given else None


def as_checkpointing(given: Given, default: Checkpointing, budget: Budget) -> Checkpointing:
    every = default.evaluate if budget.steps is None else max(LEAST, budget.steps // EVALUATIONS)
    return override(replace(default, evaluate=every), given)
