"""Pace a run through a budget of minutes: the schedule follows the time that is used, and not a number of steps.

A plan says how many steps the minutes have time for, and the learning rate goes by a position among these planned
steps. As long as steps take as long as planned, each step moves the position by one. Where they take longer, or
evaluations do, a step counts for more (`stride`): so the learning rate is down and every evaluation has been made when
the minutes are over, on a machine that became busy too. Position and stride are in every checkpoint, and a resume goes
on with them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

from clearhead.training.recipe import Plan, Recipe

TOLERANCE = 0.05
"""Steps this much slower or quicker than planned change nothing."""
LOGGED = 1.5
"""Steps that have become slower by this factor are logged."""
CHECK_SECONDS = 5.0
END = 1e-6
PLANNED, MEASURED = 0.1, 0.5
"""Shares of the budget: before the first only the planned speed counts, after the second only the measured one."""
ALLOWED = 0.025
"""The share of a budget of minutes that an evaluation may take. After one that took more, only the loss is computed."""


@final
class Pacing:
    """The position of a run in its plan; for budgets of steps and epochs it only counts the time."""

    def __init__(self, recipe: Recipe, log: Callable[[str], None]) -> None:
        minutes = recipe.budget.minutes
        self.limit = math.inf if minutes is None else 60 * minutes
        self.plan = recipe.plan or Plan(steps=1 << 20, step_seconds=1.0)
        self.log = log
        self.evaluations = max(1, self.plan.steps // recipe.checkpointing.evaluate)
        self.position, self.stride, self.logged = 0.0, 1.0, self.plan.step_seconds
        self.spent = self.plan.used_seconds
        self.scoring = self.plan.evaluation_seconds
        self.seen = (0.0, 0)
        self.steps, self.seconds = 0, 0.0
        self.announced = round_to_two_digits(self.plan.steps)

    def count_step(self, seconds: float, *, logs: bool) -> None:
        """Move on by one step; `seconds` are those of all steps so far. Now and then, adjust the stride."""
        self.spent += seconds - self.seconds
        self.seconds, self.steps = seconds, self.steps + 1
        self.position += self.stride
        since, count = self.seconds - self.seen[0], self.steps - self.seen[1]
        if math.isfinite(self.limit) and (logs or since > CHECK_SECONDS):
            self.adjust(since / count)
            self.seen = (self.seconds, self.steps)

    def spend(self, seconds: float, *, scoring: bool) -> None:
        """Count the time of an evaluation, or of saving."""
        self.spent += seconds
        self.scoring = seconds if scoring else self.scoring

    @property
    def left(self) -> float:
        """Return the seconds that are left for steps, the final scoring and the evaluations to come taken off."""
        share = max(0.0, 1 - self.position / self.plan.steps)
        if not math.isfinite(self.limit):
            return self.limit
        evaluation_seconds = min(self.scoring, ALLOWED * self.limit)
        return self.limit - self.spent - self.plan.scoring_seconds - share * self.evaluations * evaluation_seconds

    def affords_outputs(self) -> bool:
        """Return whether the next evaluation may make outputs: the last one was not too slow for the budget."""
        return self.scoring <= ALLOWED * self.limit

    def adjust(self, step_seconds: float) -> None:
        """Set the stride so that the plan ends with the minutes, at the speed of the last steps."""
        ahead = self.plan.steps - self.position
        if ahead <= 0:
            return
        # The first steps may be slow for reasons that pass, such as capturing them on a GPU. To believe the plan for a
        # while costs little: what is left of the schedule is spread over what is left of the time all the same.
        belief = min(1.0, max(0.0, self.spent / self.limit - PLANNED) / (MEASURED - PLANNED))
        expected = self.plan.step_seconds ** (1 - belief) * max(step_seconds, 1e-9) ** belief
        stride = ahead / max(1.0, self.left / expected)
        if belief > 0 and step_seconds > LOGGED * self.logged:
            self.logged = step_seconds
            self.log(
                f"steps take {step_seconds:.2g} s instead of the {self.plan.step_seconds:.2g} s that were planned, and "
                f"about {max(1, round(self.left / step_seconds)):,} more fit into the minutes: the schedule follows"
            )
        if self.plan.enough:
            stride = max(1.0, stride)
        if abs(stride / self.stride - 1) > TOLERANCE:
            self.stride = stride

    def is_over(self) -> bool:
        return self.position >= self.plan.steps - END or self.limit - self.spent <= self.plan.scoring_seconds

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

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {
            "spent": self.spent,
            "planned": self.plan.steps,
            "position": self.position,
            "stride": self.stride,
            "scoring": self.scoring,
        }

    def restore(self, state: Mapping[str, Any], *, done: int) -> None:
        """Go on from a checkpoint. From one of another plan, or of none, only steps and seconds are taken."""
        self.steps, self.seconds = done, float(state["seconds"])
        self.seen = (self.seconds, self.steps)
        self.spent = read_number(state, "spent", self.seconds)
        same_plan = state.get("planned") == self.plan.steps
        self.position = read_number(state, "position", float(done)) if same_plan else float(done)
        self.stride = read_number(state, "stride", 1.0) if same_plan else 1.0
        self.scoring = read_number(state, "scoring", self.plan.evaluation_seconds)


def round_to_two_digits(count: int) -> int:
    """Return a count as people say it with "about".

    >>> [round_to_two_digits(count) for count in (7, 42, 423, 12_871)]
    [7, 42, 420, 13000]
    """
    return int(float(f"{count:.2g}"))


def read_number(state: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number of a checkpoint's state, and the default where it has none that is above 0."""
    value = state.get(name)
    return float(value) if isinstance(value, int | float) and 0 < value < math.inf else default
