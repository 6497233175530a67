"""Speed of each exported form beside Clearhead itself, on the same model, in one run.

    python benchmarks/export.py                    # greedy translations of a translator of 4 + 4 blocks, 128 wide
    python benchmarks/export.py --run runs/de-en   # the same with a run of yours that translates

Every form translates the same batch of sources greedily, `--new` tokens each, one after the other and in turn. The
table has milliseconds and the ratio to Clearhead's own time: above 1 is faster than Clearhead.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measure import table

import clearhead as ch
from clearhead.decoding import Greedy, Rules, generate
from clearhead.interop.export.ctranslate2_peer import open_with
from clearhead.interop.export.onnx import Loop, OnnxSession, notes
from clearhead.interop.export.samples import draw_samples, token_names
from clearhead.model import presets
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import Translate


def random_run(folder: Path) -> Run:
    """Return a translator with random weights: its speed is that of a trained one."""
    tokenizer = Tokenizer.train(["abcdefghijklmnopqrstuvwxyz 0123456789"], kind="char")
    task = Translate(tokenizers={"source": tokenizer, "target": tokenizer}, context=128)
    return Run(RunFolder(folder), task, task.fitted(presets.tiny(64)).build().eval(), 0)


def forms(run: Run, folder: Path, n_new: int) -> dict:
    """Return a function for each form that translates the samples greedily."""
    samples, target = draw_samples(run, 32), run.task.tokenizers["target"]
    names = token_names(run.task.tokenizers["source"])
    rules = Rules(max_new=n_new, min_new=n_new, end=(target.end,))
    made = {"clearhead": lambda: generate(run.model, samples.encoder, Greedy(), rules=rules, prefix=[[target.start]])}
    words = [[names[i] for i in row] for row in samples.encoder]
    for kind in ("float32", "int8"):
        ch.export(run, to="ctranslate2", path=folder / kind, quantization=kind)
        translator = open_with("Translator", folder / kind, kind)
        made[f"ctranslate2 {kind}"] = lambda translator=translator: translator.translate_batch(
            words, beam_size=1, min_decoding_length=n_new, max_decoding_length=n_new
        )
    ch.export(run, to="onnx", path=folder / "onnx")
    encoder, decoder = (OnnxSession(folder / "onnx" / f"{name}.onnx") for name in ("encoder", "decoder"))
    tokens, lengths = (np.asarray(one) for one in samples.padded("encoder"))
    loop = Loop(decoder, notes(run)["past"])

    def with_onnx() -> None:
        fixed = {"source_lengths": lengths, **encoder({"tokens": tokens, "lengths": lengths})}
        loop.run([[target.start]] * len(tokens), fixed, n_new)

    return {**made, "onnx": with_onnx}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="a run that translates; without it, a random one")
    parser.add_argument("--new", type=int, default=24, help="tokens to write")
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        run = ch.load(asked.run, device="cpu") if asked.run else random_run(Path(place) / "run")
        made = forms(run, Path(place), asked.new)
        taken: dict[str, list[float]] = {name: [] for name in made}
        for round_ in range(asked.rounds + 2):
            for name, call in made.items():
                begin = time.perf_counter()
                call()
                if round_ >= 2:  # the first ones warm up
                    taken[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    rows = [[name, f"{1e3 * one:.1f}", f"{medians['clearhead'] / one:.2f}"] for name, one in medians.items()]
    print(table("Greedy translation of 32 texts", ["form", "milliseconds", "over clearhead"], rows))


if __name__ == "__main__":
    main()
