"""Find the induction heads of a model of text: the table of docs/induction-heads.md.

    python benchmarks/induction_in_text.py train TEXT MODEL     # with transformers alone; TEXT may be .gz
    python benchmarks/induction_in_text.py measure MODEL        # any decoder that `clearhead import` takes

`train` trains a Llama of four layers on passages of a text, each repeated until its row is full. `measure` imports the
model, reads its heads on random tokens of its vocabulary that come twice, and ablates those that the readings name.
"""

import argparse
import gzip
import math
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import clearhead as ch
from clearhead.model import Decoder
from clearhead.tracing import recording, trace_model
from clearhead.tracing.head_metrics import readings

VOCABULARY, ROW, BATCH = 512, 64, 32
SHORTEST, LONGEST = 8, 28
"""The tokens of a passage that is repeated in training."""
HALF, TEXTS, READ = 24, 200, 20
"""Of the test: random tokens of a half, how many texts are copied, and how many of them the heads are read on."""
LEAST = 0.2
"""The induction reading from which on a head is called an induction head here."""


def train(text: Path, out: Path, *, steps: int, seed: int) -> None:
    """Train a Llama of four layers and three heads by a plain loop, and save it as `transformers` does."""
    open_text = gzip.open if text.suffix == ".gz" else open
    with open_text(text, "rt", encoding="utf-8") as file:
        whole = file.read()
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    pieces.train_from_iterator([whole], trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False))
    ids = torch.tensor(pieces.encode(whole).ids)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=pieces.get_vocab_size(),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=100)
    since = time.process_time()
    for step in range(1, steps + 1):
        period = torch.randint(SHORTEST, LONGEST + 1, (BATCH, 1))
        rows = ids[torch.randint(len(ids) - ROW, (BATCH, 1)) + torch.arange(ROW) % period]
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}, loss {loss.item():.2f}, {time.process_time() - since:.0f} s", flush=True)
    model.save_pretrained(out)
    PreTrainedTokenizerFast(tokenizer_object=pieces).save_pretrained(out)


def off(layer: int, head: int) -> ch.Edit:
    return ch.Edit(at=f"decoder.{layer}.attention", step="context", head=head, times=0.0)


@torch.no_grad()
def copied(model: torch.nn.Module, twice: torch.Tensor, heads: list[tuple[int, int]]) -> tuple[float, ...]:
    """Return, without some heads: the share of right tokens in each half, and the right one's probability in each.

    A probability is the geometric mean over the places.
    """
    with recording(model, [off(*head) for head in heads]):
        log_probs = model(twice)[:, :-1].log_softmax(-1)
    right = log_probs.argmax(-1) == twice[:, 1:]
    given = log_probs.gather(-1, twice[:, 1:, None]).squeeze(-1)
    halves = (slice(None, HALF - 1), slice(HALF, None))
    hits = [right[:, half].float().mean().item() for half in halves]
    return *hits, *(math.exp(given[:, half].mean().item()) for half in halves)


def measure(source: Path, *, seed: int) -> None:
    """Print the readings of each head, and what is copied without the ones they name and without each other one."""
    with tempfile.TemporaryDirectory() as place:
        run = ch.import_model(source, Path(place) / "run")
    model = run.model
    if not isinstance(model, Decoder):
        raise SystemExit(f"{source} is no decoder: it has nothing to go on with")
    draw = torch.Generator().manual_seed(seed)
    half = torch.randint(model.spec.vocabulary, (TEXTS, HALF), generator=draw)
    twice = torch.cat([half, half], 1)
    traces = [trace_model(model, ids.unsqueeze(0)) for ids in twice[:READ]]
    found = [[[(r.previous, r.induction) for r in readings(t, layer.attention)] for layer in t.decoder] for t in traces]
    previous, induction = torch.tensor(found).mean(0).unbind(-1)
    print("previous\n", previous.numpy().round(2), "\ninduction\n", induction.numpy().round(2))
    every = [(layer, head) for layer in range(len(induction)) for head in range(induction.shape[1])]
    named = [one for one in every if induction[one] >= LEAST]
    named.sort(key=lambda one: -induction[one])
    before = max(every, key=lambda one: previous[one])
    rest = [one for one in every if one not in named and one != before]
    show("whole", copied(model, twice, []))
    for count in range(1, len(named) + 1):
        show(f"without {named[:count]}", copied(model, twice, named[:count]))
    show(f"without the previous-token head {before}", copied(model, twice, [before]))
    for one in rest:
        show(f"without {one}", copied(model, twice, [one]))


def show(what: str, shares: tuple[float, ...]) -> None:
    print(f"{what}: right {shares[0]:.1%} and {shares[1]:.1%}, probability {shares[2]:.2%} and {shares[3]:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("train", "measure"))
    parser.add_argument("paths", type=Path, nargs="+", help="TEXT and MODEL, or MODEL")
    parser.add_argument("--steps", type=int, default=1500, help="of the training: 1500 take five minutes of one core")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.verb == "train":
        train(*args.paths, steps=args.steps, seed=args.seed)
    else:
        measure(*args.paths, seed=args.seed)


if __name__ == "__main__":
    main()
