"""A whole file translated by a run and by its exports: CTranslate2, greedy and with beams, and ONNX, greedy.

    python benchmarks/exported_file.py RUN SOURCE_FILE

All have one limit of length. CTranslate2's beams stop as `stop="early"` does, with the same length penalty
(docs/export.md has the mapping). The ONNX decoder is driven by `clearhead.interop.export.onnx.Loop`, numpy alone. Where
a line differs, both outputs are printed with the log-probability that the run gives them: a tie shows there.
"""

import argparse
import gzip
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from measure import table

import clearhead as ch
from clearhead.decoding import Beam, Greedy, Rules, generate, score
from clearhead.interop.export.ctranslate2_peer import open_with
from clearhead.interop.export.format import cut
from clearhead.interop.export.onnx import Loop, OnnxSession, notes
from clearhead.interop.export.samples import special_tokens, token_names
from clearhead.training.run import Run

LIMIT, AT_ONCE = 100, 50
BEAMS = ((4, 1.0), (4, 0.6), (5, 0.0))
"""Width and length penalty."""
Rows = list[list[int]]


def read_lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def in_parts(rows: Rows, work: Callable[[Rows], Rows]) -> Rows:
    """Return what the work makes of rows, some at a time, those of like length together."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: Rows = [[] for _ in rows]
    for first in range(0, len(order), AT_ONCE):
        part = order[first : first + AT_ONCE]
        for i, made in zip(part, work([rows[i] for i in part]), strict=True):
            found[i] = made
    return found


def compare(run: Run, name: str, ours: Rows, theirs: Rows, sources: Rows) -> list[str]:
    """Return a row of the table; print the lines that differ, with the run's own score of both."""
    special = special_tokens(run)
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine == other:
            continue
        print(f"{name}, line {i + 1}")
        for outputs in (mine, other):
            made = score(run.model, [sources[i]], [[*outputs, special.end]], prefix=[[special.start]])[0]
            print(f"  {sum(made.log_probs):.6f} {run.task.tokenizers['target'].decode(outputs)!r}")
    return [name, f"{sum(map(list.__eq__, ours, theirs)):,} of {len(ours):,}"]


def by_run(run: Run, sources: Rows, method: Greedy | Beam) -> Rows:
    special = special_tokens(run)
    rules = Rules(max_new=LIMIT, end=(special.end,))

    def work(rows: Rows) -> Rows:
        made = generate(run.model, rows, method, rules=rules, prefix=[[special.start]])
        return [[token for token in best.tokens if token != special.end] for best, *_ in made]

    return in_parts(sources, work)


def by_ctranslate2(run: Run, folder: Path, sources: Rows, **how: float) -> Rows:
    translator = open_with("Translator", folder, "float32")
    read, written = (token_names(run.task.tokenizers[name]) for name in ("source", "target"))
    ids = {name: place for place, name in enumerate(written)}

    def work(rows: Rows) -> Rows:
        words = [[read[i] for i in row[:-1]] for row in rows]  # it closes the source itself
        found = translator.translate_batch(words, max_decoding_length=LIMIT, min_decoding_length=0, **how)
        return [[ids[token] for token in one.hypotheses[0]] for one in found]

    return in_parts(sources, work)


def by_onnx(run: Run, folder: Path, sources: Rows) -> Rows:
    encoder, decoder = (OnnxSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    loop, special = Loop(decoder, notes(run)["past"]), special_tokens(run)

    def work(rows: Rows) -> Rows:
        lengths = np.array([len(row) for row in rows])
        tokens = np.array([[*row, *[0] * (lengths.max() - len(row))] for row in rows])
        fixed = {"source_lengths": lengths, **encoder({"tokens": tokens, "lengths": lengths})}
        return cut(loop.run([[special.start]] * len(rows), fixed, LIMIT), special.ends)

    return in_parts(sources, work)


def table_rows(run: Run, sources: Rows, folder: Path) -> Sequence[list[str]]:
    ch.export(run, to="ctranslate2", path=folder / "ct2")
    ch.export(run, to="onnx", path=folder / "onnx")
    greedy = by_run(run, sources, Greedy())
    rows = [
        compare(run, "ctranslate2, greedy", greedy, by_ctranslate2(run, folder / "ct2", sources, beam_size=1), sources),
        compare(run, "onnxruntime, greedy", greedy, by_onnx(run, folder / "onnx", sources), sources),
    ]
    for width, penalty in BEAMS:
        ours = by_run(run, sources, Beam(width=width, length_penalty=penalty, stop="early"))
        how = {"beam_size": width, "length_penalty": penalty}
        theirs = by_ctranslate2(run, folder / "ct2", sources, **how)
        rows.append(compare(run, f"ctranslate2, beam {width}, length penalty {penalty:g}", ours, theirs, sources))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("source", type=Path)
    asked = parser.parse_args()
    run, lines = ch.load(asked.run, device="cpu"), read_lines(asked.source)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as place:
        sources = [run.task.trace_inputs(line, "a").ids["encoder"] for line in lines]
        rows = table_rows(run, sources, Path(place))
    print(table(f"{asked.source.name} by {Path(asked.run).name}", ["export", "lines the same"], rows))


if __name__ == "__main__":
    main()
