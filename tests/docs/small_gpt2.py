"""Small models with GPT-2's architecture, as `save_pretrained` writes it: pages for GPT-2's own files run on them.

GPT-2's weights cannot be fetched where the tests run. Both models have two layers of four heads, and are trained on
sentences such as "When Mary and John went to the store, John gave a drink to Mary": they name the one who was named
once. `save` trains for some seconds by `transformers` alone. `save_trained_here` trains for a minute by Clearhead, also
on lists of words that come three times, and exports the run; docs/gpt2-circuits.md finds its two circuits.
"""

import random
import warnings
from dataclasses import replace
from pathlib import Path

import clearhead as ch

NAMES = ["Mary", "John", "Anna", "Paul", "Lisa", "Mark", "Emma", "Jack", "Kate", "Tom", "Sara", "Ben"]
PLACES = ["store", "park", "school", "office", "station", "garden"]
THINGS = ["drink", "book", "letter", "present", "key", "ball"]
MOST_STEPS, LEARNED = 1000, 0.02
"""It takes about 350 steps until the loss of the last name is that low."""


def sentence(draw: random.Random) -> str:
    """Return a sentence, in which each of the two names comes first as often."""
    one, other = draw.sample(NAMES, 2)
    first, second = (one, other) if draw.random() < 0.5 else (other, one)
    place, thing = draw.choice(PLACES), draw.choice(THINGS)
    return f"When {first} and {second} went to the {place}, {other} gave a {thing} to {one}"


def sentences(draw: random.Random) -> list[str]:
    """Return 64 sentences."""
    return [sentence(draw) for _ in range(64)]


def listing(draw: random.Random) -> str:
    """Return a list of different words, three times."""
    return " ".join(3 * draw.sample(NAMES + PLACES + THINGS, draw.randint(4, 10)))


def save(folder: Path) -> None:
    """Train the model, and save it with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    draw = random.Random(0)
    cut = Tokenizer(models.BPE())
    cut.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    cut.train_from_iterator([" ".join(sentences(draw)) for _ in range(30)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=cut, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    torch.manual_seed(0)
    config = GPT2Config(
        **{"vocab_size": len(tokenizer), "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
        **{"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=50)
    for _ in range(MOST_STEPS):
        rows = torch.tensor([tokenizer(text)["input_ids"] for text in sentences(draw)])
        logits = model(rows).logits[:, :-1]
        name = torch.nn.functional.cross_entropy(logits[:, -1], rows[:, -1])
        (torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) + name).backward()
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        if name.item() < LEARNED:
            break
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def recipe_of(text: Path, *, steps: int) -> ch.training.Recipe:
    """Return the recipe of the model that is trained here."""
    from clearhead.training import Batching, Budget, Checkpointing, Corpus, Documents, Machine, Optimizer, Tokenizing

    size = ch.presets.Size(n_layers=2, d_model=64, n_heads=4, n_kv_heads=4, d_ff=256)
    corpus = Corpus(train=Documents(paths=(str(text),), unit="line"))
    return replace(
        ch.training.default_recipe("generate", corpus, Machine(device="cpu", threads=1)),
        tokenizing=Tokenizing(kind="bpe", size=600),
        model=ch.presets.gpt2(size, vocabulary=600, length=64, dropout=0.0),
        optimizer=Optimizer(lr=3e-3, schedule=ch.training.CosineDecay(warmup=50), betas=(0.9, 0.99), weight_decay=0.0),
        batching=Batching(tokens=2048, context=64),
        budget=Budget(steps=steps),
        checkpointing=Checkpointing(evaluate=steps, film=False, samples=0),
        open=(),
    )


def save_trained_here(folder: Path, *, steps: int = 1000, lines: int = 20_000) -> None:
    """Train the model by Clearhead, and write it as GPT-2's files: half of its lines are sentences, half are lists."""
    draw = random.Random(0)
    text = [listing(draw) if draw.random() < 0.5 else sentence(draw) for _ in range(lines)]
    home = folder.with_name(f"{folder.name}-training")
    home.mkdir(parents=True)
    (home / "text.txt").write_text("\n".join(text), encoding="utf-8")
    recipe = recipe_of(home / "text.txt", steps=steps)
    run = ch.train(home / "run", recipe, watcher=lambda line: None, log=lambda line: None)
    ch.export(run, to="hf", path=folder)
