"""Find the longest sequence that a model of 110 million parameters trains on, on one GPU, by kind of attention.

    python -m benchmarks.longest                          softmax, window and linear, each in every form
    python -m benchmarks.longest --kinds linear --forms checkpointing
    python -m benchmarks.longest --whole-logits           as it was before logits were computed in chunks
    python -m benchmarks.longest --device cpu --size tiny --start 256 --most 1024       to try it

The model is llama2.c's 110M with a tied table of 32,000 tokens (109.5 million parameters), the batch one sequence, the
precision bfloat16; a step is that of `clearhead train`: forward, backward, clipping and AdamW. Lengths are doubled from
`--start` until one does not fit or a step would take more than `--seconds`, and then halved towards the last one that
did. Each kind in each form is measured in a process of its own, so that it has the whole GPU.
"""

import argparse
import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.measure import table
from clearhead.attention import masks
from clearhead.attention.positions import Rotary
from clearhead.attention.weighting import Kernelized
from clearhead.model import AttentionSpec, presets
from clearhead.model.blocks import Stack
from clearhead.training import chunked_loss
from clearhead.training.recipe import Machine, Optimizer
from clearhead.training.tasks import Generate
from clearhead.training.train_step import TrainState

VOCABULARY = 32_000
WINDOW = 4096
KINDS = {
    "softmax": {},
    "window": {"mask": masks.window(WINDOW)},
    "linear": {"weighting": Kernelized("elu")},
}
FORMS = ("plain", "checkpointing")
"""Whether activations are kept, or computed again in the backward pass."""
GROWTH = {"softmax": 4.0, "window": 2.0, "linear": 2.0}
"""How a step's time grows, at most, where the length doubles."""


class Step(NamedTuple):
    """A training step over one sequence: its tokens, seconds, and the most memory that was taken."""

    tokens: int
    seconds: float
    gib: float


def time_step(kind: str, form: str, tokens: int, args: argparse.Namespace) -> Step:
    """Return the second of two steps over a sequence of so many tokens: the first one compiles and tunes."""
    on_gpu = args.device == "cuda"
    torch.manual_seed(0)
    size = presets.LLAMA[args.size]
    attention = AttentionSpec(
        heads=presets.heads(size),
        position=Rotary(pairing="halves"),
        **KINDS[kind],  # type: ignore[arg-type]
    )
    spec = presets.llama(size, vocabulary=VOCABULARY, tied=True, attention=attention)
    machine = Machine(
        device=args.device,
        precision="bfloat16" if on_gpu else "float32",
        activation_checkpointing=form == "checkpointing",
        graphs=False,
    )
    model = spec.build().to(args.device).train()
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.checkpointing = machine.activation_checkpointing
    train_state = TrainState(model, Generate(tokenizers={}, context=tokens), Optimizer(), machine)
    ids = torch.randint(VOCABULARY, (1, tokens + 1))
    batch = {"tokens": ids[:, :-1].contiguous(), "wanted": ids[:, 1:].contiguous()}
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = math.inf
    for _ in range(2):
        begin = time.perf_counter()
        train_state.step([batch], 1e-4)
        loss = train_state.totals()  # waits for the GPU
        seconds = time.perf_counter() - begin
    if not math.isfinite(loss.nll) or not math.isfinite(loss.grad_norm):
        raise RuntimeError(f"{kind}, {tokens} tokens: the loss or its gradient is not finite")
    return Step(tokens, seconds, torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0)


def search(kind: str, form: str, args: argparse.Namespace) -> Iterator[Step | str]:
    """Yield every step that was measured, and why the search ended."""
    fitting, above, reason = 0, math.inf, ""
    seconds = 0.0
    length = args.start
    while length <= args.most and length - fitting >= args.start:
        if seconds * (length / max(fitting, 1)) ** math.log2(GROWTH[kind]) > args.seconds:
            reason = f"a step over {length:,} tokens would take more than {args.seconds:g} s"
            above = length
        else:
            try:
                step = time_step(kind, form, length, args)
                fitting, seconds = step.tokens, step.seconds
                yield step
            except torch.OutOfMemoryError:
                above, reason = length, "memory"
            gc.collect()
            if args.device == "cuda":
                torch.cuda.empty_cache()
        if above < math.inf and above - fitting <= fitting / 4:
            break
        length = 2 * fitting if math.isinf(above) else (fitting + int(above)) // 2 // args.start * args.start
    yield reason or f"--most {args.most:,}"


def in_own_process(kind: str, form: str, args: argparse.Namespace) -> list[object]:
    """Return a row of the table, measured in a process of its own."""
    options = [f"--{name}={getattr(args, name)}" for name in ("device", "size", "start", "most", "seconds")]
    options += ["--whole-logits"] if args.whole_logits else []
    command = [sys.executable, "-m", "benchmarks.longest", "--one", kind, form, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        longest, reason = Step(0, 0.0, 0.0), "failed"
        for line in process.stdout:
            print(f"{kind}, {form}: {line.strip()}", flush=True)
            found = json.loads(line)
            if isinstance(found, str):
                reason = found
            elif found[0] > longest.tokens:
                longest = Step(*found)
    rate = longest.tokens / longest.seconds if longest.seconds else 0.0
    cells = [f"{longest.tokens:,}", f"{longest.seconds:.1f}", f"{rate:,.0f}", f"{longest.gib:.1f}"]
    return [kind, form, *cells, reason]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="110m", choices=presets.LLAMA)
    parser.add_argument("--start", type=int, default=32_768)
    parser.add_argument("--most", type=int, default=1 << 25)
    parser.add_argument("--seconds", type=float, default=60.0, help="the longest step that is tried")
    parser.add_argument("--whole-logits", action="store_true", help="compute all logits at once, as before 2026-11-18")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "FORM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.whole_logits:
        chunked_loss.LOGITS_AT_ONCE = sys.maxsize
    if args.one:
        for found in search(*args.one, args):
            print(json.dumps(found), flush=True)
        return
    rows = [in_own_process(kind, form, args) for kind in args.kinds for form in args.forms]
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    header = ["attention", "form", "tokens", "s a step", "tok/s", "GiB", "ended by"]
    print(
        table(f"Longest sequence in training, {args.size} parameters, {where}, torch {torch.__version__}", header, rows)
    )


if __name__ == "__main__":
    main()
