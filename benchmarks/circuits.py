"""EAP-IG on a model of GPT-2-small's shape: its time in forward passes, and its memory.

    python benchmarks/circuits.py --device cuda
    python benchmarks/circuits.py --device cpu --layers 2 --pairs 4

The forward pass that it is counted in is the model's own, on the clean texts, without gradients. EAP-IG with five steps
makes seven forward passes and five backward passes of activations, and the sums over all edges.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from clearhead.circuits import Contrast, Graph, LogitDifference, Texts, find_method, score_edges
from clearhead.model import presets

VOCABULARY = 50257


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--methods", default="eap,eap-ig,relp")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = build(asked.layers).to(asked.device).eval()
    clean, other = (texts(asked) for _ in range(2))
    rows = torch.arange(asked.pairs, device=asked.device)
    metric = LogitDifference(answer=rows + 1, other=rows + 900, place=torch.full_like(rows, asked.tokens - 1))
    graph = Graph(model)
    forward = seconds(lambda: plain(model, clean), asked)
    print(json.dumps({"edges": len(graph.edges), "senders": len(graph.senders), "forward_ms": forward * 1e3}))
    for name in asked.methods.split(","):
        method = find_method(name)
        start_memory(asked.device)
        found = Contrast(graph, clean, other, metric)
        scores = score_edges(method, found)
        took = seconds(lambda method=method: score_edges(method, Contrast(graph, clean, other, metric)), asked)
        line = {
            "method": name,
            "seconds": took,
            "forward_passes_time": took / forward,
            "forwards": found.forwards,
            "backwards": found.backwards,
            "finite": bool(scores.isfinite().all()),
            "peak_gib": peak_memory(asked.device),
        }
        print(json.dumps(line), flush=True)


def build(layers: int) -> torch.nn.Module:
    spec = presets.gpt2("small", vocabulary=VOCABULARY)
    return replace(spec, blocks=spec.blocks[:layers]).build()


def texts(asked: argparse.Namespace) -> Texts:
    return Texts(tokens={"decoder": torch.randint(VOCABULARY, (asked.pairs, asked.tokens), device=asked.device)})


@torch.no_grad()
def plain(model: torch.nn.Module, clean: Texts) -> torch.Tensor:
    return model(clean.tokens["decoder"])


def seconds(call: Callable[[], object], asked: argparse.Namespace) -> float:
    """Return the median time of a call, after one that warms up."""
    times = []
    for _ in range(asked.repeats + 1):
        wait(asked.device)
        began = time.perf_counter()
        call()
        wait(asked.device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def start_memory(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None


if __name__ == "__main__":
    main()
