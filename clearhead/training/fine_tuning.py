"""Fine-tuning: train a run further on other text, or for another task.

```
recipe = fine_tuning_recipe("runs/blanks", corpus, task="classify", lora=Lora(rank=8))
run = ch.train("runs/mood", recipe)
```

The run it starts from, trained here or imported, gives the model, its weights and its tokenisers. Where the task or the
labels are others, the output is new and everything before it is taken.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from clearhead.errors import DataError, OptionError, RunError
from clearhead.model.int8 import dequantize
from clearhead.model.lora import Lora
from clearhead.model.outputs import Classes, Output
from clearhead.model.sizes import Spec, build_for_shapes
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Prepared
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoints import MODEL, copy_into, named_tensors
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import FineTuning, Machine, Recipe
from clearhead.training.run import Run, load
from clearhead.training.tasks import Embed, Task, default_recipe, name_of, task_named
from clearhead.training.tasks.learning import with_article
from clearhead.training.tasks.texts import Framing
from clearhead.training.weights import best_step, prepare_parameters, without_wide, write_start

SHARE_OF_RATE = 0.2
"""The peak learning rate is this share of the usual one: the weights are good already. Adapters start at nothing, and
have all of it."""
MOST_UNKNOWN = 0.5
"""With a larger share of unknown tokens there is nothing in the text to learn from."""
SHOWN = 4
"""Names of tensors that a message lists before it counts the rest."""

Log = Callable[[str], None]


class StartingRun(NamedTuple):
    """A run to start from, as its folder describes it: nothing of its weights is read yet."""

    path: str
    task: Task
    spec: Spec
    origin: FineTuning


def open_source(path: str | Path) -> StartingRun:
    """Return what a run folder says of itself; RunError if it is none or has no checkpoint."""
    folder = RunFolder(Path(path))
    folder.origin()
    task, spec, checkpoints = folder.task(), folder.spec(), folder.checkpoints.all()
    if not checkpoints:
        raise RunError(f"{path}: there is no whole checkpoint yet, so there are no weights to start from")
    best = best_step(folder, checkpoints)
    chosen = next((checkpoint for checkpoint in checkpoints if checkpoint.step == best), checkpoints[0])
    tuning = FineTuning(source=str(path), run=folder.id(), step=chosen.step, sha256=chosen.sums[MODEL])
    return StartingRun(str(path), task, spec, tuning)


def fine_tuning_recipe(
    source: StartingRun | str | Path,
    corpus: Corpus,
    *,
    task: str | None = None,
    lora: Lora | None = None,
    freeze: tuple[str, ...] = (),
    machine: Machine = Machine(),
) -> Recipe:
    """Return the recipe of a run that starts from another run's weights, on this corpus; `task` None is the same one.

    Model and context are the source's, the rest is usual for the task, except the learning rate: a fifth of the usual
    one at this width, or all of it with LoRA. Raises OptionError if the source's model cannot do the task.
    """
    source = source if isinstance(source, StartingRun) else open_source(source)
    task_name = name_of(type(source.task)) if task is None else task
    if task_named(task_name) is Embed:
        raise OptionError("task: nothing is trained to embed; say what to learn, such as fill or classify")
    usual = default_recipe(task_name, corpus, machine)
    spec = source.spec if task_named(task_name) is type(source.task) else with_output_of(usual.model, source, task_name)
    tuning = replace(source.origin, lora=lora, freeze=freeze)
    with torch.random.fork_rng(
        devices=[]
    ):  # errors about what cannot be frozen or adapted come before any text is read
        prepare_parameters(build_for_shapes(spec), replace(tuning, new_output=spec != source.spec))
    rate = usual.optimizer.lr * min(1.0, usual.model.d_model / spec.d_model)
    return replace(
        usual,
        model=spec,
        tokenizing=replace(usual.tokenizing, kind=source.task.tokenizer.kind, size=None),
        optimizer=replace(usual.optimizer, lr=rate * (SHARE_OF_RATE if lora is None else 1.0)),
        batching=replace(usual.batching, context=min(usual.batching.context, source.task.context)),
        fine_tuning=tuning,
    )


def with_output_of(usual: Spec, source: StartingRun, task: str) -> Spec:
    """Return the source's model with the output of another task's usual model; OptionError if that cannot be."""
    spec, kind = source.spec, task_named(task)
    if len(spec.stacks) == len(usual.stacks) == 1:
        if isinstance(spec.output, type(usual.output)) and not isinstance(usual.output, Classes):
            return spec  # generate and instruct have one output
        output = without_ngrams(usual.output)  # a wide part is for Transformers that have seen little text
        embedding = spec.stacks[0].embedding
        if isinstance(output, Classes) and embedding.norm is not None:
            # BERT and its kin read classes from the first token, by a hidden map; DistilBERT has no segments.
            activation = "relu" if embedding.segments is None else "tanh"
            output = replace(output, pool="first", hidden=True, activation=activation)
        if spec.kind == usual.kind:
            return spec.map_stacks(lambda stack: replace(stack, output=output))
        if spec.decoder is not None and isinstance(output, Classes):
            return replace(spec.decoder, output=replace(output, pool="last"))  # only the last token has seen them all
    raise OptionError(
        f"task: to {kind.name} takes {with_article(kind.family)}, and {source.path} is {with_article(spec.kind)} "
        f"that was trained to {source.task.name}; choose another run, or another task"
    )


def load_source(tuning: FineTuning) -> Run:
    """Load the run to start from, on the CPU in float32; RunError if it is not the one the recipe was made for."""
    run = load(tuning.source, device="cpu", step=tuning.step)
    checkpoint = run.folder.checkpoints.at(tuning.step)
    checksum = None if checkpoint is None else checkpoint.sums[MODEL]
    if (run.folder.id(), checksum) != (tuning.run, tuning.sha256):
        raise RunError(
            f"{tuning.source}: its weights are not those that the recipe was made for. Make the recipe again"
        )
    dequantize(run.model.float())
    return run


def tuned_task(kind: type[Task], source: Task, context: int) -> Task:
    """Return the task over the source's tokenisers, with the special tokens that its model is used to around texts."""
    texts = kind.layout(context).texts
    every = dict(source.tokenizers)
    if len({id(tokenizer) for tokenizer in every.values()}) == 1:  # the tokeniser of a single text serves any field
        every |= dict.fromkeys(texts, source.tokenizer)
    if not set(texts) <= set(every):
        raise OptionError(
            f"task: to {kind.name} takes texts for {' and '.join(texts)}; the run to start from has tokenisers for "
            f"{' and '.join(source.tokenizers)}"
        )
    if context > source.context:
        raise OptionError(f"context: the model was trained to read {source.context} tokens; came {context}")
    tokenizers = {field: every[field] for field in texts}
    if kind is type(source):
        framing = source.framing
    else:
        framing = {field: usual_frame(source.frame(), tokenizers[field], kind) for field in texts}
    if kind.layout(context).end and any(tokenizer.end < 0 for tokenizer in tokenizers.values()):
        raise OptionError("the tokeniser has no token that ends a text, so there is no way to tell texts apart")
    return kind(tokenizers=tokenizers, context=context, framing=framing)


def usual_frame(frame: Framing, tokenizer: Tokenizer, kind: type[Task]) -> Framing:
    """Return what stands around a text of another task; where nothing would, its start token, if there is one."""
    before = frame.before or ((tokenizer.start,) if tokenizer.start >= 0 and not frame.after else ())
    if kind.target != "continues":
        between = frame.between or ((tokenizer.end,) if tokenizer.end >= 0 else ())
        return Framing(before=before, after=frame.after, between=between, segment=frame.segment)
    ends = frame.ends or ((tokenizer.end,) if tokenizer.end >= 0 else ())
    return Framing(before=frame.before, ends=ends, never=frame.never)


def check_known(prepared: Prepared, log: Log) -> None:
    """Tell the share of tokens that the tokenisers do not know; DataError if it is more than half."""
    for field, tokenizer in prepared.tokenizers.items():
        ids = prepared.train[field].ids
        unknown = int((ids == tokenizer.unknown).sum()) if tokenizer.unknown >= 0 else 0
        share = unknown / max(len(ids), 1)
        if share > MOST_UNKNOWN:
            raise DataError(
                f"{share:.0%} of the tokens of the {field} are unknown to the pretrained tokeniser: it was made for "
                "other text. Train a new run without --from, or start from another one"
            )
        if unknown:
            log(f"{share:.2%} of the tokens of the {field} ({unknown:,}) are unknown to the pretrained tokeniser")


def without_ngrams(output: Output | None) -> Output | None:
    """Return the output without its wide part, which is fitted to the text of each run anew."""
    return replace(output, ngrams=None) if isinstance(output, Classes) else output


def begin_tuning(folder: RunFolder, recipe: Recipe, task: Task, source: Run, *, log: Log) -> Recipe:
    """Write the weights that the run starts from, and tell what was taken; return the recipe with what was found.

    `recipe.model` is already fitted to the task. A new output starts at random, from the recipe's seed.
    """
    assert recipe.fine_tuning is not None
    spec, theirs = recipe.model, source.folder.spec()
    new_output = len(spec.stacks) == 1 and (
        without_ngrams(theirs.output) != without_ngrams(spec.output) or task.labels != source.task.labels
    )
    torch.manual_seed(recipe.seed)
    model = spec.build()
    target_tensors, source_tensors = (without_wide(named_tensors(each)) for each in (model, source.model))
    taken = {
        name
        for name in target_tensors.keys() & source_tensors.keys()
        if not (new_output and name.startswith("output."))
    }
    if missing := sorted(name for name in target_tensors.keys() - taken if not name.startswith("output.")):
        raise RunError(f"{recipe.fine_tuning.source}: its model has no {missing[0]}, which this one needs")
    copy_into(
        {name: target_tensors[name] for name in taken},
        {name: source_tensors[name] for name in taken},
        recipe.fine_tuning.source,
    )
    write_start(folder, model)
    described = describe_taken(target_tensors, source_tensors, taken)
    log(f"from {recipe.fine_tuning.source}, step {source.step:,}: {described}")
    tuning = replace(recipe.fine_tuning, new_output=new_output)
    log(describe_trained(prepare_parameters(model, tuning), recipe))
    return replace(recipe, fine_tuning=tuning)


def describe_taken(target_tensors: Mapping[str, object], source_tensors: Mapping[str, object], taken: set[str]) -> str:
    """Return in a line which tensors were taken, which are new, and which of the source were left out."""

    def listed(names: list[str]) -> str:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more

    new, left_out = (
        [name for name in target_tensors if name not in taken],
        [name for name in source_tensors if name not in taken],
    )
    parts = [f"{len(taken)} tensors taken"]
    parts += [f"new: {listed(new)}"] if new else []
    parts += [f"left out: {listed(left_out)}"] if left_out else []
    return "; ".join(parts)


def describe_trained(model: nn.Module, recipe: Recipe) -> str:
    """Return in a line how many parameters are trained, and at which peak learning rate."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    every = sum(parameter.numel() for parameter in model.parameters())
    share = "all" if trained == every else f"{trained:,} of"
    return f"{share} {every:,} parameters are trained, at a peak learning rate of {recipe.optimizer.lr:.3g}"
