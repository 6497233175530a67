"""What Clearhead does on a GPU, beside its peers in the same run, with the hardware's ceilings measured on the spot.

python -m benchmarks gpu                      # everything: three minutes to compile, then more than five
python -m benchmarks gpu --only masks linear  # some sections
python -m benchmarks gpu --json FILE
python -m benchmarks report FILE              # docs/benchmarks.md with its plots, from what was measured
"""

import argparse
import contextlib
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import clearhead as ch
from benchmarks.gpu_growth import Point, attention_growth, model_growth, step_over_a_million
from benchmarks.measure import once
from benchmarks.plain import PlainGPT2, PlainTransformer, training_step
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.model import presets
from clearhead.tracing.recording import recording
from clearhead.training.recipe import Machine, Optimizer
from clearhead.training.tasks import Generate, Task, Translate
from clearhead.training.train_step import TrainState, make_stepper

GPT2_VOCABULARY, BASE_VOCABULARY = 50_304, 32_768


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number, and what stands beside it."""

    work: str
    figure: float
    unit: str
    beside: str = ""
    """The peer in the same run, or the mark to reach."""


Section = Callable[[], Iterator[Figure | Point]]


def milliseconds(run: Callable[[], object], rounds: int = 20, warm_ups: int = 4) -> float:
    """Return the time of one call, calls following each other as in a program: the GPU does not wait for Python."""
    for _ in range(warm_ups):
        run()
    torch.cuda.synchronize()

    def several() -> None:
        for _ in range(rounds):
            run()

    return 1e3 * min(once(several, "cuda") for _ in range(3)) / rounds


def ceilings() -> Iterator[Figure]:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    yield Figure(
        work="bf16 matrix product, 8192³", figure=2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9, unit="TFLOP/s"
    )
    b = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    yield Figure(work="copy, read and written", figure=4 * b.numel() / milliseconds(b.clone) / 1e6, unit="GB/s")


def step_of(spec, task: Task, batch: dict[str, Tensor], *, compile: bool) -> Callable[[], None]:
    """Return a step as `clearhead train` takes it, captured as CUDA graphs."""
    torch.manual_seed(0)
    machine = Machine(device="cuda", precision="bfloat16", compile=compile)
    stepper = make_stepper(TrainState(spec.build().cuda().train(), task, Optimizer(), machine), machine)
    return lambda: stepper.step([batch], 1e-4)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training step to measure: Clearhead's own, and the peer's, made when it is called."""

    work: str
    spec: Any
    task: Task
    batch: dict[str, Tensor]
    peer: Callable[[], Callable[[], object]]
    peer_name: str

    def step(self, *, compile: bool) -> Callable[[], None]:
        return step_of(self.spec, self.task, self.batch, compile=compile)

    def figures(self) -> Iterator[Figure]:
        tokens = self.batch["tokens"].numel()
        peer = tokens / milliseconds(self.peer(), 10)
        yield Figure(work=f"{self.work}: {self.peer_name}, compiled", figure=peer, unit="k tok/s")
        for compile in (True, False):
            clean()
            speed = tokens / milliseconds(self.step(compile=compile), 10)
            how = "compiled and captured" if compile else "captured"
            yield Figure(
                work=f"{self.work}: Clearhead, {how}",
                figure=speed,
                unit="k tok/s",
                beside=f"{speed / peer:.2f} x plain",
            )


def gpt2_case() -> Case:
    ids = torch.randint(GPT2_VOCABULARY, (32, 1025))
    batch = {"tokens": ids[:, :-1].contiguous(), "wanted": ids[:, 1:].contiguous()}
    return Case(
        work="training GPT-2 124M, 32 x 1024",
        spec=presets.gpt2("small", vocabulary=GPT2_VOCABULARY, dropout=0.0),
        task=Generate(tokenizers={}, context=1024),
        batch=batch,
        peer=lambda: training_step(PlainGPT2(GPT2_VOCABULARY).cuda(), *(one.cuda() for one in batch.values())),
        peer_name="plain PyTorch",
    )


def base_case() -> Case:
    source, ids = torch.randint(BASE_VOCABULARY, (256, 128)), torch.randint(BASE_VOCABULARY, (256, 129))
    lengths = torch.randint(100, 129, (256,))
    target, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    hidden = torch.zeros(256, 128).masked_fill(torch.arange(128) >= lengths[:, None], float("-inf"))
    inputs = (source, target, wanted, hidden)
    return Case(
        work="training base encoder-decoder, 256 x 128, dropout 0.1",
        spec=presets.base(BASE_VOCABULARY),
        task=Translate(tokenizers={}, context=129),
        batch={"source": source, "source_lengths": lengths, "tokens": target, "wanted": wanted},
        peer=lambda: training_step(PlainTransformer(BASE_VOCABULARY, 128).cuda(), *(one.cuda() for one in inputs)),
        peer_name="nn.Transformer",
    )


def gpt2_training() -> Iterator[Figure]:
    yield from gpt2_case().figures()


def base_training() -> Iterator[Figure]:
    yield from base_case().figures()


def masks() -> Iterator[Figure]:
    """Softmax with a structured mask or a bias at n = 16,384, 16 heads of 64, bf16."""
    n = 16_384
    q, k, v = (torch.randn(1, 16, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    causal = ch.masks.causal()
    documents = causal & ch.masks.document(torch.arange(n, device="cuda") // 2048)
    lengths = [512, 3584, 1024, 3072, 2048, 2048, 1536, 2560]
    ragged = causal & ch.masks.document([i for i, length in enumerate(lengths) for _ in range(length)])
    own = [one.view(16, 8, 2048, 64).transpose(0, 1) for one in (q, k, v)]
    each = list(zip(*(one.split(lengths, 2) for one in (q, k, v)), strict=True))
    whole = milliseconds(lambda: ch.attend(q, k, v, mask=causal))
    apart = milliseconds(lambda: F.scaled_dot_product_attention(*own, is_causal=True))
    one_by_one = milliseconds(lambda: [F.scaled_dot_product_attention(*one, is_causal=True) for one in each])
    yield Figure(work="causal, n = 16k", figure=whole, unit="ms")
    yield Figure(work="8 x 2k causal, one batched call of torch", figure=apart, unit="ms")
    yield Figure(work="512 to 3,584, causal, 16k in all, eight calls of torch", figure=one_by_one, unit="ms")
    for name, options, beside in (
        ("window 256", {"mask": causal & ch.masks.window(256)}, lambda ms: "mark 0.3 ms"),
        ("8 documents, causal", {"mask": documents}, lambda ms: f"{ms / apart:.2f} x the batched call"),
        ("8 unequal documents, causal", {"mask": ragged}, lambda ms: f"{ms / one_by_one:.2f} x the eight calls"),
        ("ALiBi, causal", {"mask": causal, "position": ch.positions.ALiBi()}, lambda ms: f"{ms / whole:.2f} x causal"),
    ):
        taken = milliseconds(lambda options=options: ch.attend(q, k, v, **options))
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        ch.attend(q, k, v, **options)
        memory = (torch.cuda.max_memory_allocated() - held) / 2**20
        kernel = ch.which_kernel(q, k, v, **options).kernel
        yield Figure(work=f"{name}, n = 16k ({kernel}, {memory:.0f} MB)", figure=taken, unit="ms", beside=beside(taken))


def forward_backward(work: str, tensors: list[Tensor], run: Callable[..., Tensor]) -> Iterator[Figure]:
    with torch.no_grad():
        yield Figure(work=f"{work}, forward", figure=milliseconds(lambda: run(*tensors)), unit="ms")
    inputs = [one.detach().requires_grad_() for one in tensors]
    out = run(*inputs)
    grad = torch.randn_like(out)
    taken = milliseconds(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True, allow_unused=True))
    yield Figure(work=f"{work}, backward", figure=taken, unit="ms")


def linear() -> Iterator[Figure]:
    """Kernelized attention of 65,536 tokens in all, 16 heads of 64, causal and normalised, bf16."""
    for batch, n in ((16, 4096), (1, 65_536)):
        clean()
        tensors = [torch.randn(batch, 16, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        options = {"weighting": ch.weighting.Kernelized("elu"), "mask": ch.masks.causal()}
        kernel = ch.which_kernel(*tensors, **options).kernel
        run = functools.partial(ch.attend, **options)
        yield from forward_backward(f"linear attention, {batch} x {n:,} ({kernel})", tensors, run)
        if batch > 1 and importlib.util.find_spec("fla") is not None:  # it tunes itself for a minute and a half
            yield from forward_backward(f"fla's, normalised, {batch} x {n:,}", tensors, linear_by_fla)


def linear_by_fla(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return fla's linear attention: it takes `(batch, n, head, d)`, and features that the caller makes."""
    from fla.ops.linear_attn import chunk_linear_attn

    query, key, value = (one.transpose(1, 2) for one in (F.elu(query) + 1, F.elu(key) + 1, value))
    return chunk_linear_attn(query, key, value, scale=1.0, normalize=True)[0]


def argmax() -> Iterator[Figure]:
    """Hard attention, 4 x 16 heads of 128, n = 4,096, causal, bf16; torch's softmax beside it."""
    tensors = [torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    yield from forward_backward(
        "torch's softmax, 4 x 16 x 4,096", tensors, lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True)
    )
    tied = [tensors[0], tensors[1][:, :, :1].expand_as(tensors[1]).contiguous(), tensors[2]]
    for name, weighting, inputs in (
        ("straight-through", ch.weighting.Argmax(), tensors),
        ("no gradient for scores", ch.weighting.Argmax(gradient="none"), tensors),
        ("ties averaged", ch.weighting.Argmax(ties="average"), tensors),
        ("every key tied", ch.weighting.Argmax(), tied),
    ):
        options = {"weighting": weighting, "mask": ch.masks.causal()}
        kernel = ch.which_kernel(*inputs, **options).kernel
        run = functools.partial(ch.attend, **options)
        if kernel == "blockwise":
            taken = milliseconds(functools.partial(run, *inputs), rounds=1, warm_ups=1)
            yield Figure(work=f"argmax, {name} ({kernel}), forward", figure=taken, unit="ms")
        else:
            yield from forward_backward(f"argmax, {name} ({kernel})", inputs, run)


CELLS = [(1, 1), (1, 4), (64, 1), (64, 4), (512, 1)]
N_SOURCE, N_NEW = 32, 64


def hugging_face_peer() -> Any:
    """Return Hugging Face's encoder-decoder of the base size, with random weights."""
    from transformers import MarianConfig, MarianMTModel

    vocabulary, size = 32_000, 512
    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in BASE_LAYER.items()}
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=size,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=256,
        pad_token_id=vocabulary - 1,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        **layers,
    )
    return MarianMTModel(config).eval().cuda().bfloat16()


def decoding() -> Iterator[Figure]:
    """Tokens a second of the base encoder-decoder in bf16, 64 new ones after 32 of source; Hugging Face's beside it."""
    peer = hugging_face_peer()
    vocabulary = peer.config.vocab_size
    model = presets.base(vocabulary).build().eval().cuda().bfloat16()
    for batch, width in CELLS:
        source = torch.randint(2, vocabulary - 2, (batch, N_SOURCE))
        method = Greedy() if width == 1 else Beam(width=width, stop="heuristic")
        ours = best_of_five(
            functools.partial(generate, model, source.tolist(), method, rules=Rules(max_new=N_NEW), prefix=[[0]])
        )
        asked = {"max_new_tokens": N_NEW, "min_new_tokens": N_NEW, "num_beams": width, "do_sample": False}
        theirs = best_of_five(functools.partial(peer.generate, source.cuda(), **asked))
        how = "greedy" if width == 1 else f"beam {width}"
        yield Figure(
            work=f"decoding base, batch {batch}, {how}",
            figure=batch * N_NEW / ours,
            unit="tok/s",
            beside=f"{theirs / ours:.1f} x Hugging Face's {batch * N_NEW / theirs:,.0f}",
        )


def static_cache() -> Iterator[Figure]:
    """Measure Hugging Face with its static cache and a compiled step, which its users must ask for."""
    peer = hugging_face_peer()
    peer.forward = torch.compile(peer.forward, mode="reduce-overhead")
    for batch in (1, 64):
        source = torch.randint(2, peer.config.vocab_size - 2, (batch, N_SOURCE)).cuda()
        asked = {"max_new_tokens": N_NEW, "min_new_tokens": N_NEW, "num_beams": 1, "do_sample": False}
        taken = best_of_five(functools.partial(peer.generate, source, cache_implementation="static", **asked))
        yield Figure(
            work=f"decoding base, batch {batch}, greedy: Hugging Face, static cache compiled",
            figure=batch * N_NEW / taken,
            unit="tok/s",
        )


BASE_LAYER = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}


def best_of_five(work: Callable[[], object]) -> float:
    """Return the seconds of a whole call, the best of five after two that warm up."""
    with torch.inference_mode():
        for _ in range(2):
            work()
        return min(once(work, "cuda") for _ in range(5))


def tracing() -> Iterator[Figure]:
    """Measure what recording adds to a forward pass: GPT-2 124M in bf16, 8 x 1024."""
    model = presets.gpt2("small", dropout=0.0).build().eval().cuda().bfloat16()
    ids = torch.randint(50_257, (8, 1024), device="cuda")

    def recorded() -> None:
        with recording(model):
            model(ids)

    with torch.inference_mode():
        plain, traced = milliseconds(lambda: model(ids)), milliseconds(recorded)
    yield Figure(work="forward, GPT-2 124M, 8 x 1024", figure=plain, unit="ms")
    yield Figure(
        work="the same, everything recorded", figure=traced, unit="ms", beside=f"{100 * (traced / plain - 1):+.1f} %"
    )


def million() -> Iterator[Figure]:
    """Train on a text of a million tokens at once."""
    first, last, seconds, gigabytes = step_over_a_million()
    yield Figure(
        work=f"a training step over 1,000,000 tokens, linear attention, 2 layers of 256 ({gigabytes:.1f} GiB)",
        figure=seconds,
        unit="s",
        beside=f"loss {first:.2f} to {last:.2f} in six steps",
    )


SECTIONS: dict[str, Section] = {
    "ceilings": ceilings,
    "masks": masks,
    "linear": linear,
    "argmax": argmax,
    "decoding": decoding,
    "tracing": tracing,
    "million": million,
    "base": base_training,
    "gpt2": gpt2_training,
    "attention_growth": attention_growth,
    "model_growth": model_growth,
    "static_cache": static_cache,
}


def tune_fla() -> None:
    if importlib.util.find_spec("fla") is not None:
        inputs = [torch.randn(16, 16, 4096, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
        linear_by_fla(*inputs).sum().backward()


def compile_flex() -> None:
    """Compile what the growth of attention measures, at its smaller lengths."""
    for _ in attention_growth(lengths=(4096, 16_384), only=("window of 256", "documents of 1,024", "ALiBi")):
        pass


PREPARED: dict[str, tuple[str, Callable[[], Callable[[], object]]]] = {
    "base": ("base", lambda: base_case().step(compile=True)),
    "base_peer": ("base", lambda: base_case().peer()),
    "gpt2": ("gpt2", lambda: gpt2_case().step(compile=True)),
    "gpt2_peer": ("gpt2", lambda: gpt2_case().peer()),
    "fla": ("linear", lambda: tune_fla),
    "flex": ("attention_growth", lambda: compile_flex),
}
"""What takes minutes to compile or to tune: the section that needs it, and what makes the work to run once."""


def prepare(names: list[str]) -> None:
    """Compile for these sections, all at once and each in its own process: torch and Triton keep it on the disk."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks", "gpu", "--prepare"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    jobs = [subprocess.Popen([*command, job], **quiet) for job, (section, _) in PREPARED.items() if section in names]
    for job in jobs:
        job.wait()
    print(f"compiled in {len(jobs)} processes: {time.perf_counter() - begin:.0f} s", flush=True)


def clean() -> None:
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def measured(names: list[str]) -> Iterator[Figure | Point]:
    """Measure section by section; one that fails is told, and the others go on."""
    for name in names:
        clean()
        begin = time.perf_counter()
        try:
            for one in SECTIONS[name]():
                print(row_of(one), flush=True)  # a run that is cut off has told what it measured
                yield one
        except Exception as error:
            failed = Figure(
                work=f"{name} failed: {type(error).__name__} {str(error).splitlines()[0][:200]}", figure=0.0, unit=""
            )
            print(row_of(failed), flush=True)
            yield failed
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


def row_of(one: Figure | Point) -> str:
    if isinstance(one, Point):
        return f"{one.plot}, {one.curve}, {one.x:,}: {one.ms:.3g} ms, {one.megabytes:,.0f} MB"
    return f"| {one.work} | {one.figure:.3g} | {one.unit} | {one.beside} |"


def describe_machine() -> str:
    """Say what is measured on, and with which versions."""
    names = ("torch", "triton", "transformers", "fla-core")
    versions = []
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return f"{torch.cuda.get_device_name()}, {', '.join(versions)}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [name for name in SECTIONS if name != "static_cache"]  # which compiles for a minute
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=usual)
    parser.add_argument("--json", type=Path, help="a file for what was measured, which `report` reads")
    parser.add_argument("--prepare", choices=list(PREPARED), help="only compile what this needs, and measure nothing")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here; the CPU's figures are made by the scripts in benchmarks/README.md")
    if asked.prepare:
        PREPARED[asked.prepare][1]()()
        return
    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"  # what fla finds in a minute and a half is kept for this process
    prepare(asked.only)
    found: list[Figure | Point] = []
    for one in measured(asked.only):
        found.append(one)
        if asked.json:  # each time: a run that is cut off has kept what it measured
            write(found, asked.json)


def write(found: list[Figure | Point], path: Path) -> None:
    """Write what was measured, for `report`."""
    kept = {
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
        "figures": [asdict(one) for one in found if isinstance(one, Figure)],
        "points": [asdict(one) for one in found if isinstance(one, Point)],
    }
    path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
