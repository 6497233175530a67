"""What Clearhead does on a GPU, beside its peers in the same run, with the hardware's ceilings measured on the spot.

python -m benchmarks gpu                      # everything, and benchmarks/results/gpu.md with its plots
python -m benchmarks gpu --only masks linear  # some sections
python -m benchmarks gpu --only decoding static_cache --json benchmarks/results/gpu-later.json
python -m benchmarks report                   # gpu.md with its plots, from the runs of benchmarks/results

A whole run is kept in benchmarks/results/gpu.json, in place of all runs before it.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch
from benchmarks.gpu_figure import Figure, clean, milliseconds
from benchmarks.gpu_growth import Point, attention_growth, model_growth, step_over_a_million
from benchmarks.gpu_training import CASES, own_job, peer_job
from benchmarks.in_turn import Job, Waiting, serve_job
from benchmarks.measure import once, versions_of
from benchmarks.report import DEFAULT, RESULTS, STATIC, write_page
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.model import presets
from clearhead.model.int8 import quantize
from clearhead.tracing.recording import recording

Section = Callable[[], Iterator[Figure | Point]]


def ceilings() -> Iterator[Figure]:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    yield Figure(
        work="bf16 matrix product, 8192³", figure=2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9, unit="TFLOP/s"
    )
    b = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    yield Figure(work="copy, read and written", figure=4 * b.numel() / milliseconds(b.clone) / 1e6, unit="GB/s")


def masks() -> Iterator[Figure]:
    """Softmax with a structured mask or a bias at n = 16,384, 16 heads of 64, bf16; without it or by torch as peers."""
    n = 16_384
    q, k, v = (torch.randn(1, 16, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    causal = ch.masks.causal()
    documents = causal & ch.masks.document(torch.arange(n, device="cuda") // 2048)
    lengths = [512, 3584, 1024, 3072, 2048, 2048, 1536, 2560]
    ragged = causal & ch.masks.document([i for i, length in enumerate(lengths) for _ in range(length)])
    own = [one.view(16, 8, 2048, 64).transpose(0, 1) for one in (q, k, v)]
    each = list(zip(*(one.split(lengths, 2) for one in (q, k, v)), strict=True))
    whole = milliseconds(lambda: ch.attend(q, k, v, mask=causal))
    sdpa = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    apart = milliseconds(lambda: F.scaled_dot_product_attention(*own, is_causal=True))
    one_by_one = milliseconds(lambda: [F.scaled_dot_product_attention(*one, is_causal=True) for one in each])
    yield Figure(work="causal, n = 16k", figure=whole, unit="ms")
    yield Figure(work="torch's SDPA", figure=sdpa, unit="ms", peer_of="causal")
    for name, options, peer, peer_ms in (
        ("window 256", {"mask": causal & ch.masks.window(256)}, "all keys before it", whole),
        ("8 documents, causal", {"mask": documents}, "one batched call of torch", apart),
        ("8 unequal documents, causal", {"mask": ragged}, "eight calls of torch", one_by_one),
        ("ALiBi, causal", {"mask": causal, "position": ch.positions.ALiBi()}, "causal alone", whole),
    ):
        taken = milliseconds(lambda options=options: ch.attend(q, k, v, **options))
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        ch.attend(q, k, v, **options)
        memory = (torch.cuda.max_memory_allocated() - held) / 2**20
        kernel = ch.which_kernel(q, k, v, **options).kernel
        yield Figure(work=f"{name}, n = 16k ({kernel}, {memory:.0f} MB)", figure=taken, unit="ms")
        yield Figure(work=peer, figure=peer_ms, unit="ms", peer_of=name)


def forward_backward(
    kind: str, tensors: list[Tensor], run: Callable[..., Tensor], *, detail: str = "", peer: str = ""
) -> Iterator[Figure]:
    """Measure both directions of `kind`, `detail` being the rest of its name; or, with its name, a peer's."""

    def figure(direction: str, taken: float) -> Figure:
        work = f"{kind} {direction}{detail}"
        return Figure(work=peer or work, figure=taken, unit="ms", peer_of=work if peer else "")

    with torch.no_grad():
        yield figure("forward", milliseconds(lambda: run(*tensors)))
    inputs = [one.detach().requires_grad_() for one in tensors]
    out = run(*inputs)
    grad = torch.randn_like(out)
    taken = milliseconds(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True, allow_unused=True))
    yield figure("backward", taken)


def compiled_masks() -> Iterator[Figure]:
    """Masks inside a user's torch.compile beside the same call eagerly, at n = 16,384, 16 heads of 128, bf16."""
    n = 16_384
    tensors = [torch.randn(1, 16, n, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    causal, place = ch.masks.causal(), torch.arange(n, device="cuda")
    uneven = torch.searchsorted(torch.tensor([n // 20, n // 3, n // 2, 2 * n // 3], device="cuda"), place, right=True)
    for name, options in (
        ("window 256", {"mask": ch.masks.window(256)}),
        ("5 unequal documents, causal", {"mask": causal & ch.masks.document(uneven)}),
        ("half padding", {"mask": ch.masks.padding(torch.tensor([n // 2], device="cuda"))}),
        ("ALiBi, causal", {"mask": causal, "position": ch.positions.ALiBi()}),
    ):
        run = functools.partial(ch.attend, **options)
        eagerly = list(forward_backward(f"mask, eager: {name}", tensors, run))
        compiled = list(forward_backward(f"mask, compiled: {name}", tensors, torch.compile(run, fullgraph=True)))
        for one, other in zip(eagerly, compiled, strict=True):
            yield one
            yield replace(other, note=f"{other.figure / one.figure:.2f} x eager")


def padding() -> Iterator[Figure]:
    """Padding beside calls of torch on the keys that are left, 4 x 16 heads of 128, n = 4,096, bf16."""
    n = 4096
    tensors = [torch.randn(4, 16, n, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    for share in (0.0, 0.1, 0.5, 0.9):
        lengths = [round(n * (1 - share) * part) for part in ((1, 1, 1, 1) if share == 0 else (0.9, 1, 1, 1.1))]
        mask = ch.masks.padding(torch.tensor(lengths, device="cuda"))

        def unpadded(query: Tensor, key: Tensor, value: Tensor, lengths: list[int] = lengths) -> Tensor:
            rows = zip(*(side.split(1) for side in (query, key, value)), lengths, strict=True)
            cut = [F.scaled_dot_product_attention(q, k[:, :, :kept], v[:, :, :kept]) for q, k, v, kept in rows]
            return torch.cat(cut)

        peers = list(forward_backward(f"{share:.0%} padding left out, torch", tensors, unpadded))
        own = list(forward_backward(f"{share:.0%} padding", tensors, functools.partial(ch.attend, mask=mask)))
        for one, other in zip(peers, own, strict=True):
            yield one
            yield replace(other, note=f"{other.figure / one.figure:.2f} x")


LINEAR_SIZES = [(16, 4096), (1, 65_536)]


def linear() -> Iterator[Figure]:
    """Kernelized attention of 65,536 tokens in all, 16 heads of 64, causal and normalised, bf16."""
    for batch, n in LINEAR_SIZES:
        clean()
        tensors = [torch.randn(batch, 16, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        options = {"weighting": ch.weighting.Kernelized("elu"), "mask": ch.masks.causal()}
        kernel = ch.which_kernel(*tensors, **options).kernel
        run = functools.partial(ch.attend, **options)
        yield from forward_backward("linear attention", tensors, run, detail=f", {batch} x {n:,} ({kernel})")
        if f"fla {batch}" in WAITING:
            yield from in_turn(f"fla {batch}")


def fla_job(batch: int, n: int) -> Job:
    """Tune fla's kernels, which takes a minute and a half, and then measure them."""

    def prepare() -> Callable[[], Iterator[Figure]]:
        tensors = [torch.randn(batch, 16, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        detail, peer = f", {batch} x {n:,}", "fla's chunks, normalised"
        run = functools.partial(forward_backward, "linear attention", tensors, linear_by_fla)
        measure = functools.partial(run, detail=detail, peer=peer)
        list(measure())
        return measure

    return prepare


def linear_by_fla(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return fla's linear attention: it takes `(batch, n, head, d)`, and features that the caller makes."""
    from fla.ops.linear_attn import chunk_linear_attn

    query, key, value = (one.transpose(1, 2) for one in (F.elu(query) + 1, F.elu(key) + 1, value))
    return chunk_linear_attn(query, key, value, scale=1.0, normalize=True)[0]


def argmax() -> Iterator[Figure]:
    """Hard attention, 4 x 16 heads of 128, n = 4,096, causal, bf16; torch's softmax, which is easier, as its peer."""
    tensors = [torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    softmax = functools.partial(F.scaled_dot_product_attention, is_causal=True)
    yield from forward_backward("argmax", tensors, softmax, peer="torch's softmax")
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
            yield Figure(work=f"argmax forward, {name} ({kernel})", figure=taken, unit="ms")
        else:
            yield from forward_backward("argmax", inputs, run, detail=f", {name} ({kernel})")


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
    """Tokens a second of the base encoder-decoder in bf16, 64 new ones after 32 of source; Hugging Face's as a peer."""
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
        work = f"decoding base, batch {batch}, {'greedy' if width == 1 else f'beam {width}'}"
        yield Figure(work=work, figure=batch * N_NEW / ours, unit="tok/s")
        yield Figure(work=DEFAULT, figure=batch * N_NEW / theirs, unit="tok/s", peer_of=work)


def static_cache_job() -> Callable[[], Iterator[Figure]]:
    """Let Hugging Face compile its step for a static cache, which its users must ask for, and then measure it."""
    peer = hugging_face_peer()
    asked = {"max_new_tokens": N_NEW, "min_new_tokens": N_NEW, "num_beams": 1, "do_sample": False}
    works = {}
    for batch in (1, 64, 512):
        source = torch.randint(2, peer.config.vocab_size - 2, (batch, N_SOURCE)).cuda()
        works[batch] = functools.partial(peer.generate, source, cache_implementation="static", **asked)
        for _ in range(3):
            works[batch]()

    def measure() -> Iterator[Figure]:
        for batch, work in works.items():
            speed = batch * N_NEW / min(once(work, "cuda") for _ in range(5))
            peer_of = f"decoding base, batch {batch}, greedy"
            yield Figure(work=STATIC, figure=speed, unit="tok/s", peer_of=peer_of)

    return measure


LANGUAGE_MODELS: dict[str, Callable[[], presets.DecoderSpec]] = {
    "GPT-2 124M": lambda: presets.gpt2("small"),
    "Llama 1.1B": lambda: presets.llama(presets.Size(22, 2048, 32, 4, 5632), vocabulary=32_000),
}
LM_PROMPT, LM_NEW = 32, 256
"""The prompt and the new tokens of each row. The shape of 1.1 billion parameters is TinyLlama's."""


def language_models() -> Iterator[Figure]:
    """Tokens a second of language models in bf16, greedy, as whole calls; the same step alone, beside the time that it
    takes to read the weights once at the rate of a large sum.
    """
    rate = reading_rate()
    for name, spec in LANGUAGE_MODELS.items():
        with torch.device("cuda"):
            model = spec().build().eval().bfloat16()
        yield from decode_language_model(f"decoding {name}", model, rate)
        yield from decode_language_model(f"int8 decoding {name}", quantize(model), rate)


def decode_language_model(work: str, model: nn.Module, rate: float) -> Iterator[Figure]:
    """Measure whole calls with one text and with 32, and what each further token takes."""
    held = {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in held.values())
    for batch in (1, 32):
        prompts = torch.randint(2, 30_000, (batch, LM_PROMPT)).tolist()
        whole, half = (
            best_of_five(functools.partial(generate, model, prompts, rules=Rules(max_new=n)))
            for n in (LM_NEW, LM_NEW // 2)
        )
        step = (whole - half) / (LM_NEW - LM_NEW // 2)
        note = f"a further token {1e3 * step:.3f} ms; reading the weights takes {n_bytes / rate / step:.0%} of it"
        yield Figure(work=f"{work}, batch {batch}", figure=batch * LM_NEW / whole, unit="tok/s", note=note)


def reading_rate() -> float:
    """Return bytes a second that a sum of four gigabytes reads."""
    many = torch.ones(1 << 31, dtype=torch.bfloat16, device="cuda")
    return many.numel() * 2e3 / milliseconds(lambda: many.view(-1, 8192).sum())


def language_model_peer_job() -> Callable[[], Iterator[Figure]]:
    """Let Hugging Face compile the step of each model for a static cache, and then measure it."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    llama = LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        intermediate_size=5632,
        vocab_size=32_000,
        tie_word_embeddings=False,
    )
    asked = {"max_new_tokens": LM_NEW, "min_new_tokens": LM_NEW, "do_sample": False, "cache_implementation": "static"}
    works = {}
    for name, make in (
        ("GPT-2 124M", lambda: GPT2LMHeadModel(GPT2Config())),
        ("Llama 1.1B", lambda: LlamaForCausalLM(llama)),
    ):
        with torch.device("cuda"):
            peer = make().eval().bfloat16()
        for batch in (1, 32):
            prompts = torch.randint(2, 30_000, (batch, LM_PROMPT), device="cuda")
            works[name, batch] = functools.partial(peer.generate, prompts, pad_token_id=0, **asked)
            for _ in range(3):
                works[name, batch]()

    def measure() -> Iterator[Figure]:
        for (name, batch), work in works.items():
            speed = batch * LM_NEW / min(once(work, "cuda") for _ in range(3))
            yield Figure(work=STATIC, figure=speed, unit="tok/s", peer_of=f"decoding {name}, batch {batch}")

    return measure


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
    yield Figure(work="forward, GPT-2 124M, 8 x 1024, everything recorded", figure=traced, unit="ms")
    yield Figure(work="the same pass, nothing recorded", figure=plain, unit="ms", peer_of="forward, GPT-2 124M")


def million() -> Iterator[Figure]:
    """Train on a text of a million tokens at once."""
    first, last, seconds, gigabytes = step_over_a_million()
    yield Figure(
        work=f"a training step over 1,000,000 tokens, linear attention, 2 layers of 256 ({gigabytes:.1f} GiB)",
        figure=seconds,
        unit="s",
        note=f"loss {first:.2f} to {last:.2f} in six steps",
    )


def attention_growth_job() -> Callable[[], Iterator[Point]]:
    """Compile flex for every length, and then measure."""
    list(attention_growth())
    torch.cuda.empty_cache()
    return attention_growth


def in_turn(*jobs: str) -> Iterator[Any]:
    """Let the jobs measure, one after the other."""
    for job in jobs:
        yield from WAITING[job].measure({"Figure": Figure, "Point": Point})


SECTIONS: dict[str, Section] = {
    "ceilings": ceilings,
    "gpt2": lambda: in_turn("gpt2's peer", "gpt2"),
    "base": lambda: in_turn("base's peer", "base"),
    "qwen": lambda: in_turn("qwen"),
    "masks": masks,
    "compiled_masks": compiled_masks,
    "padding": padding,
    "linear": linear,
    "argmax": argmax,
    "decoding": decoding,
    "static_cache": lambda: in_turn("static cache"),
    "language_models": lambda: itertools.chain(language_models(), in_turn("language models' peer")),
    "tracing": tracing,
    "million": million,
    "attention_growth": lambda: in_turn("attention growth"),
    "model_growth": model_growth,
}
JOBS: dict[str, tuple[str, Job]] = {
    **{f"{name}'s peer": (name, peer_job(make)) for name, make in CASES.items() if name != "qwen"},
    **{name: (name, own_job(make)) for name, make in CASES.items()},
    "static cache": ("static_cache", static_cache_job),
    "language models' peer": ("language_models", language_model_peer_job),
    "attention growth": ("attention_growth", attention_growth_job),
}
"""What takes minutes to compile or to tune, with the section that needs it: in a process of its own, all at once."""
if importlib.util.find_spec("fla") is not None:
    JOBS |= {f"fla {batch}": ("linear", fla_job(batch, n)) for batch, n in LINEAR_SIZES}
WAITING: dict[str, Waiting] = {}


def start_jobs(sections: list[str]) -> None:
    """Start the jobs of these sections, and wait until all of them have compiled."""
    begin = time.perf_counter()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # each process would take all cores
    command = [sys.executable, "-m", "benchmarks", "gpu", "--job"]
    WAITING.update({job: Waiting([*command, job]) for job, (section, _) in JOBS.items() if section in sections})
    for job, waiting in WAITING.items():
        waiting.wait()
        print(f"{job}: {'ready' if waiting.ready else 'failed'} after {time.perf_counter() - begin:.0f} s", flush=True)


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
    work = f"{one.peer_of}: {one.work}" if one.peer_of else one.work
    return f"| {work} | {one.figure:.3g} | {one.unit} | {one.note} |"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--json", type=Path, help="a file for what was measured, which `report` reads")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where gpu.md is written, after all sections")
    parser.add_argument("--job", choices=list(JOBS), help="compile for this, and measure when a line is read")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here; for the CPU there is: python -m benchmarks cpu")
    if asked.job:
        serve_job(JOBS[asked.job][1])
        return
    begin = time.perf_counter()
    start_jobs(asked.only)
    found: list[Figure | Point] = []
    for one in measured(asked.only):
        found.append(one)
        if asked.json:  # each time: a run that is cut off has kept what it measured
            asked.json.write_text(json.dumps(as_run(found), indent=1), encoding="utf-8")
    if asked.only == list(SECTIONS):
        for path in RESULTS.glob("gpu*.json"):
            path.unlink()
        run = as_run(found)
        (RESULTS / "gpu.json").write_text(json.dumps(run, indent=1), encoding="utf-8")
        write_page([run], asked.folder)
    print(f"{time.perf_counter() - begin:.0f} s in all")


def as_run(found: list[Figure | Point]) -> dict[str, Any]:
    """Return what was measured, as `report` reads it."""
    return {
        "machine": f"{torch.cuda.get_device_name()}, {versions_of('torch', 'triton', 'transformers', 'fla-core')}",
        "date": time.strftime("%Y-%m-%d"),
        "figures": [asdict(one) for one in found if isinstance(one, Figure)],
        "points": [asdict(one) for one in found if isinstance(one, Point)],
    }
