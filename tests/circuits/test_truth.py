"""Truth of compiled programs: by reasoning where it is plain, by the interpreter for the rest."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from clearhead.circuits import Graph, ZeroSource, patch_edges
from clearhead.circuits.truth import AnswerReader, BenchSample, CausalSearch, every_input
from clearhead.errors import ProgramError
from clearhead.rasp import aggregate, indices, map, select, selector_width, sequence_map, tokens
from clearhead.rasp.interpreter import Interpreter, run
from clearhead.rasp.language import Aggregate, Width
from clearhead.rasp.programs import PROGRAMS, Program


def sample_of(output, vocabulary=(0, 1, 2), length=3, **fields):
    program = Program(name="mine", about="", output=output, vocabulary=vocabulary, plain=list, length=length, **fields)
    return BenchSample.of(program)


def labels(sample):
    edges = sample.graph.edges
    return {str(edges[n]): sample.truth.label(n) for n in sample.truth.product.nonzero().flatten().tolist()}


def test_the_truth_of_one_head_can_be_seen():
    """The token before: tokens reach the value, places the query and the key, and no text changes places."""
    back = select(indices, indices, lambda key, query: key == query - 1)
    found = labels(sample_of(aggregate(back, tokens)))
    assert found["encoder.embedding.token -> encoder.0.attention.value.0"] == "alone"
    assert found["encoder.0.attention.head.0 -> encoder.output"] == "alone"
    assert found["encoder.embedding.position -> encoder.0.attention.query.0"] == "never"
    assert found["encoder.embedding.position -> encoder.0.attention.key.0"] == "never"


def test_edges_that_carry_constants_alone_are_a_class_of_their_own():
    back = select(indices, indices, lambda key, query: key == query - 1)
    sample = sample_of(aggregate(back, tokens))
    constant = {str(sample.graph.edges[n]) for n in sample.truth.constant.nonzero().flatten().tolist()}
    assert constant == {
        "encoder.embedding.token -> encoder.0.attention.query.0",  # the score of the sink
        "encoder.embedding.token -> encoder.0.attention.key.0",
    }


@pytest.mark.parametrize("name", ["reverse", "sort"])
def test_constants_are_needed_where_an_answer_changes_without_them(name):
    """By another way: each edge by itself carries nothing, in every text, and the answers are read."""
    sample = BenchSample.of(replace(PROGRAMS[name], length=3, example=()))
    read = AnswerReader.of(sample.compiled)
    needed = []
    for edge in sample.truth.constant.nonzero().flatten().tolist():
        for batch in every_input(sample.program, sample.compiled):
            logits = patch_edges(sample.graph, batch.texts, [sample.graph.edges[edge]], ZeroSource())
            if not torch.equal(read(logits), read.encode(batch.answers, sample.compiled.answers)):
                needed.append(edge)
                break
    assert sample.truth.needed.nonzero().flatten().tolist() == needed
    assert 0 < len(needed) < sample.truth.constant.sum()
    assert torch.equal(sample.truth.of_constants().ranked, sample.truth.constant)


def test_what_one_way_backs_up_matters_only_jointly():
    """Two heads read the same of the text, and `larger` hides the loss of either of them alone, never of both."""
    same = select(tokens, tokens, lambda key, query: key == query)
    first, second = selector_width(same, name="one"), selector_width(same, name="two")
    either = sequence_map(lambda a, b: int(a > 1 or b > 1), first, second)
    sample = sample_of(map(lambda value: value, either))
    found = labels(sample)
    at = {name: label for name, label in found.items() if name.endswith("attention.head.0 -> encoder.0.feed_forward")}
    assert set(at.values()) <= {"alone", "jointly"}
    assert sample.truth.runs > 0


def test_the_model_gives_every_answer():
    for name in ("sort", "pattern", "fraction-of-previous"):
        assert BenchSample.of(replace(PROGRAMS[name], length=3)).keeps_answers()


def test_values_that_a_receiver_cannot_tell_apart_are_tried_once():
    program = replace(PROGRAMS["count"], length=3)  # its head reads whether a token is a
    compiled = program.compile()
    graph = Graph(compiled.model)
    search = CausalSearch(graph, every_input(program, compiled), AnswerReader.of(compiled))
    edge = graph.find("encoder.embedding.token -> encoder.0.attention.key.0")
    assert len(search.values(edge)[-1]) < 3**3 + 1
    position = graph.find("encoder.embedding.position -> encoder.0.attention.key.0")
    assert [len(values) for values in search.values(position)] == [1, 1, 1]


class Swapped(Interpreter):
    """An interpreter in which one operation reads one of its operands as another text has it."""

    def __init__(self, text, other, operation, role, term):
        super().__init__(text, ())
        self.other, self.operation, self.role, self.term = other, operation, role, term

    def compute(self, sequence):
        if sequence is not self.operation:
            return super().compute(sequence)
        selector = sequence.selector
        n = len(self.texts["target"])
        columns = []
        for number, term in enumerate(selector.terms):
            at = {"key": term.keys, "query": term.queries}
            read = {
                role: self.other.of(at[role]) if (role, number) == (self.role, self.term) else self.of(at[role])
                for role in at
            }
            columns.append((read["key"], read["query"], term.predicate))
        chosen = [
            [
                key
                for key in range(n)
                if all(
                    keys[key] is not None and queries[q] is not None and predicate(keys[key], queries[q])
                    for keys, queries, predicate in columns
                )
            ]
            for q in range(n)
        ]
        if isinstance(sequence, Width):
            return [len(keys) for keys in chosen]
        values = (self.other if self.role == "value" else self).of(sequence.values)
        for keys in chosen:
            if len({values[key] for key in keys}) > 1:
                raise ProgramError("several")
        return [values[keys[0]] if keys else None for keys in chosen]


def swapping_changes(program, operation, role, term):
    """Return whether swapping one operand changes an answer, for some pair of texts; None if only errors say so."""
    failed = False
    for n in range(1, program.length + 1):
        texts = list(product(program.vocabulary, repeat=n))
        for text, other in product(texts, texts):
            try:
                swapped = Swapped(text, Interpreter(other, ()), operation, role, term).of(program.output)
            except ProgramError:
                failed = True
                continue
            if swapped != run(program.output, text):
                return True
    return None if failed else False


def previous(values, by=1):
    return aggregate(select(indices, indices, lambda key, query: key == query - by), values, name=f"{by} back")


def programs():
    same = selector_width(select(tokens, tokens, lambda key, query: key == query), name="same")
    smaller = selector_width(select(tokens, tokens, lambda key, query: key < query), name="smaller")
    yield same
    yield previous(tokens)
    yield previous(previous(tokens))
    yield selector_width(select(same, indices, lambda key, query: key == query), name="as often as my place")
    yield selector_width(select(tokens, smaller, lambda key, query: key <= query), name="up to")
    yield selector_width(select(previous(tokens), tokens, lambda key, query: key == query), name="induction")
    yield selector_width(select(tokens, tokens, lambda key, query: key < 9), name="all, whatever they are")


@pytest.mark.parametrize("number", range(7))
def test_heads_have_the_truth_that_swapping_an_operand_in_the_interpreter_has(number):
    """The last head of each program: its query, key and value, each read from one sender that writes one sequence."""
    output = list(programs())[number]
    sample = sample_of(output, vocabulary=(0, 1), length=3)
    graph, truth, compared = sample.graph, sample.truth, 0
    assert isinstance(output, Aggregate | Width)
    last = max(int(name.split(".")[1]) for name in graph.names.sites if heads_of(sample, name))
    for role in ("query", "key", "value") if isinstance(output, Aggregate) else ("query", "key"):
        receiver = f"encoder.{last}.attention.{role}.0"
        numbers = [
            n
            for n, e in enumerate(graph.edges)
            if e.receiver == receiver and truth.product[n] and not truth.constant[n]
        ]
        assert len(numbers) <= 1  # one sender writes what it reads
        swapped = swapping_changes(sample.program, output, role, 0)
        causal = bool(numbers and truth.alone[numbers[0]])
        assert swapped is None or swapped == causal, (receiver, swapped, causal)
        compared += swapped is not None
    assert compared


def heads_of(sample, site):
    return bool(torch.count_nonzero(sample.graph.matrices[site].weight))
