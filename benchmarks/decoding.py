"""Decoding beside Hugging Face's `generate` and CTranslate2, in the same run, on the same weights.

    python benchmarks/decoding.py                 # the table of encoder-decoders, and kernelized beside softmax
    python benchmarks/decoding.py --only cells    # one of: cells, growth

Tokens a second of 24 new tokens after 24 of source, as in a translator; every engine has its caches. `ceiling` is the
same with the matrix products alone: what no Python, cache or softmax could take away from.
"""

import argparse
import dataclasses
import gc
import json
import re
import sys
import tempfile
import time

import torch
from measure import interleaved, peak_memory, table
from torch.nn import functional as F

import clearhead as ch
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.decoding.session import Session
from clearhead.model import presets
from clearhead.model.embedding import Embedding
from clearhead.model.outputs import few_rows
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


def engines(name: str, batch: int, beam: int, made) -> dict:
    """Every engine's run of a cell; each returns its tokens."""
    peer, ours, theirs = made
    sources = torch.randint(3, SIZES[name][1] - 1, (batch, N_SOURCE), generator=torch.Generator().manual_seed(0))
    words = [[f"t{token}" for token in row] for row in sources.tolist()]
    rules = Rules(max_new=N_NEW, min_new=N_NEW, end=(END,))
    method = Greedy() if beam == 1 else Beam(width=beam, length_penalty=1.0)

    def clearhead():
        return [found[0].tokens for found in generate(ours, sources, method, rules=rules, prefix=[[START]])]

    def huggingface():
        with torch.no_grad():
            made = peer.generate(
                sources,
                num_beams=beam,
                do_sample=False,
                max_new_tokens=N_NEW,
                min_new_tokens=N_NEW,
                early_stopping="never" if beam > 1 else False,
            )
        return [tuple(row[1:]) for row in made.tolist()]

    def ctranslate2():
        made = theirs.translate_batch(
            words, beam_size=beam, min_decoding_length=N_NEW, max_decoding_length=N_NEW, length_penalty=1.0
        )
        return [tuple(int(token[1:]) for token in found.hypotheses[0]) for found in made]

    return {
        "clearhead": clearhead,
        "huggingface": huggingface,
        "ctranslate2": ctranslate2,
        "ceiling": products(ours, batch, beam),
    }


def products(model, batch: int, beam: int):
    """The matrix products of the cell alone, one after the other as in the model."""
    encoder = [weight for name, weight in model.encoder.named_parameters() if weight.ndim == 2 and "table" not in name]
    crossed, decoder = [], []
    for name, weight in model.decoder.named_parameters():
        if weight.ndim == 2 and "table" not in name:
            (crossed if re.search(r"cross\.(key|value)", name) else decoder).append(weight)
    output = model.decoder.output.table

    def inputs(rows):
        return {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in [*encoder, *decoder]}

    wide, first, narrow = inputs(batch * N_SOURCE), inputs(batch), inputs(batch * beam)

    @torch.no_grad()
    def run():
        for weight in [*encoder, *crossed]:
            F.linear(wide[weight.shape[1]], weight)
        for step in range(N_NEW):
            rows = narrow if step else first
            for weight in decoder:
                F.linear(rows[weight.shape[1]], weight)
            few_rows(rows[output.shape[1]], output)

    return run


def cells(names: list[str], seconds: float) -> None:
    """The table: tokens a second, and the ratios that are asked for."""
    rows = []
    for name in names:
        size, vocabulary = SIZES[name]
        torch.manual_seed(0)
        peer = marian(size, vocabulary)
        with tempfile.TemporaryDirectory() as folder:
            made = peer, clearhead_of(peer, size, vocabulary), ctranslate2_of(peer, vocabulary, folder, "float32")
            for batch, beam in CELLS:
                runs = engines(name, batch, beam, made)
                same = agreement(runs)
                taken = interleaved(runs, seconds=seconds)
                speed = {engine: batch * N_NEW / time for engine, time in taken.items()}
                rows.append(
                    [
                        name,
                        f"{batch}, {beam}",
                        *(round(speed[engine]) for engine in runs),
                        f"{speed['clearhead'] / speed['huggingface']:.2f}",
                        f"{speed['clearhead'] / speed['ctranslate2']:.2f}",
                        f"{speed['clearhead'] / speed['ceiling']:.0%}",
                        same,
                    ]
                )
                print(rows[-1], file=sys.stderr, flush=True)
        gc.collect()
    header = "model|batch, beam|clearhead|HF|CT2|products alone|over HF|over CT2|of the products|same tokens"
    print(table("Decoding, tokens a second, two CPU cores, float32", header.split("|"), rows))


def agreement(runs) -> str:
    """How many sentences the peers translate exactly as we do."""
    ours, hf, ct2 = (runs[name]() for name in ("clearhead", "huggingface", "ctranslate2"))
    return f"{share(ours, hf)} HF, {share(ours, ct2)} CT2"


def share(ours, theirs) -> str:
    return f"{sum(a == b for a, b in zip(ours, theirs, strict=True))}/{len(ours)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["cells", "growth"])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seconds", type=float, default=20.0, help="for each cell")
    asked = parser.parse_args()
    if asked.only != "growth":
        cells(asked.sizes, asked.seconds)


if __name__ == "__main__":
    main()
