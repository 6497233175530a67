"""Measure how time and memory grow on a GPU: for attention with the tokens, for a training step with the model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import clearhead as ch
from benchmarks.gpu_figure import clean
from benchmarks.measure import once
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec
from clearhead.training.recipe import Machine, Optimizer
from clearhead.training.tasks import Generate
from clearhead.training.train_step import TrainState

LENGTHS = tuple(256 * 4**power for power in range(6))
N_HEADS, D_HEAD = 8, 64
DOCUMENT = 1024
GROWN = {
    "sequences of 256 tokens in a batch": ("batch", (1, 4, 16, 64, 256)),
    "layers": ("n_layers", (1, 2, 4, 8, 16, 32)),
    "tokens in the vocabulary": ("vocabulary", (1024, 4096, 16_384, 65_536, 262_144)),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a curve: the plot, the curve, the size `x`, and the time and memory of a pass at that size."""

    plot: str
    curve: str
    x: int
    ms: float
    megabytes: float


def kinds_of_attention() -> dict[str, Callable[[int], dict[str, Any]]]:
    """Return each kind of attention by name: a function from the length to the options of `attend`."""
    causal = ch.masks.causal()

    def documents(n: int) -> dict[str, Any]:
        return {"mask": causal & ch.masks.document(torch.arange(n, device="cuda") // DOCUMENT)}

    return {
        "softmax": lambda n: {},
        "softmax, causal": lambda n: {"mask": causal},
        "window of 256": lambda n: {"mask": causal & ch.masks.window(256)},
        f"documents of {DOCUMENT:,}": documents,
        "ALiBi": lambda n: {"mask": causal, "position": ch.positions.ALiBi()},
        "linear": lambda n: {"mask": causal, "weighting": ch.weighting.Kernelized("elu")},
        "argmax": lambda n: {"mask": causal, "weighting": ch.weighting.Argmax()},
    }


def measure(run: Callable[[], object]) -> tuple[float, float]:
    """Return the milliseconds of the quickest of some calls, and the peak memory of a call in megabytes."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    taken = [once(run, "cuda")]
    memory = (torch.cuda.max_memory_allocated() - held) / 2**20
    while len(taken) < 5 and sum(taken) < 1:
        taken.append(once(run, "cuda"))
    return 1e3 * min(taken), memory


def attention_growth(lengths: Sequence[int] = LENGTHS, only: Sequence[str] = ()) -> Iterator[Point]:
    """Measure forward and backward of each kind of attention, or of some, at each length: 8 heads of 64 in bf16."""
    for name, options in kinds_of_attention().items():
        for n in lengths if name in only or not only else ():
            leaves = [
                torch.randn(1, N_HEADS, n, D_HEAD, device="cuda", dtype=torch.bfloat16).requires_grad_()
                for _ in range(3)
            ]
            upstream, chosen = torch.randn_like(leaves[0]), options(n)

            def run(leaves=leaves, upstream=upstream, chosen=chosen) -> None:
                torch.autograd.grad(ch.attend(*leaves, **chosen), leaves, upstream)

            ms, megabytes = measure(run)
            yield Point(plot="tokens", curve=name, x=n, ms=ms, megabytes=megabytes)


def model_growth() -> Iterator[Point]:
    """Measure a training step, captured, of a decoder 512 wide: against batch, layers and vocabulary."""
    for plot, (grown, sizes) in GROWN.items():
        for size in sizes:
            chosen = {"batch": 16, "n_layers": 4, "vocabulary": 16_384} | {grown: size}
            ids = torch.randint(chosen["vocabulary"], (chosen["batch"], 257))
            batch = {"tokens": ids[:, :-1].contiguous(), "wanted": ids[:, 1:].contiguous()}
            spec = presets.gpt2(
                presets.Size(chosen["n_layers"], 512, 8, 8, 2048),
                vocabulary=chosen["vocabulary"],
                length=256,
                dropout=0.0,
            )
            clean()
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            machine = Machine(device="cuda", precision="bfloat16", compile=False)
            task = Generate(tokenizers={}, context=256)
            state = TrainState(spec.build().cuda().train(), task, Optimizer(), machine)

            def run(state=state, batch=batch) -> None:
                state.step([batch], 1e-4)

            for _ in range(3):
                run()
            memory = (torch.cuda.max_memory_allocated() - held) / 2**20
            yield Point(plot=plot, curve="training step", x=size, ms=measure(run)[0], megabytes=memory)
            del state, run


def step_over_a_million(n: int = 1_000_000, steps: int = 6) -> tuple[float, float, float, float]:
    """Train a decoder with linear attention on one text of n tokens: loss before and after, seconds a step, gigabytes.

    The text repeats a pattern of 97 tokens, so that a few steps can lower the loss.
    """
    attention = AttentionSpec(heads=4, weighting=ch.weighting.Kernelized("elu"), position=None)
    spec = presets.llama(presets.Size(2, 256, 4, 4, 512), vocabulary=256, attention=attention)
    ids = (torch.arange(n + 1) * 31 % 97).unsqueeze(0)
    batch = {"tokens": ids[:, :-1].contiguous(), "wanted": ids[:, 1:].contiguous()}
    machine = Machine(device="cuda", precision="bfloat16", compile=False, graphs=False)
    task = Generate(tokenizers={}, context=n)
    state = TrainState(spec.build().cuda().train(), task, Optimizer(), machine)
    torch.cuda.reset_peak_memory_stats()
    losses, seconds = [], []
    for _ in range(steps):
        seconds.append(once(lambda: state.step([batch], 3e-3), "cuda"))
        totals = state.totals()
        losses.append(totals.nll / totals.places)
    return losses[0], losses[-1], min(seconds), torch.cuda.max_memory_allocated() / 2**30
