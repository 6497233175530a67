"""The interface of methods: the registry, counts of passes, progress, and one of a user's own."""

from dataclasses import dataclass

import pytest
import torch

import clearhead as ch
from clearhead.circuits import (
    ACDC,
    EAP,
    Contrast,
    EAPIGInputs,
    EdgePruning,
    Exact,
    Graph,
    LogitDifference,
    Method,
    find_method,
    score_edges,
)
from clearhead.circuits.methods import ScoreCheckpoint, method_names
from clearhead.errors import OptionError, RunError
from tests.circuits.random_models import make
from tests.circuits.test_gradients import METRIC, contrast_of
from tests.registering import registry_restored


@dataclass(frozen=True)
class Counting(Method):
    """A user's own method."""

    start: float = 1.0

    def score(self, contrast):
        return torch.arange(len(contrast.graph.edges)).repeat(len(contrast), 1) + self.start


def test_a_method_of_the_users_own_is_one_of_them():
    with registry_restored():
        ch.register(Counting)
        method = find_method(f"{__name__}:Counting(start=3.0)")
    assert method == Counting(3.0)
    assert score_edges(method, contrast_of(make("pre")))[1, 2] == 5
    with pytest.raises(OptionError, match=r"there is no 'eep'\. Did you mean 'eap'\? There are .*eap"):
        find_method("eep")


@pytest.mark.parametrize("name", method_names())
def test_every_method_gives_a_finite_number_for_every_edge(name):
    contrast = contrast_of(make("pre-alibi-argmax"))
    scores = score_edges(find_method(name), contrast)
    assert scores.shape[1] == len(contrast.graph.edges)
    assert len(scores) == (2 if find_method(name).by_pair else 1)
    assert scores.isfinite().all()


def test_weights_learn_afterwards_as_before_and_modes_are_restored():
    case = make("pre")
    case.model.train()
    score_edges(EAP(), contrast_of(case))
    assert all(parameter.requires_grad for parameter in case.model.parameters())
    assert case.model.training


def test_passes_are_counted_and_progress_is_told():
    contrast, told = contrast_of(make("pre")), []
    score_edges(EAPIGInputs(3), contrast, progress=lambda done, of: told.append((done, of)))
    assert (contrast.forwards, contrast.backwards) == (5, 3)
    assert told == [(1, 3), (2, 3), (3, 3)]
    contrast = contrast_of(make("pre"))
    score_edges(Exact(), contrast)
    assert contrast.forwards == len(contrast.graph.edges) + 2


METHODS = [Exact(), ACDC(thresholds=(0.01, 0.2)), EdgePruning(steps=12)]


class CutError(Exception):
    """Stands for a kill."""


def cut_at(step):
    def progress(done, of):
        if done >= step:
            raise CutError

    return progress


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    monkeypatch.setattr("clearhead.circuits.methods.PAUSE", 0.0)
    monkeypatch.setattr("clearhead.circuits.methods.MOST_NUMBERS", 50_000)  # so that exact takes several passes


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_a_cut_search_goes_on_to_the_same_bits(method, share, tmp_path):
    path = tmp_path / "scores"
    steps = []
    whole = score_edges(method, contrast_of(make("pre")), progress=lambda done, of: steps.append((done, of)))
    begun = contrast_of(make("pre"))
    with pytest.raises(CutError):
        score_edges(method, begun, progress=cut_at(share * steps[-1][1]), checkpoint=path)
    assert path.exists()
    again = []
    resumed = contrast_of(make("pre"))
    scores = score_edges(method, resumed, progress=lambda done, of: again.append((done, of)), checkpoint=path)
    assert torch.equal(scores, whole)
    assert again == [step for step in steps if step[0] > next(done for done, of in steps if done >= share * of)]
    assert not path.exists()


def test_batches_of_pairs_that_are_done_are_not_scored_again(tmp_path):
    path, case = tmp_path / "scores", make("none", batch=6)
    metric = LogitDifference(answer=torch.arange(6), other=torch.arange(6) + 1, place=torch.full((6,), 3))

    def six():
        return Contrast(Graph(case.model), case.clean, case.other, metric)

    whole, told = score_edges(Exact(), six(), batch=2), []
    score_edges(Exact(), six(), batch=2, progress=lambda done, of: told.append(done))
    with pytest.raises(CutError):
        score_edges(Exact(), six(), batch=2, progress=cut_at(told[-1] * 0.7), checkpoint=path)
    resumed = six()
    assert torch.equal(score_edges(Exact(), resumed, batch=2, checkpoint=path), whole)
    assert resumed.forwards <= 2 + len(resumed.graph.edges)  # of the last two pairs alone


def test_a_checkpoint_of_another_search_is_refused(tmp_path):
    path = tmp_path / "scores"
    with pytest.raises(CutError):
        score_edges(Exact(), contrast_of(make("pre")), progress=cut_at(1), checkpoint=path)
    for method, contrast in (
        (ACDC(), contrast_of(make("pre"))),
        (Exact(), contrast_of(make("pre", seed=1))),
        (Exact(), swapped(make("pre"))),
    ):
        with pytest.raises(RunError, match="of another search"):
            score_edges(method, contrast, checkpoint=path)
    path.write_bytes(b"not scores")
    with pytest.raises(RunError, match="move it away"):
        score_edges(EAP(), contrast_of(make("pre")), checkpoint=path)


def swapped(case):
    return Contrast(contrast_of(case).graph, case.other, case.clean, METRIC)


def test_it_is_written_every_few_seconds_or_now(tmp_path, monkeypatch):
    monkeypatch.setattr("clearhead.circuits.methods.PAUSE", 10.0)
    clock = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    saved = ScoreCheckpoint(tmp_path / "scores", "me", clock=lambda: next(clock))
    saved.save("a", {"x": torch.zeros(2)})  # after 5 seconds
    assert not (tmp_path / "scores").exists()
    saved.save("a", {"x": torch.ones(2)})  # after 11
    assert ScoreCheckpoint(tmp_path / "scores", "me").load("a")["x"].tolist() == [1, 1]
    saved.save("b", {"x": torch.ones(3)}, now=True)
    assert set(ScoreCheckpoint(tmp_path / "scores", "me").saved) == {"a/x", "b/x"}
    assert ScoreCheckpoint().load("a") == {}
