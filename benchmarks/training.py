"""Training beside plain PyTorch, in one process and in turns: nanoGPT's CPU setting on tinyshakespeare.

    python benchmarks/training.py --data DATA/tinyshakespeare/input.txt.gz --steps 2000
    python benchmarks/training.py          # on the pages of docs/: as quick, with another loss

Both models have 4 blocks, 128 wide, 4 heads, context 64, batch 12, no dropout, no biases, and see the same batches.
Ours is trained as `clearhead train` does it; the plain one is written out below, with torch's own AdamW and clipping.
They take turns of some steps each, so that what else the machine does falls on both.
"""

import argparse
import contextlib
import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from measure import table
from published import tinyshakespeare
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.text.preparing import prepare
from clearhead.training.folder import RunFolder
from clearhead.training.loop import Stream, Work
from clearhead.training.machine import resolve_machine
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import task_named
from clearhead.training.train_step import TrainState, make_stepper
from clearhead.training.validation import Held, assess

TURN = 25
WIDTH, HEADS, BLOCKS, CONTEXT = 128, 4, 4, 64


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(WIDTH, dim=2)
        q, k, v = (one.view(batch, n, HEADS, -1).transpose(1, 2) for one in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, n, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class PlainGPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        for one in self.parameters():
            if one.ndim == 2:
                nn.init.normal_(one, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Plain:
    """The plain model in training. `fused` is torch's own switch of AdamW; it is off unless one asks for it."""

    def __init__(self, vocabulary: int, recipe: Recipe, *, fused: bool) -> None:
        torch.manual_seed(recipe.seed)
        self.model, self.recipe = PlainGPT(vocabulary), recipe
        matrices = [one for one in self.model.parameters() if one.ndim >= 2]
        vectors = [one for one in self.model.parameters() if one.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=fused or None)

    def step(self, batch: dict[str, Tensor], rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        logits = self.model(batch["tokens"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["wanted"].flatten())
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()

    @torch.no_grad()
    def loss(self, work: Work) -> float:
        total = places = 0
        for rows in work.task.planner(work.prepared.dev, 1 << 14, 0).in_order():
            batch = work.task.read(work.prepared.dev, rows, None, filled=False)  # type: ignore[arg-type]
            logits = self.model(batch["tokens"])
            total += F.cross_entropy(logits.flatten(0, 1), batch["wanted"].flatten(), reduction="sum").item()
            places += batch["wanted"].numel()
        return total / places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a text file; the pages of docs/ unless given")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = args.data or join_pages(Path(folder) / "pages.txt")
        recipe = tinyshakespeare(data, args.steps, "cpu")
        recipe = replace(recipe, machine=resolve_machine(replace(recipe.machine, device="cpu")))
        layout = task_named(recipe.task).layout(recipe.batching.context)
        with contextlib.redirect_stdout(sys.stderr):  # it says how large the text is
            prepared = prepare(recipe.corpus, layout, recipe.tokenizing, Path(folder))
        task = task_named(recipe.task).of(prepared, CONTEXT)
        spec = task.fitted(recipe.model)
        work = Work(folder=RunFolder(Path(folder)), recipe=recipe, prepared=prepared, task=task, spec=spec)
        compare(work, args.steps)


def join_pages(path: Path) -> Path:
    """Write the project's own pages into one text: what is trained on does not change how long a step takes."""
    pages = sorted((Path(__file__).resolve().parent.parent / "docs").rglob("*.md"))
    path.write_text("\n\n".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")
    return path


def compare(work: Work, steps: int) -> None:
    recipe = work.recipe
    torch.manual_seed(recipe.seed)
    train_state = TrainState(work.spec.build(), work.task, recipe.optimizer, recipe.machine)
    stepper = make_stepper(train_state, recipe.machine)
    plain = Plain(work.prepared.tokenizers["text"].vocabulary, recipe, fused=False)
    fused = Plain(work.prepared.tokenizers["text"].vocabulary, recipe, fused=True)
    batches = Stream(work, filled=False).batches(0)
    seconds = {"clearhead": 0.0, "plain": 0.0, "plain, fused AdamW": 0.0}
    for start in range(0, steps, TURN):
        turn = [next(batches) for _ in range(min(TURN, steps - start))]
        rates = [recipe.optimizer.lr * recipe.optimizer.schedule.at(start + i, total=steps) for i in range(len(turn))]
        marks = [time.perf_counter()]
        for i, (batch, rate) in enumerate(zip(turn, rates, strict=True)):
            ema_weight = recipe.optimizer.averaging.ema_weight(start + i + 1, steps)
            train_state.hold_average(ema_weight)
            stepper.step([batch], rate)
            train_state.update_average(ema_weight)
        marks.append(time.perf_counter())
        for other in (plain, fused):
            for batch, rate in zip(turn, rates, strict=True):
                other.step(batch, rate)
            marks.append(time.perf_counter())
        if start >= 4 * TURN:  # the first turns warm up
            for name, before, after in zip(seconds, marks, marks[1:], strict=False):
                seconds[name] += after - before
    held = Held(store=work.prepared.dev, tokens=1 << 14, score_records=0, samples=0)
    losses = {
        "clearhead": assess(train_state.averaged_model(), work.task, held).loss,
        "plain": plain.loss(work),
        "plain, fused AdamW": fused.loss(work),
    }
    rows = [
        [
            name,
            1e3 * taken / max(steps - 4 * TURN, 1),
            taken / seconds["clearhead"] if taken else math.nan,
            losses[name],
        ]
        for name, taken in seconds.items()
    ]
    title = f"Training: {BLOCKS} blocks, {WIDTH} wide, 12 x {CONTEXT} tokens a step"
    print(table(title, ["trained by", "ms a step", "its time over clearhead's", "loss on held-out text"], rows))


if __name__ == "__main__":
    main()
