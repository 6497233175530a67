"""A run, loaded: the model, its tokenisers, and the verbs.

```
run = ch.load("runs/de-en")
run.translate(["zweiundvierzig"], beam=5)
```
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, final

from torch import Tensor, nn

from clearhead.decoding import Beam, Greedy, Sample
from clearhead.devices import choose_device
from clearhead.errors import OptionError, RunError
from clearhead.model.sizes import Spec
from clearhead.text.sources import Source
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import answers
from clearhead.training.answers import Class, Filling, Written
from clearhead.training.checkpoints import MODEL, Checkpoint, copy_into, named_tensors
from clearhead.training.evaluation import Evaluating, evaluate
from clearhead.training.folder import RunFolder
from clearhead.training.tasks import Classify, Fill, Generate, Task, Translate
from clearhead.training.weight_files import check_shapes, read_header

__all__ = ["Run", "load"]

Params = TypeVar("Params", bound=Task)


@final
class Run:
    """A trained model and what it can do. `model` is an ordinary nn.Module, in eval mode."""

    def __init__(self, folder: RunFolder, task: Task, model: nn.Module, step: int) -> None:
        self.folder, self.task, self.model, self.step = folder, task, model, step

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}, task={self.task.name!r}, step={self.step})"

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser of what comes in; `task.tokenizers` has them all by field."""
        return next(iter(self.task.tokenizers.values()))

    def asked(self, task: type[Params]) -> Params:
        if not isinstance(self.task, task):
            raise OptionError(
                f"{self.folder.path} was trained to {self.task.name}, and was asked to {task.name}; "
                f"use `clearhead {self.task.name} {self.folder.path}`"
            )
        return self.task

    def unseen(self, text: str) -> str:
        """What of a text the tokeniser has never met: characters, or words if its tokens are words."""
        return self.tokenizer.unseen(text)

    def translate(self, texts: Sequence[str], *, beam: int = 5, length_penalty: float = 1.0) -> list[str]:
        """The best translation of each text. A beam of 1 is greedy. A blank text is translated by a blank one."""
        return [found[0] for found in self.translations(texts, beam=beam, length_penalty=length_penalty)]

    def translations(
        self, texts: Sequence[str], *, beam: int = 5, n_best: int = 1, length_penalty: float = 1.0
    ) -> list[list[str]]:
        """The best `n_best` translations of each text."""
        found = self.scored_translations(texts, beam=beam, n_best=n_best, length_penalty=length_penalty)
        return [[one.text for one in written] for written in found]

    def scored_translations(
        self, texts: Sequence[str], *, beam: int = 5, n_best: int = 1, length_penalty: float = 1.0
    ) -> list[list[Written]]:
        """The same with their scores."""
        task = self.asked(Translate)
        method = Greedy() if beam == n_best == 1 else Beam(width=beam, n_best=n_best, length_penalty=length_penalty)
        said = [i for i, text in enumerate(texts) if text.strip()]
        rows = task.tokenizers["source"].encode_batch([texts[i] for i in said])
        answered = [[Written("", 0.0, 0.0)] * n_best for _ in texts]
        decode = task.tokenizers["target"].decode
        for i, found in zip(said, answers.translate(self.model, task, rows, method), strict=True):
            answered[i] = [Written(decode(one.tokens), sum(one.log_probs, 0.0), one.score) for one in found]
        return answered

    def generate(
        self, prompts: Sequence[str] = ("",), *, max_new: int = 200, method: Greedy | Sample = Sample(temperature=0.8)
    ) -> list[str]:
        """Each prompt's continuation, without the prompt. Of a text longer than the context, it sees the end."""
        return [one.text for one in self.scored_texts(prompts, max_new=max_new, method=method)]

    def scored_texts(
        self, prompts: Sequence[str] = ("",), *, max_new: int = 200, method: Greedy | Sample = Sample(temperature=0.8)
    ) -> list[Written]:
        """The same with their log-probabilities."""
        task = self.asked(Generate)
        tokenizer = task.tokenizers["text"]
        rows = tokenizer.encode_batch(list(prompts))
        found = answers.continue_texts(self.model, task, rows, method, max_new=max_new, opened=self.opens)
        return [
            Written(answers.continued(tokenizer, row, one.tokens), one.score, one.score)
            for row, [one] in zip(rows, found, strict=True)
        ]

    def stream(
        self, prompt: str = "", *, max_new: int = 200, method: Greedy | Sample = Sample(temperature=0.8)
    ) -> Iterator[str]:
        """What `generate` gives, piece by piece as it is written. A piece never ends within a character."""
        task = self.asked(Generate)
        row = task.tokenizers["text"].encode(prompt)
        spoken = answers.Spoken(task.tokenizers["text"], row)
        for token in answers.stream_texts(self.model, task, [row], method, max_new=max_new, opened=self.opens):
            if piece := spoken.add(token.token):
                yield piece
        if rest := spoken.rest():
            yield rest

    @property
    def opens(self) -> bool:
        """Whether the model has seen documents begin."""
        return (self.folder.described()["documents"] or 1) > 1

    def classify(self, texts: Sequence[str]) -> list[Class]:
        """The class of each text, with the probability of every label."""
        task = self.asked(Classify)
        return answers.classify(self.model, task, task.tokenizers["text"].encode_batch(list(texts)))

    def fill(self, texts: Sequence[str], *, shown: int = 5) -> list[Filling]:
        """Fills every `<mask>`, and shows the `shown` likeliest pieces for each."""
        return answers.fill(self.model, self.asked(Fill), texts, shown=shown)

    def evaluate(
        self,
        source: Source,
        *,
        beam: int = 5,
        length_penalty: float = 1.0,
        tokenize: str = "13a",
        lower: bool = False,
        stride: int | None = None,
    ) -> dict[str, Any]:
        """How good it is on these files, as `clearhead evaluate` tells it; `evaluating.Evaluating` has the meanings."""
        how = Evaluating(beam=beam, length_penalty=length_penalty, tokenize=tokenize, lower=lower, stride=stride)
        return evaluate(self, source, how)


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def load(
    path: str | Path, *, device: str = "auto", step: int | None = None, log: Callable[[str], None] = to_stderr
) -> Run:
    """Return the run of a folder, with its best weights (or its last, if its recipe says so; or those of a step).

    Where those are not whole, it is told, and the newest that are whole are taken. Names, shapes and tokenisers are
    compared before a model is built.
    """
    folder = RunFolder(Path(path))
    folder.recipe()
    task, spec = folder.task(), folder.spec()
    check_fit(task, spec, str(folder.model_file))
    checkpoint, weights = chosen(folder, spec, step, log)
    model = spec.build()
    copy_into(named_tensors(model), weights, str(checkpoint.folder))
    return Run(folder, task, model.to(choose_device(device)).eval(), checkpoint.step)


def check_fit(task: Task, spec: Spec, where: str) -> None:
    """Raise RunError where a model is not one for the task, its tokenisers and its labels."""
    try:
        texts = task.layout(task.context).texts
        if set(task.tokenizers) != set(texts):
            raise OptionError(f"to {task.name} takes tokenisers for {' and '.join(texts)}, and no others")
        fits = task.fitted(spec) == spec
    except OptionError as error:
        raise RunError(f"{where}: {error}") from None
    if not fits:
        raise RunError(f"{where}: its model has another vocabulary or other labels than the run's tokenisers and task")


def load_weights(checkpoint: Checkpoint, spec: Spec) -> dict[str, Tensor]:
    """Return a checkpoint's weights; RunError where they are damaged, of another model, or not finite."""
    path = checkpoint.folder / MODEL
    check_shapes(spec, read_header(path), str(path))
    return checkpoint.model()


def chosen(
    folder: RunFolder, spec: Spec, step: int | None, log: Callable[[str], None]
) -> tuple[Checkpoint, dict[str, Tensor]]:
    """Return the checkpoint to use, and its weights: the one asked for, else the best, else the newest whole one."""
    if step is not None:
        asked = folder.checkpoints.at(step) or no_such_step(folder, folder.checkpoints.all(), step)
        return asked, load_weights(asked, spec)
    before, passed_over, problem = folder.checkpoints.folders(), list[str](), ""
    there = folder.checkpoints.all(passed_over.append)
    best = best_step(folder, there) if there else None
    for checkpoint in sorted(there, key=lambda one: one.step != best):
        try:
            weights = load_weights(checkpoint, spec)
        except RunError as error:
            passed_over.append(f"{error}; the checkpoint is passed over")
            problem = problem or f": {error}"
            continue
        for line in passed_over:
            log(line)
        return checkpoint, weights
    if folder.checkpoints.folders() != before:
        # The run is in training: a newer checkpoint was saved, and those that were listed are removed.
        return chosen(folder, spec, step, log)
    for line in passed_over:
        log(line)
    if problem:
        raise RunError(f"{folder.path}: no checkpoint can be used{problem}")
    raise RunError(f"{folder.path}: there is no whole checkpoint yet; train it, or go on with --resume")


def best_step(folder: RunFolder, there: Sequence[Checkpoint]) -> int | None:
    """The step of the best weights, unless the run is told to use its last ones."""
    best = there[0].state["best"]
    return None if best is None or folder.recipe().checkpointing.select == "last" else int(best["step"])


def no_such_step(folder: RunFolder, there: Sequence[Checkpoint], step: int) -> NoReturn:
    steps = ", ".join(str(one.step) for one in reversed(there)) or "none"
    raise RunError(f"{folder.path}: there is no checkpoint of step {step}; there are {steps}")
