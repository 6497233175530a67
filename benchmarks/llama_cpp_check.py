"""Hold llama.cpp's greedy tokens to Clearhead's, for a GGUF file that a run was exported to.

    clearhead export runs/poems --to gguf -o poems.gguf
    python benchmarks/llama_cpp_check.py runs/poems poems.gguf/model.gguf

It needs the package llama-cpp-python, a long build, and is therefore no test. F32 files must agree token by token. Of
quantised ones the mean log-probability is compared too, since llama.cpp rounds activations as well.
"""

import argparse
import sys

import clearhead as ch
from clearhead.decoding import Greedy, Rules, generate
from clearhead.interop.export.samples import count_new, count_same, draw_samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("file")
    parser.add_argument("--texts", type=int, default=24)
    asked = parser.parse_args()
    try:
        from llama_cpp import Llama
    except ImportError:
        sys.exit("llama-cpp-python is not installed: pip install llama-cpp-python (it builds llama.cpp)")
    run = ch.load(asked.run, device="cpu")
    n_new, end = count_new(run), run.tokenizer.end
    rows = [row[: run.task.context - n_new] for row in draw_samples(run, asked.texts).decoder]
    made = generate(run.model, rows, Greedy(), rules=Rules(max_new=n_new, end=(end,)))
    ours = [[token for token in one[0].tokens if token != end] for one in made]
    llama = Llama(asked.file, n_ctx=run.task.context, logits_all=False, verbose=False)
    theirs = []
    for row in rows:
        written = []
        for token in llama.generate(row, temp=0.0, top_k=1, repeat_penalty=1.0):
            if token == end or len(written) == n_new:
                break
            written.append(token)
        theirs.append(written)
    texts = [run.tokenizer.decode(row) for row in rows]
    ids = [llama.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
    same_ids = sum(found == run.tokenizer.encode(text) for found, text in zip(ids, texts, strict=True))
    print(f"{sum(a == b for a, b in zip(ours, theirs, strict=True))} of {len(rows)} greedy outputs are identical")
    print(f"{count_same(run, ours, theirs, 1e-2, sources=rows)} with ties of less than 0.01 counted as the same")
    print(f"{same_ids} of {len(texts)} texts have the same ids")


if __name__ == "__main__":
    main()
