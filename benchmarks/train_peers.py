"""Train small models with `transformers` alone, and save them as it saves: sources nobody here wrote, for `import`.

    python benchmarks/train_peers.py gpt2 --data DATA --out MODELS/gpt2 --seconds 120

GPT-2 and a Llama with grouped heads learn English of Europarl, BERT fills blanks in it, Marian translates Multi30k from
German to English. Tokenizers are trained by `tokenizers`. Nothing of Clearhead is imported, so that what is compared
afterwards (benchmarks/trained_peers.py) has no common cause.
"""

import argparse
import gzip
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers.decoders import ByteLevel, WordPiece
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

VOCABULARY = 4096
WIDTH = 192
IGNORED = -100
Batch = dict[str, torch.Tensor]


def read_lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def byte_level(lines: list[str], special: list[str]) -> Tokenizer:
    """Return a byte-level BPE, as GPT-2 has."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    )
    return made


def word_piece(lines: list[str]) -> Tokenizer:
    """Return an uncased WordPiece, as BERT has."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def packed(tokenizer: PreTrainedTokenizerFast, lines: list[str], context: int, rows: int) -> Iterator[Batch]:
    """Yield random pieces of the text, its lines joined by the end token."""
    ids = [
        i for piece in tokenizer(lines, add_special_tokens=False).input_ids for i in (*piece, tokenizer.eos_token_id)
    ]
    text = torch.tensor(ids)
    while True:
        starts = torch.randint(len(text) - context, (rows, 1))
        window = text[starts + torch.arange(context)]
        yield {"input_ids": window, "labels": window}


def blanks(tokenizer: PreTrainedTokenizerFast, lines: list[str], context: int, rows: int) -> Iterator[Batch]:
    """Yield lines with 15 % of their tokens to be filled in: 80 % masked, 10 % another token, 10 % as they are."""
    made = tokenizer(lines, truncation=True, max_length=context, padding="max_length", return_tensors="pt")
    fixed = torch.tensor(tokenizer.all_special_ids)
    while True:
        chosen = torch.randint(len(lines), (rows,))
        ids, seen = made.input_ids[chosen], made.attention_mask[chosen]
        asked = (torch.rand(ids.shape) < 0.15) & ~torch.isin(ids, fixed)
        draw = torch.rand(ids.shape)
        shown = torch.where(asked & (draw < 0.8), tokenizer.mask_token_id, ids)
        shown = torch.where(asked & (draw >= 0.9), torch.randint(5, VOCABULARY, ids.shape), shown)
        yield {"input_ids": shown, "attention_mask": seen, "labels": torch.where(asked, ids, IGNORED)}


def pairs(tokenizer: PreTrainedTokenizerFast, source: list[str], target: list[str], rows: int) -> Iterator[Batch]:
    """Yield sentences and their translations, each closed by the end token."""
    options = {"truncation": True, "max_length": 96, "padding": "max_length", "return_tensors": "pt"}
    x, y = tokenizer(source, **options), tokenizer(target, **options)
    while True:
        chosen = torch.randint(len(source), (rows,))
        seen, labels = x.attention_mask[chosen], y.input_ids[chosen]
        long, wide = int(seen.sum(1).max()), int(y.attention_mask[chosen].sum(1).max())
        labels = labels.masked_fill(y.attention_mask[chosen] == 0, IGNORED)
        yield {"input_ids": x.input_ids[chosen, :long], "attention_mask": seen[:, :long], "labels": labels[:, :wide]}


def train(model: PreTrainedModel, batches: Iterator[Batch], seconds: float, peak: float) -> None:
    """Train by a plain loop: AdamW, the rate up in a twentieth of the time and down to nothing by a cosine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    start, step = time.monotonic(), 0
    while (share := (time.monotonic() - start) / seconds) < 1:
        rate = peak * min(share / 0.05, 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = {name: value.to(device) for name, value in next(batches).items()}
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 500 == 0:
            print(json.dumps({"step": step, "seconds": time.monotonic() - start, "loss": loss.item()}), flush=True)
    model.cpu().eval()


def train_gpt2(data: Path, seconds: float) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    lines = read_lines(data / "europarl_de_en/train.en.gz")
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(lines, [end]), bos_token=end, eos_token=end, unk_token=end
    )
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=256, n_embd=WIDTH, n_layer=6, n_head=6, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    train(model, packed(tokenizer, lines, 256, 64), seconds, 2e-3)
    return model, tokenizer


def train_llama(data: Path, seconds: float) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    lines = read_lines(data / "europarl_de_en/train.en.gz")
    made = byte_level(lines, ["<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    train(model, packed(tokenizer, lines, 256, 64), seconds, 2e-3)
    return model, tokenizer


def train_bert(data: Path, seconds: float) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    lines = read_lines(data / "europarl_de_en/train.en.gz")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_piece(lines),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=128,
    )
    model = BertForMaskedLM(config)
    train(model, blanks(tokenizer, lines[:100_000], 64, 256), seconds, 1e-3)
    return model, tokenizer


def train_marian(data: Path, seconds: float) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    source, target = (read_lines(data / f"multi30k/train.{language}.gz") for language in ("de", "en"))
    made = byte_level(source + target, ["<pad>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        max_position_embeddings=128,
        dropout=0.2,
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    train(model, pairs(tokenizer, source, target, 256), seconds, 1e-3)
    return model, tokenizer


KINDS: dict[str, Callable[[Path, float], tuple[PreTrainedModel, PreTrainedTokenizerFast]]] = {
    "gpt2": train_gpt2,
    "llama": train_llama,
    "bert": train_bert,
    "marian": train_marian,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    torch.manual_seed(1)
    model, tokenizer = KINDS[args.kind](args.data, args.seconds)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
