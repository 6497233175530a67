"""The scores at the end of a training: those of the weights to use, and the verdict beside a simple model.

They are written to evaluation.json, and what is printed about them at the end comes from here: how much of the
validation set was scored, and how the Transformer compares with the line to beat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from clearhead.model.int8 import count_weights
from clearhead.model.outputs import SHARES
from clearhead.serialization import check_fields, hints_of
from clearhead.training.baseline import Figures, LinearScore, NgramScore
from clearhead.training.checkpoints import named_tensors
from clearhead.training.evaluation import ValidationSet, assess
from clearhead.training.fitting import LEAST_SCORED
from clearhead.training.loop import Trainer
from clearhead.training.reporting import StoppedScoring, phase, read_metrics, replace_nonfinite
from clearhead.training.run import Run, load
from clearhead.training.weights import WIDE

MOST_ASSESSED = 2000
Score = TypeVar("Score", LinearScore, NgramScore)


def score(trainer: Trainer, device: str) -> Run:
    """Load the weights to use, score them on the validation set, and write evaluation.json."""
    try:
        with phase("scoring the best weights on the validation set", trainer.log):
            run = load(trainer.folder.path, device=device)
            alone = run.task.weigh(run.model, trainer.prepared)
            write_evaluation(run, trainer, alone)
    except KeyboardInterrupt:
        raise StoppedScoring(trainer.folder.path, trainer.done) from None
    return run


def write_evaluation(run: Run, trainer: Trainer, alone: Figures | None) -> None:
    """Write evaluation.json: the scores of the weights to use on the validation set, beside those of a simple model.

    `alone` has those of the Transformer without its linear part: how much each of the two counts goes to baseline.json.
    """
    started, prepared, log = time.perf_counter(), trainer.prepared, trainer.log
    batches = sum(1 for _ in run.task.planner(prepared.dev, trainer.recipe.batching.at_once, 0).in_order())
    assessed = assess(run.model, run.task, final_validation_set(trainer, batches, started))
    share = assessed.batches / max(1, batches)
    if share < 1:
        log(f"the final score is that of {share:.0%} of the dev text: there was no time for all of it")
    evaluation = {
        "on": "dev",
        "records": len(prepared.dev),
        "step": run.step,
        "loss": assessed.loss,
        "standard_error": assessed.standard_error,
        "share": round(share, 3),
        **assessed.scores,
        **run.task.derived_scores(assessed.loss, prepared.dev.folder),
        "parameters": count_weights(run.model),
        "training_seconds": round(trainer.seconds, 2),
        "seconds": round(time.perf_counter() - started, 2),
        "samples": assessed.samples,
    }
    assert trainer.hold is not None
    trainer.hold.check()
    saved = run.folder.read_own(run.folder.baseline) if run.folder.baseline.exists() else {}
    if "macro_f1" in saved:
        evaluation |= compare_with_linear(
            run, saved, Figures(*(assessed.scores[name] for name in Figures._fields)), alone, log
        )
    if "bits_per_byte" in saved:
        evaluation |= compare_with_ngrams(trainer, saved, assessed.loss, evaluation["bits_per_byte"])
    if trainer.recipe.plan is not None and trainer.pacing.minutes:
        evaluation["budget"] = trainer.pacing.account(steps=trainer.seconds, end=time.perf_counter() - trainer.ended)
    run.folder.write_own(run.folder.evaluation, {key: replace_nonfinite(value) for key, value in evaluation.items()})


def final_validation_set(trainer: Trainer, batches: int, started: float) -> ValidationSet:
    """Return the validation set as it is scored at the end: all of it, or in minutes what there is time for."""
    recipe, pacing = trainer.recipe, trainer.pacing
    available = pacing.available(started - trainer.ended)
    scored = MOST_ASSESSED
    if recipe.plan is not None:
        scored = max(LEAST_SCORED, round(recipe.plan.scored * min(1.0, available / max(pacing.final, 1e-9))))
    return ValidationSet(
        store=trainer.prepared.dev,
        tokens=recipe.batching.at_once,
        score_records=scored if recipe.checkpointing.score_records else 0,
        samples=recipe.checkpointing.samples,
        bfloat16=trainer.train_state.bfloat16,
        sample=batches if pacing.minutes else None,
        deadline=started + available,
    )


def read_score(of: type[Score], saved: Mapping[str, Any], owner: Run | Trainer) -> Score:
    """Return a score from baseline.json; RunError, which names the file, where it is none."""
    hints = hints_of(of)
    found = {name: value for name, value in saved.items() if name in hints}
    return of(**check_fields(found, hints, str(owner.folder.baseline)))


def compare_with_linear(
    run: Run, saved: Mapping[str, Any], reached: Figures, alone: Figures | None, log: Callable[[str], None]
) -> dict[str, Any]:
    """Print how a classifier compares with the linear model, write how much each part counts; return their figures."""
    linear = read_score(LinearScore, saved, run)
    compared: dict[str, Any] = {"linear": {name: saved[name] for name in ("accuracy", "macro_f1", "features")}}
    shares = list[float]()
    if alone is not None:
        compared["transformer"] = alone._asdict()
        shares = named_tensors(run.model)[WIDE + SHARES].tolist()
        run.folder.write_own(run.folder.baseline, {**asdict(linear), SHARES: shares})
    log(linear.verdict(reached, alone, shares, tuned=run.folder.fine_tuning() is not None))
    return compared


def compare_with_ngrams(trainer: Trainer, saved: Mapping[str, Any], loss: float, bits: float) -> dict[str, Any]:
    """Print how a language model compares with the byte n-grams, step by step; return their figures."""
    ngram = read_score(NgramScore, saved, trainer)
    curve = [
        (line["step"], line["loss"] / loss * bits)
        for line in read_metrics(trainer.folder.metrics)
        if line["kind"] == "evaluation" and line["loss"] is not None
    ]
    plan = trainer.recipe.plan
    trainer.log(ngram.verdict(bits, curve, text_is_used_up=plan is not None and plan.enough))
    return {"ngram": {name: saved[name] for name in ("bits_per_byte", "order", "train_bytes", "dev_bytes")}}
