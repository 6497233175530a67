"""Reverse it: a compiled model without its program, rotated, with heads and units that nobody reads.

Its true edges are known by enumeration: those that by themselves can change an answer, if they carry what they carry
in another text. So what is marked is graded exactly, and so is the program that is written for it.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from clearhead.calls import public
from clearhead.circuits.bench import make_contrast
from clearhead.circuits.methods import find_method, score_edges
from clearhead.circuits.patching import patch_edges, record
from clearhead.circuits.realism import disguised
from clearhead.circuits.texts import Texts
from clearhead.circuits.truth import BenchSample
from clearhead.errors import DataError, OptionError, no_such
from clearhead.exercises.exercise import EXERCISES, Exercise, run_code
from clearhead.rasp.programs import Program

LENGTH = 4
"""The longest text that the model reads."""


@final
@public
@dataclass(frozen=True, kw_only=True)
class Mystery:
    """A model whose program is not told. Run it, patch its edges, score them; then say what it computes, and by which
    edges.

    Attributes:
        name: Name of the exercise.
        sample: The model.
        truth: The edges that matter.

    >>> from clearhead import exercises
    >>> exercises.mystery("mystery-1").name
    'mystery-1'
    """

    name: str
    sample: BenchSample
    truth: frozenset[str]

    @property
    def edges(self) -> list[str]:
        """Return every edge that could be marked: `sender -> receiver`."""
        return [str(edge) for edge in self.sample.graph.edges]

    def run(self, text: str) -> list[Any]:
        """Return the model's answer at each place of a text of up to four letters."""
        return self.sample.compiled.run(text)

    def patch(self, text: str, other: str, edges: Iterable[str]) -> list[Any]:
        """Return the answers to a text if these edges carry what they carry in another text, as long as it."""
        if len(text) != len(other):
            raise OptionError(f"both texts need as many letters; came {text!r:.20} and {other!r:.20}")
        return self.patch_all([text], [other], edges)[0]

    def patch_all(self, texts: Sequence[str], others: Sequence[str], edges: Iterable[str]) -> list[list[Any]]:
        """Return what `patch` does for each of these texts, of one length, and the other text at its place."""
        compiled, graph = self.sample.compiled, self.sample.graph
        rows = [torch.cat([compiled.tensors(each)[0] for each in one]) for one in (texts, others)]
        into, other = (Texts(tokens={"encoder": each}) for each in rows)
        logits = patch_edges(graph, into, list(edges), record(graph, other))
        return [compiled.read(row)[-len(texts[0]) :] for row in logits]

    def changes(self, texts: Sequence[str]) -> Iterator[tuple[str, str, str, list[Any]]]:
        """Yield every answer to a text that an edge by itself changes: the edge, the text, the other text, the answer.

        Edges that are not true change none.
        """
        for length, edge in itertools.product(sorted({len(text) for text in texts}), sorted(self.truth)):
            alike = [text for text in texts if len(text) == length]
            into, others = zip(*itertools.product(alike, repeat=2), strict=True)
            for text, other, answer in zip(into, others, self.patch_all(into, others, [edge]), strict=True):
                if answer != self.run(text):
                    yield edge, text, other, answer

    def scores(self, method: str = "eap-ig") -> list[tuple[str, float]]:
        """Return every edge with the score of a method on 32 pairs of texts, the highest first.

        Scores are rounded, so that an edge that changes nothing has 0 and not what is left of rounding errors.
        """
        found = score_edges(find_method(method), make_contrast(self.sample)).abs().mean(0).double().round(decimals=9)
        order = found.argsort(descending=True, stable=True).tolist()
        return [(self.edges[number], float(found[number])) for number in order]


@public
def mystery(name: str) -> Mystery:
    """Return the model of an exercise.

    Args:
        name: Name of the exercise, such as `mystery-1`.

    Returns:
        The model, with `run`.

    Raises:
        OptionError: If it is not a mystery.
    """
    found = EXERCISES.get(name)
    if found is None or found.kind != "mystery":
        raise OptionError(no_such(name, [each.name for each in EXERCISES.of_kind("mystery")]))
    return make_mystery(found)


def make_mystery(exercise: Exercise) -> Mystery:
    facts = exercise.fact("alphabet"), int(exercise.fact("seed"))
    return compile_mystery(exercise.name, exercise.checker, *facts)


@functools.lru_cache(maxsize=8)
def compile_mystery(name: str, code: str, alphabet: str, seed: int) -> Mystery:
    output, letters = run_code(code, name)["program"], tuple(alphabet)
    program = Program(name=name, about="", output=output, vocabulary=letters, plain=list, length=LENGTH)
    sample = BenchSample.of(program)
    alone = sample.truth.alone.nonzero().flatten().tolist()
    truth = frozenset(str(sample.graph.edges[number]) for number in alone)
    changed = disguised(sample, torch.Generator().manual_seed(seed))
    if changed is None:
        raise DataError(f"{name}.md: the disguised model loses an answer; choose another seed")
    return Mystery(name=name, sample=changed, truth=truth)
