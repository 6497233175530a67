"""Hold llama.cpp to Clearhead on one model: ids, greedy tokens, logits, the loss of a text, and speed.

    python benchmarks/llama_cpp_check.py runs/poems --text test.txt        # the run, exported as f32, f16 and q8_0
    python benchmarks/llama_cpp_check.py model.gguf --text test.txt        # a file, imported as a run
    python benchmarks/llama_cpp_check.py runs/poems --text test.txt --quantize Q4_K_M   # quantised by llama.cpp too

It needs the package llama-cpp-python, a long build, and is therefore no test. In F32 greedy tokens must agree one by
one, but for ties, and the script fails where they do not. llama.cpp computes quantised models with rounded activations
too: of those the loss is compared. Its KV cache is float16 by default, and is float32 here. Its GELU is a table of
float16 numbers also in F32, so logits of a GPT-2 differ by more than those of a Llama.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import table
from torch.nn.functional import cross_entropy

import clearhead as ch
from clearhead.decoding import Greedy, Rules, generate
from clearhead.interop.export.format import count_same
from clearhead.interop.gguf_file import GGUF
from clearhead.training.run import Run

PROMPT = 60
"""Characters of a prompt."""


class Found(NamedTuple):
    """What one program made of the prompts and of the text."""

    written: list[list[int]]
    logits: torch.Tensor
    loss: float
    tokens_per_second: float


class Material(NamedTuple):
    """What both programs are given, as token ids: prompts, and windows of the text."""

    texts: list[str]
    prompts: list[list[int]]
    windows: list[list[int]]
    n_new: int


def read_material(run: Run, text: str, asked: argparse.Namespace) -> Material:
    """Cut a text into prompts, spread over it, and into the first windows of the model's context."""
    step = max(1, len(text) // asked.prompts)
    texts = [text[start : start + PROMPT] for start in range(0, step * asked.prompts, step)]
    before = list(run.task.frame().before)
    ids, length = run.tokenizer.encode(text), run.task.context - len(before)
    windows = [before + ids[start : start + length] for start in range(0, len(ids), length)]
    prompts = [before + run.tokenizer.encode(one) for one in texts]
    n_new = min(asked.tokens, run.task.context - max(map(len, prompts)))
    return Material(texts, prompts, [one for one in windows if len(one) > len(before) + 1][: asked.windows], n_new)


@torch.inference_mode()
def ask_clearhead(run: Run, given: Material) -> Found:
    rules = Rules(max_new=given.n_new, end=ends_of(run))
    model: Any = run.model
    generate(model, given.prompts[:1], Greedy(), rules=rules)  # warms up
    begin = time.perf_counter()
    made = [list(generate(model, [row], Greedy(), rules=rules)[0][0].tokens) for row in given.prompts]
    seconds = time.perf_counter() - begin
    logits = torch.cat([model(torch.tensor([row]))[0] for row in given.windows])
    return Found(made, logits, loss_of(logits, given.windows), sum(map(len, made)) / seconds)


def ask_llama_cpp(run: Run, llama: Any, given: Material) -> Found:
    ends = ends_of(run)

    def go_on(row: list[int]) -> Iterator[int]:
        llama.reset()
        for count, token in enumerate(llama.generate(row, temp=0.0, top_k=1, repeat_penalty=1.0), 1):
            yield token
            if token in ends or count == given.n_new:
                return

    list(go_on(given.prompts[0]))
    begin = time.perf_counter()
    made = [list(go_on(row)) for row in given.prompts]
    seconds = time.perf_counter() - begin
    pieces = []
    for row in given.windows:
        llama.reset()
        llama.eval(row)
        pieces.append(torch.from_numpy(llama.scores[: len(row)].copy()))
    logits = torch.cat(pieces)
    return Found(made, logits, loss_of(logits, given.windows), sum(map(len, made)) / seconds)


def ends_of(run: Run) -> tuple[int, ...]:
    return run.task.frame().ends or (run.tokenizer.end,)


def loss_of(logits: torch.Tensor, windows: list[list[int]]) -> float:
    """Return the mean nats of every token of the windows but their first."""
    kept, wanted, start = [], [], 0
    for row in windows:
        kept.append(logits[start : start + len(row) - 1])
        wanted += row[1:]
        start += len(row)
    return float(cross_entropy(torch.cat(kept), torch.tensor(wanted)))


def compare(run: Run, file: Path, given: Material, ours: Found, threads: int) -> list[str]:
    """Return a line of the table for one GGUF file."""
    import llama_cpp

    kinds = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "n_threads": threads}
    size = run.task.context
    llama = llama_cpp.Llama(
        str(file), n_ctx=size, n_batch=size, logits_all=True, verbose=False, n_threads_batch=threads, **kinds
    )
    theirs = ask_llama_cpp(run, llama, given)
    ids = [llama.tokenize(text.encode(), add_bos=True, special=False) for text in given.texts]
    texts = sum(
        run.tokenizer.decode(a) == llama.detokenize(b).decode()
        for a, b in zip(ours.written, theirs.written, strict=True)
    )
    equal = sum(a == b for a, b in zip(ours.written, theirs.written, strict=True))
    apart = float((ours.logits - theirs.logits).abs().max())
    # Two likeliest tokens that are closer than twice the difference of one logit may change places.
    ties = count_same(run, ours.written, theirs.written, 2 * apart, sources=given.prompts) - equal
    return [
        kinds_of(file),
        f"{sum(found == row for found, row in zip(ids, given.prompts, strict=True))} / {len(given.prompts)}",
        f"{equal} / {len(given.prompts)}",
        str(ties),
        f"{texts} / {len(given.prompts)}",
        f"{apart:.1e}",
        f"{ours.loss:.5f}",
        f"{theirs.loss:.5f}",
        f"{ours.tokens_per_second:,.0f}",
        f"{theirs.tokens_per_second:,.0f}",
    ]


def kinds_of(file: Path) -> str:
    """Return the kinds of number in which the matrices of a file are."""
    import gguf

    with GGUF(file) as opened:
        kinds = {info.kind for info in opened.infos.values() if len(info.shape) > 1}
    return ", ".join(sorted(gguf.GGMLQuantizationType(kind).name for kind in kinds))


def check_dequantised(file: Path) -> None:
    """Fail where a tensor is not, bit by bit, what gguf's own reader and dequantiser make of the file."""
    import gguf

    with GGUF(file) as opened:
        theirs = {one.name: one for one in gguf.GGUFReader(file).tensors}
        assert set(opened) == set(theirs)
        for name, one in theirs.items():
            expected = torch.from_numpy(gguf.quants.dequantize(one.data, one.tensor_type).copy())
            if not torch.equal(opened[name], expected.reshape(opened[name].shape)):
                sys.exit(f"{file.name}: {name} is not what gguf dequantises")
    print(f"{file.name}: {len(theirs)} tensors are bit-equal to those of gguf ({kinds_of(file)})")


def quantize(file: Path, kind: str) -> Path:
    """Let llama.cpp itself write a file in another kind of number."""
    import llama_cpp

    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    made = file.with_name(f"{kind}.gguf")
    if llama_cpp.llama_model_quantize(str(file).encode(), str(made).encode(), how):
        sys.exit(f"llama.cpp cannot quantise {file.name} to {kind}")
    return made


def pairs_of(asked: argparse.Namespace, place: Path) -> Iterator[tuple[Run, Path]]:
    """Yield each GGUF file with the run that is held to it."""
    source = Path(asked.model)
    if source.suffix == ".gguf":
        check_dequantised(source)
        yield ch.import_model(source, place / "run", device="cpu"), source
        exact = source
    else:
        run = ch.load(source, device="cpu")
        for kind in ("f32", "f16", "q8_0"):
            made = ch.export(run, to="gguf", path=place / kind, quantization=kind)
            print(f"{kind}: {made.figures}")
            yield run, place / kind / "model.gguf"
        exact = place / "f32" / "model.gguf"
    for kind in asked.quantize:
        made = quantize(exact, kind)
        check_dequantised(made)
        yield ch.import_model(made, place / f"run-{kind}", device="cpu"), made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run folder, or a .gguf file")
    parser.add_argument("--text", required=True, help="a file with text that the model was not trained on")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=100, help="tokens to write after each prompt")
    parser.add_argument("--windows", type=int, default=40, help="windows of the text for the loss")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quantize", action="append", default=[], help="a kind such as Q4_K_M; repeatable")
    asked = parser.parse_args()
    try:
        import llama_cpp
    except ImportError:
        sys.exit("llama-cpp-python is not installed: pip install llama-cpp-python (it builds llama.cpp)")
    torch.set_num_threads(asked.threads)
    text, rows, failed = Path(asked.text).read_text(encoding="utf-8"), [], False
    with tempfile.TemporaryDirectory() as place:
        for run, file in pairs_of(asked, Path(place)):
            given = read_material(run, text, asked)
            rows.append(compare(run, file, given, ask_clearhead(run, given), asked.threads))
            failed |= rows[-1][0] == "F32" and int(rows[-1][2].split()[0]) + int(rows[-1][3]) < len(given.prompts)
    names = ["matrices", "same ids", "same tokens", "ties", "same text", "logits differ by", "loss", "of llama.cpp"]
    title = f"llama-cpp-python {llama_cpp.__version__}, {len(given.prompts)} prompts × {given.n_new} tokens"
    print(table(title, [*names, "tokens/s", "of llama.cpp"], rows))
    sys.exit("greedy tokens of an F32 file differ" if failed else 0)


if __name__ == "__main__":
    main()
