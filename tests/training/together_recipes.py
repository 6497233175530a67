"""The recipes that several processes train and are compared with one process: three tasks, and a table of options.

A run is named by its task, or by a task and an option: `documents:argmax`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from clearhead import positions, similarity, weighting
from clearhead.model.lora import Lora
from clearhead.model.variants import with_dropout
from clearhead.text.filtering import LengthFilter
from clearhead.text.preparing import Tokenizing
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer
from clearhead.training.schedules import Constant, CosineDecay, Ema, Last, Unaveraged
from tests.training import small_runs
from tests.training.tiny import recipe_for

TASKS = {one.__name__: one for one in (small_runs.translating, small_runs.documents, small_runs.classifying)}
SOURCE = "source"
"""The run of documents that fine-tuning starts from, in the folder of all runs."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A change of a recipe, given the folder of all runs; the ways it is trained in; how near losses are to one's."""

    change: Callable
    ways: tuple[str, ...] = ("ddp", "fsdp")
    near: float | None = 1e-9
    """None where the clock decides how many steps there are."""


def in_part(part, **changed):
    """A change of fields of a part of a recipe."""
    return lambda recipe, home: replace(recipe, **{part: replace(getattr(recipe, part), **changed)})


def attention(**changed):
    """A decoder of two blocks with this kind of attention."""

    def change(recipe, home):
        block = recipe.model.blocks[0]
        block = replace(block, attention=replace(block.attention, **changed))
        return replace(recipe, model=replace(recipe.model, blocks=(block, block)))

    return change


def dropped(recipe, home):
    """Dropout on branches and embeddings, in a decoder on the weights of attention too."""
    model = with_dropout(recipe.model, 0.2)
    if hasattr(model, "blocks"):
        block = model.blocks[0]
        model = replace(model, blocks=(replace(block, attention=replace(block.attention, dropout=0.3)),) * 2)
    return replace(recipe, model=model, machine=replace(recipe.machine, keyed_dropout=True))


def dropped_twice(recipe, home):
    recipe = dropped(recipe, home)
    return replace(recipe, optimizer=replace(recipe.optimizer, r_drop=1.0))


def steady(recipe, home):
    """Dropout, and a rate that does not depend on when the run ends: it may be stopped and continued anywhere."""
    recipe = dropped(recipe, home)
    return replace(recipe, optimizer=replace(recipe.optimizer, schedule=Constant(warmup=2)))


def tied(how):
    return lambda recipe, home: replace(recipe, model=replace(recipe.model, tied=how))


def fine_tuned(**options):
    """From the weights of another run."""

    def change(recipe, home):
        made = fine_tuning_recipe(home / SOURCE, recipe.corpus, machine=recipe.machine, **options)
        kept = {name: getattr(recipe, name) for name in ("batching", "budget", "checkpointing", "optimizer")}
        return replace(made, **kept, open=())

    return change


def several_files(recipe, home):
    """Two files, of which the second is read twice, as `--repeats 1,2` has it; and held-out lines of their own."""
    more, held = (small_runs.write_lines(home / name, small_runs.sentences(50, seed)) for seed, name in FILES.items())
    source = replace(recipe.corpus.train, paths=(*recipe.corpus.train.paths, more, more))
    return replace(recipe, corpus=replace(recipe.corpus, train=source, dev=replace(source, paths=(held,))))


def mixed(recipe, home):
    """Two files in shares that change on the way, filtered."""
    more = small_runs.write_lines(home / "mixed-lines", small_runs.sentences(150, 5))
    source = replace(recipe.corpus.train, paths=(*recipe.corpus.train.paths, more))
    corpus = replace(recipe.corpus, train=source, filters=(LengthFilter(least=3),))
    return replace(recipe, corpus=corpus, batching=replace(recipe.batching, mix="0.7,0.3;0.5:0.2,0.8"))


FILES = {5: "more-lines", 6: "held-lines"}


def odd_vocabulary(recipe, home):
    return replace(recipe, tokenizing=Tokenizing(kind="metaspace", size=317))


def patient(recipe, home):
    """Weights that do not change: the second evaluation brings nothing better."""
    return replace(
        recipe,
        budget=replace(recipe.budget, patience=1),
        optimizer=replace(recipe.optimizer, lr=1e-300, averaging=Unaveraged()),
        checkpointing=replace(recipe.checkpointing, evaluate=1),
    )


ATTENTION = {
    "argmax": {"weighting": weighting.Argmax()},
    "kernelized": {"weighting": weighting.Kernelized()},
    "sigmoid": {"weighting": weighting.Sigmoid()},
    "sparsemax": {"weighting": weighting.Sparsemax()},
    "cosine": {"similarity": similarity.Cosine()},
    "additive": {"similarity": similarity.Additive()},
    "rotary": {"position": positions.Rotary()},
    "alibi": {"position": positions.ALiBi()},
    "t5": {"position": positions.T5Bias()},
    "t5-shared": {"position": positions.T5Bias(shared=True)},
}
OPTIONS = {
    **{f"documents:{name}": Option(change=attention(**parts)) for name, parts in ATTENTION.items()},
    **{f"{task}:dropout": Option(change=dropped) for task in TASKS},
    "documents:steady": Option(change=steady),
    "documents:dropout-r-drop": Option(change=dropped_twice),
    "documents:r-drop": Option(change=in_part("optimizer", r_drop=1.0)),
    "documents:last": Option(change=in_part("optimizer", averaging=Last(share=0.5, every=2))),
    "documents:no-average": Option(change=in_part("optimizer", averaging=Unaveraged())),
    "documents:no-clip": Option(change=in_part("optimizer", clip=None)),
    "documents:one-pass": Option(change=in_part("batching", micro_batch_tokens=None)),
    "documents:splits": Option(change=in_part("machine", splits=2)),
    "documents:checkpointing": Option(change=in_part("machine", activation_checkpointing=True)),
    "documents:bfloat16": Option(change=in_part("machine", precision="bfloat16"), near=0.05),
    "documents:film": Option(change=in_part("checkpointing", film=True), ways=("ddp",)),
    "documents:compile": Option(change=in_part("machine", compile=True), ways=("ddp",)),
    "documents:odd-vocabulary": Option(change=odd_vocabulary),
    "documents:weighted-files": Option(change=several_files),
    "documents:mixed": Option(change=mixed),
    "documents:lora": Option(change=fine_tuned(lora=Lora(rank=3, maps=("all",)))),
    "documents:frozen": Option(change=fine_tuned(freeze=("embedding*",))),
    "documents:patience": Option(change=patient),
    "documents:epochs": Option(change=lambda recipe, home: replace(recipe, budget=Budget(epochs=0.5))),
    "documents:minutes": Option(change=lambda recipe, home: replace(recipe, budget=Budget(minutes=0.06)), near=None),
    "translating:tied-two": Option(change=tied("two")),
    "translating:untied": Option(change=tied("none")),
}
"""Options by name. In bfloat16 the order of sums shows."""


def recipe_of(name, home, way, steps, *, save=None, device="cpu", lr=1e-2):
    """A recipe with micro-batches, an average and a clip that bites; batches whose rows do not divide evenly."""
    recipe = recipe_for(
        TASKS[name.partition(":")[0]],
        home / f"text-{name}",
        dropout=0.0,
        budget=Budget(steps=steps),
        batching=Batching(tokens=500, micro_batch_tokens=200, context=small_runs.CONTEXT),
        checkpointing=Checkpointing(log=1, evaluate=max(2, steps // 2), save=save, score_records=0, samples=1),
        machine=Machine(
            device=device, precision="float32", threads=1, parallel=way, deterministic=device != "cpu", graphs=False
        ),
        optimizer=Optimizer(lr=lr, schedule=CosineDecay(warmup=2), averaging=Ema(0.9), smoothing=0.1, clip=0.5),
    )
    return OPTIONS[name].change(recipe, home) if name in OPTIONS else recipe
