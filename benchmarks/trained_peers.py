"""Import the models of benchmarks/train_peers.py, and hold them to `transformers` on a whole file of held-out text.

    python benchmarks/trained_peers.py MODELS --text test.en --source test.de

MODELS has the folders gpt2, llama, bert and marian, or some of them. Every line of the file is read by both: its ids,
its logits, and what follows from them: the greedy continuation of its first words, the fill of a word, the vector of
the line, its translation. Numbers are float64, where rounding decides no tie; vectors are compared in float32 too.
"""

import argparse
import itertools
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import table
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

import clearhead as ch
from clearhead.training.run import Run
from clearhead.training.tasks.translate import reach

AT_ONCE, WORDS, NEW = 64, 6, 32
"""Lines of a batch, words of a prompt, and tokens that are written after it."""
Row = list[str]


def grouped(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the places of rows of one length, a batch at a time, so that nothing is padded."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for _, same in itertools.groupby(order, key=lambda i: len(rows[i])):
        places = list(same)
        yield from (places[start : start + AT_ONCE] for start in range(0, len(places), AT_ONCE))


def count_equal(name: str, ours: Iterable[Any], theirs: Iterable[Any]) -> Row:
    pairs = list(zip(ours, theirs, strict=True))
    for place, (mine, other) in enumerate(pairs):
        if mine != other:
            print(f"{name}, line {place + 1}:\n  {mine!r}\n  {other!r}")
    return [name, f"{sum(mine == other for mine, other in pairs):,} of {len(pairs):,} the same"]


def differences(name: str, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], unit: str) -> Row:
    largest, count = 0.0, 0
    for mine, other in pairs:
        largest, count = max(largest, float((mine - other).abs().max())), count + mine.numel()
    return [name, f"{count:,} {unit} differ by {largest:.1e} at most"]


def compare_decoder(run: Run, folder: Path, lines: list[str]) -> Iterator[Row]:
    tokenizer, peer = AutoTokenizer.from_pretrained(folder), load(AutoModelForCausalLM, folder)
    ids = [row[: run.task.context] for row in tokenizer(lines)["input_ids"]]
    yield count_equal("ids of a line", (run.task.trace_inputs(line).ids["decoder"] for line in lines), ids)
    model: Any = run.model.double()
    batches = [torch.tensor([ids[i] for i in places]) for places in grouped(ids)]
    yield differences("logits", ((model(batch), peer(batch).logits) for batch in batches), "numbers")
    prompts = [" ".join(line.split()[:WORDS]) for line in lines]
    rows, theirs = tokenizer(prompts)["input_ids"], [""] * len(lines)
    for places in grouped(rows):
        batch = torch.tensor([rows[i] for i in places])
        made = peer.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
        for i, row in zip(places, made[:, batch.shape[1] :], strict=True):
            theirs[i] = tokenizer.decode(row, skip_special_tokens=True)
    yield count_equal(f"texts of {NEW} tokens", run.generate(prompts, max_new=NEW, method=ch.Greedy()), theirs)


def compare_bert(run: Run, folder: Path, lines: list[str]) -> Iterator[Row]:
    tokenizer, peer = AutoTokenizer.from_pretrained(folder), load(AutoModelForMaskedLM, folder)
    body = load(AutoModel, folder, add_pooling_layer=False).float()
    read = tokenizer(lines, truncation=True, max_length=run.task.context)["input_ids"]
    yield count_equal("ids of a line", (run.task.trace_inputs(line).ids["encoder"] for line in lines), read)
    vectors, theirs = run.embed(lines), torch.zeros(len(lines), body.config.hidden_size)
    for places in grouped(read):
        theirs[places] = body(torch.tensor([read[i] for i in places])).last_hidden_state.mean(1)
    yield differences("vectors, float32", [(vectors, theirs)], "numbers")
    draw, blanked = random.Random(0), []
    for line in lines:
        words = line.split()[:40]
        words[draw.randrange(len(words))] = tokenizer.mask_token
        blanked.append(" ".join(words))
    rows, best, shares = (
        tokenizer(blanked)["input_ids"],
        [""] * len(lines),
        torch.zeros(len(lines), dtype=torch.float64),
    )
    special = torch.tensor(tokenizer.all_special_ids)
    for places in grouped(rows):
        batch = torch.tensor([rows[i] for i in places])
        found = peer(batch).logits.softmax(-1)[batch == tokenizer.mask_token_id].index_fill(1, special, 0)
        for i, row in zip(places, found, strict=True):
            best[i] = tokenizer.convert_ids_to_tokens(int(row.argmax()))
            shares[i] = row.max()
    run.model.double()
    mine = [one.blanks[0][0] for one in run.fill(blanked, shown=1)]
    yield count_equal("likeliest fills", (piece.strip() for piece, _ in mine), best)
    found = torch.tensor([share for _, share in mine], dtype=torch.float64)
    yield differences("their probabilities", [(found, shares)], "numbers")


def compare_marian(run: Run, folder: Path, lines: list[str]) -> Iterator[Row]:
    tokenizer, peer = AutoTokenizer.from_pretrained(folder), load(AutoModelForSeq2SeqLM, folder)
    rows = tokenizer(lines)["input_ids"]
    yield count_equal("ids of a line", (run.task.trace_inputs(line, "a").ids["encoder"] for line in lines), rows)
    run.model.double()
    for beam in (1, 4):
        theirs = [""] * len(lines)
        for places in grouped(rows):
            batch = torch.tensor([rows[i] for i in places])
            longest = min(run.task.context, reach(batch.shape[1]))  # our own limit: some lines never end
            how = {"num_beams": beam, "do_sample": False, "max_new_tokens": longest, "early_stopping": "never"}
            made = peer.generate(batch, attention_mask=torch.ones_like(batch), **how)
            for i, row in zip(places, made, strict=True):
                theirs[i] = tokenizer.decode(row, skip_special_tokens=True)
        name = "greedy translations" if beam == 1 else f"translations, beam {beam}"
        yield count_equal(name, run.translate(lines, beam=beam), theirs)


def load(kind: Any, folder: Path, **options: Any) -> Any:
    return kind.from_pretrained(folder, attn_implementation="eager", **options).double().eval()


COMPARED: dict[str, tuple[str, Callable[[Run, Path, list[str]], Iterator[Row]]]] = {
    "gpt2": ("text", compare_decoder),
    "llama": ("text", compare_decoder),
    "bert": ("text", compare_bert),
    "marian": ("source", compare_marian),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--text", help="a line of English at a time: for gpt2, llama and bert")
    parser.add_argument("--source", help="a sentence in German at a time: for marian")
    parser.add_argument("--only", choices=COMPARED, action="append")
    parser.add_argument("--first", type=int, default=1, help="the first line to take, for a file in parts")
    parser.add_argument("--lines", type=int, help="only so many lines of the files")
    asked = parser.parse_args()
    for name, (which, compare) in COMPARED.items():
        folder, file = asked.models / name, getattr(asked, which)
        if file is None or not folder.is_dir() or (asked.only and name not in asked.only):
            continue
        lines = Path(file).read_text(encoding="utf-8").splitlines()[asked.first - 1 :][: asked.lines]
        lines = [line for line in lines if line.strip()]
        with tempfile.TemporaryDirectory() as place, torch.inference_mode():
            run = ch.import_model(folder, Path(place) / "run", device="cpu")
            rows = []
            for row in compare(run, folder, lines):
                print(f"{name}: {': '.join(row)}", flush=True)  # a whole file takes minutes: what is known is told
                rows.append(row)
        part = f" from line {asked.first:,} on" if asked.first > 1 else ""
        print(table(f"{name}: {len(lines):,} lines of {Path(file).name}{part}", ["what", "beside transformers"], rows))


if __name__ == "__main__":
    main()
