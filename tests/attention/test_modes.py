"""Attention in every mode of torch: on meta, after inference mode, under torch.func, twice differentiated; and in a
batch of none. Where it has an answer, it is that of the plain call."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, vmap

import clearhead as ch
from clearhead.attention.kernels import blockwise
from clearhead.attention.modes import can_read, has_numbers
from clearhead.errors import UnsupportedError
from clearhead.model import presets
from clearhead.model.presets import Size

WORDS, SIZE = 30, Size(2, 16, 2, 2, 32)
WEIGHTINGS = {
    "softmax": ("fused", "flex", "blockwise", "reference"),
    "argmax": ("blockwise", "reference"),
    "argmax average": ("blockwise",),
    "sparsemax": ("blockwise", "reference"),
    "sigmoid": ("blockwise", "reference"),
    "linear elu": ("chunked", "recurrent", "blockwise", "reference"),
    "linear random": ("chunked", "reference"),
}
SERVED = [(kernel, weighting) for weighting, kernels in WEIGHTINGS.items() for kernel in ("auto", *kernels)]
MODELS = {
    "encoder-decoder": presets.classic(WORDS, size=SIZE, dropout=0.0),
    "gpt2": presets.gpt2(SIZE, vocabulary=WORDS, dropout=0.0),
    "llama": presets.llama(SIZE, vocabulary=WORDS),
    "bert": presets.bert(SIZE, vocabulary=WORDS, dropout=0.0),
}
MASKS = {
    "none": lambda device="cpu", rows=2: None,
    "causal": lambda device="cpu", rows=2: ch.masks.causal(),
    "padding": lambda device="cpu", rows=2: ch.masks.padding(torch.tensor([3, 6], device=device)[:rows]),
}


def attend(*tensors, kernel, weighting, mask=None):
    return ch.attend(*tensors, kernel=kernel, weighting=ch.weighting.TABLE[weighting], mask=mask)


def vectors(*shape, **options):
    return torch.randn(*shape, dtype=torch.float64, **options)


def run(model, tokens, lengths=None):
    if len(model.stacks) > 1:
        return model(tokens, tokens, source_lengths=lengths)
    return model(tokens, lengths=lengths)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("kernel", "weighting"), SERVED)
@pytest.mark.pairs(1)
def test_attend_on_meta_gives_the_shape(kernel, weighting, mask):
    q, k, v = (torch.empty(2, heads, n, d, device="meta") for heads, n, d in ((4, 5, 8), (2, 6, 8), (2, 6, 3)))
    made = attend(q, k, v, kernel=kernel, weighting=weighting, mask=MASKS[mask]("meta"))
    assert made.is_meta
    assert made.shape == (2, 4, 5, 3)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_runs_on_meta(name):
    with torch.device("meta"):
        model, tokens = MODELS[name].build(), torch.zeros(2, 7, dtype=torch.long)
    out = run(model, tokens)
    out.sum().backward()
    assert out.is_meta
    assert out.shape == (2, 7, WORDS)
    assert all(parameter.grad.is_meta for parameter in model.parameters())


def test_learned_positions_are_read_at_any_place_on_meta():
    table = ch.positions.Learned(5).embed(4).to("meta")
    assert table.at(torch.zeros(2, 3, dtype=torch.long, device="meta")).shape == (2, 3, 4)


def test_random_features_serve_training_after_inference_mode():
    weighting = ch.weighting.Kernelized(ch.weighting.RandomFeatures(count=17, seed=11))
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    with torch.inference_mode():
        wanted = ch.attend(q, q, q, weighting=weighting)
    made = ch.attend(q, q, q, weighting=weighting)
    made.sum().backward()
    torch.testing.assert_close(made, wanted.clone())
    assert q.grad.isfinite().all()


def test_random_features_may_be_drawn_first_under_vmap_or_on_meta():
    q = torch.randn(2, 1, 2, 5, 8)
    for seed, first in ((12, lambda weighting: vmap(lambda one: ch.attend(one, one, one, weighting=weighting))(q)),
                        (13, lambda weighting: ch.attend(*[q[0].to("meta")] * 3, weighting=weighting))):  # fmt: skip
        weighting = ch.weighting.Kernelized(ch.weighting.RandomFeatures(count=17, seed=seed))
        with torch.device("meta"):
            first(weighting)
        assert ch.attend(q[0], q[0], q[0], weighting=weighting).isfinite().all()


@pytest.mark.parametrize(("kernel", "weighting"), SERVED)
def test_vmap_over_sequences_and_their_lengths_is_the_batch(kernel, weighting):
    q, k, v, lengths = vectors(3, 2, 5, 8), vectors(3, 2, 6, 8), vectors(3, 2, 6, 4), torch.tensor([6, 0, 3])
    if kernel == "flex":
        q, k, v = q.float(), k.float(), v.float()

    def one(q, k, v, length):
        mask = ch.masks.padding(length.unsqueeze(0))
        return attend(q[None], k[None], v[None], kernel=kernel, weighting=weighting, mask=mask)[0]

    wanted = attend(q, k, v, kernel="reference", weighting=weighting, mask=ch.masks.padding(lengths))
    torch.testing.assert_close(vmap(one)(q, k, v, lengths), wanted)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("kernel", "weighting"), [pair for pair in SERVED if pair[0] != "flex"])
@pytest.mark.pairs(1)
def test_jacrev_is_the_jacobian(kernel, weighting, mask):
    q, k, v = vectors(2, 2, 3, 4), vectors(2, 2, 6, 4), vectors(2, 2, 6, 3)

    def of_query(q):
        return attend(q, k, v, kernel=kernel, weighting=weighting, mask=MASKS[mask]())

    torch.testing.assert_close(jacrev(of_query)(q), torch.autograd.functional.jacobian(of_query, q))


@pytest.mark.parametrize(
    ("kernel", "weighting"), [("fused", "softmax"), ("blockwise", "argmax"), ("chunked", "linear elu")]
)
def test_document_masks_may_be_made_under_vmap(kernel, weighting):
    q, ids = vectors(2, 1, 5, 4), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])

    def one(q, ids, kernel):
        return attend(q, q, q, kernel=kernel, weighting=weighting, mask=ch.masks.document(ids))

    wanted = torch.stack([one(*each, "reference") for each in zip(q, ids, strict=True)])
    torch.testing.assert_close(vmap(lambda q, ids: one(q, ids, "auto"))(q, ids), wanted)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.pairs(1)
def test_gradients_of_every_sample_of_a_whole_model(name, checkpointing):
    model = MODELS[name].build().double()
    for stack in (part for part in model.modules() if hasattr(part, "checkpointing")):
        stack.checkpointing = checkpointing
    tokens, lengths, own = torch.randint(WORDS, (3, 7)), torch.tensor([7, 3, 5]), dict(model.named_parameters())

    def loss(own, tokens, length):
        given = {"source_lengths" if name == "encoder-decoder" else "lengths": length.unsqueeze(0)}
        sources = (tokens.unsqueeze(0),) * (2 if name == "encoder-decoder" else 1)
        return functional_call(model, own, sources, given).square().mean()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(own, tokens, lengths)
    for row in range(3):
        wanted = torch.autograd.grad(loss(own, tokens[row], lengths[row]), list(own.values()))
        for name_of, gradient in zip(own, wanted, strict=True):
            torch.testing.assert_close(found[name_of][row], gradient)


def test_an_ensemble_of_layers_under_vmap():
    layers = [ch.Attention(16, heads=ch.Heads(4, kv=2, bias=True), mask=ch.masks.causal()).double() for _ in range(3)]
    own, buffers = torch.func.stack_module_state(layers)
    x = vectors(2, 5, 16)
    made = vmap(lambda own, buffers: functional_call(layers[0], (own, buffers), (x,)))(own, buffers)
    torch.testing.assert_close(made, torch.stack([layer(x) for layer in layers]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("kernel", "weighting"),
    [("auto", "softmax"), ("fused", "softmax"), ("blockwise", "argmax"), ("chunked", "linear elu")],
)
def test_the_hessian_by_torch_func_is_the_references_by_autograd(kernel, weighting):
    q, k, v = vectors(1, 1, 2, 4), vectors(1, 1, 5, 4), vectors(1, 1, 5, 3)

    def loss(q, kernel):
        return attend(q, k, v, kernel=kernel, weighting=weighting).sin().sum()

    wanted = torch.autograd.functional.hessian(lambda q: loss(q, "reference"), q)
    torch.testing.assert_close(hessian(loss)(q, kernel), wanted)


def second(kernel, weighting="softmax", mask=None):
    """The second derivative by autograd: of the sum of the first."""
    q, k, v = vectors(1, 2, 40, 4, requires_grad=True), vectors(1, 2, 50, 4), vectors(1, 2, 50, 3)
    made = attend(q, k, v, kernel=kernel, weighting=weighting, mask=mask)
    (first,) = torch.autograd.grad(made.sin().sum(), q, create_graph=True)
    return torch.autograd.grad(first.square().sum(), q)[0]


@pytest.mark.parametrize("mask", [None, ch.masks.causal(), ch.masks.padding([30])])
@pytest.mark.parametrize("kernel", ["auto", "fused"])
def test_a_second_derivative_of_the_fused_kernel_names_the_reference(kernel, mask):
    with pytest.raises(UnsupportedError, match=r"kernel 'fused' has no second derivative.*kernel=.reference."):
        second(kernel, mask=mask)


def test_a_second_derivative_in_blocks_names_the_reference(monkeypatch):
    monkeypatch.setattr(blockwise, "BLOCK_NUMBERS", 1000)
    with pytest.raises(UnsupportedError, match=r"kernel 'blockwise' has no second derivative.*kernel=.reference."):
        second("blockwise")


@pytest.mark.parametrize(
    ("kernel", "weighting"), [("reference", "softmax"), ("chunked", "linear elu"), ("reference", "argmax")]
)
def test_other_second_derivatives_are_there(kernel, weighting):
    assert second(kernel, weighting).abs().max() > 0


def test_a_gradient_penalty_on_what_comes_after_attention_needs_no_second_derivative_of_it():
    layer, x = ch.Attention(8, heads=2), torch.randn(1, 4, 8)
    (first,) = torch.autograd.grad(layer(x).square().sum(), layer.output.weight, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), layer.output.weight)[0].abs().max() > 0


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("kernel", "weighting"), SERVED)
def test_a_batch_of_none_gives_none_and_gradients(kernel, weighting, mask):
    q, k, v = (torch.randn(0, heads, n, d) for heads, n, d in ((4, 5, 8), (2, 6, 8), (2, 6, 3)))
    mask = MASKS[mask](rows=0)
    if kernel == "flex":  # which has no gradients on a CPU
        assert attend(q, k, v, kernel=kernel, weighting=weighting, mask=mask).shape == (0, 4, 5, 3)
        return
    for tensor in (q, k, v):
        tensor.requires_grad_()
    made = attend(q, k, v, kernel=kernel, weighting=weighting, mask=mask)
    assert made.shape == (0, 4, 5, 3)
    for tensor, gradient in zip((q, k, v), torch.autograd.grad(made.sum(), (q, k, v)), strict=True):
        assert gradient.shape == tensor.shape


@pytest.mark.parametrize("position", ["rotary", "alibi", "t5"])
def test_a_layer_takes_a_batch_of_none_and_gives_zeros_for_its_gradients(position):
    layer = ch.Attention(16, heads=ch.Heads(4, kv=2), position=ch.positions.TABLE[position], mask=ch.masks.causal())
    x = torch.randn(0, 5, 16)
    out = layer(x, mask=ch.masks.document(torch.zeros(0, 5, dtype=torch.long)))
    out.sum().backward()
    assert out.shape == (0, 5, 16)
    assert all(parameter.grad.abs().max() == 0 for parameter in layer.parameters())
    assert layer.explain(x).weight.shape == (0, 4, 5, 5)


@pytest.mark.parametrize("lengths", [None, torch.zeros(0, dtype=torch.long)])
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_takes_a_batch_of_none(name, lengths):
    model = MODELS[name].build()
    out = run(model, torch.zeros(0, 7, dtype=torch.long), lengths)
    out.sum().backward()
    assert out.shape == (0, 7, WORDS)
    assert all(parameter.grad.abs().max() == 0 for parameter in model.parameters())


def test_numbers_are_read_only_where_there_are_some():
    x = torch.zeros(2)
    assert can_read(x)
    assert can_read(nn.Parameter(x))
    assert not has_numbers(x.to("meta"))
    answers = []
    vmap(lambda one: answers.append(can_read(one)) or one)(x)
    grad(lambda one: answers.append(can_read(one)) or one.sum())(x)
    with torch._subclasses.FakeTensorMode():
        answers.append(can_read(torch.zeros(2)))
    assert answers == [False, False, False]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("weighting", ["softmax", "sparsemax", "linear elu"])
def test_dual_numbers_carry_the_tangent(n, weighting):
    """Forward-mode AD outside torch.func: torch's fused kernel has no rule for it, nor has that for few keys."""
    options = {"weighting": ch.weighting.TABLE[weighting], "mask": ch.masks.causal()}
    x, tangent = (torch.randn(1, 2, n, 4, dtype=torch.float64) for _ in range(2))
    leaf = x.clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        got = forward_ad.unpack_dual(ch.attend(dual, dual, dual, **options)).tangent
    context = ch.attend(leaf, leaf, leaf, **options)
    row = torch.randn_like(context)
    (gradient,) = torch.autograd.grad(context, leaf, row)
    torch.testing.assert_close((got * row).sum(), (gradient * tangent).sum())
