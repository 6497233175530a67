"""Fit a recipe to its budget: what it leaves open is chosen from the minutes, the text and the speed of the machine.

A few real steps are timed first. From their speed follow how many tokens the budget can train on, and from that and the
length of the text: the model's size, the batch, learning rate and schedule, dropout, and how often to evaluate. The
result is a plain recipe: it is written to recipe.json, and a resume follows it without fitting anything anew.

The rules are simple on purpose, and their figures come from the trials in docs/decisions/0017-the-budget.md.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from clearhead.errors import OptionError
from clearhead.model import int8, variants
from clearhead.model.presets import Size
from clearhead.model.sizes import Spec, build_for_shapes, with_size
from clearhead.model.transformers import Transformer
from clearhead.text.preparing import Prepared
from clearhead.text.vocabulary_size import suggested_size
from clearhead.training.machine import (
    Pace,
    ScoringPace,
    matmul_speed,
    time_ending,
    time_scoring,
    time_steps,
    with_serving_threads,
)
from clearhead.training.pacing import FINAL, LINE, SCORING, TIMING
from clearhead.training.recipe import Budget, Plan, Recipe
from clearhead.training.schedules import CosineDecay, Last
from clearhead.training.scores import FEWEST_BATCHES
from clearhead.training.tasks import Task, task_named
from clearhead.training.tasks.learning import text_bytes
from clearhead.training.train_step import plan_batches

Log = Callable[[str], None]

WIDTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
DEPTHS = {
    "encoder-decoder": (1, 2, 2, 2, 2, 3, 4, 5, 6, 6),
    "decoder": (2, 2, 2, 3, 4, 4, 6, 6, 8, 12),
    "encoder": (2, 2, 2, 3, 4, 4, 6, 6, 8, 12),
}
"""Blocks (of each stack) that go with each width. Shallow ones are quicker on a CPU, and train with less warm-up."""
TOKENS_A_PARAMETER = {"encoder-decoder": 1.0, "decoder": 4.0, "encoder": 4.0}
"""The largest model is taken that sees this many tokens of text for each of its parameters within the budget."""
PARAMETERS_A_TOKEN = 8.0
"""No model has more parameters than this for each token of the text: it would only learn the text by heart."""
EPOCHS = {"encoder-decoder": 90.0, "decoder": 30.0, "encoder": 200.0}
"""The most epochs that a text bears, with the dropout that goes with them."""
DROPOUTS = {
    "encoder-decoder": ((2.0, 0.0), (5.0, 0.1), (15.0, 0.2), (math.inf, 0.3)),
    "decoder": ((2.0, 0.0), (5.0, 0.1), (12.0, 0.2), (20.0, 0.3), (math.inf, 0.4)),
    "encoder": ((math.inf, 0.1),),
}
"""Dropout by epochs: the more often a text is seen, the more it takes."""
MUCH_DECAY, MANY_EPOCHS = 0.3, 12.0
"""Weight decay of a language model that sees its text more often than this."""
RATES = {"encoder-decoder": (5e-3, 4096), "decoder": (3e-3, 1024), "encoder": (3e-3, 16384)}
"""Peak learning rate of a model 128 wide, and tokens of the batch it goes with. It falls with the width, and with the
square root of a smaller batch."""
RATE_WIDTH = 128
LEAST_BATCH, MOST_BATCH = 512, 32768
WARMUP = 0.08
"""The share of the steps that the learning rate rises in."""
LEAST_WARMUP, MOST_WARMUP_SHARE = 50, 0.2
"""Steps of warm-up that a run has at least, unless they are more than this share of it. With the norm after the block,
12 of 150 steps up to a rate of 0.01 ended in a model that never learned (dev loss 4.83); 25 to 60 in 4.21 to 4.27."""
EVALUATIONS, MOST_EVALUATIONS = 8, 20
LEAST_SCORED = 20
MOST_TIMING = 3.0
"""Seconds of a timing at most."""
FEWEST, FEW = 20, 200
"""With fewer steps than the first nothing is learned, with fewer than the second hardly anything."""
MOST_SPEEDUP = 4.0
LOG_SECONDS = 5.0
USUAL_MINUTES = 60.0
"""Without a budget, a run takes no longer than this on the machine."""
GOAL_EPOCHS = 20.0


class Evaluations(NamedTuple):
    """The evaluations during training: outputs of `records`, the loss of `batches`, how many, and seconds of each."""

    records: int
    batches: int
    shows_samples: bool
    number: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a recipe is fitted to: its task and text, and seconds of the budget that were used before; `reading` of them
    for reading text.
    """

    task: Task
    prepared: Prepared
    used: float = 0.0
    reading: float = 0.0

    @property
    def text_tokens(self) -> int:
        return sum(self.prepared.train.sizes[name].tokens for name in self.task.usual_layout().texts)


def fit(recipe: Recipe, workload: Workload, log: Log) -> Recipe:
    """Return the recipe with nothing open, and with a plan if its budget is in minutes; log what was fitted.

    OptionError for a budget that is too short to learn anything in.
    """
    began = time.perf_counter()
    recipe = replace(recipe, machine=with_serving_threads(recipe.machine, log))
    seconds = budget_seconds(recipe)
    recipe, pace, model = fit_size(recipe, workload, seconds - min(workload.used, seconds / 2))
    scoring, ending = time_scoring(recipe, model, workload.task, workload.prepared), time_ending()
    evaluations = affordable_evaluations(recipe, scoring, seconds)
    if recipe.budget.minutes is not None:
        used = workload.used + time.perf_counter() - began
        evaluations = affordable_evaluations(recipe, scoring, seconds - min(used, seconds / 2))
        recipe = plan_minutes(recipe, workload, pace, scoring, evaluations, used=used, ending=ending)
    elif "budget" in recipe.open and "model" in recipe.open and workload.task.sizes:
        recipe = plan_goal(recipe, workload, pace, seconds)
    steps = planned_steps(recipe, workload)
    check_steps(recipe, steps, pace, log)
    if workload.task.sizes or "budget" not in recipe.open:  # else all of it is the task's own choice
        recipe = fit_learning(recipe, workload, steps, pace)
        recipe = fit_evaluations(recipe, steps, pace, evaluations)
    log(describe(recipe, steps, pace, evaluations, model))
    return replace(recipe, open=())


def budget_seconds(recipe: Recipe) -> float:
    """Return the seconds of a budget in minutes; of any other, as many as a run without a budget may take."""
    return 60 * (USUAL_MINUTES if recipe.budget.minutes is None else recipe.budget.minutes)


def fit_size(recipe: Recipe, workload: Workload, seconds: float) -> tuple[Recipe, Pace, Transformer]:
    """Return the recipe with its batch and the size of its model, their speed, and such a model.

    A model of middling size is timed first. From its speed follows the size to take, which is then timed itself; where
    it is not as quick as expected, and there is time for that, another one is taken.
    """
    timing = min(MOST_TIMING, TIMING * seconds)
    end = time.perf_counter() + 2.5 * timing
    sizes = possible_models(recipe, workload)
    on_gpu = not recipe.machine.device.startswith("cpu")
    if "model" in recipe.open and len(sizes) > 1:
        middle = min(range(len(sizes)), key=lambda i: abs(sizes[i].d_model - (256 if on_gpu else 96)))
        recipe = replace(recipe, model=sizes[middle])
    if "batch" in recipe.open and recipe.budget.minutes is not None:
        recipe = with_batch(recipe, 8192 if on_gpu else 1024)
    pace, model = time_steps(recipe, recipe.model, workload.task, workload.prepared, seconds=timing)
    for number in range(2):
        model_spec = choose_model(recipe, workload, sizes, pace, seconds)
        if "batch" in recipe.open and recipe.budget.minutes is not None:
            speed = pace.tokens_per_second * active_parameters(recipe.model) / active_parameters(model_spec)
            # Time for more epochs than the text bears is not used, so it does not call for larger batches either.
            tokens = min(speed * training_share(seconds), EPOCHS[model_spec.kind] * workload.text_tokens)
            changed = with_batch(replace(recipe, model=model_spec), batch_for(tokens))
        else:
            changed = replace(recipe, model=model_spec)
        if changed == recipe or (number and time.perf_counter() > end):
            break
        recipe = changed
        pace, model = time_steps(recipe, recipe.model, workload.task, workload.prepared, seconds=timing)
    return recipe, pace, model


def training_share(seconds: float) -> float:
    """Return the seconds of a budget that are left for steps."""
    return seconds * (1 - LINE - SCORING - FINAL - 2 * TIMING)


def possible_models(recipe: Recipe, workload: Workload) -> list[Spec]:
    """Return the recipe's model in every size that the text bears, the smallest first; itself if it is not open."""
    if "model" not in recipe.open or not workload.task.sizes:
        return [recipe.model]
    usual = active_parameters(recipe.model)
    specs: list[Spec] = []
    for width in WIDTHS:
        spec = with_width(recipe.model, width)
        active = active_parameters(spec)
        too_large = active > PARAMETERS_A_TOKEN * workload.text_tokens
        if specs and (too_large or (recipe.has_given_length and active > usual)):
            break
        specs.append(spec)
    return specs


def with_width(spec: Spec, width: int) -> Spec:
    """Return the model at the depth, heads and feed-forward that go with a width; its other parts stay."""
    kind = spec.kind
    n_heads = width // (16 if width < 64 else 32 if width < 256 else 64)
    widening = 2 if kind == "encoder-decoder" and width < 256 else 4
    size = Size(DEPTHS[kind][WIDTHS.index(width)], width, n_heads, n_heads, widening * width)
    return spec.map_stacks(lambda stack: with_size(stack, size))


@functools.lru_cache(maxsize=64)
def active_parameters(spec: Spec) -> int:
    """Return the parameters that a token is multiplied with: all but the rows of tables that are only looked up."""
    total = sum(parameter.numel() for parameter in build_for_shapes(spec).parameters())
    output_rows = spec.stacks[-1].vocabulary
    return max(1, total - (spec.table_rows - output_rows) * spec.d_model)


def choose_model(recipe: Recipe, workload: Workload, sizes: Sequence[Spec], pace: Pace, seconds: float) -> Spec:
    """Return the largest model that sees enough tokens for its size, at the speed that was timed with the recipe's."""
    if len(sizes) < 2:
        return recipe.model
    work = pace.tokens_per_second * active_parameters(recipe.model) * training_share(seconds)
    largest = sizes[0]
    for spec in sizes:
        active = active_parameters(spec)
        tokens = work / active
        if recipe.has_given_length:
            tokens = tokens_of_steps(recipe, workload, pace)
        if tokens >= TOKENS_A_PARAMETER[spec.kind] * active:
            largest = spec
    return largest


def tokens_of_steps(recipe: Recipe, workload: Workload, pace: Pace) -> float:
    """Return how many tokens a budget of steps or epochs trains on."""
    if recipe.budget.epochs is not None:
        return recipe.budget.epochs * workload.text_tokens
    return (recipe.budget.steps or 0) * pace.tokens


def batch_for(tokens: float) -> int:
    """Return how many tokens a step has, for a training of `tokens` in all: about the square root, a power of two.

    >>> [batch_for(tokens) for tokens in (3e6, 5e7, 5e8)]
    [1024, 4096, 16384]
    """
    return min(MOST_BATCH, max(LEAST_BATCH, 1 << round(math.log2(max(1.0, 0.75 * math.sqrt(tokens))))))


def with_batch(recipe: Recipe, tokens: int) -> Recipe:
    """Return the recipe with batches of so many tokens, and micro-batches of no more than before."""
    micro = recipe.batching.micro_batch_tokens
    micro = None if micro is None or micro >= tokens else micro
    tokens = max(tokens, recipe.batching.context if recipe.model.kind == "decoder" else tokens)
    return replace(recipe, batching=replace(recipe.batching, tokens=tokens, micro_batch_tokens=micro))


def plan_minutes(
    recipe: Recipe,
    workload: Workload,
    pace: Pace,
    scoring: ScoringPace,
    evaluations: Evaluations,
    *,
    used: float,
    ending: float,
) -> Recipe:
    """Return the recipe with the plan of its minutes: what is left after scoring goes into steps.

    If the minutes have time for more epochs than the text is good for, training takes fewer steps and ends early.
    """
    seconds = budget_seconds(recipe)
    late, used = max(0.0, used - seconds / 2), min(used, seconds / 2)
    free = seconds - used
    whole = scoring.samples + scoring.batches * scoring.batch
    usual = Plan(steps=1, step_seconds=1.0).scored
    scored = usual if not scoring.record else int((FINAL * free - whole) / scoring.record)
    scored = max(min(scored, usual, len(workload.prepared.dev)), min(recipe.checkpointing.score_records, LEAST_SCORED))
    final = whole + (scored if recipe.checkpointing.score_records else 0) * scoring.record
    scoring_seconds = min(final, FINAL * free) + (evaluations.number + 1) * evaluations.seconds
    left = free - ending - scoring_seconds - pace.setup_seconds
    steps = max(1, int(max(left, 0.5 * free) / pace.step_seconds))
    bears = EPOCHS[recipe.model.kind] * workload.text_tokens / pace.tokens
    enough = bool(workload.task.sizes) and "model" in recipe.open and steps > bears
    plan = Plan(
        steps=max(1, int(bears)) if enough else steps,
        step_seconds=pace.step_seconds,
        used_seconds=round(used, 3),
        reading_seconds=round(workload.reading, 3),
        late_seconds=round(late, 3),
        sample=evaluations.batches,
        shows_samples=evaluations.shows_samples,
        evaluation_seconds=round(evaluations.seconds, 3),
        scored=scored,
        scoring_seconds=round(final, 3),
        ending_seconds=round(ending, 3),
        enough=enough,
    )
    return replace(recipe, plan=plan)


def plan_goal(recipe: Recipe, workload: Workload, pace: Pace, seconds: float) -> Recipe:
    """Return the recipe with a budget that trains its model well: enough tokens for its size, and enough epochs.

    That is where more steps bring little; early stopping ends training before, if nothing is gained any more.
    """
    kind = recipe.model.kind
    active, text = active_parameters(recipe.model), workload.text_tokens
    goal = min(max(TOKENS_A_PARAMETER[kind] * active, GOAL_EPOCHS * text), EPOCHS[kind] * text)
    steps = min(goal / pace.tokens, training_share(seconds) / pace.step_seconds)
    return replace(recipe, budget=Budget(steps=max(FEW, round(steps)), patience=recipe.budget.patience))


def planned_steps(recipe: Recipe, workload: Workload) -> int:
    """Return how many steps the run is to have."""
    if recipe.budget.steps is not None:
        return recipe.budget.steps
    if recipe.plan is not None and recipe.budget.minutes is not None:
        return recipe.plan.steps
    batches = plan_batches(recipe, workload.task, workload.prepared.train).count(0)
    return max(1, math.ceil((recipe.budget.epochs or 1) * batches / recipe.batching.passes))


def check_steps(recipe: Recipe, steps: int, pace: Pace, log: Log) -> None:
    """Raise OptionError if nothing can be learned in the minutes, and log a warning where it is hardly anything."""
    if recipe.budget.minutes is None or (recipe.plan is not None and recipe.plan.enough):
        return
    if steps < FEWEST and recipe.open:
        least = math.ceil(10 * recipe.budget.minutes * FEWEST / steps) / 10
        raise OptionError(
            f"minutes: in {recipe.budget.minutes:g} there is time for {steps} steps of {pace.step_seconds:.2g} s on "
            f"this machine, and with fewer than {FEWEST} nothing is learned. Give {least:g} minutes or more"
        )
    if steps < FEW:
        log(f"WARNING: {recipe.budget.minutes:g} minutes are few: time for {steps} steps, in which little is learned")


def fit_learning(recipe: Recipe, workload: Workload, steps: int, pace: Pace) -> Recipe:
    """Return the recipe with dropout, weight decay, learning rate and schedule for so many steps."""
    kind, optimizer, model = recipe.model.kind, recipe.optimizer, recipe.model
    epochs = steps * pace.tokens / max(1, workload.text_tokens)
    if "dropout" in recipe.open and workload.task.sizes:
        model = variants.with_dropout(model, next(rate for most, rate in DROPOUTS[kind] if epochs <= most))
    if "decay" in recipe.open and kind == "decoder" and epochs > MANY_EPOCHS:
        optimizer = replace(optimizer, weight_decay=MUCH_DECAY)
    if "lr" in recipe.open and workload.task.sizes:
        peak, usual = RATES[kind]
        share = min(1.0, math.sqrt(recipe.batching.tokens / usual))
        optimizer = replace(optimizer, lr=min(peak, float(f"{peak * RATE_WIDTH / model.d_model * share:.2g}")))
    fits = "schedule" in recipe.open and workload.task.sizes
    schedule = CosineDecay(floor=0.02) if fits else optimizer.schedule
    warmup = optimizer.schedule.warmup
    if "warmup" in recipe.open:
        least = min(LEAST_WARMUP, round(MOST_WARMUP_SHARE * steps))
        warmup = max(1, least, min(2000, round(WARMUP * steps)))
    averaging = optimizer.averaging
    if isinstance(averaging, Last) and "schedule" in recipe.open:
        averaging = replace(averaging, every=max(1, min(averaging.every, steps // 100)))
    optimizer = replace(optimizer, schedule=replace(schedule, warmup=warmup), averaging=averaging)
    return replace(recipe, model=model, optimizer=optimizer)


def fit_evaluations(recipe: Recipe, steps: int, pace: Pace, evaluations: Evaluations) -> Recipe:
    """Return the recipe with its evaluations: eight at least if there are 80 steps, in a twentieth of the time.

    Lines are logged every few seconds.
    """
    checkpointing, records = recipe.checkpointing, recipe.checkpointing.score_records
    if "evaluate" in recipe.open:
        if recipe.budget.minutes is not None:
            records, every = evaluations.records, steps // evaluations.number
        else:
            every = min(max(100, steps // MOST_EVALUATIONS), max(10, steps // EVALUATIONS))
        checkpointing = replace(checkpointing, evaluate=max(1, every), score_records=records)
    if "log" in recipe.open:
        log = max(1, min(checkpointing.log, int(LOG_SECONDS / pace.step_seconds)))
        checkpointing = replace(checkpointing, log=log)
    return replace(recipe, checkpointing=checkpointing)


def affordable_evaluations(recipe: Recipe, scoring: ScoringPace, seconds: float) -> Evaluations:
    """Return the evaluations that a run of so many seconds can afford: in minutes of a sample, else of all dev text."""
    records, batches, allowed = recipe.checkpointing.score_records, scoring.batches, SCORING * seconds / EVALUATIONS
    shows_samples = recipe.budget.minutes is None or scoring.samples <= allowed / 2
    samples = scoring.samples if shows_samples else 0.0
    if "evaluate" in recipe.open and records and scoring.record:
        most = int((allowed / 2 - samples) / scoring.record)
        records = max(min(LEAST_SCORED, records), min(records, most))
    if recipe.budget.minutes is not None:
        affordable = int((allowed - samples - records * scoring.record) / max(scoring.batch, 1e-9))
        batches = min(batches, max(FEWEST_BATCHES, affordable))
    taken = samples + records * scoring.record + batches * scoring.batch
    count = min(MOST_EVALUATIONS, max(EVALUATIONS, int(SCORING * seconds / max(1e-9, taken))))
    return Evaluations(records, batches, shows_samples, count, taken)


def describe(recipe: Recipe, steps: int, pace: Pace, evaluations: Evaluations, model: Transformer) -> str:
    """Return the line that says what will happen: steps, time and size."""
    size = f"a {round_count(int8.count_weights(model))} model"
    if recipe.budget.minutes is not None:
        line = f"about {steps:,} steps in {recipe.budget.minutes:g} minutes on this machine; {size}"
        if recipe.plan is not None and recipe.plan.enough:
            minutes_taken = (steps * pace.step_seconds / (1 - SCORING) + recipe.plan.used_seconds) / 60
            line += f". The text bears no more: it ends after about {minutes_taken:.2g} minutes"
        elif recipe.plan is not None and recipe.plan.late_seconds:
            minutes_taken = recipe.budget.minutes + recipe.plan.late_seconds / 60
            line += f". Reading took more than half of them: it ends after about {minutes_taken:.2g} minutes"
        return line
    seconds = steps * pace.step_seconds + math.ceil(steps / recipe.checkpointing.evaluate) * evaluations.seconds
    minutes = f"{seconds / 60:.2g} minutes" if seconds < 6000 else f"{seconds / 3600:.2g} hours"
    if "budget" not in recipe.open:
        return f"{steps:,} steps take about {minutes} on this machine; {size}"
    ends = "it ends when the validation score no longer rises, " if recipe.budget.patience else "it ends "
    return f"{ends}after {steps:,} steps and about {minutes} on this machine at most; {size}"


def round_count(parameters: int) -> str:
    """Return a number of parameters as people say it.

    >>> [round_count(count) for count in (752_123, 2_100_000, 65_000_000)]
    ['752 k', '2.1 M', '65 M']
    """
    if parameters < 1_000_000:
        return f"{round(parameters / 1000)} k"
    return f"{parameters / 1e6:.2g} M" if parameters < 100_000_000 else f"{round(parameters / 1e6)} M"


def planned_again(recipe: Recipe, *, done: int, seconds: float, spent: float) -> Plan:
    """Return the plan for another budget in minutes of a run that has done some steps, at the speed that it had.

    `seconds` of its steps and `spent` in all are the run's; without a step, the speed is the old plan's.
    """
    assert recipe.budget.minutes is not None
    old = recipe.plan or Plan(steps=1, step_seconds=0.1)
    step_seconds = seconds / done if done and seconds > 0 else old.step_seconds
    left = 60 * recipe.budget.minutes - spent - old.scoring_seconds - old.ending_seconds
    steps = done + max(1, int(left / step_seconds))
    steps += steps == old.steps  # a plan is known by its steps: that of the old budget may be over
    return replace(old, steps=steps, step_seconds=step_seconds, enough=False)


def check_minutes(recipe: Recipe) -> None:
    """Raise OptionError if a model that is given cannot make FEWEST steps in its minutes, however quick it is.

    That shows before any text is read; what is near the limit is found by timing steps. A product of large matrices is
    at most MOST_SPEEDUP times as quick as those that are measured here. A frozen parameter has no gradient, so only
    its two products are counted.
    """
    minutes, device = recipe.budget.minutes, recipe.machine.device
    if minutes is None or not recipe.open or "model" in recipe.open or not device.startswith("cpu"):
        return
    tokens = LEAST_BATCH if "batch" in recipe.open else recipe.batching.tokens
    # One thread is measured: several wait for each other on a machine that is busy just now.
    speed = MOST_SPEEDUP * (recipe.machine.threads or torch.get_num_threads()) * matmul_speed(1)
    least = FEWEST * 4 * active_parameters(recipe.model) * tokens / speed / 60
    if minutes < least:
        raise OptionError(
            f"minutes: in {minutes:g} this model has no time for {FEWEST} steps of {tokens:,} tokens on this machine, "
            f"and with fewer nothing is learned. Give {math.ceil(10 * least) / 10:g} minutes or more, or take a "
            "smaller model"
        )


def choose_vocabulary(recipe: Recipe) -> Recipe:
    """Return the recipe with a vocabulary that a CPU can write from within the minutes: the output costs most there.

    The speed of a product of matrices says about how large a model can be; half of it may be the table.
    """
    tokenizing = recipe.tokenizing
    if "vocabulary" not in recipe.open or recipe.budget.minutes is None or not recipe.machine.device.startswith("cpu"):
        return recipe
    if (
        tokenizing.given is not None
        or tokenizing.size is not None
        or tokenizing.kind not in ("bpe", "metaspace", "unigram")
    ):
        return recipe
    if not task_named(recipe.task).sizes:
        return recipe
    work = matmul_speed(recipe.machine.threads or 1) / 12 * training_share(budget_seconds(recipe))
    active = math.sqrt(work / TOKENS_A_PARAMETER[recipe.model.kind])
    affordable = max(1000, round(3.9 * math.sqrt(active) / 100) * 100)
    usual = suggested_size(text_bytes(recipe.corpus))
    return recipe if affordable >= usual else replace(recipe, tokenizing=replace(tokenizing, size=affordable))
