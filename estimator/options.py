"""Options of the estimator: how a model is to be trained, and on which machines."""

from dataclasses import dataclass, replace
from typing import ClassVar, final

from clearhead.cli.options import one_of
from clearhead.errors import OptionError, WordError
from clearhead.model.sizes import Spec, parse_count
from clearhead.options import option
from clearhead.training.recipe import Recipe
from clearhead.training.schedules import Unaveraged
from estimator.estimate import FORMS, Form, Job, Rates, Workload

PARALLEL = {"auto": None, "ddp": "ddp", "fsdp": "fsdp"}
PRECISIONS = {"bfloat16": True, "float32": False}


@final
@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """How it is to be trained."""

    title: ClassVar[str] = "Training on many GPUs"

    gpus: int = option(8, "Train on N GPUs.  [default: 8]", takes="N", least=1)
    parallel: str = option("auto", "ddp, fsdp, or auto: the quickest that fits.", takes="NAME", names=PARALLEL)
    context: int = option(1, "GPUs that share a sequence.  [default: 1]", takes="N", least=1)
    tokens: int | None = option(
        None, "Batch size over all GPUs: tokens per step.  [default: the run's, or as many as fit]", takes="N", least=1
    )
    micro_batch_tokens: int | None = option(
        None, "Tokens per pass over all GPUs.  [default: as many as fit]", takes="N", least=1
    )
    train_tokens: str | None = option(
        None, "Tokens of the whole training, such as 300B: what it costs in GPU hours.", takes="COUNT"
    )
    activation_checkpointing: bool | None = option(
        None, "Keep the inputs of blocks only, and compute the rest again.  [default: if it is quicker]", both=True
    )
    precision: str | None = option(
        None, "bfloat16 or float32.  [default: the run's, or bfloat16]", takes="NAME", names=PRECISIONS
    )
    average: bool | None = option(None, "Keep an average of the weights.  [default: the run's, or no]", both=True)
    compile: bool = option(True, "Time of a compiled step, or of an eager one.", both=True)


@final
@dataclass(frozen=True, kw_only=True)
class RateOptions:
    """What the machines can do; defaults are an H200's."""

    title: ClassVar[str] = "Machines (default: H200s, 8 in a node)"

    matrix_tflops: float | None = option(
        None, "Rate of a large matrix product, TFLOP/s.  [default: 798]", takes="X", above=0
    )
    copy_gb_s: float | None = option(
        None, "Rate of a copy, read and written, GB/s.  [default: 4270]", takes="X", above=0
    )
    memory_gb: float | None = option(None, "Memory of a GPU, GiB; 4 are kept free.  [default: 139]", takes="X", above=0)
    link_gb_s: float | None = option(None, "Links within a node, GB/s each way.  [default: 370]", takes="X", above=0)
    network_gb_s: float | None = option(
        None, "Network between nodes, GB/s each way for each GPU.  [default: 48]", takes="X", above=0
    )
    gpus_per_node: int | None = option(None, "GPUs in a node.  [default: 8]", takes="N", least=1)
    measure: bool = option(False, "Measure products, copies, and links between processes, on this machine.")


@final
@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is to be estimated: a job, the forms of it that are allowed, and the tokens of the whole training."""

    job: Job
    forms: list[Form]
    train_tokens: int | None
    measured: bool


def plan_training(
    spec: Spec, lengths: tuple[int, int], options: ScalingOptions, machines: RateOptions, recipe: Recipe | None
) -> TrainingPlan:
    """Return the training that the options describe. What a run's recipe says is the default."""
    parallel = one_of("parallel", options.parallel, PARALLEL)
    workload = make_workload(spec, lengths, options, recipe)
    tokens = options.tokens or (recipe.batching.tokens if recipe else None)
    micro = options.micro_batch_tokens or (recipe.batching.micro_batch_tokens if recipe else None)
    length = workload.length
    least = length * max(1, options.gpus // options.context)
    if micro is not None and micro < least:
        raise WordError(
            "micro_batch_tokens",
            f"is less than a sequence of {length:,} tokens on each GPU, {least:,} in all; came {micro:,}",
        )
    try:
        job = Job(
            workload=workload,
            gpus=options.gpus,
            context=options.context,
            rates=make_rates(machines, workload.bfloat16),
            sequences=None if tokens is None else max(1, round(tokens / length)),
            micro=None if micro is None else micro // least,
        )
        train_tokens = None if options.train_tokens is None else parse_count(options.train_tokens)
    except OptionError as error:
        name, _, message = str(error).partition(": ")
        raise WordError(name if message else "train_tokens", message or name) from error
    forms = [
        form
        for form in FORMS
        if parallel in (None, form.parallel) and options.activation_checkpointing in (None, form.checkpointing)
    ]
    return TrainingPlan(job=job, forms=forms, train_tokens=train_tokens, measured=machines.measure)


def make_workload(spec: Spec, lengths: tuple[int, int], options: ScalingOptions, recipe: Recipe | None) -> Workload:
    """Return what a GPU computes for sequences of these lengths, of the source and of the target."""
    precision = options.precision or (recipe.machine.precision if recipe else "auto")
    averaged = recipe is not None and not isinstance(recipe.optimizer.averaging, Unaveraged)
    source, target = lengths
    return Workload(
        spec=spec,
        source=source,
        target=target,
        bfloat16=precision == "auto" or one_of("precision", precision, PRECISIONS),
        averaged=averaged if options.average is None else options.average,
        compiled=options.compile,
    )


def make_rates(machines: RateOptions, bfloat16: bool) -> Rates:
    """Return the rates: measured or an H200's, and those that were given."""
    rates = Rates()
    if machines.measure:
        from estimator.rates import measure_rates

        rates = measure_rates(bfloat16)
    names = {"memory_gb": "memory_gib"}
    given_rates = {name: getattr(machines, name) for name in RATES if getattr(machines, name) is not None}
    return replace(rates, **{names.get(name, name): value for name, value in given_rates.items()})


RATES = ("matrix_tflops", "copy_gb_s", "memory_gb", "link_gb_s", "network_gb_s", "gpus_per_node")
