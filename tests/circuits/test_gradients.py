"""Methods by gradients: against the derivative by the mask, against transformers' GPT-2 with hooks, and their rules."""

import dataclasses
import gc
import weakref

import pytest
import torch

import clearhead as ch
from clearhead import model as m
from clearhead.circuits import (
    EAP,
    AtPStar,
    CleanCorrupted,
    Contrast,
    EAPIGActivations,
    EAPIGInputs,
    Edge,
    Exact,
    Graph,
    LogitDifference,
    RelP,
    Texts,
    patch_edges,
    record,
    score_edges,
)
from clearhead.circuits.forward import Listener, Patch, run_graph
from clearhead.circuits.gradients import Gradients
from clearhead.interop import read_hugging_face
from tests.circuits import gpt2_by_hooks as peer
from tests.circuits.random_models import SPECS, block, decoder, make
from tests.peers import late

GPT2Config, GPT2LMHeadModel = late("transformers", "GPT2Config", "GPT2LMHeadModel")
METRIC = LogitDifference(answer=torch.tensor([0, 1]), other=torch.tensor([2, 2]), place=torch.tensor([3, 1]))


def contrast_of(case):
    metric = (
        METRIC if record(Graph(case.model), case.clean).logits.ndim == 4 else dataclasses.replace(METRIC, place=None)
    )
    return Contrast(Graph(case.model), case.clean, case.other, metric)


def off(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


@pytest.mark.parametrize("name", SPECS)
def test_eap_is_the_derivative_by_the_mask(name):
    """By another way: the mask of every edge is a variable, and autograd goes through the patched pass."""
    contrast = contrast_of(make(name))
    mask = torch.zeros(1, 2, len(contrast.graph.edges), dtype=torch.float64, requires_grad=True)
    patch = Patch(mask, contrast.source)
    value = contrast.metric(run_graph(contrast.graph, contrast.clean, patch=patch, listener=Listener()).logits)
    [expected] = torch.autograd.grad(value.sum(), mask)
    assert off(score_edges(EAP(), contrast), expected[0]) < 1e-12
    assert expected.abs().max() > 1e-3


def test_pairs_in_batches_give_the_same():
    contrast = contrast_of(make("pre"))
    whole = score_edges(EAPIGInputs(), contrast)
    assert off(score_edges(EAPIGInputs(), contrast_of(make("pre")), batch=1), whole) < 1e-12


def test_what_a_pass_holds_for_its_gradients_goes_with_its_listener():
    """Without Python's search for circles: on a GPU, five passes that stayed took 53 GiB."""
    contrast = contrast_of(make("pre"))
    gc.disable()
    try:
        listener = Gradients()
        value = contrast.listened(listener).sum()
        kept = weakref.ref(listener.read["decoder.0.attention.query"][2])
        assert kept() is not None
        del listener, value
        assert kept() is None
    finally:
        gc.enable()


def test_with_one_step_integrated_gradients_are_plain_ones():
    contrast = contrast_of(make("post"))
    plain = score_edges(EAP(), contrast)
    assert off(score_edges(EAPIGInputs(steps=1), contrast), plain) < 1e-12
    assert off(score_edges(EAPIGActivations(steps=1), contrast), plain) < 1e-12
    assert off(score_edges(EAPIGInputs(steps=4), contrast), plain) > 1e-3


def test_the_mean_of_both_ends_is_that():
    case = make("pre")
    contrast, turned = contrast_of(case), Contrast(Graph(case.model), case.other, case.clean, METRIC)
    both = (score_edges(EAP(), contrast) - score_edges(EAP(), turned)) / 2
    assert off(score_edges(CleanCorrupted(), contrast), both) < 1e-12


def test_on_a_linear_path_gradients_are_exact():
    """Edges into the output of a model without norms: the metric is linear in them, and exact patching agrees."""
    contrast = contrast_of(make("none"))
    port = contrast.graph.ports["decoder.output"]
    exact = score_edges(Exact(), contrast)[:, port.edges]
    for method in (EAP(), RelP(), AtPStar(drop=False)):
        assert off(score_edges(method, contrast)[:, port.edges], exact) < 1e-12
    integrated = score_edges(EAPIGActivations(), contrast)[:, port.edges]
    assert off(integrated, exact) < 1e-12


def test_many_steps_over_activations_sum_to_what_patching_the_sender_changes():
    """The fundamental theorem: with all edges of a sender moved together, their scores add up to its exact change."""
    case = make("pre")
    contrast = contrast_of(case)
    graph = contrast.graph
    scores = score_edges(EAPIGActivations(steps=400), contrast)
    for sender in ("decoder.embedding.token", "decoder.0.feed_forward"):
        edges = graph.edges_of(sender)
        exact = contrast.patched(edges.unsqueeze(0))[0] - contrast.clean_value
        assert scores[:, edges].sum(1) == pytest.approx(exact, rel=0.02, abs=0.02)


def test_the_query_and_key_fix_sees_what_a_sure_argmax_hides():
    """Argmax without gradient: the gradient at queries and keys is 0, and patching them moves the attention."""
    spec = decoder(block(m.NoNorm(), weighting=ch.weighting.Argmax(gradient="none")))
    torch.manual_seed(0)
    model = spec.build().double()
    tokens = [Texts(tokens={"decoder": torch.randint(11, (2, 5))}) for _ in range(2)]
    contrast = Contrast(Graph(model), *tokens, METRIC)
    rows = [n for n, edge in enumerate(contrast.graph.edges) if ".query." in edge.receiver or ".key." in edge.receiver]
    exact = score_edges(Exact(), contrast)[:, rows]
    assert score_edges(EAP(), contrast)[:, rows].abs().max() == 0
    assert exact.abs().max() > 1e-3
    fixed = score_edges(AtPStar(drop=False), contrast)[:, rows]
    assert (fixed != 0).equal(exact.abs() > 1e-12)


def test_dropped_gradients_show_what_cancels():
    """A feed-forward that takes back what an embedding gave: the sum is 0, and the sizes are not."""
    contrast = contrast_of(make("none"))
    dropped = score_edges(AtPStar(), contrast)
    assert (dropped >= 0).all()
    assert off(dropped, score_edges(AtPStar(drop=False), contrast).abs()) > 1e-3


def test_relevance_follows_its_rules():
    """The hidden values pass back output over input; the value itself stays: checked on one gated network."""
    torch.manual_seed(0)
    model = decoder(block(m.NoNorm(), network=m.SwiGLU(8))).build().double()
    tokens = [Texts(tokens={"decoder": torch.randint(11, (2, 5))}) for _ in range(2)]
    contrast = Contrast(Graph(model), *tokens, METRIC)
    x = contrast.clean_run.inputs["decoder.0.feed_forward"][0]
    network = model.stack.blocks[0].feed_forward
    gate, up = network.gate(x), network.up(x)
    out = torch.zeros(2, 5, 11, dtype=torch.float64, requires_grad=True)
    [at_logits] = torch.autograd.grad(METRIC(out.unsqueeze(0)).sum(), out)
    at_hidden = at_logits @ model.output.table @ network.down.weight / 2
    at_x = (at_hidden * up * torch.sigmoid(gate)) @ network.gate.weight
    at_x = at_x + (at_hidden * torch.nn.functional.silu(gate)) @ network.up.weight
    port = contrast.graph.ports["decoder.0.feed_forward"]
    change = (contrast.source.contribution(port) - contrast.clean_run.contribution(port))[:, 0]
    expected = torch.einsum("sbnd,bnd->bs", change, at_x)
    assert off(score_edges(RelP(), contrast)[:, port.edges], expected.detach()) < 1e-12


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=3, n_head=3, attn_implementation="eager")
    theirs = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("gpt2")
    theirs.save_pretrained(folder)
    ours = read_hugging_face(folder).model
    return theirs.double().requires_grad_(False), ours.double()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "shares"), [(EAP(), [1.0]), (EAPIGInputs(5), [0.2, 0.4, 0.6, 0.8, 1.0])])
def test_scores_are_those_of_hooks_on_another_implementation(gpt2, method, shares):
    theirs, ours = gpt2
    clean, other = torch.randint(40, (2, 2, 7))
    metric = LogitDifference(answer=torch.tensor([3, 5]), other=torch.tensor([8, 9]), place=torch.tensor([6, 6]))
    graph = Graph(ours)
    contrast = Contrast(graph, Texts(tokens={"decoder": clean}), Texts(tokens={"decoder": other}), metric)
    expected = peer.scores(theirs, graph.edges, clean, other, lambda logits: metric(logits[None]).sum(), shares=shares)
    assert off(score_edges(method, contrast), expected) < 1e-5
    assert expected.abs().max() > 1e-2


@pytest.mark.slow
def test_patched_paths_are_those_of_hooks_on_another_implementation(gpt2):
    theirs, ours = gpt2
    clean, other = torch.randint(40, (2, 2, 7))
    graph = Graph(ours)
    texts, source = Texts(tokens={"decoder": clean}), record(graph, Texts(tokens={"decoder": other}))
    direct = patch_edges(graph, texts, [Edge("decoder.1.attention.head.2", "decoder.output")], source)
    assert off(direct, peer.patch_head_to_output(theirs, clean, other, 1, 2)) < 1e-5
    inner = patch_edges(graph, texts, [Edge("decoder.0.feed_forward", "decoder.1.attention.value.1")], source)
    assert off(inner, peer.patch_mlp_to_head_value(theirs, clean, other, 0, 1)) < 1e-5
