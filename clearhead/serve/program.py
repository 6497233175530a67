"""The program that was compiled into a run: what it is, which head does what, and its answer to a text.

`clearhead craft look` writes it into the run folder as JSON. The weights of such a run are the program only until they
are trained further.
"""

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.calls import public
from clearhead.circuits.forward import run_graph
from clearhead.circuits.graph import Graph
from clearhead.circuits.methods import Contrast
from clearhead.circuits.metrics import AnswerLogProbability, Number
from clearhead.circuits.texts import Texts, check_pair
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError, RunError
from clearhead.experiments.tracing import encode_inputs
from clearhead.serialization import check_fields, hints_of
from clearhead.tracing import Trace, recording
from clearhead.training.run import Run

NOTHING = "–"
"""The answer shown where the program gives none."""


@dataclass(frozen=True, kw_only=True)
class RunProgram:
    """A compiled program as its run folder describes it."""

    program: str
    about: str = ""
    listing: list[str] = field(default_factory=list)
    """The program itself, a line for each sequence it computes."""
    layers: list[dict[str, Any]] = field(default_factory=list)
    """The computation of each head and network, from `clearhead.rasp.description.describe_layers`."""
    vocabulary: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    answer_ids: list[int] = field(default_factory=list)
    """The token whose logit says how much of each answer there is; of numbers the logit is the number."""
    numeric: bool = False
    threshold: float = 0.5
    """The logit above which an answer counts as given."""
    directions: list[str] = field(default_factory=list)
    length: int = 0
    offset: int = 1
    """The number of tokens before the text."""
    beside: int = 0
    """The number of tokens after it."""

    @property
    def continues_texts(self) -> bool:
        """Return whether its answers are tokens that it reads, so that a text can be continued with them."""
        return not self.numeric and set(self.answers) <= set(self.vocabulary)

    def answers_to(self, run: Run, trace: Trace) -> list[str] | None:
        """Return the program's answer at every token of the traced text, changed as the trace is.

        None where its logits no longer say it: the run was trained since, or its folder is an older one.
        """
        if run.step != 0 or not self.answer_ids:
            return None
        ids = trace.sides[trace.answer_side].ids
        rows = [torch.tensor([side.ids], device=next(run.model.parameters()).device) for side in trace.sides.values()]
        with eval_mode(run.model), recording(run.model, trace.changes):
            logits = run.model(*rows)[0, self.places(ids)]
        return self.read(logits)

    def places(self, rows: Sized) -> slice:
        """Return which of the rows of logits are those of the text's tokens."""
        return slice(self.offset, len(rows) - self.beside)

    def read(self, logits: Float[Tensor, "n vocabulary"]) -> list[str]:
        """Read the answers from the logits of the text's tokens, as `clearhead craft run` does."""
        columns = logits[:, self.answer_ids].cpu().double()
        if self.numeric:
            return [f"{value:.4g}" for value in columns[:, 0].tolist()]
        best, indices = columns.max(-1)
        pairs = zip(best.tolist(), indices.tolist(), strict=True)
        return [self.answers[i] if value > self.threshold else NOTHING for value, i in pairs]


@public
def contrast_program(run: Run, text: str, against: str) -> Contrast:
    """Return what a circuit of a compiled program is found with: two texts of one length, and its answers to the first.

    What is measured is the log-probability of these answers; of numbers, how far they are from those to the other text.
    """
    program = load_program(run)
    if program is None or run.step != 0 or run.task.target == "writes":
        raise OptionError(f"{run.folder.path}: is not a program that answers at each token; use contrast_texts")
    device = next(run.model.parameters()).device
    pair = [encode_inputs(run, one).ids for one in (text, against)]
    clean, other = (
        Texts(tokens={side: torch.tensor([ids], device=device) for side, ids in inputs.items()}) for inputs in pair
    )
    graph = Graph(run.model)
    check_pair(run.model, clean, other)
    rows = [run_graph(graph, texts).logits[0] for texts in (clean, other)]
    at, columns = program.places(rows[0][0]), torch.tensor(program.answer_ids, device=device)
    if program.numeric:
        numbers = [row[:, at, program.answer_ids[0]] for row in rows]
        signs = torch.where(numbers[0] >= numbers[1], 1.0, -1.0)
        metric = Number(column=program.answer_ids[0], signs=signs.to(rows[0]), first=program.offset)
    else:
        best, index = rows[0][:, at][..., columns].max(-1)
        answers = torch.where(best > program.threshold, index, len(columns))
        metric = AnswerLogProbability(columns=columns, answers=answers, first=program.offset, nothing=program.threshold)
    return Contrast(graph, clean, other, metric)


def load_program(run: Run) -> RunProgram | None:
    """Return the program that was compiled into a run; None where there is none. RunError where it is damaged."""
    path = run.folder.program_file
    try:
        saved = run.folder.read_own(path)
    except FileNotFoundError:
        return None
    content = {name: value for name, value in saved.items() if name not in ("format", "run", "sha256")}
    program = RunProgram(**check_fields(content, hints_of(RunProgram), str(path)))
    if any(token_id >= run.tokenizer.vocabulary or token_id < 0 for token_id in program.answer_ids):
        raise RunError(f"{path}: an answer has an id beyond the vocabulary; put the file back as it was")
    return program
