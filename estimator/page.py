"""What `python -m estimator` prints: memory of each GPU by part, communication, time, and what would fit."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from clearhead.cli.screen import prose, rule
from estimator.estimate import GIB, Estimate, Rates
from estimator.options import TrainingPlan

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
    estimates = [plan.job.estimate(form) for form in plan.forms]
    return {
        "gpus": plan.job.gpus,
        "sequence_tokens": plan.job.workload.length,
        "rates": asdict(plan.job.rates) | {"measured": plan.measured},
        "chosen": plan.job.choose(plan.forms).form.name,
        "forms": [estimate_object(estimate, plan) for estimate in estimates],
    }


def estimate_object(estimate: Estimate, plan: TrainingPlan) -> dict[str, Any]:
    length = plan.job.workload.length
    facts: dict[str, Any] = {
        "form": estimate.form.name,
        "fits": estimate.fits,
        "largest_batch": estimate.largest,
        "sequences": estimate.sequences,
        "micro_batch": estimate.micro,
        "passes": estimate.passes,
        "memory": estimate.memory._asdict() | {"total": estimate.memory.total, "capacity": estimate.capacity},
        "sent": estimate.communication._asdict() | {"total": estimate.communication.total},
        "seconds": estimate.time._asdict() | {"total": estimate.time.total},
        "tokens_per_second": estimate.sequences * length / estimate.time.total,
    }
    if plan.train_tokens is not None:
        facts["gpu_hours"] = gpu_hours(estimate, plan)
    return facts


def gpu_hours(estimate: Estimate, plan: TrainingPlan) -> float:
    """Return what the whole training costs."""
    assert plan.train_tokens is not None
    steps = plan.train_tokens / (estimate.sequences * plan.job.workload.length)
    return steps * estimate.time.total * estimate.gpus / 3600


def training_page(name: str, plan: TrainingPlan) -> Iterator[RenderableType]:
    estimates = [plan.job.estimate(form) for form in plan.forms]
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
    if len(estimates) > 1:
        yield from form_rows(estimates, work.length)
    yield from notes(plan)


def row(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"  {name:<{NAME}}", style), (f"{value:>{NUMBER}}", style))


def memory_rows(estimate: Estimate, rates: Rates) -> Iterator[RenderableType]:
    yield row("memory of each GPU", "GiB", "quiet")
    for field, title in MEMORY.items():
        size = getattr(estimate.memory, field)
        if size:
            yield row(f"  {title}", f"{size / GIB:.2f}")
    yield row("in all", f"{estimate.memory.total / GIB:.2f}", "title")
    verdict = "it fits" if estimate.fits else "it does NOT fit"
    yield row(f"there is, {rates.reserved_gib:g} kept free", f"{estimate.capacity / GIB:.2f}  {verdict}")
    yield Text()


def sent_rows(estimate: Estimate) -> Iterator[RenderableType]:
    yield row("sent by each GPU in a step", "GB", "quiet")
    for field, title in SENT.items():
        size = getattr(estimate.communication, field)
        if size:
            yield row(f"  {title}", f"{size / 1e9:.2f}")
    yield row("in all", f"{estimate.communication.total / 1e9:.2f}", "title")
    yield Text()


def time_rows(estimate: Estimate, plan: TrainingPlan) -> Iterator[RenderableType]:
    time, work = estimate.time, plan.job.workload
    flops = 3 * work.forward_flops[0] * estimate.sequences / estimate.gpus / time.total / 1e12
    yield row("time of a step, estimated", "ms", "quiet")
    yield row("  computing", milliseconds(time.compute))
    yield row("  communicating", milliseconds(time.communication))
    yield row("    of that not hidden by computing", milliseconds(time.exposed))
    yield row("  update", milliseconds(time.update))
    yield row("in all", milliseconds(time.total), "title")
    yield row("tokens a second", f"{estimate.sequences * work.length / time.total:,.0f}")
    rate = 100 * flops / plan.job.rates.matrix_tflops
    yield row("model FLOPs, of the rate of products", f"{rate:.0f} %")
    if plan.train_tokens is not None:
        hours = gpu_hours(estimate, plan)
        yield row(f"{plan.train_tokens:,} tokens: GPU hours", f"{hours:,.0f}")
        yield row("  days", f"{hours / estimate.gpus / DAY:,.1f}")
    yield Text()


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def form_rows(estimates: Sequence[Estimate], length: int) -> Iterator[RenderableType]:
    heads = ("GiB", "fits", "largest pass", "tokens/s")
    yield Text.assemble((f"  {'':<22}", "quiet"), *((f"{head:>14}", "quiet") for head in heads))
    for estimate in estimates:
        cells = (
            f"{estimate.memory.total / GIB:.2f}",
            "yes" if estimate.fits else "no",
            f"{estimate.largest * length // estimate.form.context:,}" if estimate.largest else "none",
            f"{estimate.sequences * length / estimate.time.total:,.0f}",
        )
        yield Text.assemble(f"  {estimate.form.name:<22}", *(f"{cell:>14}" for cell in cells))
    yield Text()


def notes(plan: TrainingPlan) -> Iterator[RenderableType]:
    rates = plan.job.rates
    rates_source = "measured here" if plan.measured else "of an H200 unless given"
    yield prose(
        f"Largest pass: tokens on each GPU at a time. Rates, {rates_source}: products {rates.matrix_tflops:g} TFLOP/s, "
        f"copies {rates.copy_gb_s:g} GB/s, links {rates.link_gb_s:g} GB/s, network {rates.network_gb_s:g} GB/s for "
        "each GPU. estimator/README.md tells how good the estimate is.",
        style="quiet",
    )
    yield Text()
