"""Trials of what a small classifier gains from: tokens, n-grams at the input, word dropout, R-Drop, mixup, pooling.

A Transformer of its own, in plain PyTorch, so that a variant is an entry of a dictionary and no change to the package.
Every trial is one corpus, one number of lines, one seed; results are lines of JSON. Data are those of docs/results.md,
gzipped, in the folders `sst2` and `ag_news_small` below `--data`.

    python benchmarks/classify_trials.py --data DATA --out trials.jsonl --workers 12 --seeds 1,2,3 --minutes 9
    python benchmarks/classify_trials.py --data DATA --out trials.jsonl --workers 4 --minutes 8 --only plan
"""

import argparse
import gzip
import json
import math
import multiprocessing as mp
import random
import re
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.text.validation_split import spread

BASE: dict[str, Any] = {
    "tokens": "bpe",
    "vocabulary": 0,
    "lower": True,
    "ngrams": (),
    "buckets": 1 << 17,
    "ngram_start": 0.0,
    "d": 128,
    "layers": 2,
    "heads": 4,
    "ff": 256,
    "position": "sine",
    "start": 1.0,
    "embedding_dropout": 0.4,
    "dropout": 0.4,
    "word_dropout": 0.0,
    "r_drop": 2.0,
    "mixup": 0.0,
    "smoothing": 0.1,
    "ema": 0.999,
    "pool": "mean",
    "lr": 1e-3,
    "decay": 0.05,
    "steps": 0,
    "epochs": 4,
    "least": 200,
    "batch": 4096,
    "wide": False,
    "conv": 0,
    "pool_first": False,
    "table_rate": 1.0,
    "scaled": False,
    "looks": 10,
    "ngram_logits": None,  # or the probability that a text is without the wide logits in training
}
"""The default of 2026-11-15, and everything that a variant may change."""
NG = {"ngrams": (2, 3), "epochs": 8, "least": 400}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "base-e8": {"epochs": 8, "least": 400},
    "base-e16": {"epochs": 16, "least": 800},
    "word": {"tokens": "word", "epochs": 8, "least": 400},
    "split": {"tokens": "split", "epochs": 8, "least": 400},
    "split-v1": {"tokens": "split", "epochs": 8, "least": 400, "vocabulary": -1},
    "split-v4": {"tokens": "split", "epochs": 8, "least": 400, "vocabulary": -4},
    "ng2": {"tokens": "split", **NG, "ngrams": (2,)},
    "ng23": {"tokens": "split", **NG},
    "ng234": {"tokens": "split", **NG, "ngrams": (2, 3, 4)},
    "ng23-v1": {"tokens": "split", **NG, "vocabulary": -1},
    "ng23-v4": {"tokens": "split", **NG, "vocabulary": -4},
    "ng23-word": {"tokens": "word", **NG},
    "ng23-nopos": {"tokens": "split", **NG, "position": "none"},
    "ng23-small": {"tokens": "split", **NG, "start": 0.1, "position": "none"},
    "ng23-wd2": {"tokens": "split", **NG, "word_dropout": 0.2},
    "ng23-wd4": {"tokens": "split", **NG, "word_dropout": 0.4},
    "ng23-r0": {"tokens": "split", **NG, "r_drop": 0.0},
    "ng23-r5": {"tokens": "split", **NG, "r_drop": 5.0},
    "ng23-mix": {"tokens": "split", **NG, "mixup": 0.4},
    "ng23-d2": {"tokens": "split", **NG, "dropout": 0.2, "embedding_dropout": 0.2},
    "ng23-d5": {"tokens": "split", **NG, "dropout": 0.5, "embedding_dropout": 0.6},
    "ng23-max": {"tokens": "split", **NG, "pool": "meanmax"},
    "ng23-L1": {"tokens": "split", **NG, "layers": 1},
    "ng23-d64": {"tokens": "split", **NG, "d": 64, "ff": 128},
    "ng23-d256": {"tokens": "split", **NG, "d": 256, "ff": 512},
    "ng23-lr3": {"tokens": "split", **NG, "lr": 3e-3},
    "ng23-e16": {"tokens": "split", **NG, "epochs": 16, "least": 800},
    "ng23-e4": {"tokens": "split", **NG, "epochs": 4, "least": 200},
    "ng23-dec": {"tokens": "split", **NG, "decay": 0.3},
    "ng23-ema0": {"tokens": "split", **NG, "ema": 0.0},
    "ng23-wide": {"tokens": "split", **NG, "wide": True, "ngrams": (1, 2, 3)},
    "conv3": {"tokens": "split", "epochs": 8, "least": 400, "conv": 3},
    "ng23-conv3": {"tokens": "split", **NG, "conv": 3},
}
SMALL = {"tokens": "split", "start": 0.02, "position": "rotary", "epochs": 8, "least": 400, "buckets": 1 << 15}
VARIANTS |= {
    f"s-{name}": SMALL | change
    for name, change in {
        "rope": {},
        "none": {"position": "none"},
        "ng2": {"ngrams": (2,)},
        "ng23": {"ngrams": (2, 3)},
        "ng23-none": {"ngrams": (2, 3), "position": "none"},
        "word": {"tokens": "word"},
        "word-ng2": {"tokens": "word", "ngrams": (2,)},
        "wd2": {"word_dropout": 0.2},
        "ng23-wd3": {"ngrams": (2, 3), "word_dropout": 0.3},
        "r0": {"r_drop": 0.0},
        "r5": {"r_drop": 5.0},
        "d2": {"dropout": 0.2, "embedding_dropout": 0.2},
        "d6": {"dropout": 0.5, "embedding_dropout": 0.6},
        "lr3": {"lr": 3e-3},
        "lr03": {"lr": 3e-4},
        "L1": {"layers": 1},
        "L1-ng23": {"layers": 1, "ngrams": (2, 3)},
        "e4": {"epochs": 4, "least": 200},
        "e16": {"epochs": 16, "least": 800},
        "pre": {"pool_first": "norm"},
        "pre0-ng23": {"pool_first": "plain", "ngrams": (2, 3)},
        "v4": {"vocabulary": -4},
        "max": {"pool": "meanmax"},
        "mix": {"mixup": 0.4},
        "conv3": {"conv": 3},
        "word-wd3": {"tokens": "word", "word_dropout": 0.3},
        "trate": {"table_rate": 4.0},
        "d64": {"d": 64, "ff": 128},
    }.items()
}
CLEARHEAD = {
    "tokens": "clearhead",
    "scaled": True,
    "epochs": 4,
    "least": 800,
    "batch": 0,
    "layers": 0,
    "looks": 5,
}
"""Clearhead's default of 2026-11-16: `batch` and `layers` 0 are those of `Classify.default_recipe` for the text."""
NARROW_DROPOUT = {"dropout": 0.2, "embedding_dropout": 0.2}
VARIANTS |= {
    f"c{name}": CLEARHEAD | change
    for name, change in {
        "": {},
        "-wide5": {"ngram_logits": 0.5},
        "-wide0": {"ngram_logits": 0.0},
        "-wide10": {"ngram_logits": 1.0},
        "-ng23": {"ngrams": (2, 3)},
        "-wd2": {"word_dropout": 0.2},
        "-d2": NARROW_DROPOUT,
        "-L1": {"layers": 1},
        "-e8": {"epochs": 8, "least": 1600},
        "-r0": {"r_drop": 0.0},
        "-wide5-d2": {"ngram_logits": 0.5, **NARROW_DROPOUT},
        "-wide5-e8": {"ngram_logits": 0.5, "epochs": 8, "least": 1600},
        "-wide5-wd2": {"ngram_logits": 0.5, "word_dropout": 0.2},
        "-wide5-r0": {"ngram_logits": 0.5, "r_drop": 0.0},
        "-wide10-d2": {"ngram_logits": 1.0, **NARROW_DROPOUT},
        "-wide10-ng23": {"ngram_logits": 1.0, "ngrams": (2, 3)},
        "-wide10-wd2": {"ngram_logits": 1.0, "word_dropout": 0.2},
        "-wide10-d2-e8": {"ngram_logits": 1.0, **NARROW_DROPOUT, "epochs": 8, "least": 1600},
        "-wide8": {"ngram_logits": 0.8},
    }.items()
}
VARIANTS["line"] = {"tokens": "line"}
"""The linear model that `clearhead train` prints as the line to beat, on the same training records."""
ALPHAS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors of the wide logits that the last weights are tried with: accuracy and loss on dev and test records."""
SIZES = (("sst2", 500), ("ag", 500), ("sst2", 5000), ("ag", 0), ("sst2", 0))
FIRST = ("line", "c-wide10", "c-wide5")
SECOND = (
    "c-wide10-d2",
    "c-wide0",
    "c-wide5-d2",
    "c-ng23",
    "c-wide10-ng23",
    "c-wd2",
    "c-d2",
    "c-L1",
    "c-e8",
    "c-r0",
    "c",
)
THIRD = ("c-wide10-d2-e8", "c-wide5-e8", "c-wide10-wd2", "c-wide5-wd2", "c-wide5-r0", "c-wide8")
PLAN = [
    [variant, name, lines, seed]
    for variants, seeds in ((FIRST, (1,)), (SECOND, (1,)), (FIRST, (2, 3)), (THIRD, (1,)), (SECOND[:4], (2, 3)))
    for seed in seeds
    for variant in variants
    for name, lines in (("ag", 0), ("sst2", 0), ("ag", 500), ("sst2", 500), ("sst2", 5000))
]
"""The trials of 2026-11-16 with Clearhead's tokens and scaled embeddings, most important first."""
WORD = re.compile(r"\w+|[^\w\s]")


def read_table(path: Path, *, header: bool) -> list[tuple[str, str]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [(row[0].strip(), row[1]) for row in rows[1 if header else 0 :]]


def read_corpus(data: Path, name: str, lines: int, seed: int) -> tuple[list[tuple[str, str]], ...]:
    """Return training, dev and test records: one in twenty is held out, drawn by hash, 1,000 at most."""
    if name == "sst2":
        train, test = (read_table(data / "sst2" / f"{part}.tsv.gz", header=True) for part in ("train", "test"))
    elif name != "ag":  # a table of benchmarks/budget_texts.py
        train, test = (read_table(data / f"{name}-{part}.tsv", header=True) for part in ("train", "test"))
    else:
        train, test = (read_table(data / "ag_news_small" / f"{part}.tsv.gz", header=False) for part in ("dev", "test"))
    if lines:
        train = random.Random(seed).sample(train, lines)
    held_out = set(spread(len(train), min(1000, max(1, len(train) // 20))))
    dev = [one for i, one in enumerate(train) if i in held_out]
    return [one for i, one in enumerate(train) if i not in held_out], dev, test


class Tokens:
    """Text to ids: words, or sub-words with or without the signs split off. 0 is padding, 1 unknown."""

    def __init__(self, texts: list[str], option: dict[str, Any]) -> None:
        self.kind, self.lower = option["tokens"], option["lower"]
        size = option["vocabulary"]
        n_bytes = sum(len(text.encode()) for text in texts)
        usual = min(max(64 * round(4200 * (n_bytes / 1e6) ** 0.6 / 64), 320), 32_000)
        size = usual * -size if size < 0 else size or usual
        if size == usual and option["vocabulary"] == -1:
            size = max(1000, usual // 2)
        if self.kind == "clearhead":
            from clearhead.text.tokenizer import Tokenizer
            from clearhead.text.vocabulary_size import suggested_size

            self.made = Tokenizer.train(iter(texts), kind="metaspace", size=4 * suggested_size(n_bytes), lower=True)
            self.size = self.made.vocabulary
            return
        if self.kind == "word":
            counts: dict[str, int] = {}
            for text in texts:
                for word in WORD.findall(text.lower()):
                    counts[word] = counts.get(word, 0) + 1
            known = sorted((word for word in counts if counts[word] > 1), key=lambda word: -counts[word])[:30_000]
            self.ids = {word: i + 2 for i, word in enumerate(known)}
            self.size = len(self.ids) + 2
            return
        import tokenizers
        from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Prepend("▁")])
        parts: list[Any] = [pre_tokenizers.Metaspace("▁", prepend_scheme="never")]
        if self.kind == "split":
            parts.append(pre_tokenizers.Split(Regex(r"▁?\p{L}+|▁?\p{N}{1,3}|▁?[^\s▁\p{L}\p{N}]+|▁"), "isolated"))
        made.pre_tokenizer = pre_tokenizers.Sequence(parts)
        trainer = trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, special_tokens=["<pad>", "<unk>"], show_progress=False
        )
        made.train_from_iterator(texts, trainer)
        self.made, self.size = made, made.get_vocab_size()

    def encode(self, texts: list[str], most: int = 255) -> list[list[int]]:
        if self.kind == "word":
            return [[self.ids.get(word, 1) for word in WORD.findall(text.lower())][:most] or [1] for text in texts]
        if self.kind == "clearhead":
            start = self.made.start
            return [[start, *row][:most] for row in self.made.encode_batch(texts)]
        return [one.ids[:most] or [1] for one in self.made.encode_batch(texts)]


class Block(nn.Module):
    def __init__(self, o: dict[str, Any]) -> None:
        super().__init__()
        d = o["d"]
        self.heads, self.p, self.rotary = o["heads"], o["dropout"], o["position"] == "rotary"
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, o["ff"]), nn.Linear(o["ff"], d)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = x + F.dropout(self.out(a.transpose(1, 2).reshape(b, n, d)), self.p, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)))), self.p, self.training)


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * torch.exp(
        -math.log(10_000) * torch.arange(half, device=x.device) / half
    )
    a, b = x.split(half, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Classifier(nn.Module):
    def __init__(self, o: dict[str, Any], size: int, classes: int) -> None:
        super().__init__()
        d = o["d"]
        self.o = o
        self.ngram_logits: nn.Module | None = None
        self.alpha = 1.0
        # Clearhead's `Embedding(scaled=True)`: a table that is √d times smaller moves √d times further in a step.
        self.factor = d**0.5 if o["scaled"] else 1.0
        self.table = nn.Parameter(torch.randn(size, d) * (o["start"] / self.factor))
        self.grams = nn.ParameterList(
            nn.Parameter(torch.randn(o["buckets"], d) * o["ngram_start"]) for n in o["ngrams"] if n > 1
        )
        self.wide = (
            nn.ParameterList(nn.Parameter(torch.zeros(o["buckets"], classes)) for _ in o["ngrams"])
            if o["wide"]
            else None
        )
        self.conv = nn.Conv1d(d, d, o["conv"], padding=o["conv"] // 2) if o["conv"] else None
        self.first = nn.Parameter(torch.randn(d) * 0.02)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o["layers"]))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(2 * d if o["pool"] == "meanmax" else d, classes)
        half = torch.exp(-math.log(10_000) * torch.arange(0, d, 2) / d)
        angle = torch.arange(257)[:, None] * half
        self.register_buffer("sine", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

    def hashes(self, t: Tensor) -> list[Tensor]:
        found, h, shifted = [], t, t
        for n in self.o["ngrams"]:
            if n == 1:
                found.append(t % self.o["buckets"])
                continue
            h, shifted = t, t
            for _ in range(n - 1):
                shifted = F.pad(shifted, (1, 0))[:, :-1]
                h = (h * 1_000_003 + shifted * 7_919 + n) % 2_147_483_647
            found.append(h % self.o["buckets"])
        return found

    def forward(self, t: Tensor, mixed: tuple[Tensor, float] | None = None) -> Tensor:
        o, mask = self.o, t > 0
        if self.training and o["word_dropout"]:
            t = torch.where((torch.rand(t.shape, device=t.device) < o["word_dropout"]) & mask, 1, t)
        x = F.embedding(t, self.table) * self.factor
        hashed = self.hashes(t) if o["ngrams"] else []
        for table, h in zip(self.grams, [h for h, n in zip(hashed, o["ngrams"], strict=True) if n > 1], strict=True):
            x = x + F.embedding(h, table) * self.factor
        if o["position"] == "sine":
            x = x + self.sine[: t.shape[1]]
        x = F.dropout(x, o["embedding_dropout"], self.training)
        if self.conv is not None:
            x = x + F.gelu(self.conv((x * mask[..., None]).transpose(1, 2)).transpose(1, 2))
        for block in self.blocks:
            x = block(x, mask)
        x = (x if o["pool_first"] else self.norm(x)) * mask[..., None]
        pooled = x.sum(1) / mask.sum(1, keepdim=True)
        if o["pool_first"]:
            pooled = self.norm(pooled) if o["pool_first"] == "norm" else pooled
        if o["pool"] == "meanmax":
            pooled = torch.cat([pooled, x.masked_fill(~mask[..., None], -1e4).amax(1)], -1)
        if mixed is not None:
            other, share = mixed
            pooled = share * pooled + (1 - share) * pooled[other]
        logits = self.out(pooled)
        if self.wide is not None:
            keep = mask.float()
            if self.training:
                keep = F.dropout(keep, 0.3)
            for table, h in zip(self.wide, hashed, strict=True):
                logits = logits + (F.embedding(h, table) * keep[..., None]).sum(1) / mask.sum(1, keepdim=True).sqrt()
        if self.ngram_logits is not None:
            with torch.no_grad():
                wide = self.alpha * self.ngram_logits(t, mask.sum(1))
            if self.training:
                wide = wide * (torch.rand(len(t), 1, device=t.device) >= o["ngram_logits"])
            logits = logits + wide
        return logits


def make_batches(rows: list[list[int]], tokens: int, shuffle: random.Random | None) -> list[list[int]]:
    order = list(range(len(rows)))
    if shuffle:
        shuffle.shuffle(order)
        order.sort(key=lambda i: len(rows[i]) + shuffle.random() * 4)
    else:
        order.sort(key=lambda i: len(rows[i]))
    found: list[list[int]] = []
    batch: list[int] = []
    for i in order:
        if batch and len(rows[i]) * (len(batch) + 1) > tokens:
            found.append(batch)
            batch = []
        batch.append(i)
    found.append(batch)
    if shuffle:
        shuffle.shuffle(found)
    return found


def pad(rows: list[list[int]], which: list[int], device: str) -> Tensor:
    width = max(len(rows[i]) for i in which)
    return torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in which]).to(device, non_blocking=True)


def loss_of(model: Classifier, t: Tensor, wanted: Tensor, o: dict[str, Any], chance: random.Random) -> Tensor:
    count = int(model.out.out_features)
    target = F.one_hot(wanted, count).float() * (1 - o["smoothing"]) + o["smoothing"] / count
    if o["mixup"]:
        share = chance.betavariate(o["mixup"], o["mixup"])
        other = torch.randperm(len(t), device=t.device)
        logits = model(t, (other, share))
        target = share * target + (1 - share) * target[other]
        return -(target * logits.log_softmax(-1)).sum(-1).mean()
    if not o["r_drop"]:
        return -(target * model(t).log_softmax(-1)).sum(-1).mean()
    p, q = model(torch.cat([t, t])).log_softmax(-1).chunk(2)
    nll = -(target * (p + q)).sum(-1).mean() / 2
    return nll + o["r_drop"] / 4 * ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()


@torch.no_grad()
def assess(model: Classifier, rows: list[list[int]], wanted: list[int], device: str) -> tuple[float, float]:
    model.eval()
    right, nats = 0, 0.0
    for which in make_batches(rows, 32_768, None):
        logits = model(pad(rows, which, device))
        truth = torch.tensor([wanted[i] for i in which], device=device)
        right += int((logits.argmax(-1) == truth).sum())
        nats += float(F.cross_entropy(logits, truth, reduction="sum"))
    model.train()
    return right / len(rows), nats / len(rows)


def svm_scores(texts: list[str], labels: list[str], others: list[str], truths: list[str]) -> dict[str, float]:
    """Return the scores of scikit-learn's linear SVM on word pairs and letters, which is the line to beat."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.svm import LinearSVC

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    answers = make_pipeline(make_union(words, letters), LinearSVC()).fit(texts, labels).predict(others)
    return {
        "accuracy": round(accuracy_score(truths, answers), 4),
        "macro_f1": round(f1_score(truths, answers, average="macro"), 4),
    }


def run_line(parts: list[list[tuple[str, str]]]) -> dict[str, Any]:
    train, dev, test = (tuple(map(list, zip(*part, strict=True))) for part in parts)
    return {"test_last": svm_scores(*train, *test)["accuracy"], "dev_last": svm_scores(*train, *dev)["accuracy"]}


def add_wide_part(model: Classifier, tokens: Tokens, rows: list[list[int]], wanted: list[int]) -> None:
    from clearhead.training.wide import fit_ngrams, letters_of

    fitted = fit_ngrams(rows, torch.tensor(wanted), letters_of(tokens.made), model.out.out_features)
    model.ngram_logits = fitted.features.to_part(fitted.weights[0])


def run_trial(data: Path, name: str, lines: int, seed: int, *, o: dict[str, Any], device: str) -> dict[str, Any]:
    started = time.perf_counter()
    train, dev, test = read_corpus(data, name, lines, seed)
    labels = sorted({label for _, label in train})
    if o["tokens"] == "line":
        return run_line([train, dev, test])
    if o["tokens"] == "clearhead":
        n_bytes = sum(len(text.encode()) for text, _ in train)
        fitted = min(4096, max(512, 1 << round(math.log2(max(n_bytes / 4 / 32, 1)))))
        o = o | {"batch": o["batch"] or fitted, "layers": o["layers"] or (1 if n_bytes < 200_000 else 2)}
    tokens = Tokens([text for text, _ in train], o)
    parts = [
        (tokens.encode([text for text, _ in part]), [labels.index(label) for _, label in part])
        for part in (train, dev, test)
    ]
    torch.manual_seed(seed)
    chance = random.Random(seed)
    model = Classifier(o, tokens.size, len(labels))
    if o["ngram_logits"] is not None:
        add_wide_part(model, tokens, *parts[0])
    model = model.to(device)
    tables = [model.table, *model.grams]
    learned = [one for one in model.parameters() if one.requires_grad]
    decayed = [one for one in learned if one.ndim > 1 and not any(one is table for table in tables)]
    plain = [one for one in learned if one.ndim < 2]
    optimiser = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": o["decay"], "times": 1.0},
            {"params": tables, "weight_decay": o["decay"], "times": o["table_rate"]},
            {"params": plain, "weight_decay": 0.0, "times": 1.0},
        ],
        lr=o["lr"],
        betas=(0.9, 0.98),
        fused=True,
    )
    rows, wanted = parts[0]
    n_tokens = sum(map(len, rows))
    steps = o["steps"] or max(o["least"], int(o["epochs"] * n_tokens / o["batch"]))
    average = [one.detach().clone() for one in model.parameters()]
    queue: list[list[int]] = []
    found: list[tuple[int, float, float, float]] = []
    for step in range(1, steps + 1):
        if not queue:
            queue = make_batches(
                rows, o["batch"] if o["tokens"] == "clearhead" else min(o["batch"], max(512, n_tokens // 8)), chance
            )
        which = queue.pop()
        rate = min(1.0, step / (0.1 * steps)) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = o["lr"] * rate * group["times"]
        loss = loss_of(model, pad(rows, which, device), torch.tensor([wanted[i] for i in which]).to(device), o, chance)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        weight = max(1 / (1 + step / 10), 1 - o["ema"]) if o["ema"] else 1.0
        with torch.no_grad():
            torch._foreach_lerp_(average, [one.detach() for one in model.parameters()], weight)
        if step % max(1, steps // o["looks"]) == 0 or step == steps:
            kept = [one.detach().clone() for one in model.parameters()]
            with torch.no_grad():
                torch._foreach_copy_([one.data for one in model.parameters()], average)
            good, nats = assess(model, *parts[1], device)
            on_test, _ = assess(model, *parts[2], device)
            with torch.no_grad():
                torch._foreach_copy_([one.data for one in model.parameters()], kept)
            found.append((step, good, nats, on_test))
    with torch.no_grad():
        torch._foreach_copy_([one.data for one in model.parameters()], average)
    mixed = {}
    for alpha in ALPHAS if model.ngram_logits is not None else ():
        model.alpha = alpha
        mixed[alpha] = [round(one, 4) for part in parts[1:] for one in assess(model, *part, device)]
    best = max(found, key=lambda one: (one[1], one[0]))
    least = min(found, key=lambda one: one[2])
    return {
        "test_at_best": round(best[3], 4),
        "test_at_least_loss": round(least[3], 4),
        "test_last": round(found[-1][3], 4),
        "dev_best": round(best[1], 4),
        "dev_last": round(found[-1][1], 4),
        "alphas": mixed,
        "curve": [round(one[3], 4) for one in found],
        "vocabulary": tokens.size,
        "steps": steps,
        "train_tokens": n_tokens,
        "seconds": round(time.perf_counter() - started, 1),
    }


def work(jobs: Any, out: Any, data: Path, ends: float, device: str) -> None:
    torch.set_num_threads(1)
    while time.time() < ends:
        try:
            variant, name, lines, seed, option = jobs.get(timeout=1)
        except Exception:  # the queue is empty
            return
        try:
            made = run_trial(data, name, lines, seed, o=option, device=device)
        except Exception as error:  # a trial that fails is a result
            made = {"error": f"{type(error).__name__}: {error}"[:300]}
        out.put({"variant": variant, "corpus": name, "lines": lines, "seed": seed, **made})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--sizes", default=",".join(f"{name}:{lines}" for name, lines in SIZES))
    parser.add_argument("--only", help="JSON: a list of [variant, corpus, lines, seed] in order, or `plan`")
    parser.add_argument("--extra", default="{}", help="JSON: more variants, by name")
    given = parser.parse_args()
    variants = VARIANTS | json.loads(given.extra)
    sizes = [(name, int(lines)) for name, lines in (one.split(":") for one in given.sizes.split(","))]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context = mp.get_context("spawn")
    jobs, out = context.Queue(), context.Queue()
    todo = [
        (variant, name, lines, seed, BASE | variants[variant])
        for seed in map(int, given.seeds.split(","))
        for name, lines in sizes
        for variant in (*variants,)
        if variant in given.variants.split(",") or variant in json.loads(given.extra)
    ]
    if given.only:
        todo = [(*job, BASE | variants[job[0]]) for job in (PLAN if given.only == "plan" else json.loads(given.only))]
    for job in todo:
        jobs.put(job)
    ends = time.time() + 60 * given.minutes
    crew = [context.Process(target=work, args=(jobs, out, given.data, ends, device)) for _ in range(given.workers)]
    for one in crew:
        one.start()
    done = 0
    with given.out.open("a") as file:
        while done < len(todo) and (any(one.is_alive() for one in crew) or not out.empty()):
            try:
                found = out.get(timeout=2)
            except Exception:  # nothing yet
                continue
            done += 1
            file.write(json.dumps(found) + "\n")
            file.flush()
    for one in crew:
        one.join(timeout=20)
        if one.is_alive():
            one.terminate()
    print(f"{done} of {len(todo)} trials")


if __name__ == "__main__":
    main()
