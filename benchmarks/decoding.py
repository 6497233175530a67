"""Decoding beside Hugging Face's `generate` and CTranslate2, in the same run, on the same weights.

    python benchmarks/decoding.py                 # the table of encoder-decoders, and kernelized beside softmax
    python benchmarks/decoding.py --only cells    # one of: cells, int8, growth, busy

`int8` is the same table with weights of int8, beside CTranslate2's int8: `int8` rounds weights alone, `int8-dynamic`
and CTranslate2 round what they are multiplied with as well. `busy` asks for one sentence at a time, alone on the
machine and beside two processes at full load.

Tokens a second of 24 new tokens after 24 of source, as in a translator; every engine has its caches. `ceiling` is the
same with the matrix products alone: what no Python, cache or softmax could take away from.
"""

import argparse
import dataclasses
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

import torch
from measure import table
from torch.nn import functional as F

import clearhead as ch
from clearhead.colours import ROLES
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.decoding.clock import SessionSize
from clearhead.decoding.session import Session
from clearhead.model import presets
from clearhead.model.embedding import Embedding
from clearhead.model.fast_step import few_rows, is_large
from clearhead.model.int8 import DTYPES
from clearhead.model.presets import AttentionSpec, Size

N_SOURCE = N_NEW = 24
START, END = 0, 1
SIZES = {
    "tiny": (Size(4, 128, 4, 4, 256), 9_712),
    "base": (Size(6, 512, 8, 8, 2048), 32_000),
}
CELLS = [(1, 1), (1, 5), (32, 1), (32, 5)]
RENAMED = [
    (r"^model\.(encoder|decoder)\.layers\.", r"\1.stack.blocks."),
    (r"self_attn_layer_norm", "around_attention.norm"),
    (r"encoder_attn_layer_norm", "around_cross.norm"),
    (r"final_layer_norm", "around_feed_forward.norm"),
    (r"self_attn\.", "attention."),
    (r"encoder_attn\.", "cross."),
    (r"(query|key|value)\.", r"\1.linear."),
    (r"([qkv])_proj\.", lambda found: {"q": "query", "k": "key", "v": "value"}[found[1]] + ".linear."),
    (r"out_proj", "output"),
    (r"fc1", "feed_forward.up"),
    (r"fc2", "feed_forward.down"),
    (r"norm\.weight", "norm.gamma"),
    (r"norm\.bias", "norm.beta"),
    (r"^model\.shared\.weight", "decoder.embedding.table"),
]


def marian(size: Size, vocabulary: int):
    """Hugging Face's model of that size, random."""
    from transformers import MarianConfig, MarianMTModel

    settings = MarianConfig(
        vocab_size=vocabulary,
        d_model=size.d_model,
        encoder_layers=size.n_layers,
        decoder_layers=size.n_layers,
        encoder_attention_heads=size.n_heads,
        decoder_attention_heads=size.n_heads,
        encoder_ffn_dim=size.d_ff,
        decoder_ffn_dim=size.d_ff,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=128,
        pad_token_id=vocabulary - 1,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )
    return MarianMTModel(settings).eval()


def clearhead_of(peer, size: Size, vocabulary: int):
    """Our model with the peer's weights."""
    heads = ch.Heads(size.n_heads, bias=True)
    spec = presets.classic(vocabulary, size=size, attention=AttentionSpec(heads=heads))
    embedding = Embedding(position=ch.positions.Sinusoidal(layout="halves"))
    halves = (dataclasses.replace(half, embedding=embedding) for half in (spec.encoder, spec.decoder))
    model = dataclasses.replace(spec, **dict(zip(("encoder", "decoder"), halves, strict=True))).build().eval()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    written = set()
    with torch.no_grad():
        for name, tensor in peer.named_parameters():
            for pattern, by in RENAMED:
                name = re.sub(pattern, by, name)  # noqa: PLW2901
            if "embed_positions" not in name:
                parameters[name].copy_(tensor)
                written.add(parameters[name])
    assert written == set(model.parameters())
    return model


def ctranslate2_of(peer, vocabulary: int, folder: str, compute_type: str):
    """CTranslate2's translator with the peer's weights, on this many threads."""
    import ctranslate2
    from ctranslate2.converters.transformers import MarianMTLoader

    class Loader(MarianMTLoader):
        def _remove_pad_weights(self, spec):
            """All of the vocabulary stays."""

        def set_decoder(self, spec, decoder):
            super().set_decoder(spec, decoder)
            spec.start_from_zero_embedding = False

    spec = Loader().get_model_spec(peer)
    tokens = [f"t{i}" for i in range(vocabulary)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "t0", "t1", "t2"
    spec.config.decoder_start_token = "t0"
    spec.validate()
    spec.optimize(quantization=compute_type)
    spec.save(folder)
    return ctranslate2.Translator(
        folder, device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
    )


class Engine:
    """One engine in a process of its own, so that no other's threads wait on its cores: `run` times one cell."""

    def __init__(self, name: str, size: str) -> None:
        command = [sys.executable, __file__, "--engine", name, "--sizes", size]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, batch: int, beam: int) -> dict:
        self.process.stdin.write(json.dumps([batch, beam]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def serve(engine: str, name: str) -> None:
    """Times cells asked for on stdin."""
    size, vocabulary = SIZES[name]
    torch.manual_seed(0)
    peer = marian(size, vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        make = {
            "clearhead": lambda: clearhead(clearhead_of(peer, size, vocabulary)),
            "int8": lambda: clearhead(DTYPES["int8"](clearhead_of(peer, size, vocabulary))),
            "int8-dynamic": lambda: clearhead(DTYPES["int8-dynamic"](clearhead_of(peer, size, vocabulary))),
            "HF": lambda: huggingface(peer),
            "CT2": lambda: ctranslate2(ctranslate2_of(peer, vocabulary, folder, "float32")),
            "CT2 int8": lambda: ctranslate2(ctranslate2_of(peer, vocabulary, folder, "int8")),
            "products": lambda: partial(products, clearhead_of(peer, size, vocabulary)),
        }[engine]
        run = make()
        for line in sys.stdin:
            batch, beam = json.loads(line)
            draw = torch.Generator().manual_seed(0)
            sources = torch.randint(3, vocabulary - 1, (batch, N_SOURCE), generator=draw)
            begin = time.perf_counter()
            tokens = run(sources, beam)
            print(json.dumps({"seconds": time.perf_counter() - begin, "tokens": tokens}), flush=True)


def clearhead(model):
    def run(sources, beam):
        method = Greedy() if beam == 1 else Beam(width=beam, length_penalty=1.0)
        rules = Rules(max_new=N_NEW, min_new=N_NEW, end=(END,))
        return [found[0].tokens for found in generate(model, sources, method, rules=rules, prefix=[[START]])]

    return run


def huggingface(model):
    @torch.inference_mode()
    def run(sources, beam):
        stop = {"early_stopping": "never"} if beam > 1 else {}
        made = model.generate(
            sources, num_beams=beam, do_sample=False, max_new_tokens=N_NEW, min_new_tokens=N_NEW, **stop
        )
        return [row[1:] for row in made.tolist()]

    return run


def ctranslate2(translator):
    def run(sources, beam):
        words = [[f"t{token}" for token in row] for row in sources.tolist()]
        made = translator.translate_batch(
            words, beam_size=beam, min_decoding_length=N_NEW, max_decoding_length=N_NEW, length_penalty=1.0
        )
        return [[int(token[1:]) for token in found.hypotheses[0]] for found in made]

    return run


@torch.inference_mode()
def products(model, sources, beam: int) -> list:
    """The matrix products of a cell alone, one after the other as in the model."""
    encoder, crossed, decoder = [], [], []
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "table" not in name:
            kept = (
                encoder
                if name.startswith("encoder")
                else crossed
                if "cross.key" in name or "cross.value" in name
                else decoder
            )
            kept.append(weight)
    wide, first, narrow = (inputs([*encoder, *decoder], len(sources) * n) for n in (N_SOURCE, 1, beam))
    for weight in [*encoder, *crossed]:
        F.linear(wide[weight.shape[1]], weight)
    for step in range(N_NEW):
        rows = narrow if step else first
        for weight in [*decoder, model.decoder.output.table]:
            (few_rows if is_large(weight) else F.linear)(rows[weight.shape[1]], weight)
    return []


def inputs(weights, rows: int) -> dict:
    return {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in weights}


def cells(names: list[str], seconds: float) -> None:
    """The table: tokens a second, and the ratios that are asked for."""
    rows = []
    for name in names:
        engines = {engine: Engine(engine, name) for engine in ("clearhead", "HF", "CT2", "products")}
        for batch, beam in CELLS:
            rows.append([name, f"{batch}, {beam}", *cell(engines, batch, beam, seconds)])
            print(rows[-1], file=sys.stderr, flush=True)
        for engine in engines.values():
            engine.close()
    print(table_of_cells(rows))


def table_of_cells(rows: list[list]) -> str:
    """Return the table of float32, and below it in how many cells the faster of both peers is still ahead."""
    header = "model|batch, beam|over the faster peer|clearhead|HF|CT2|over HF|over CT2|"
    header += "products alone|of the products|same output"
    ratios = [float(row[2]) for row in rows]
    behind = sum(ratio < 1 for ratio in ratios)
    said = f"{min(ratios):.2f} to {max(ratios):.2f} x the faster peer; slower than it in {behind} of {len(rows)} cells."
    return f"{table('Decoding, tokens a second, two CPU cores, float32', header.split('|'), rows)}\n{said}\n"


def cell(engines: dict[str, Engine], batch: int, beam: int, seconds: float) -> list:
    """The median of every engine, asked in turn, forward and backward; and how often the outputs are the same."""
    made = {name: engine.run(batch, beam)["tokens"] for name, engine in engines.items()}
    speed = medians(engines, batch, beam, seconds)
    same = [share(made["clearhead"], made[peer]) for peer in ("HF", "CT2")]
    return [*figures_of(speed), f"{same[0]} HF, {same[1]} CT2"]


def figures_of(speed: dict[str, float]) -> list:
    """Return a row's figures, the ratio to the faster of both peers first."""
    ours, theirs = speed["clearhead"], [speed["HF"], speed["CT2"]]
    return [
        f"{ours / max(theirs):.2f}",
        *(round(figure) for figure in (ours, *theirs)),
        *(f"{ours / figure:.2f}" for figure in theirs),
        round(speed["products"]),
        f"{ours / speed['products']:.0%}",
    ]


def int8_cells(names: list[str], seconds: float) -> None:
    """The table of int8 weights; outputs are compared with Clearhead's in float32."""
    rows, kinds = [], ("int8", "int8-dynamic", "CT2 int8")
    for name in names:
        engines = {engine: Engine(engine, name) for engine in (*kinds, "clearhead")}
        for batch, beam in CELLS:
            made = {engine: one.run(batch, beam)["tokens"] for engine, one in engines.items()}
            speed = medians(engines, batch, beam, seconds)
            over = [f"{speed[ours] / speed['CT2 int8']:.2f}" for ours in kinds[:2]]
            same = [share(made[engine], made["clearhead"]) for engine in kinds]
            rows.append([name, f"{batch}, {beam}", *(round(one) for one in speed.values()), *over, *same])
            print(rows[-1], file=sys.stderr, flush=True)
        for engine in engines.values():
            engine.close()
    header = "model|batch, beam|int8|int8-dynamic|CT2 int8|float32|int8 over CT2|int8-dynamic over CT2|int8 as float32|"
    header += "int8-dynamic as float32|CT2 int8 as float32"
    print(table("Decoding with int8 weights, tokens a second, two CPU cores", header.split("|"), rows))
    print(INT8_NOTE)


INT8_NOTE = """\
The peer here is CTranslate2's int8. Where its float32 is faster (see the table before this one), that is the stronger
peer, and the ratio to it is smaller.
"""


def medians(engines: dict[str, Engine], batch: int, beam: int, seconds: float) -> dict[str, float]:
    """Return tokens a second of every engine, by the median of its times; the engines are asked in turn."""
    for engine in engines.values():
        engine.run(batch, beam)
    taken: dict[str, list[float]] = {name: [] for name in engines}
    order, end = list(engines), time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[order[0]]) < 5:
        for name in order:
            time.sleep(0.02)  # the threads of the last one go to sleep
            taken[name].append(engines[name].run(batch, beam)["seconds"])
        order.reverse()
    return {name: batch * N_NEW / statistics.median(times) for name, times in taken.items()}


def busy(name: str, seconds: float, loads: tuple[int, ...] = (0, 2)) -> None:
    """One sentence at a time, with so many processes at full load beside it."""
    engines, rows = {engine: Engine(engine, name) for engine in ("clearhead", "CT2")}, []
    for load in loads:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            for batch, beam in ((1, 1), (1, 5)):
                speed = medians(engines, batch, beam, seconds)
                ours, theirs = speed["clearhead"], speed["CT2"]
                rows.append([load, f"{batch}, {beam}", round(ours), round(theirs), f"{ours / theirs:.2f}"])
        finally:
            for other in others:
                other.kill()
                other.wait()
    for engine in engines.values():
        engine.close()
    header = ["other processes", "batch, beam", "clearhead", "CT2", "over CT2"]
    print(table(f"Decoding on a busy machine, {name}, tokens a second, float32", header, rows))


def share(ours: list, theirs: list) -> str:
    return f"{sum(a == b for a, b in zip(ours, theirs, strict=True))}/{len(ours)}"


LENGTHS = (100, 300, 1_000, 3_000, 10_000)
KINDS = {"softmax": ch.weighting.Softmax(), "kernelized": ch.weighting.Kernelized("elu")}


def growth(figure: str | None, rounds: int = 60) -> None:
    """Time and memory of one more token, on a text of each length: sessions of all of them are asked in turn."""
    sessions = {(kind, n): session_of(kind, n) for kind in KINDS for n in LENGTHS}
    times = {key: [] for key in sessions}
    with torch.inference_mode():
        for _ in range(rounds):
            for key, session in random.sample(list(sessions.items()), len(sessions)):  # none always after the longest
                begin = time.perf_counter()
                step(session)
                times[key].append(time.perf_counter() - begin)
    taken = {key: 1e3 * statistics.median(found) for key, found in times.items()}
    memory = {key: session.caches.bytes() / 2**20 for key, session in sessions.items()}
    rows = [[n, *(made[kind, n] for made in (taken, memory) for kind in KINDS)] for n in LENGTHS]
    header = ["tokens so far", "softmax ms", "kernelized ms", "softmax MB", "kernelized MB"]
    print(table("One more token: decoder, 4 blocks, 256 wide, 4 heads", header, rows))
    for name, made in (("time", taken), ("memory", memory)):
        found = [made["kernelized", n] for n in LENGTHS]
        print(f"kernelized {name}: largest over smallest {max(found) / min(found):.3f}")
    if figure:
        draw(taken, memory, figure)


def step(session: Session) -> None:
    session.clock.common = int(session.clock.at[0])
    session.fit(1, session.clock.common + 1, 0)
    session.step_rows()


@torch.inference_mode()
def session_of(kind: str, n: int) -> Session:
    torch.manual_seed(0)
    attention = AttentionSpec(heads=4, weighting=KINDS[kind])
    model = presets.gpt2(Size(4, 256, 4, 4, 1024), vocabulary=1000, length=2 * LENGTHS[-1], attention=attention)
    session = Session(model.build().eval(), SessionSize(1, 2 * LENGTHS[-1]))
    session.start(torch.randint(1000, (1, n)).tolist(), [[]])
    return session


def draw(taken: dict, memory: dict, path: str) -> None:
    from matplotlib.figure import Figure

    from docs.figures import save

    figure = Figure(figsize=(9.6, 4.0), layout="constrained", facecolor="white")
    panels = (taken, "milliseconds a token", "linear"), (memory, "megabytes kept", "log")
    for axes, (made, title, scale) in zip(figure.subplots(1, 2), panels, strict=True):
        for kind, colour in (("softmax", ROLES["weight"]), ("kernelized", ROLES["key"])):
            axes.plot(LENGTHS, [made[kind, n] for n in LENGTHS], color=colour, marker="o", label=kind)
        axes.set(xscale="log", yscale=scale, xlabel="tokens so far", title=title)
        if scale == "linear":
            axes.set_ylim(bottom=0)
        axes.grid(color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    save(figure, pathlib.Path(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["cells", "int8", "growth", "busy"])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each cell")
    parser.add_argument("--figure", help="where to draw the growth, an SVG")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.engine:
        serve(asked.engine, asked.sizes[0])
        return
    if asked.only in (None, "cells"):
        cells(asked.sizes, asked.seconds)
    if asked.only in (None, "int8"):
        int8_cells(asked.sizes, asked.seconds)
    if asked.only in (None, "growth"):
        growth(asked.figure)
    if asked.only == "busy":
        busy(asked.sizes[0], asked.seconds)


if __name__ == "__main__":
    main()
