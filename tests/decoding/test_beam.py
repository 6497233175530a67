"""Beam search: held to a plain one without caches, for every way to stop, width, length penalty and number of ends."""

import math
from itertools import pairwise

import pytest

from clearhead.decoding import Beam, Greedy, Rules
from clearhead.decoding.hypotheses import ROOT, Node
from clearhead.decoding.session import Session
from clearhead.errors import OptionError
from tests.decoding.laws import case_of
from tests.decoding.models import PLAIN, VOCABULARY, build, on_axes
from tests.decoding.plain import Case, all_unlike, apart, beam_search, every_output
from tests.rounding import same_but_rounding

PENALTIES = [-1.0, 0.0, 0.6, 1.0, 2.0]
ENDS = [(), (2,), (2, 7), (0, 1, 3, 5, 8)]
KINDS = ["decoder", "same cross"]


def case_for(kind="decoder", seed=0, **chosen) -> Case:
    return case_of(build(on_axes(PLAIN | {"kind": kind} | chosen, seed)))


@pytest.fixture(scope="module", params=KINDS)
def case(request):
    return case_for(request.param)


def held_to_plain(case: Case, method: Beam, rules: Rules, *, stops: bool) -> list[str]:
    found = []
    for row, mine in enumerate(case.generate(method, rules)):
        plain = beam_search(case, row, method, rules, stops=stops)
        assert plain.clear
        found += all_unlike(f"row {row}", mine, plain.outputs)
    return found


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{len(end)} ends")
@pytest.mark.slow
@pytest.mark.pairs
def test_exact_stopping_loses_nothing(case, penalty, end):
    """What is found is what a search finds that goes on to the greatest length whatever has ended."""
    method = Beam(width=3, n_best=3, length_penalty=penalty, stop="exact")
    assert held_to_plain(case, method, Rules(max_new=6, end=end), stops=False) == []


@pytest.mark.parametrize("stop", ["exact", "heuristic", "early"])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("end", ENDS[1:], ids=lambda end: f"{len(end)} ends")
@pytest.mark.slow
@pytest.mark.pairs
def test_each_way_to_stop_is_what_it_says(case, stop, penalty, end):
    method = Beam(width=2, n_best=2, length_penalty=penalty, stop=stop)
    assert held_to_plain(case, method, Rules(max_new=6, end=end), stops=True) == []


@pytest.mark.parametrize("width", [1, 2, 5, 11, 30])
def test_every_width_is_held_to_a_plain_search(case, width):
    method = Beam(width=width, n_best=width)
    assert held_to_plain(case, method, Rules(max_new=4, end=(2, 7)), stops=False) == []


class KVSources:
    """How many rows each step of decoding reads."""

    def __init__(self, monkeypatch):
        self.rows = []
        original = Session.compute_step
        monkeypatch.setattr(
            Session, "compute_step", lambda session: self.rows.append(session.clock.rows) or original(session)
        )


def test_the_ways_to_stop_differ(monkeypatch):
    """Early reads least and exact most; and it matters: they do not always find the same."""
    steps, found, best = {}, {}, []
    for stop in ("exact", "heuristic", "early"):
        with monkeypatch.context() as patch:
            reads = KVSources(patch)
            made = [
                case_for(seed=seed).generate(
                    Beam(width=2, length_penalty=2.0, stop=stop), Rules(max_new=8, end=(1, 2, 7))
                )
                for seed in range(4)
            ]
        steps[stop] = sum(reads.rows)
        found[stop] = [hypotheses[0].tokens for rows in made for hypotheses in rows]
        scores = [hypotheses[0].score for rows in made for hypotheses in rows]
        best = scores if stop == "exact" else best
        assert all(mine <= exact + 1e-12 for mine, exact in zip(scores, best, strict=True))
    assert steps["early"] < steps["heuristic"] < steps["exact"]
    assert found["early"] != found["exact"]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_outputs(penalty):
    for kind in KINDS:
        case = case_of(build(on_axes(PLAIN | {"kind": kind}), 5), (2, 3), vocabulary=5)
        method, rules = Beam(width=80, n_best=80, length_penalty=penalty), Rules(max_new=4, end=(4,))
        for row, mine in enumerate(case.generate(method, rules)):
            wanted = every_output(case, row, method, rules, 5)
            assert len(wanted) == 1 + 4 + 16 + 64 + 256
            assert all_unlike(f"row {row}", mine[:64], wanted[:64]) == []


def test_a_beam_wider_than_all_there_is(case):
    """Wider than the vocabulary, and than the outputs there can be: it gives all of them."""
    found = case.generate(Beam(width=500, n_best=500), Rules(max_new=2, end=(3,)))
    for hypotheses in found:
        assert len(hypotheses) == 1 + (VOCABULARY - 1) * VOCABULARY
        assert len({made.tokens for made in hypotheses}) == len(hypotheses)
        assert math.fsum(math.exp(sum(made.log_probs)) for made in hypotheses) == pytest.approx(1)


def test_hypotheses_come_best_first(case):
    for penalty in PENALTIES:
        for hypotheses in case.generate(Beam(width=6, n_best=6, length_penalty=penalty), Rules(max_new=5, end=(2, 7))):
            scores = [made.score for made in hypotheses]
            assert len(scores) == 6
            assert all(better >= worse for better, worse in pairwise(scores))


def test_a_score_is_the_sum_over_the_length_to_the_penalty(case):
    for penalty in PENALTIES:
        for hypotheses in case.generate(Beam(width=4, n_best=4, length_penalty=penalty), Rules(max_new=5, end=(2, 7))):
            for made in hypotheses:
                assert made.score == pytest.approx(sum(made.log_probs) / len(made.tokens) ** penalty, rel=1e-12)
    assert Beam(length_penalty=1.0).norms(3) == [1.0, 1.0, 2.0, 3.0]
    assert Beam(length_penalty=0.0).norms(3) == [1.0] * 4


@pytest.mark.parametrize("penalty", [100.0, -100.0])
def test_a_penalty_that_no_number_can_hold_is_refused(penalty):
    with pytest.raises(OptionError, match="length_penalty is no usable number for 3000 tokens"):
        Beam(length_penalty=penalty).norms(3000)


@pytest.mark.slow
def test_a_greater_penalty_favours_longer_outputs():
    lengths = []
    for penalty in (-2.0, 0.0, 1.0, 4.0):
        made = [
            case_for(seed=seed).generate(Beam(width=4, length_penalty=penalty), Rules(max_new=7, end=(1, 2, 7)))
            for seed in range(4)
        ]
        lengths.append(sum(len(hypotheses[0].tokens) for rows in made for hypotheses in rows))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_n_best_begins_with_the_best(case):
    rules = Rules(max_new=5, end=(2, 7))
    many = case.generate(Beam(width=5, n_best=5), rules)
    for few in (1, 3):
        for mine, wanted in zip(case.generate(Beam(width=5, n_best=few), rules), many, strict=True):
            assert mine == wanted[:few]


def test_a_beam_is_at_least_as_good_as_greedy_where_it_loses_nothing(case):
    rules = Rules(max_new=3)
    wide = case.generate(Beam(width=VOCABULARY**2, length_penalty=0.0), rules)
    for (mine, *_), (greedy,) in zip(wide, case.generate(Greedy(), rules), strict=True):
        assert mine.score >= greedy.score - 1e-12


def test_beams_really_cross(monkeypatch):
    """What goes on is often not what stood in a slot: else these tests would see little."""
    copied = []
    original = Session.copy_written

    def copy_written(session, origins, slots):
        copied.append(len(slots))
        original(session, origins, slots)

    monkeypatch.setattr(Session, "copy_written", copy_written)
    case_for().generate(Beam(width=3), Rules(max_new=6, end=(2, 7)))
    assert sum(map(bool, copied[1:])) >= 3  # in the first step one beam becomes three


def test_sentences_that_are_done_leave(monkeypatch):
    reads = KVSources(monkeypatch)
    case_for(seed=1).generate(Beam(width=3, stop="early"), Rules(max_new=8, end=(1, 2, 7)))
    assert reads.rows == sorted(reads.rows, reverse=True)
    assert reads.rows[0] == 9
    assert reads.rows[-1] < 9


def test_a_forced_prefix_is_gone_on_from():
    """What the output shall begin with goes into the prefix; then all is as if the model had chosen it itself."""
    case = case_for("same cross").only([0])
    rules = Rules(max_new=4, end=(2,))
    begun = Case(case.model, [[*case.prompts[0], 9, 3]], case.sources)
    for method in (Greedy(), Beam(width=3, n_best=3)):
        for made in begun.generate(method, rules)[0]:
            (whole,) = case.score([[9, 3, *made.tokens]])
            assert apart("after the prefix", made.log_probs, whole.log_probs[2:]) == []
    assert held_to_plain(begun, Beam(width=3, n_best=3), rules, stops=False) == []


def test_one_prefix_serves_every_source():
    case = case_for("same cross")
    rules = Rules(max_new=3)
    for method in (Greedy(), Beam(width=2)):
        each = Case(case.model, [[4, 5]] * 3, case.sources).generate(method, rules)
        assert same_but_rounding(Case(case.model, [[4, 5]], case.sources).generate(method, rules), each)


def test_nodes_give_the_tokens_in_their_order():
    last = Node(Node(Node(ROOT, 4, -1.0), 5, -1.5), 6, -4.0)
    made = last.hypothesis(-2.0, ended=True)
    assert (made.tokens, made.log_probs, made.score, made.ended) == ((4, 5, 6), (-1.0, -0.5, -2.5), -2.0, True)
