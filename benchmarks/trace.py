"""What tracing costs: the forward pass with and without it, in turns; and, at 4,096 tokens, memory and tiles.

    python benchmarks/trace.py
    python benchmarks/trace.py --n 512 --rounds 20

The model is the classic base one, 6 + 6 blocks of 512 with 8 heads, random; and a decoder of GPT-2's base size. Peers
keep every weight to show them; the last table is what that would take here.
"""

import argparse
import statistics
import time

import torch

from clearhead.model import presets
from clearhead.tracing.recording import recording
from clearhead.tracing.trace import trace_model

VOCABULARY = 8_000


def tokens(n: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (1, n))


def base() -> tuple[torch.nn.Module, int]:
    return presets.base(VOCABULARY).build().eval(), 2


def gpt2(n: int) -> tuple[torch.nn.Module, int]:
    return presets.gpt2("small", vocabulary=VOCABULARY, length=n).build().eval(), 1


@torch.inference_mode()
def cost(model: torch.nn.Module, sides: int, n: int, rounds: int) -> tuple[float, float, float]:
    """Seconds of a forward without and with recording, the medians, and the median of their ratios, taken in pairs."""
    given = [tokens(n) for _ in range(sides)]
    plain, traced = [], []
    for turn in range(rounds + 1):
        for kind in ("plain", "traced") if turn % 2 else ("traced", "plain"):
            began = time.perf_counter()
            if kind == "plain":
                model(*given)
                plain.append(time.perf_counter() - began)
            else:
                with recording(model):
                    model(*given)
                traced.append(time.perf_counter() - began)
    pairs = [with_it / without for without, with_it in zip(plain[1:], traced[1:], strict=True)]
    return statistics.median(plain[1:]), statistics.median(traced[1:]), statistics.median(pairs)


def tiles(model: torch.nn.Module, sides: int, n: int) -> None:
    made = trace_model(model, *(tokens(n) for _ in range(sides)))
    print(f"  trace {made.nbytes / 1e6:.0f} MB; the weights alone, kept, {weights(made) * 4 / 1e9:.1f} GB")
    levels = range(max(1, (n - 1).bit_length() - 8) + 1)
    for name in list(made.sites)[:: max(1, len(made.sites) // 3)]:
        head = made[name].head[0]
        head.tile("weight", 0, 0, 0)
        times = {}
        for level in levels:
            last = (n - 1) // (256 << level)
            began = time.perf_counter()
            head.tile("weight", level, last, last)
            times[level] = time.perf_counter() - began
        began = time.perf_counter()
        head.cell(n - 1, n // 2)
        cell = time.perf_counter() - began
        told = "  ".join(f"level {level} {seconds * 1e3:.0f} ms" for level, seconds in times.items())
        print(f"  {name:22} {told}  cell {cell * 1e3:.0f} ms")


def weights(made) -> int:
    return sum(site.n_heads * site.n_query * site.n_key for site in made.sites.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--long", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32; traced / plain, median of pairs")
    for name, make in (("base 6 + 6 x 512", lambda n: base()), ("GPT-2 12 x 768", gpt2)):
        for n in args.n:
            torch.manual_seed(0)
            model, sides = make(n)
            rounds = max(3, args.rounds * 128 // n) if n > 512 else args.rounds
            plain, traced, ratio = cost(model, sides, n, rounds)
            print(f"{name:18} n {n:5}  plain {plain * 1e3:8.1f} ms  traced {traced * 1e3:8.1f} ms  ratio {ratio:.3f}")
        model, sides = make(args.long)
        print(f"{name}, {args.long} tokens:")
        tiles(model, sides, args.long)


if __name__ == "__main__":
    main()
