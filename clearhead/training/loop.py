"""The training loop: batches in, a trained model out, and a checkpoint to resume from at any moment.

Nothing random has a state that must be saved. The batches of an epoch follow from the seed and the epoch; dropout and
masked tokens follow from the seed and the step. So a run that was stopped anywhere resumes exactly as it would have
gone on.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from clearhead import devices, extras, files, serialization
from clearhead.attention import cpu_matmul
from clearhead.errors import RunError
from clearhead.model.blocks import Stack
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.plots.curves import draw_curves
from clearhead.text.mixing import Mixed
from clearhead.text.preparing import Prepared
from clearhead.training import distributed, weights
from clearhead.training.checkpoints import MODEL, Checkpoint, copy_into, named_tensors
from clearhead.training.evaluation import ValidationSet, assess
from clearhead.training.film import FilmCamera, is_frame
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import Hold
from clearhead.training.machine import ThreadWatch, count_tokens, prepare_machine
from clearhead.training.pacing import Pacing
from clearhead.training.parallel import build_model, choose_parallel
from clearhead.training.recipe import CLASSES, Recipe
from clearhead.training.reporting import LossWatch, MetricsLog, Stopping, ignore, memory_mb, phase, read_metrics
from clearhead.training.sharded_checkpoints import Saver, ShardedSaver, WholeSaver, restore_tensors
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.learning import Batch
from clearhead.training.train_step import BatchStream, TrainState, split_rows, step_seed, training_tensors

Select = Callable[[torch.nn.Module], dict[str, torch.Tensor]]
Watcher = Callable[[Mapping[str, Any]], None]
"""A callback that is given every line of metrics.jsonl as it is written, and a line when a checkpoint was saved."""


class Trainer:
    """A run in training: its recipe, text and model, and the loop.

    `hold` is its folder, which must stay where it is; `log` is given warnings; `began` is when the budget of minutes of
    a new run began, by the first process's clock. Several processes that train together each have a trainer, and all
    of them take the same steps and decisions: by the first one's clock and scores. Only the first one writes; the
    others have no `hold`.
    """

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        prepared: Prepared,
        task: Task,
        spec: Spec,
        *,
        hold: Hold | None = None,
        watcher: Watcher = ignore,
        log: Callable[[str], None] = ignore,
        began: float | None = None,
    ) -> None:
        self.folder, self.recipe, self.prepared, self.task, self.spec = folder, recipe, prepared, task, spec
        self.hold, self.watcher, self.log = hold, watcher, log
        self.began, self.ended = began, 0.0
        self.processes = distributed.current_processes()
        # Frozen weights of a fine-tuned run are in its pretrained.safetensors, and not in every checkpoint again.
        tensors_of: Select = named_tensors if recipe.fine_tuning is None else weights.trained_tensors
        apart = folder.ngrams_file.exists()
        self.select: Select = (lambda model: weights.without_wide(tensors_of(model))) if apart else tensors_of
        self.pacing = Pacing(recipe, log)
        self.watch = LossWatch(recipe.optimizer.schedule.warmup)
        self.splits = recipe.machine.splits
        self.done = self.tokens = self.step_tokens = self.since_best = self.log_size = self.stop_signal = 0
        self.saved_step = self.evaluated_step = 0
        self.seconds = self.rate = 0.0
        self.best: dict[str, float] | None = None
        self.camera: FilmCamera | None = None
        self.train_state: TrainState
        self.stream: BatchStream
        self.threads: ThreadWatch
        self.metrics_log: MetricsLog
        self.saver: Saver

    def build(self, checkpoint: Checkpoint | None) -> None:
        """Build the model, on its device and shared with the other processes, and the state that a step changes.

        `checkpoint` is the one that will be restored: it must fit the model, and the other processes are told of it.
        """
        recipe, processes = self.recipe, self.processes
        device = processes.device(prepare_machine(recipe.machine))
        if checkpoint is not None:
            weights.check_saved(self.folder, self.spec, recipe.fine_tuning, checkpoint.folder / MODEL)
        torch.manual_seed(recipe.seed)
        model = build_model(recipe, self.spec, processes)
        parallel = choose_parallel(recipe, processes, model, device)
        if processes.is_first:
            self.tell_the_others(checkpoint)
            if checkpoint is None and recipe.vectors is not None:
                weights.start_from_vectors(model, self.task, recipe.vectors, self.log)
        if recipe.fine_tuning is not None:
            copy_into(
                weights.without_wide(named_tensors(model)),
                weights.load_start(self.folder),
                str(self.folder.pretrained_file),
            )
            weights.prepare_parameters(model, recipe.fine_tuning)
        processes.copy_from_first(model)
        model = model if parallel.shards else model.to(device)  # shards go to their device one group after another
        if recipe.machine.activation_checkpointing:
            for module in model.modules():
                if isinstance(module, Stack):
                    module.checkpointing = True
        self.train_state = state = TrainState(model, self.task, recipe.optimizer, recipe.machine, parallel)
        if state.silent is not None and state.bfloat16:
            self.log(
                f"training is slower than it could be: {state.silent.__name__} does not say `supports_bfloat16 = True` "
                "beside its forward, so every operation rounds its weights by itself (autocast)"
            )

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Plan the batches, and go back to the checkpoint if there is one. Signals to stop are obeyed from here on."""
        recipe = self.recipe
        self.stream = BatchStream(recipe, self.task, self.prepared.train, filled=self.train_state.captures)
        self.epoch_batches = self.stream.count()
        adapts = recipe.machine.adapt_threads and self.processes.count == 1
        self.threads = ThreadWatch(replace(recipe.machine, adapt_threads=adapts), self.log)
        if checkpoint is not None:
            self.restore(checkpoint)

    def tell_the_others(self, checkpoint: Checkpoint | None) -> None:
        """Tell the other processes what to train: where the run is, its recipe, and the checkpoint to go on from."""
        self.processes.send(
            {
                "run": str(self.folder.path.absolute()),
                "recipe": serialization.to_json(self.recipe, CLASSES),
                "began": self.began,
                "data": str(self.prepared.train.folder.parent.parent.absolute()),
                "checkpoint": None if checkpoint is None else str(checkpoint.folder.absolute()),
            }
        )

    @property
    def total(self) -> int:
        """Return the steps of the whole run; with a budget of minutes, as many as fit into it at the present speed."""
        budget = self.recipe.budget
        if budget.steps is not None:
            return budget.steps
        if budget.epochs is not None:
            return max(1, math.ceil(budget.epochs * self.epoch_batches / self.recipe.batching.passes))
        return self.pacing.expected_total(self.done)

    @property
    def position(self) -> float:
        """Return where in the schedule the run is, in steps of `planned_total`."""
        return float(self.done) if self.recipe.budget.minutes is None else self.pacing.position

    @property
    def planned_total(self) -> int:
        """Return the steps that the schedule is made for."""
        return self.total if self.recipe.budget.minutes is None else self.pacing.plan.steps

    def is_finished(self) -> bool:
        budget = self.recipe.budget
        if budget.patience is not None and self.since_best >= budget.patience:
            return True
        if budget.minutes is not None:
            return self.done > 0 and self.pacing.is_over()
        return self.done >= self.total

    def train(self, stopping: Stopping) -> None:
        """Train until the budget ends or a signal asks to stop; either way a checkpoint is saved."""
        self.train_state.model.train()
        kind = ShardedSaver if self.train_state.parallel.shards else WholeSaver
        self.saver = kind(self.folder.checkpoints, self.train_state.parallel.processes)
        if self.hold is None:
            self.run(stopping)
            self.saver.wait()
            return
        self.hold.check()
        self.metrics_log = MetricsLog(self.folder.metrics, size=self.log_size, log=self.log, check=self.hold.check)
        for line in read_metrics(self.folder.metrics):
            self.watch_loss(line, quiet=True)
        if not self.train_state.parallel.shards:
            self.camera = FilmCamera(
                self.folder.film,
                lambda: self.select(self.train_state.averaged_model()),
                asked=self.recipe.checkpointing.film,
                log=self.log,
            )
            self.camera.begin(self.done)
        try:
            self.run(stopping)
            self.saver.wait()
            self.tell_saved()
        except BaseException:
            with contextlib.suppress(OSError):  # a disk that stays broken has told its first error
                self.metrics_log.close()
            raise
        with files.os_errors_as_run_errors(self.folder.metrics):
            self.metrics_log.close()
        self.hold.check()
        if not extras.has_package("matplotlib"):
            self.log(f"curves.svg is not drawn: that needs matplotlib ({extras.how_to_install('plots')})")
            return
        lines = read_metrics(self.folder.metrics)
        with files.os_errors_as_run_errors(self.folder.curves):
            draw_curves(lines, self.folder.curves, title=self.folder.path.name)

    def run(self, stopping: Stopping) -> None:
        """Take steps until the budget ends or a signal comes, and keep what the recipe asks for on the way."""
        batches = self.stream.batches(self.done * self.recipe.batching.passes)
        clock, self.stop_signal = self.processes.moment(stopping.signal)
        self.saved_step = self.evaluated_step = self.done
        if self.began is not None and not self.done:
            self.pacing.begin(clock - self.began)
        while not self.is_finished() and not self.stop_signal:
            before = self.position
            with contextlib.nullcontext() if self.done else phase("the first step", self.log):
                self.step(batches)
            logs = self.done % self.recipe.checkpointing.log == 0
            if logs:  # the clock counts steps that a GPU has done, and not those that it was given
                devices.synchronize(self.train_state.device)
            now, _ = self.processes.moment(0)
            self.seconds, clock = self.seconds + now - clock, now
            self.pacing.count_step(self.seconds, logs=logs)
            over = self.is_finished()
            due = crosses(before, self.position, self.recipe.checkpointing.evaluate)
            evaluates = over or (due and self.pacing.affords_evaluation())
            if logs or over:
                self.write_step()
                self.threads.look()
            self.keep(evaluates=evaluates)
            # Evaluating, saving and the film are inside a budget of minutes, outside of the seconds that steps took.
            clock, self.stop_signal = self.processes.moment(stopping.signal)
            self.pacing.spend(clock - now, scoring=evaluates)
        self.keep_last()
        if isinstance(self.stream.planner, Mixed):
            read = self.stream.planner.epochs(self.done * self.recipe.batching.passes)
            self.log("epochs of each source: " + ", ".join(f"{name} {count:.3g}" for name, count in read.items()))
        self.ended, _ = self.processes.moment(0)
        self.pacing.spend(self.ended - clock, scoring=False)

    def keep(self, *, evaluates: bool) -> None:
        """Evaluate, take a frame of the film and save a checkpoint after a step, whichever is due."""
        checkpointing = self.recipe.checkpointing
        # In minutes there is a checkpoint with each evaluation, which is left out where there is no time for it.
        save_every = checkpointing.save or (1 << 62 if self.pacing.minutes else checkpointing.evaluate)
        if evaluates:
            self.evaluate()
        if is_frame(self.done) and self.camera is not None and self.hold is not None:
            # Before the checkpoint: a kill between the two would leave a run that goes on without this frame.
            self.hold.check()
            self.camera.take(self.done)
        if evaluates or self.done % save_every == 0:
            self.save()
        self.tell_saved()

    def keep_last(self) -> None:
        """Evaluate and save the last step, where that was not done right after it."""
        if self.evaluated_step < self.done and not self.stop_signal:
            # The minutes ended after a step, while it was written down. Where that was a checkpoint, it is saved again:
            # whether it is the best, and that training is finished, was not known then.
            self.evaluate()
            self.save()
        elif self.saved_step < self.done:
            self.save()

    def step(self, batches: Iterator[Batch]) -> None:
        """Take one optimiser step, with random numbers of its own."""
        recipe = self.recipe
        passes = [next(batches) for _ in range(recipe.batching.passes)]
        # In a budget of minutes a step may count for several planned ones.
        share = recipe.optimizer.schedule.at(math.floor(self.position + 1e-6), total=self.planned_total)
        rate = recipe.optimizer.lr * share
        ema_weight = recipe.optimizer.averaging.ema_weight(self.done + 1, self.total)
        self.train_state.hold_average(ema_weight)
        while not self.try_step(passes, rate):
            self.halve_batches(max(len(batch["wanted"]) for batch in passes))
        self.train_state.update_average(ema_weight)
        self.rate = rate
        self.step_tokens += sum(map(count_tokens, passes))
        self.done += 1

    def try_step(self, batches: list[Batch], rate: float) -> bool:
        """Take a step with random numbers of its own; return False if the GPU's memory is too small for it."""
        devices.seed_random(step_seed(self.recipe.seed, self.done, self.processes.rank), self.train_state.device)
        nll, n_targets = self.train_state.nll.clone(), self.train_state.places
        try:
            self.train_state.step([part for batch in batches for part in split_rows(batch, self.splits)], rate)
        except torch.OutOfMemoryError:
            if self.processes.together:  # the others are in the middle of the same step
                raise RunError(
                    f"{self.folder.path}: the memory of GPU {self.processes.local_rank} is too small for its rows of a "
                    "micro-batch. Take a smaller --micro-batch-tokens, --activation-checkpointing, or --parallel fsdp"
                ) from None
            self.train_state.nll.copy_(nll)
            self.train_state.places = n_targets
            return False
        return True

    def halve_batches(self, rows: int) -> None:
        """Compute micro-batches in twice as many parts from now on: the same step, in half of the memory."""
        if self.splits >= rows:
            raise RunError(
                f"{self.folder.path}: the GPU's memory is too small for a single row of {self.recipe.batching.context} "
                "tokens. Take a smaller model or --context, --activation-checkpointing, or another --device"
            )
        self.splits *= 2
        self.train_state.clear_gradients()
        self.train_state.forget_graphs()
        if self.train_state.device.type == "cuda":
            torch.cuda.empty_cache()
        tokens = self.recipe.batching.at_once // self.splits
        self.log(f"out of GPU memory: micro-batches are halved, to about {tokens:,} tokens; the steps are the same")

    def write_step(self) -> None:
        total = self.train_state.totals()
        self.tokens, self.step_tokens = self.tokens + self.step_tokens, 0
        loss = total.nll / max(total.places, 1)
        if not math.isfinite(loss):
            raise self.divergence_error(f"the loss is {loss}")
        batches = self.done * self.recipe.batching.passes
        line = {
            "kind": "step",
            "step": self.done,
            "epoch": round(batches / self.epoch_batches, 4),
            **({"epochs": self.stream.planner.epochs(batches)} if isinstance(self.stream.planner, Mixed) else {}),
            "loss": loss,
            "lr": self.rate,
            "grad_norm": total.grad_norm,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens / max(self.seconds, 1e-9)),
            "memory_mb": memory_mb(self.train_state.device),
        }
        self.report(line)
        self.watch_loss(line)

    def watch_loss(self, line: Mapping[str, Any], *, quiet: bool = False) -> None:
        """Warn, once each time, that the loss has grown tenfold. `quiet`: the line is from before a resume."""
        step, loss = line.get("step"), line.get("loss")
        if line.get("kind") != "step" or not isinstance(step, int) or not isinstance(loss, float):
            return
        times = self.watch.see(step, loss)
        if times is not None and not quiet:
            self.log(
                f"step {step:,}: the training loss has grown to {times:.0f} times its best ({loss:.4g} now): training "
                f"may be diverging. A lower --lr (it is {self.recipe.optimizer.lr:g}) or a longer --warmup helps most"
            )

    def check_weights(self) -> None:
        """Raise RunError if a weight is not finite: a step's loss is from before its update."""
        if not self.train_state.is_finite():
            raise self.divergence_error("there are weights that are no numbers")

    def divergence_error(self, problem: str) -> RunError:
        return RunError(
            f"{self.folder.path}: {problem} at step {self.done}: training has diverged. Checkpoints saved before are "
            "intact: continue with --resume and a lower --lr, or train again with more --warmup"
        )

    def report(self, line: Mapping[str, Any]) -> None:
        """Write a line to the log, and give it to the watcher with the total number of steps.

        In a budget of minutes the total is an estimate, and `about` is True until training is over.
        """
        if self.hold is None:
            return
        with files.os_errors_as_run_errors(self.folder.metrics):
            self.metrics_log.write(line)
        estimated = self.recipe.budget.minutes is not None
        total = self.pacing.announced_total(self.done) if estimated else self.total
        self.watcher({**line, "total": total, "about": estimated and total > self.done})

    def evaluate(self) -> None:
        """Score the weights to use on the validation set, and record whether they are the best so far."""
        with phase("evaluating", self.log):
            self.score()
        self.evaluated_step = self.done

    def score(self) -> None:
        """Score as the first process; as another, wait for its score."""
        self.check_weights()
        checkpointing = self.recipe.checkpointing
        validation_set = ValidationSet(
            store=self.prepared.dev,
            tokens=self.recipe.batching.at_once,
            score_records=checkpointing.score_records,
            samples=checkpointing.samples if self.pacing.plan.shows_samples else 0,
            bfloat16=self.train_state.bfloat16,
            sample=self.pacing.sample,
            deadline=time.perf_counter() + self.pacing.longest / 2,  # the other half is for outputs
        )
        started = time.perf_counter()
        model = self.train_state.parallel.evaluation_model(self.train_state.averaged_model(), self.build_model)
        assessment = None
        if model is not None:
            assessment = assess(model, self.task, validation_set)
            cpu_matmul.forget(model)  # copies of its weights, which the next step makes old
        self.train_state.model.train()
        found = None
        if assessment is not None:
            read = (assessment.standard_error, assessment.loss, assessment.batches)
            found = {"score": self.task.goal(assessment.scores, assessment.loss), "read": read}
        found = self.processes.send(found)
        self.pacing.narrow(*found["read"])
        score = float(found["score"])
        better = math.isfinite(score) and (self.best is None or score > self.best["score"])
        self.since_best = 0 if better else self.since_best + 1
        if better:
            self.best = {"step": self.done, "score": score}
        seconds = round(time.perf_counter() - started, 3)
        if assessment is not None:
            self.report(
                {"kind": "evaluation", "step": self.done, **asdict(assessment), "best": better, "seconds": seconds}
            )

    def build_model(self) -> Transformer:
        """Return a model like the one in training, of any weights."""
        model = self.spec.build()
        if self.recipe.fine_tuning is not None:
            weights.prepare_parameters(model, self.recipe.fine_tuning)
        return model.to(self.train_state.device)

    def save(self) -> None:
        """Save a checkpoint of this moment, with the size of the log so far. Sharded weights are written while training
        goes on.
        """
        self.check_weights()
        self.train_state.collect_nll()
        if self.hold is not None:
            self.hold.check()
            with files.os_errors_as_run_errors(self.folder.metrics):
                self.metrics_log.sync()
        model = self.select(self.train_state.averaged_model())
        state = {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "places": self.train_state.places,
            "metrics_size": 0 if self.hold is None else self.metrics_log.size,
            "best": self.best,
            "since_best": self.since_best,
            "finished": self.is_finished(),
            "step_tokens": self.step_tokens,
            "pacing": self.pacing.state(),
        }
        self.saver.save(self.done, model, training_tensors(self.train_state, self.select), state)
        self.saved_step = self.done
        self.tell_saved()

    def tell_saved(self) -> None:
        """Once a checkpoint is whole, remove those that it takes the place of, and tell the watcher."""
        if self.hold is None or (saved := self.saver.take_finished()) is None:
            return
        step, best = saved.step, saved.state["best"]
        self.hold.saved = f"step-{step:08d}"
        # The best as of that checkpoint: one that is better by now is not saved yet.
        best_step = None if best is None else int(best["step"])
        self.folder.checkpoints.prune(self.recipe.checkpointing.checkpoints, best_step, step)
        self.watcher({"kind": "saved", "step": step})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore everything to what it was when the checkpoint was saved."""
        tensors = training_tensors(self.train_state, self.select)
        restore_tensors(tensors, checkpoint)
        if not self.processes.is_first:  # the running loss is of all of them
            self.train_state.nll.zero_()
        state = checkpoint.state
        self.done, self.tokens, self.seconds = checkpoint.step, state["tokens"], state["seconds"]
        self.train_state.places = state["places"]
        self.best, self.since_best = state["best"], state["since_best"]
        self.step_tokens = state["step_tokens"]
        self.pacing.restore(state["pacing"], done=self.done, seconds=self.seconds)
        self.log_size = state["metrics_size"]
        if self.hold is not None:
            self.hold.saved = checkpoint.folder.name


def crosses(before: float, after: float, every: int) -> bool:
    """Return whether a multiple of `every` lies between two positions, the second one included.

    >>> crosses(9.0, 10.0, 10), crosses(10.0, 11.0, 10), crosses(7.5, 12.5, 10)
    (True, False, True)
    """
    return math.floor(after / every + 1e-9) > math.floor(before / every + 1e-9)
