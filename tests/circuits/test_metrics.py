"""What is measured of logits."""

import torch

from clearhead.circuits import AnswerLogProbability, Divergence, Graph, LogitDifference, Number, Texts
from clearhead.circuits.forward import run_graph
from clearhead.model import presets


def test_a_logit_difference_is_of_one_place():
    logits = torch.randn(3, 2, 4, 5)
    metric = LogitDifference(answer=torch.tensor([1, 2]), other=torch.tensor([0, 4]), place=torch.tensor([3, 0]))
    assert metric(logits)[2].tolist() == [
        (logits[2, 0, 3, 1] - logits[2, 0, 3, 0]).item(),
        (logits[2, 1, 0, 2] - logits[2, 1, 0, 4]).item(),
    ]
    assert torch.equal(metric.rows(slice(1, 2))(logits[:, 1:]), metric(logits)[:, 1:])


def test_a_divergence_is_zero_at_the_clean_run_and_so_is_its_gradient():
    clean = torch.randn(2, 4, 5, dtype=torch.float64)
    logits = clean.clone().unsqueeze(0).requires_grad_()
    value = Divergence(clean)(logits)
    assert value.abs().max() < 1e-12
    assert torch.autograd.grad(value.sum(), logits)[0].abs().max() < 1e-12
    probability, other = clean.softmax(-1), torch.randn(2, 4, 5, dtype=torch.float64)
    expected = -(probability * (probability.log() - other.log_softmax(-1))).sum((1, 2))
    assert torch.allclose(Divergence(clean)(other.unsqueeze(0))[0], expected)


def test_answers_may_be_none():
    logits = torch.zeros(1, 1, 3, 6)
    logits[0, 0, 1, 4] = 2.0
    metric = AnswerLogProbability(columns=torch.tensor([4, 5]), answers=torch.tensor([[0, 2]]), first=1)
    first = torch.tensor([2.0, 0.0, 0.5]).log_softmax(0)[0]
    none = torch.tensor([0.0, 0.0, 0.5]).log_softmax(0)[2]
    assert torch.allclose(metric(logits), (first + none).reshape(1, 1))


def test_numbers_are_summed_with_their_signs():
    logits = torch.arange(12.0).reshape(1, 1, 4, 3)
    assert Number(column=2, signs=torch.tensor([[1.0, -1.0]]), first=1)(logits).tolist() == [[5.0 - 8.0]]


def test_a_metric_of_one_place_asks_a_pass_for_that_place_alone():
    graph = Graph(presets.gpt2(presets.Size(2, 8, 2, 2, 16), vocabulary=11).build().double())
    texts = Texts(tokens={"decoder": torch.randint(11, (3, 5))})
    metric = LogitDifference(
        answer=torch.tensor([1, 2, 3]), other=torch.tensor([0, 4, 5]), place=torch.tensor([3, 0, 4])
    )
    seen: list[int] = []
    output = graph.model.output
    assert output is not None
    handle = output.register_forward_hook(lambda module, inputs, logits: seen.append(logits.shape[1]))
    run = run_graph(graph, texts)
    measured = metric.measure(run)
    assert seen == [1]
    assert torch.allclose(measured, metric(run.logits), rtol=0, atol=1e-12)
    assert seen == [1, 5]
    handle.remove()
