"""`clearhead demo`: trains a translator of number words, German to English, and shows what it has learned.

It goes the way of `clearhead train`: text files in, a run folder out, which every other verb takes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch

from clearhead import training
from clearhead.cli import demo_page, screen
from clearhead.cli.demo_page import Numbers, draw, spoken_numbers, write_pairs
from clearhead.cli.options import Quiet, new_folder
from clearhead.cli.progress import open_progress
from clearhead.errors import RunError, WordError
from clearhead.extras import check_extra
from clearhead.files import PARTIAL, os_errors_as_run_errors, write_text
from clearhead.model import PreNorm, presets
from clearhead.model.presets import Size
from clearhead.options import Option
from clearhead.serve import live
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.training import Batching, Budget, Checkpointing, CosineDecay, Machine, Optimizer, Recipe, Run, load
from clearhead.training.claiming import claim as claim_folder
from clearhead.training.claiming import find_names, remove_path
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import LOCK

EXAMPLES = """\b
Examples:
  clearhead demo
  clearhead demo --again --seed 2
  clearhead demo --steps 20 -o runs/quick
  clearhead demo -o runs/numbers --json"""

TRAIN, HELD_OUT = 20_000, 1_000
"""How many lines it learns from, and how many numbers it is asked about."""
SEEN_IN_A_STEP = 150
"""More pairs than the 2,048 tokens of a step hold."""
LEARNED = (0, 4, 10, 24, 42, 67, 100, 1_000)
"""Numbers to show that are in the training text."""
ASKED = (313, 1_024, 2_048, 5_086, 48_067, 90_210, 271_828, 999_999)
"""Numbers to show that are not, in addition to the held-out ones."""
MAPPED = (24, 48_067)
"""Those whose attention is drawn. Pages open on the first."""
MARKER = "demo.json"
"""A file in each run folder that the demo has made: no other is ever removed."""
USUAL_SEED, USUAL_STEPS = 1, 360
MOST_THREADS = 4
"""A model this small gains nothing from more."""


def demo_recipe(corpus: Corpus, seed: int) -> Recipe:
    """Return the demo's recipe. Its evaluations on the way only show; nothing is selected by them."""
    return Recipe(
        task="translate",
        corpus=corpus,
        tokenizing=Tokenizing(kind="bpe", size=360, shared=False, lower=True),  # "Vier" begins a line, too
        model=presets.classic(64, size=Size(2, 128, 4, 4, 256), dropout=0.0, arrangement=PreNorm()),
        optimizer=Optimizer(lr=3e-3, schedule=CosineDecay(warmup=50, floor=0.02), betas=(0.9, 0.95), weight_decay=0.0),
        batching=Batching(tokens=2048, context=64),
        budget=Budget(steps=USUAL_STEPS),
        checkpointing=Checkpointing(log=20, evaluate=90, checkpoints=4, select="last", score_records=50, samples=3),
        machine=Machine(device="cpu", threads=min(MOST_THREADS, torch.get_num_threads())),
        seed=seed,
    )


def demo(
    *,
    output: Annotated[str, Option("Where to write the run folder.", short="o", takes="RUN")] = "runs/demo",
    quiet: Quiet = False,
    again: Annotated[bool, Option("Delete the demo that is there, and train again.")] = False,
    seed: Annotated[int | None, Option(f"Random seed.  [default: {USUAL_SEED}]", takes="N", least=0)] = None,
    steps: Annotated[
        int | None, Option(f"Training steps; fewer than usual see less.  [default: {USUAL_STEPS}]", takes="N", least=1)
    ] = None,
    as_json: Annotated[bool, Option("Print the results as one JSON object.", word="json")] = False,
) -> None:
    """Train a small Transformer to translate number words, German to English.

    It takes about a minute on two cores. Then it prints how many numbers are right, by number of digits, some examples,
    and the attention that swaps tens and units: "vierundzwanzig" is "four-and-twenty". The trained model is an ordinary
    run folder: translate with it, or look into it.
    """
    check_extra("num2words", extra="demo", what="The demo")
    home = RunFolder(new_folder("output", output))
    find_demo(home)  # another folder is refused before it is given a lock
    with home.lock():
        demo_seed = claim_demo(home, seed, again=again)
        before = is_finished(home)
        if home.exists() and steps not in (None, trained := home.recipe().budget.steps):
            raise WordError("steps", f"{home.path} has {trained} steps; --again trains a new one, with {steps}")
        run = load(home.path, device="cpu") if before else train_demo(home, demo_seed, steps, quiet=quiet)
        results = demo_page.inspect_run(run, evaluate_demo(run, demo_seed), learned=LEARNED, asked=ASKED, mapped=MAPPED)
        demo_page.write_opening(results)
        page = write_page(results)
    if as_json:
        screen.show_json(demo_page.as_object(results, page))
    else:
        screen.show(*demo_page.render_page(results, page, earlier=before))


def write_page(results: demo_page.DemoResults) -> Path | None:
    """Write the page for a browser, with the model in it; None if it is not built."""
    if not live.is_built():
        return None
    page = results.run.folder.path / "live.html"
    with os_errors_as_run_errors(page):
        write_text(page, live.live_page(results.run, film=True).text)
    return page


def find_demo(folder: RunFolder) -> int | None:
    """Return the seed of the demo in a folder, None for a new one; RunError if the folder is something else."""
    names = find_names(folder.path)
    before = marked_seed(folder)
    # A demo that was killed before it wrote its marker leaves no more than these.
    if before is None and any(name not in (LOCK, "run.json") and not name.endswith(PARTIAL) for name in names):
        raise RunError(f"{folder.path}: is there already, and is not the demo's; choose another one with --output")
    return before


def claim_demo(folder: RunFolder, seed: int | None, *, again: bool) -> int:
    """Return the seed of the demo in a locked folder, or claim the folder for a new one; with `again` in any case."""
    before = find_demo(folder)
    if before is not None and not again:
        if seed not in (None, before):
            message = f"{folder.path} was trained with seed {before}; --again trains a new one, with {seed}"
            raise WordError("seed", message)
        return before
    if before is not None:
        # The marker goes late, and run.json last: what a kill in between leaves is still the demo's.
        late = (MARKER, "run.json")
        names = [name for name in find_names(folder.path) if name not in (LOCK, *late)]
        with os_errors_as_run_errors(folder.path):
            for name in (*names, *late):
                remove_path(folder.path / name)
    new_seed = USUAL_SEED if seed is None else seed
    claim_folder(folder)
    folder.write_own(folder.path / MARKER, {"made_by": "clearhead demo", "seed": new_seed})
    return new_seed


def marked_seed(folder: RunFolder) -> int | None:
    """Return the seed that a folder of the demo's is marked with; None for any other folder."""
    marker = folder.path / MARKER
    try:
        return int(folder.read_own(marker)["seed"])
    except FileNotFoundError:
        return None
    except (RunError, ValueError, KeyError, TypeError):
        raise RunError(f"{marker}: cannot be read; remove {folder.path}, or choose another with --output") from None


def is_finished(folder: RunFolder) -> bool:
    if not (folder.exists() and folder.evaluation.exists()):
        return False
    saved = folder.checkpoints.all()
    return bool(saved and saved[0].state["finished"])


def train_demo(folder: RunFolder, seed: int, steps: int | None, *, quiet: bool = False) -> Run:
    """Train the demo, or resume it, and show it as it happens."""
    with open_progress(quiet=quiet) as progress:
        if folder.exists():
            return training.resume(folder.path, watcher=progress, log=progress.log)
        numbers = draw_numbers(seed, steps)
        progress.log(
            f"{len(numbers.train):,} lines of German and English number words, short numbers many times; "
            f"{len(numbers.held_out):,} more numbers held out"
        )
        recipe = demo_recipe(write_corpus(numbers, folder.path / "data-files"), seed)
        if steps is not None:
            recipe = replace(recipe, budget=Budget(steps=steps))
        return training.train(folder.path, recipe, watcher=progress, log=progress.log)


def draw_numbers(seed: int, steps: int | None = None) -> Numbers:
    """Return the numbers of the demo, without those that are asked for or shown in the end.

    A short demo draws no more to train on than its steps can see.
    """
    train = TRAIN if steps is None else min(TRAIN, SEEN_IN_A_STEP * steps)
    return draw(seed, train=train, held_out=HELD_OUT, apart=ASKED)


def write_corpus(numbers: Numbers, folder: Path) -> Corpus:
    """Write the numbers in words to files."""
    return Corpus(
        train=write_pairs(numbers.train, folder, "train", spoken=spoken_numbers(numbers)),
        dev=write_pairs(numbers.held_out, folder, "held-out"),
    )


def evaluate_demo(run: Run, seed: int) -> dict[str, Any]:
    """Return what evaluation.json says of the held-out numbers, and beside it the score by number of digits."""
    evaluation = run.folder.read_evaluation()
    if "by_digits" not in evaluation:
        numbers = draw_numbers(seed, run.folder.recipe().budget.steps)
        evaluation = run.folder.write_own(
            run.folder.evaluation,
            evaluation
            | {
                "n": evaluation["records"],
                "steps": evaluation["step"],
                "by_digits": demo_page.score_by_digits(run, numbers),
            },
        )
    return evaluation
