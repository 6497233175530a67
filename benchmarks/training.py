"""Training beside plain PyTorch, in one process and step by step in turn: nanoGPT's CPU setting, and the demo's.

    python benchmarks/training.py --data DATA/tinyshakespeare/input.txt.gz --steps 2000
    python benchmarks/training.py                               # on the pages of docs/: as quick, with another loss
    python benchmarks/training.py --setting demo --steps 200    # the translator of `clearhead demo`

nanoGPT's setting: 4 blocks, 128 wide, 4 heads, context 64, batch 12, no dropout, no biases. The demo: 2 + 2 blocks, 128
wide, d_ff 256, pre-norm, some 4,096 tokens of short sentences, no dropout; the plain one is `nn.Transformer`. All see
the same batches. Ours is trained as `clearhead train` does it; the plain ones are written out below, with torch's own
AdamW and clipping. A step of each is taken in turn, so that what else the machine does falls on all; the time is the
median. With one thread (OMP_NUM_THREADS=1) it is processor time, so that the figures hold on a busy machine too.
"""

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from measure import in_words, table
from published import tinyshakespeare
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.cli.demo import demo_recipe, draw_numbers, write_corpus
from clearhead.compiling import missing_compiler
from clearhead.text.preparing import prepare
from clearhead.training.evaluation import ValidationSet, assess
from clearhead.training.folder import RunFolder
from clearhead.training.loop import Trainer
from clearhead.training.losses import NOTHING
from clearhead.training.machine import resolve_machine
from clearhead.training.recipe import Recipe
from clearhead.training.tasks import task_named
from clearhead.training.tasks.learning import Batch
from clearhead.training.train_step import BatchStream, TrainState

WARM_UP = 10
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

    def forward(self, batch: Batch) -> Tensor:
        tokens = batch["tokens"]
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class PlainTranslator(nn.Module):
    """The demo's model on nn.Transformer: sines for positions, the target's table for the output too."""

    def __init__(self, source: int, target: int, context: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        for one in (self.source, self.target):
            nn.init.normal_(one.weight, std=WIDTH**-0.5)
        self.body = nn.Transformer(WIDTH, HEADS, 2, 2, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
        angle = torch.arange(context + 1).unsqueeze(1) * 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("places", torch.stack([angle.sin(), angle.cos()], 2).flatten(1))

    def forward(self, batch: Batch) -> Tensor:
        source, target, places = batch["source"], batch["tokens"], self.get_buffer("places")
        hidden = torch.arange(source.shape[1]) >= batch["source_lengths"].unsqueeze(1)
        states = self.body(
            self.source(source) * WIDTH**0.5 + places[: source.shape[1]],
            self.target(target) * WIDTH**0.5 + places[: target.shape[1]],
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1),
            tgt_is_causal=True,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return F.linear(states, self.target.weight)


class Plain:
    """A plain model in training. `fused` is torch's own switch of AdamW; it is off unless one asks for it."""

    def __init__(self, model: nn.Module, recipe: Recipe, *, fused: bool = False, compiled: bool = False) -> None:
        self.model, self.parameters = model, list(model.parameters())
        self.logits: Callable[[Batch], Tensor] = torch.compile(model) if compiled else model
        matrices = [one for one in self.parameters if one.ndim >= 2]
        vectors = [one for one in self.parameters if one.ndim < 2]
        decay = recipe.optimizer.weight_decay
        groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=1e-3, betas=recipe.optimizer.betas, fused=fused or None)

    def step(self, batch: Batch, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        logits = self.logits(batch)
        loss = F.cross_entropy(logits.flatten(0, 1), batch["wanted"].flatten(), ignore_index=NOTHING)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()

    @torch.no_grad()
    def loss(self, work: Trainer) -> float:
        total = places = 0
        for rows in work.task.planner(work.prepared.dev, 1 << 14, 0).in_order():
            batch = work.task.read(work.prepared.dev, rows, None, filled=False)  # type: ignore[arg-type]
            wanted = batch["wanted"].flatten()
            logits = self.model(batch).flatten(0, 1)
            total += F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum").item()
            places += int((wanted != NOTHING).sum())
        return total / places


class Clearhead:
    """Ours in training, with the average of its weights."""

    def __init__(self, work: Trainer, steps: int) -> None:
        self.recipe, self.steps, self.done = work.recipe, steps, 0
        torch.manual_seed(self.recipe.seed)
        self.state = TrainState(work.spec.build(), work.task, self.recipe.optimizer, self.recipe.machine)

    def step(self, batch: Batch, rate: float) -> None:
        self.done += 1
        ema_weight = self.recipe.optimizer.averaging.ema_weight(self.done, self.steps)
        self.state.hold_average(ema_weight)
        self.state.step([batch], rate)
        self.state.update_average(ema_weight)

    def loss(self, work: Trainer) -> float:
        held = ValidationSet(store=work.prepared.dev, tokens=1 << 14, score_records=0, samples=0)
        return assess(self.state.averaged_model(), work.task, held).loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=["nanogpt", "demo"], default="nanogpt")
    parser.add_argument("--data", type=Path, help="a text file for nanoGPT's setting; the pages of docs/ unless given")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.setting == "demo":
            recipe = demo_recipe(write_corpus(draw_numbers(1, args.steps), folder / "files"), 1)
        else:
            recipe = tinyshakespeare(args.data or join_pages(folder / "pages.txt"), args.steps, "cpu")
        recipe = replace(recipe, machine=resolve_machine(replace(recipe.machine, device="cpu")))
        layout = task_named(recipe.task).layout(recipe.batching.context)
        with contextlib.redirect_stdout(sys.stderr):  # it says how large the text is
            prepared = prepare(recipe.corpus, layout, recipe.tokenizing, folder)
        task = task_named(recipe.task).of(prepared, recipe.batching.context)
        spec = task.fitted(recipe.model)
        work = Trainer(RunFolder(folder), recipe, prepared, task, spec)
        compare(work, args.steps, args.setting)


def join_pages(path: Path) -> Path:
    """Write the project's own pages into one text: what is trained on does not change how long a step takes."""
    pages = sorted((Path(__file__).resolve().parent.parent / "docs").rglob("*.md"))
    path.write_text("\n\n".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")
    return path


def peers(work: Trainer, setting: str) -> dict[str, Plain]:
    """Return the plain models: as most write them, with torch's fused AdamW, and compiled where a shape is one."""
    sizes = [tokenizer.vocabulary for tokenizer in work.prepared.tokenizers.values()]

    def make() -> nn.Module:
        torch.manual_seed(work.recipe.seed)
        if setting == "demo":
            return PlainTranslator(sizes[0], sizes[1], work.recipe.batching.context)
        return PlainGPT(sizes[0])

    found = {
        "plain": Plain(make(), work.recipe),
        "plain, fused AdamW": Plain(make(), work.recipe, fused=True),
    }
    if setting == "nanogpt" and missing_compiler() is None:
        found["plain, fused AdamW, compiled"] = Plain(make(), work.recipe, fused=True, compiled=True)
    return found


def compare(work: Trainer, steps: int, setting: str) -> None:
    optimizer = work.recipe.optimizer
    trained: dict[str, Clearhead | Plain] = {"clearhead": Clearhead(work, steps), **peers(work, setting)}
    taken: dict[str, list[float]] = {name: [] for name in trained}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    order = list(trained)
    for step, batch in zip(
        range(steps), BatchStream(work.recipe, work.task, work.prepared.train, filled=False).batches(0), strict=False
    ):
        rate = optimizer.lr * optimizer.schedule.at(step, total=steps)
        for name in order:
            begin = clock()
            trained[name].step(batch, rate)
            taken[name].append(clock() - begin)
        order = [*order[1:], order[0]]
    medians = {
        name: statistics.median(times[WARM_UP:]) if steps > WARM_UP else math.nan for name, times in taken.items()
    }
    rows = [
        [name, 1e3 * medians[name], medians[name] / medians["clearhead"], one.loss(work)]
        for name, one in trained.items()
    ]
    title = (
        "4 blocks, 128 wide, 12 x 64 tokens a step" if setting == "nanogpt" else "the demo's translator, 2 + 2 blocks"
    )
    clocked = "processor ms a step" if clock is time.process_time else "ms a step"
    columns = ["trained by", clocked, "Clearhead's speed / this", "loss on held-out text"]
    print(table(f"Training: {title}", columns, rows))
    print(to_the_fastest(medians))


def to_the_fastest(medians: dict[str, float]) -> str:
    """Return Clearhead's speed in words, compared with the fastest of the others; `medians` are seconds a step."""
    others = {name: seconds for name, seconds in medians.items() if name != "clearhead"}
    fastest = min(others, key=others.__getitem__)
    said = f"Clearhead: {in_words(others[fastest] / medians['clearhead'])} the fastest peer ({fastest})."
    return said if "compiled" in fastest else f"{said} A compiled one was not measured."


if __name__ == "__main__":
    main()
