"""Pace a run through a budget of minutes: the schedule follows the time that is used, and not a number of steps.

A plan says how many steps the minutes have time for, and the learning rate goes by a position among these planned
steps. As long as steps take as long as planned, each step moves the position by one. Where they take longer, or
evaluations do, a step counts for more (`stride`): so the learning rate is down and every evaluation has been made when
the minutes are over, on a machine that became busy too. Position and stride are in every checkpoint, and a resume goes
on with them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from clearhead.training.checkpoints import PACING_FIELDS
from clearhead.training.recipe import Plan, Recipe
from clearhead.training.scores import FEWEST_BATCHES

TOLERANCE = 0.05
"""Steps this much slower or quicker than planned change nothing."""
LOGGED = 1.5
"""Steps that have become slower by this factor are logged."""
CHECK_SECONDS = 5.0
END = 1e-6
PLANNED, MEASURED = 0.1, 0.5
"""Shares of the time for training: before the first only the planned speed counts, after the second the measured."""
LINE, TIMING, SCORING, FINAL = 0.05, 0.01, 0.04, 0.05
"""The shares of the time after reading that the line to beat may take, each timing of steps, evaluations during
training, and the final one."""
SLACK = 1.5
"""Evaluations that are slower than planned may take this many times their share; beyond it, some are left out."""
OUTSIDE = 0.17
"""The share of the time after reading that everything but steps may take, the line to beat and timing included:
evaluations and the final score are made to fit into it."""
MARGIN = 1.8
"""What comes after the last step may take this many times as long as is thought: the final score is then shorter."""
LONGEST = 0.02
"""The share of the time after reading at which the first evaluation reads no further batches."""
LONGEST_END = 0.25
"""The largest share of the time after reading that is kept for the end."""
LEAVING = 0.4
"""The share of the end that comes after the final score: to write it, and to leave the program."""
REMEMBERED = 0.04
"""The share of the time after reading over which the speed of steps is averaged: single ones scatter."""
PRIOR = 0.5
"""How many evaluations the planned time of one counts for, beside those that were measured."""
PRECISION = 0.005
"""The standard error of the loss, as a share of it, that is small enough for an evaluation during training."""
KEPT = [name for name in PACING_FIELDS if name != "planned"]


class Pacing:
    """The position of a run in its plan; for budgets of steps and epochs it only counts the time.

    `spent` are all seconds of the budget that are gone, `preparing` those between reading and the first step,
    `evaluating` those that went into evaluating and saving. Times
    of the plan were measured when the machine was as busy as then. What is still to come takes longer by the factor
    that steps do now (`slowdown`), and evaluations by `factor` more.
    """

    def __init__(self, recipe: Recipe, log: Callable[[str], None]) -> None:
        minutes = recipe.budget.minutes
        self.limit = math.inf if minutes is None else 60 * minutes
        self.plan = recipe.plan or Plan(steps=1 << 20, step_seconds=1.0)
        self.log = log
        self.evaluations = max(1, self.plan.steps // recipe.checkpointing.evaluate)
        self.position, self.stride, self.logged = 0.0, 1.0, self.plan.step_seconds
        self.spent = self.preparing = 0.0
        self.begin(self.plan.used_seconds)
        self.step_seconds, self.log_factor = self.plan.step_seconds, 0.0
        self.evaluating, self.evaluation, self.evaluated = 0.0, self.plan.evaluation_seconds, 0
        self.sample, self.cut = self.plan.sample, 1.0
        self.seen = (0.0, 0)
        self.steps, self.seconds, self.over = 0, 0.0, False
        self.announced = round_to_two_digits(self.plan.steps)

    @property
    def minutes(self) -> bool:
        return math.isfinite(self.limit)

    def begin(self, spent: float) -> None:
        """Set how many seconds of the budget are gone when the first step of a new run begins."""
        self.spent = max(self.spent, spent)
        self.preparing = max(0.0, self.spent + self.plan.late_seconds - self.plan.reading_seconds)

    def count_step(self, seconds: float, *, logs: bool) -> None:
        """Move on by one step; `seconds` are those of all steps so far. Now and then, adjust the stride."""
        self.spent += seconds - self.seconds
        self.seconds, self.steps = seconds, self.steps + 1
        self.position += self.stride
        since, count = self.seconds - self.seen[0], self.steps - self.seen[1]
        if self.minutes and (logs or since > CHECK_SECONDS):
            weight = min(1.0, since / (REMEMBERED * self.free)) if self.seen[1] else 1.0
            self.adjust(since / count * weight + self.step_seconds * (1 - weight))
            self.seen = (self.seconds, self.steps)
        self.check_end()

    def spend(self, seconds: float, *, scoring: bool) -> None:
        """Count the time of an evaluation, or of saving."""
        self.spent += seconds
        self.evaluating += seconds
        if scoring:
            self.evaluation, self.evaluated = seconds, self.evaluated + 1
            if self.plan.evaluation_seconds:
                slower_steps = self.step_seconds / self.plan.step_seconds
                planned = self.plan.evaluation_seconds * self.cut * slower_steps
                self.log_factor += math.log(max(seconds, 1e-9) / planned)
        self.check_end()

    @property
    def longest(self) -> float:
        """Return after how many seconds an evaluation reads no further batches. Only the first one is cut short: all
        later ones read what it has read, so that their scores can be compared.
        """
        return LONGEST * self.free if self.minutes and not self.evaluated else math.inf

    def narrow(self, standard_error: float | None, loss: float, batches: int) -> None:
        """Set how many batches the next evaluations read: as many as the first one, or fewer by its scatter."""
        if self.sample is None or self.evaluated:
            return
        # Half of an evaluation is taken to be outputs, saving and the like, however few batches are read.
        self.cut = (1 + batches / self.sample) / 2
        needed = batches * ((standard_error or loss) / (PRECISION * max(loss, 1e-9))) ** 2
        self.sample = math.ceil(min(batches, max(FEWEST_BATCHES, needed)))

    @property
    def free(self) -> float:
        """Return the seconds of the budget that the plan had for everything after it."""
        return self.limit - self.plan.used_seconds

    @property
    def outside(self) -> float:
        """Return the seconds that everything but steps may still take: what is left of its share."""
        after_reading = self.limit + self.plan.late_seconds - self.plan.reading_seconds
        return OUTSIDE * after_reading - self.preparing - self.evaluating

    @property
    def slowdown(self) -> float:
        """Return by what factor the machine is slower than when the plan was made, as far as that can be believed.

        The first steps may be slow for reasons that pass, such as capturing them on a GPU. To believe the plan for a
        while costs little: what is left of the schedule is spread over what is left of the time all the same.
        """
        gone = (self.spent - self.plan.used_seconds) / self.free
        belief = min(1.0, max(0.0, gone - PLANNED) / (MEASURED - PLANNED))
        return (max(self.step_seconds, 1e-9) / self.plan.step_seconds) ** belief

    @property
    def factor(self) -> float:
        """Return by what factor all that is not a step is slower than steps are, beside the plan: the geometric mean of
        the evaluations so far, and of the plan.
        """
        return self.slowdown * math.exp(self.log_factor / (self.evaluated + PRIOR))

    @property
    def final(self) -> float:
        """Return how many seconds the final evaluation will take, if it is of the whole dev text."""
        return self.plan.scoring_seconds * self.factor

    @property
    def ending(self) -> float:
        """Return the seconds to keep for what comes after the last step.

        The final score has what is left of its share and of `OUTSIDE`. It is the last of all, and made as long as there
        is time, so it makes up for a last evaluation that takes longer.
        """
        if not self.minutes:
            return 0.0
        certain = (self.plan.evaluation_seconds * self.cut + self.plan.ending_seconds) * self.factor
        room = min(self.final, FINAL * self.free, self.outside - certain)
        needed = max(MARGIN * certain, certain + room)
        return min(needed, LONGEST_END * self.free)  # one slow evaluation is not believed beyond that

    @property
    def left(self) -> float:
        """Return the seconds that are left for steps, the end and the evaluations to come taken off."""
        if not self.minutes:
            return self.limit
        share = max(0.0, 1 - self.position / self.plan.steps)
        allowed = max(0.0, SLACK * SCORING * self.free - self.evaluating)
        evaluation = self.plan.evaluation_seconds * self.cut * self.factor
        ending = self.ending
        coming = min(allowed, share * self.evaluations * evaluation, max(0.0, self.outside - ending))
        if not self.evaluated:
            coming = max(coming, min(evaluation, LONGEST * self.free))
        return self.limit - self.spent - ending - coming

    def affords_evaluation(self) -> bool:
        """Return whether there is time for an evaluation now: they must not take more than their share so far. The
        first one is always made: it says how long they take.
        """
        if not self.minutes or not self.evaluated:
            return True
        if self.evaluation > self.outside - self.ending:
            return False
        gone = (self.spent - self.plan.used_seconds) / self.free
        return self.evaluating + self.evaluation <= SLACK * SCORING * self.free * gone

    def available(self, elapsed: float) -> float:
        """Return how long the final score may take, if it begins `elapsed` seconds after the last step was counted."""
        return self.limit - self.spent - elapsed - LEAVING * self.plan.ending_seconds * self.factor

    def account(self, *, steps: float, end: float) -> dict[str, float]:
        """Return where the seconds of the budget went: the planned end, the real one, and what is between.

        `steps` are the seconds of all steps, `end` those since the last one was written down.
        """
        plan = self.plan
        parts = {
            "reading": plan.reading_seconds,
            "preparing": max(0.0, self.spent + plan.late_seconds - plan.reading_seconds - steps - self.evaluating),
            "steps": steps,
            "evaluations": self.evaluating,
            "end": end,
        }
        seconds = {"planned": self.limit + plan.late_seconds, "total": sum(parts.values()), **parts}
        return {name: round(value, 2) for name, value in seconds.items()}

    def adjust(self, step_seconds: float) -> None:
        """Set the stride so that the plan ends with the minutes, at the speed of the last steps."""
        self.step_seconds = step_seconds
        ahead = self.plan.steps - self.position
        if ahead <= 0:
            return
        expected = self.plan.step_seconds * self.slowdown
        stride = ahead / max(1.0, self.left / expected)
        if self.slowdown > 1 and step_seconds > LOGGED * self.logged:
            self.logged = step_seconds
            self.log(
                f"steps take {step_seconds:.2g} s instead of the {self.plan.step_seconds:.2g} s that were planned, and "
                f"about {max(1, round(self.left / step_seconds)):,} more fit into the minutes: the schedule follows"
            )
        if self.plan.enough:
            stride = max(1.0, stride)
        if abs(stride / self.stride - 1) > TOLERANCE:
            self.stride = stride

    def check_end(self) -> None:
        """Find out whether this was the last step: the plan is done, or there is no time for half of another step.

        It stays so, though the last evaluation may be quicker than was thought.
        """
        done = self.position >= self.plan.steps - END
        half_a_step = self.plan.step_seconds * self.slowdown / 2
        self.over = self.over or done or self.limit - self.spent - self.ending < half_a_step

    def is_over(self) -> bool:
        return self.over

    def expected_total(self, done: int) -> int:
        """Return how many steps there will be in all at the present stride."""
        return done + math.ceil(max(0.0, self.plan.steps - self.position - END) / self.stride)

    def announced_total(self, done: int) -> int:
        """Return about how many steps there will be in all: it stays the same until it is wrong by a twentieth."""
        if self.is_over():
            return done
        expected = max(done + 1, self.expected_total(done))
        if abs(expected / self.announced - 1) > TOLERANCE:
            self.announced = round_to_two_digits(expected)
        if self.announced <= done:  # the next number of two digits, so that it need not change at every step
            unit = 10 ** max(0, len(str(done + 1)) - 2)
            self.announced = math.ceil((done + 1) / unit) * unit
        return self.announced

    def state(self) -> dict[str, float | int | None]:
        """Return what a checkpoint keeps."""
        return {"planned": self.plan.steps, **{name: getattr(self, name) for name in KEPT}}

    def restore(self, state: Mapping[str, Any], *, done: int, seconds: float) -> None:
        """Go on from a checkpoint. From one of another plan, or of none, only steps and seconds are taken."""
        self.steps, self.seconds = done, seconds
        self.seen = (self.seconds, self.steps)
        if state.get("planned") == self.plan.steps:
            for name in KEPT:
                setattr(self, name, state[name])
        else:
            self.position, self.spent = float(done), float(state.get("spent", seconds))


def round_to_two_digits(count: int) -> int:
    """Return a count as people say it with "about".

    >>> [round_to_two_digits(count) for count in (7, 42, 423, 12_871)]
    [7, 42, 420, 13000]
    """
    return int(float(f"{count:.2g}"))
