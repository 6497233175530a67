"""Language models on a CPU beside llama.cpp: the same GGUF file, in one process and in turn.

    OMP_NUM_THREADS=1 python benchmarks/llama_cpp_speed.py --shape 124M --kind f32 bf16 q8_0
    OMP_NUM_THREADS=1 python benchmarks/llama_cpp_speed.py --shape 1.1B --kind bf16 --rounds 2

Weights are random; the file has no tokenizer, and both programs are given token ids. Decoding is what further tokens
take after the first one; reading is what the prompts and the first token take. With one thread the clock is the
processor's, so that other work on the machine does not count. `of memory`: the bytes of weights that a step needs (a
batch reads them once for all of its texts), a second, as a share of what a sum over a large array reads on the spot.

It needs the package llama-cpp-python, which builds llama.cpp for this processor and is not among ours.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import torch
from measure import table

from clearhead.decoding import Rules, generate
from clearhead.interop.export.gguf import GgufModel, add_value, find_written, renamed_tensors, size_metadata
from clearhead.interop.gguf import read_gguf
from clearhead.model import presets
from clearhead.model.int8 import DTYPES
from clearhead.model.presets import Size

SHAPES = {
    "124M": lambda: presets.gpt2("small", dropout=0.0),
    "1.1B": lambda: presets.llama(Size(22, 2048, 32, 4, 5632), vocabulary=32_000),
}
KINDS = {"f32": ["float32"], "bf16": ["bfloat16"], "q8_0": ["int8", "int8-dynamic"]}
"""How a file has its matrices, and how ours has them in memory then."""
CONTEXT = 1024


class LlamaCpp:
    """llama.cpp with a file, for batches of prompts of one length."""

    def __init__(self, file: Path, batch: int, columns: int, threads: int) -> None:
        llama_cpp.llama_log_set(SILENT, None)
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        given = llama_cpp.llama_context_default_params()
        given.n_ctx, given.n_batch, given.n_seq_max = batch * columns, batch * columns, batch
        given.n_threads = given.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, given)
        self.room = llama_cpp.llama_batch_init(batch * columns, 0, 1)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, prompts: list[list[int]], n_new: int) -> list[list[int]]:
        """Return the greedy continuations."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        found = [[token] for token in self.read(prompts, 0)]
        for place in range(len(prompts[0]), len(prompts[0]) + n_new - 1):
            for row, token in zip(found, self.read([row[-1:] for row in found], place), strict=True):
                row.append(token)
        return found

    def read(self, rows: list[list[int]], start: int) -> list[int]:
        """Read further tokens of each text, and return the likeliest next one of each."""
        room, ends = self.room, []
        room.n_tokens = 0
        for text, row in enumerate(rows):
            for place, token in enumerate(row, start):
                at = room.n_tokens
                room.token[at], room.pos[at], room.n_seq_id[at], room.seq_id[at][0] = token, place, 1, text
                room.logits[at] = place == start + len(row) - 1
                room.n_tokens = at + 1
            ends.append(room.n_tokens - 1)
        if llama_cpp.llama_decode(self.context, room):
            raise SystemExit("llama.cpp cannot decode this batch")
        logits = (llama_cpp.llama_get_logits_ith(self.context, at) for at in ends)
        return [int(np.ctypeslib.as_array(one, (self.vocabulary,)).argmax()) for one in logits]

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.room)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


@llama_cpp.llama_log_callback
def SILENT(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Say nothing: llama.cpp tells of each tensor."""


def write_random(shape: str, kind: str, path: Path) -> None:
    """Write a model of this shape with random weights, and no tokenizer."""
    torch.manual_seed(0)
    spec = SHAPES[shape]()
    written = find_written(spec, CONTEXT)
    assert isinstance(written, GgufModel)
    writer = gguf.GGUFWriter(path, written.family.name)
    writer.add_tokenizer_model("no_vocab")
    for key, value in (size_metadata(written) | {f"{written.family.name}.vocab_size": spec.vocabulary}).items():
        add_value(writer, key, value)
    with torch.no_grad():
        for name, tensor in renamed_tensors(spec.build().eval(), written).items():
            to = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 else gguf.GGMLQuantizationType[kind.upper()]
            writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bytes_a_step(file: Path) -> int:
    """Return the bytes of weights that a step of decoding reads: all but tables that are looked up."""
    sizes = {one.name: one.n_bytes for one in gguf.GGUFReader(file).tensors}
    looked_up = ["position_embd.weight", *(["token_embd.weight"] if "output.weight" in sizes else [])]
    return sum(sizes.values()) - sum(sizes.get(name, 0) for name in looked_up)


def memory_speed(clock) -> float:
    """Return the bytes a second that one sum over an array larger than any cache takes in."""
    numbers, taken = torch.ones(1 << 27), []
    for _ in range(7):
        begin = clock()
        numbers.sum()
        taken.append(clock() - begin)
    return numbers.nbytes / min(taken)


def measure(asked: argparse.Namespace, file: Path, kind: str, batch: int) -> list[list[object]]:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    theirs = LlamaCpp(file, batch, asked.prompt + asked.new, torch.get_num_threads())
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(theirs.vocabulary, (batch, asked.prompt), generator=draw).tolist()
    rows, n_bytes = [], bytes_a_step(file)
    for dtype in KINDS[kind]:
        model = DTYPES[dtype](read_gguf(file).model)
        programs = {
            "clearhead": lambda n, model=model: [
                list(one.tokens) for [one] in generate(model, prompts, rules=Rules(max_new=n))
            ],
            "llama.cpp": lambda n: theirs.decode(prompts, n),
        }
        said = {name: run(asked.new) for name, run in programs.items()}  # warms up
        taken = {(name, n): list[float]() for name in programs for n in (1, asked.new)}
        memory = list[float]()
        for _ in range(asked.rounds):
            memory.append(memory_speed(clock))
            for (name, n), seconds in taken.items():
                begin = clock()
                programs[name](n)
                seconds.append(clock() - begin)
        median = {key: statistics.median(seconds) for key, seconds in taken.items()}
        speed = [batch * (asked.new - 1) / (median[name, asked.new] - median[name, 1]) for name in programs]
        reading = [batch * asked.prompt / median[name, 1] for name in programs]
        peak = statistics.median(memory)
        shares = [f"{one / batch * n_bytes / peak:.0%}" for one in speed]
        same = sum(map(list.__eq__, *said.values()))
        rows.append(
            [
                *(f"{asked.shape} {kind} ({dtype})", batch),
                *(*(f"{one:.1f}" for one in speed), speed[0] / speed[1], *shares),
                *(*(f"{one:.0f}" for one in reading), reading[0] / reading[1]),
                *(f"{peak / 1e9:.0f}", f"{same}/{batch}"),
            ]
        )
        print(*rows[-1], flush=True)
    theirs.close()
    return rows


COLUMNS = ["file (in memory)", "batch", "clearhead", "llama.cpp", "ratio", "of memory", "llama.cpp of memory"]
COLUMNS += ["clearhead reads", "llama.cpp reads", "ratio", "memory, GB/s", "same tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="124M")
    parser.add_argument("--kind", choices=list(KINDS), nargs="+", default=list(KINDS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=25, help="tokens to write after each")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rows = list[list[object]]()
    with tempfile.TemporaryDirectory() as place:
        for kind in asked.kind:
            file = Path(place) / f"{kind}.gguf"
            write_random(asked.shape, kind, file)
            for batch in asked.batch:
                rows += measure(asked, file, kind, batch)
            file.unlink()
    title = f"Tokens a second, {torch.get_num_threads()} thread(s), llama-cpp-python {llama_cpp.__version__}"
    print(table(title, COLUMNS, rows))


if __name__ == "__main__":
    main()
