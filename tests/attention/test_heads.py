"""The maps of a layer are modules: whatever stands in their place trains and infers alike, and every hook is called.

Plain maps of one source are joined into one product with gradients on; nobody may be able to tell.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import clearhead as ch
from clearhead.attention import heads
from clearhead.attention import layer as layers
from clearhead.model import presets
from clearhead.model.norms import Norm, RMSNorm
from tests.decoding.rows import Rows


class LoRA(nn.Module):
    """A frozen map, and a trained product of rank 2 beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        like = {"dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.randn(2, base.in_features, **like) * 0.5)
        self.up = nn.Parameter(torch.randn(base.out_features, 2, **like) * 0.5)

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


def lora(layer, name):
    getattr(layer, name).linear = LoRA(getattr(layer, name).linear)


def subclass(layer, name):
    old = getattr(layer, name).linear
    new = Doubled(old.in_features, old.out_features, bias=old.bias is not None, dtype=old.weight.dtype)
    new.load_state_dict(old.state_dict())
    getattr(layer, name).linear = new


def whole_map(layer, name):
    setattr(layer, name, nn.Sequential(getattr(layer, name), nn.Tanh()))


def own_forward(layer, name):
    linear = getattr(layer, name).linear
    linear.forward = lambda x: nn.functional.linear(x, linear.weight * 3)


def parametrized(layer, name):
    parametrize.register_parametrization(getattr(layer, name).linear, "weight", Halved())


def weight_norm(layer, name):
    linear = parametrizations.weight_norm(getattr(layer, name).linear)
    with torch.no_grad():
        linear.parametrizations.weight.original0.mul_(2)


def pruned(layer, name):
    prune.l1_unstructured(getattr(layer, name).linear, "weight", amount=0.5)


def bias_on_one(layer, name):
    linear = getattr(layer, name).linear
    linear.bias = nn.Parameter(torch.randn(linear.out_features, dtype=linear.weight.dtype))


CHANGES = (lora, subclass, whole_map, own_forward, parametrized, weight_norm, pruned, bias_on_one)


def small_layer(**options):
    return ch.Attention(16, heads=ch.Heads(4, kv=2, **options), mask=ch.masks.causal()).double()


def by_hand(layer, x):
    """What the layer gives if its three maps are called: from the modules alone, with no code of `project`."""
    return layer.output(
        ch.attend(layer.query(x), layer.key(x), layer.value(x), mask=layer.mask, kernel="reference")
        .transpose(1, 2)
        .flatten(2)
    )


@pytest.mark.parametrize(
    ("change", "name"),
    # A bias of the keys adds the same to every score of a row, and softmax does not see it.
    [
        (change, name)
        for change in CHANGES
        for name in ("query", "key", "value")
        if (change, name) != (bias_on_one, "key")
    ],
)
def test_what_stands_in_a_maps_place_is_called_in_training_as_in_inference(change, name):
    layer, x = small_layer(), torch.randn(2, 5, 16, dtype=torch.float64)
    plain = layer(x).detach()
    change(layer, name)
    trained = layer(x)
    with torch.no_grad():
        inferred = layer(x)
    assert not torch.allclose(trained, plain, atol=1e-3)
    torch.testing.assert_close(trained, inferred)
    torch.testing.assert_close(trained, by_hand(layer, x))
    own = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    got = torch.autograd.grad(layer(x).square().sum(), own)
    wanted = torch.autograd.grad(by_hand(layer, x).square().sum(), own)
    for one, other in zip(got, wanted, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("change", CHANGES)
def test_cached_decoding_calls_what_stands_in_a_maps_place(change):
    model = presets.gpt2("tiny", vocabulary=23).build().double().eval()
    for block, name in zip(model.stack.blocks, ("query", "value"), strict=False):
        change(block.attention, name)
    with torch.no_grad():
        found = Rows(model, [[1]]).extend(torch.tensor([2]))
        torch.testing.assert_close(found, model(torch.tensor([[1, 2]]))[:, -1], rtol=0, atol=1e-10)


HOOKS = {
    "forward": lambda module, call: module.register_forward_hook(call),
    "before": lambda module, call: module.register_forward_pre_hook(call),
    "backward": lambda module, call: module.register_full_backward_hook(call),
    "before backward": lambda module, call: module.register_full_backward_pre_hook(call),
    "global forward": lambda module, call: nn.modules.module.register_module_forward_hook(call),
    "global before": lambda module, call: nn.modules.module.register_module_forward_pre_hook(call),
    "global backward": lambda module, call: nn.modules.module.register_module_full_backward_hook(call),
    "global before backward": lambda module, call: nn.modules.module.register_module_full_backward_pre_hook(call),
}


@pytest.mark.parametrize("depth", ["map", "linear"])
@pytest.mark.parametrize("kind", HOOKS)
def test_every_hook_of_a_map_is_called_with_gradients_on(kind, depth):
    layer, x, called = small_layer(), torch.randn(1, 5, 16, dtype=torch.float64, requires_grad=True), []
    module = layer.key if depth == "map" else layer.key.linear
    handle = HOOKS[kind](module, lambda one, *_: called.append(one))
    layer(x).sum().backward()
    handle.remove()
    assert called.count(module) == 1
    layer(x).sum().backward()
    assert called.count(module) == 1


def test_a_forward_hook_may_change_what_a_map_gives():
    layer, x = small_layer(), torch.randn(1, 5, 16, dtype=torch.float64)
    layer.query.linear.register_forward_hook(lambda module, given, made: made * 0)
    assert layer.explain(x).query.abs().max() == 0


@pytest.mark.parametrize("bias", [False, True])
def test_a_frozen_map_gets_no_gradient_and_the_others_theirs(bias):
    layer, x = small_layer(bias=bias), torch.randn(2, 5, 16, dtype=torch.float64)
    layer(x).square().sum().backward()
    wanted = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    layer.zero_grad(set_to_none=True)
    layer.key.requires_grad_(False)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        if name.startswith("key."):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, wanted[name])


def counted(monkeypatch):
    """The calls of `map_jointly`, the one product."""
    calls = []
    monkeypatch.setattr(layers, "map_jointly", lambda maps, x: calls.append(1) or heads.map_jointly(maps, x))
    return calls


@pytest.mark.parametrize("bias", [False, True])
def test_plain_maps_are_one_product_and_the_same_as_three(bias, monkeypatch):
    layer, x, calls = small_layer(bias=bias), torch.randn(2, 5, 16, dtype=torch.float64), counted(monkeypatch)
    own = list(layer.parameters())
    got = [layer(x), *torch.autograd.grad(layer(x).square().sum(), own)]
    assert len(calls) == 2
    wanted = [by_hand(layer, x), *torch.autograd.grad(by_hand(layer, x).square().sum(), own)]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_change_between_two_calls_is_noticed_and_so_is_its_end(monkeypatch):
    layer, x, calls = small_layer(), torch.randn(2, 5, 16, dtype=torch.float64), counted(monkeypatch)
    layer(x)
    handle = layer.value.linear.register_forward_hook(lambda *_: None)
    layer(x)
    handle.remove()
    layer(x)
    layer.value.linear.weight.requires_grad_(False)
    layer(x)
    assert len(calls) == 2


def test_functional_calls_and_their_gradients_are_the_layers(monkeypatch):
    layer, x, calls = small_layer(bias=True), torch.randn(2, 5, 16, dtype=torch.float64), counted(monkeypatch)
    own = dict(layer.named_parameters())
    got = torch.func.grad(lambda values: torch.func.functional_call(layer, values, (x,)).square().sum())(own)
    assert calls
    wanted = torch.autograd.grad(layer(x).square().sum(), list(own.values()))
    for name, gradient in zip(own, wanted, strict=True):
        torch.testing.assert_close(got[name], gradient)


class Stored(torch.Tensor):
    """A weight of another kind, as a quantized one is: it can be multiplied by F.linear, and not joined."""

    @classmethod
    def __torch_function__(cls, function, kinds, given=(), named=None):
        assert function is not torch.cat, "joined"
        return super().__torch_function__(function, kinds, given, named or {})


def test_a_weight_of_a_subclass_of_tensor_is_not_joined():
    layer, x = small_layer(), torch.randn(1, 5, 16, dtype=torch.float64)
    wanted = layer(x)
    for part in (layer.query, layer.key, layer.value):
        part.linear.weight = nn.Parameter(part.linear.weight.detach().as_subclass(Stored))
    got = layer(x)
    torch.testing.assert_close(got.as_subclass(torch.Tensor), wanted)


class Stepped(nn.Module):
    """A map in steps of whole numbers, which has buffers and no parameters."""

    def __init__(self, linear):
        super().__init__()
        self.scale = linear.weight.abs().max().item() / 127
        self.register_buffer("steps", (linear.weight / self.scale).round().to(torch.int8))

    def forward(self, x):
        return x @ (self.steps.to(x.dtype) * self.scale).T


@pytest.mark.parametrize("gradients", [True, False])
def test_a_layer_without_parameters_runs(gradients):
    layer, x = ch.Attention(16, heads=4), torch.randn(2, 5, 16)
    wanted = layer(x).detach()
    for part in (layer.query, layer.key, layer.value):
        part.linear = Stepped(part.linear)
    layer.output = Stepped(layer.output)
    assert not list(layer.parameters())
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(layer(x), wanted, rtol=0, atol=0.1)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_dynamic_quantization_of_a_layer_and_of_a_whole_model():
    from torch.ao.quantization import quantize_dynamic

    def quantized(module):
        return quantize_dynamic(copy.deepcopy(module), {nn.Linear}, dtype=torch.qint8)

    def agree(one, other):  # weights and inputs have 8 bits, so the results have no more than a few digits
        return torch.cosine_similarity(one.flatten(), other.flatten(), 0) > 0.98

    layer, x = ch.Attention(16, heads=4), torch.randn(2, 5, 16)
    assert agree(quantized(layer)(x), layer(x))
    for name in ("gpt2", "llama"):
        model = getattr(presets, name)("tiny", vocabulary=23).build().eval()
        small, tokens = quantized(model), torch.randint(23, (2, 6))
        assert agree(small(tokens), model(tokens))
        with torch.no_grad():
            found = Rows(small, [[1]]).extend(torch.tensor([2]))
            assert agree(found, small(torch.tensor([[1, 2]]))[:, -1])


@pytest.mark.parametrize("gradients", [True, False])
def test_queries_and_keys_are_normalised_in_each_head_before_they_turn(gradients):
    norm = RMSNorm(1e-6)
    layer = ch.Attention(8, heads=ch.Heads(4, kv=2, d_head=6, qk_norm=norm), position=ch.positions.Rotary())
    nn.init.normal_(layer.query.norm.gamma)
    x = torch.randn(2, 5, 8)
    with torch.set_grad_enabled(gradients):
        query, key, value = layer.project(x, x, x)
    mapped = layer.query.map_linearly(x)
    wanted = mapped / (mapped.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.query.norm.gamma
    torch.testing.assert_close(query, wanted)
    torch.testing.assert_close(key.square().mean(-1), torch.ones(2, 2, 5))
    torch.testing.assert_close(value, layer.value.map_linearly(x))
    assert layer.query.norm is not layer.key.norm
    torch.testing.assert_close(layer.explain(x).query, layer.position.turn(query, torch.arange(5)))


def test_the_output_may_do_without_the_bias_of_the_other_maps():
    layer = ch.Attention(8, heads=ch.Heads(2, bias=True, output_bias=False))
    assert layer.query.linear.bias is not None
    assert layer.output.bias is None
    assert ch.Attention(8, heads=ch.Heads(2, output_bias=True)).output.bias is not None


class Widening(nn.Module):
    """A user's own norm: its learned float32 numbers make float32 of bfloat16."""

    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1.5))

    def forward(self, x):
        return torch.tanh(x) * self.gamma


class Widens(Norm):
    def build(self, d_model):
        return Widening(d_model)


def test_a_norm_of_ones_own_for_queries_and_keys_runs_under_autocast():
    layer, x = ch.Attention(8, heads=ch.Heads(2, qk_norm=Widens())), torch.randn(1, 5, 8)
    wanted = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), wanted, atol=0.05, rtol=0.05)
