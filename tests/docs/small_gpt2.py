"""A small model with GPT-2's architecture, as `save_pretrained` writes it: pages for GPT-2's own files run on it.

GPT-2's weights cannot be fetched where the tests run. This model has two layers of four heads, and is trained for some
seconds by `transformers` alone, on sentences such as "When Mary and John went to the store, John gave a drink to Mary":
it names the one who was named once.
"""

import random
import warnings
from pathlib import Path

NAMES = ["Mary", "John", "Anna", "Paul", "Lisa", "Mark", "Emma", "Jack", "Kate", "Tom", "Sara", "Ben"]
PLACES = ["store", "park", "school", "office", "station", "garden"]
THINGS = ["drink", "book", "letter", "present", "key", "ball"]
MOST_STEPS, LEARNED = 1000, 0.02
"""It takes about 350 steps until the loss of the last name is that low."""


def sentences(draw: random.Random) -> list[str]:
    """Return 64 sentences, in which each of the two names comes first as often."""
    made = []
    for _ in range(64):
        one, other = draw.sample(NAMES, 2)
        first, second = (one, other) if draw.random() < 0.5 else (other, one)
        place, thing = draw.choice(PLACES), draw.choice(THINGS)
        made.append(f"When {first} and {second} went to the {place}, {other} gave a {thing} to {one}")
    return made


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
