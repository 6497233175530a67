"""What `clearhead describe --gpus` prints: memory of each GPU by part, communication, time, and what would fit."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from clearhead.cli.scaling_options import TrainingPlan
from clearhead.cli.screen import prose, rule
from clearhead.training.scaling import GIB, Estimate, Rates

__all__ = ["training_object", "training_page"]

NAME, NUMBER = 40, 12
MEMORY = {
    "parameters": "parameters, float32",
    "gradients": "gradients, float32",
    "optimizer": "optimizer states (AdamW's two moments)",
    "average": "averaged weights (EMA)",
    "copies": "weights to compute with",
    "activations": "activations",
    "working": "logits, loss and working memory",
    "buffers": "buffers of communication",
}
"""What is printed of the memory, and its name there."""
SENT = {
    "gather": "weights, gathered",
    "scatter": "gradients, summed and scattered",
    "reduce": "gradients, summed",
}
DAY = 24.0


def training_object(plan: TrainingPlan) -> dict[str, Any]:
    """Return the estimate as JSON: bytes and seconds."""
    made = [plan.job.estimate(form) for form in plan.forms]
    return {
        "gpus": plan.job.gpus,
        "sequence_tokens": plan.job.workload.length,
        "rates": asdict(plan.job.rates) | {"measured": plan.measured},
        "chosen": plan.job.choose(plan.forms).form.name,
        "forms": [estimate_object(one, plan) for one in made],
    }


def estimate_object(made: Estimate, plan: TrainingPlan) -> dict[str, Any]:
    length = plan.job.workload.length
    found: dict[str, Any] = {
        "form": made.form.name,
        "fits": made.fits,
        "largest_batch": made.largest,
        "sequences": made.sequences,
        "micro_batch": made.micro,
        "passes": made.passes,
        "memory": made.memory._asdict() | {"total": made.memory.total, "capacity": made.capacity},
        "sent": made.communication._asdict() | {"total": made.communication.total},
        "seconds": made.time._asdict() | {"total": made.time.total},
        "tokens_per_second": made.sequences * length / made.time.total,
    }
    if plan.train_tokens is not None:
        found["gpu_hours"] = gpu_hours(made, plan)
    return found


def gpu_hours(made: Estimate, plan: TrainingPlan) -> float:
    """Return what the whole training costs."""
    assert plan.train_tokens is not None
    steps = plan.train_tokens / (made.sequences * plan.job.workload.length)
    return steps * made.time.total * made.gpus / 3600


def training_page(name: str, plan: TrainingPlan) -> Iterator[RenderableType]:
    made = [plan.job.estimate(form) for form in plan.forms]
    chosen, work = plan.job.choose(plan.forms), plan.job.workload
    yield rule(f"{name} on {plan.job.gpus:,} GPU{'s' * (plan.job.gpus > 1)}")
    dtype = "bfloat16" if work.bfloat16 else "float32"
    yield prose(
        f"{chosen.form.name} · {dtype} · {work.parameters:,} parameters\n"
        f"a step: {chosen.sequences:,} sequences of {work.length:,} tokens, {chosen.sequences * work.length:,} in all; "
        f"on each GPU {chosen.passes:,} pass{'es' * (chosen.passes > 1)} of {chosen.micro:,}"
    )
    yield Text()
    yield from memory_rows(chosen, plan.job.rates)
    yield from sent_rows(chosen)
    yield from time_rows(chosen, plan)
    if len(made) > 1:
        yield from form_rows(made, work.length)
    yield from notes(plan)


def row(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"  {name:<{NAME}}", style), (f"{value:>{NUMBER}}", style))


def memory_rows(made: Estimate, rates: Rates) -> Iterator[RenderableType]:
    yield row("memory of each GPU", "GiB", "quiet")
    for field, title in MEMORY.items():
        size = getattr(made.memory, field)
        if size:
            yield row(f"  {title}", f"{size / GIB:.2f}")
    yield row("in all", f"{made.memory.total / GIB:.2f}", "title")
    verdict = "it fits" if made.fits else "it does NOT fit"
    yield row(f"there is, {rates.reserved_gib:g} kept free", f"{made.capacity / GIB:.2f}  {verdict}")
    yield Text()


def sent_rows(made: Estimate) -> Iterator[RenderableType]:
    yield row("sent by each GPU in a step", "GB", "quiet")
    for field, title in SENT.items():
        size = getattr(made.communication, field)
        if size:
            yield row(f"  {title}", f"{size / 1e9:.2f}")
    yield row("in all", f"{made.communication.total / 1e9:.2f}", "title")
    yield Text()


def time_rows(made: Estimate, plan: TrainingPlan) -> Iterator[RenderableType]:
    time, work = made.time, plan.job.workload
    flops = 3 * work.forward_flops[0] * made.sequences / made.gpus / time.total / 1e12
    yield row("time of a step, estimated", "ms", "quiet")
    yield row("  computing", milliseconds(time.compute))
    yield row("  communicating", milliseconds(time.communication))
    yield row("    of that not hidden by computing", milliseconds(time.exposed))
    yield row("  update", milliseconds(time.update))
    yield row("in all", milliseconds(time.total), "title")
    yield row("tokens a second", f"{made.sequences * work.length / time.total:,.0f}")
    rate = 100 * flops / plan.job.rates.matrix_tflops
    yield row("model FLOPs, of the rate of products", f"{rate:.0f} %")
    if plan.train_tokens is not None:
        hours = gpu_hours(made, plan)
        yield row(f"{plan.train_tokens:,} tokens: GPU hours", f"{hours:,.0f}")
        yield row("  days", f"{hours / made.gpus / DAY:,.1f}")
    yield Text()


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def form_rows(made: Sequence[Estimate], length: int) -> Iterator[RenderableType]:
    heads = ("GiB", "fits", "largest pass", "tokens/s")
    yield Text.assemble((f"  {'':<22}", "quiet"), *((f"{head:>14}", "quiet") for head in heads))
    for one in made:
        cells = (
            f"{one.memory.total / GIB:.2f}",
            "yes" if one.fits else "no",
            f"{one.largest * length:,}" if one.largest else "none",
            f"{one.sequences * length / one.time.total:,.0f}",
        )
        yield Text.assemble(f"  {one.form.name:<22}", *(f"{cell:>14}" for cell in cells))
    yield Text()


def notes(plan: TrainingPlan) -> Iterator[RenderableType]:
    rates = plan.job.rates
    where = "measured here" if plan.measured else "of an H200 unless given"
    yield prose(
        f"Largest pass: tokens on each GPU at a time. Rates, {where}: products {rates.matrix_tflops:g} TFLOP/s, copies "
        f"{rates.copy_gb_s:g} GB/s, links {rates.link_gb_s:g} GB/s, network {rates.network_gb_s:g} GB/s for each GPU. "
        "docs/scaling.md tells how good the estimate is.",
        style="quiet",
    )
    yield Text()
