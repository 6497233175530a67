"""The layer and its heads: sources, layouts, parameters, and that forward is what `explain` says it is."""

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.attention.grid.case import Case, Combination
from clearhead.errors import ClearheadError

LAYOUTS = {
    "whole": ch.Heads(4),
    "whole with bias": ch.Heads(4, bias=True),
    "grouped": ch.Heads(4, kv=2),
    "single key": ch.Heads(4, kv=1),
    "free widths": ch.Heads(3, d_head=6, d_value=10),
    "low rank": ch.Heads(4, value_rank=2, d_value=16, bias=True),
    "low rank grouped": ch.Heads(4, kv=2, value_rank=3),
    "sliced low rank": ch.SlicedHeads(4, value_rank=2, bias=True),
    "concat only": ch.Heads(4, output=False),
    "sliced": ch.SlicedHeads(4),
    "sliced with bias": ch.SlicedHeads(4, bias=True),
    "sliced concat": ch.SlicedHeads(4, output=False),
}


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("weighting", ["softmax", "argmax average", "linear elu", "sigmoid"])
@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.pairs
def test_forward_is_the_output_map_of_the_explained_context(layout, weighting, position):
    if weighting == "linear elu" and position == "alibi":
        with pytest.raises(ClearheadError, match="no score to add a bias to"):
            ch.Attention(16, weighting=ch.weighting.TABLE[weighting], position=ch.positions.TABLE[position])
        return
    layer = ch.Attention(
        16, heads=layout, weighting=ch.weighting.TABLE[weighting], position=ch.positions.TABLE[position]
    ).double()
    x, memory, third = (torch.randn(2, n, 16, dtype=torch.float64) for n in (5, 7, 7))
    for sources in ((x,), (x, memory), (x, memory, third)):
        for mask in (None, ch.masks.causal() & ch.masks.padding([2, 0])):
            steps = layer.explain(*sources, mask=mask)
            wanted = layer.output(steps.context.transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(*sources, mask=mask), wanted)


def test_whole_heads_are_a_loop_over_heads():
    layer = ch.Attention(16, heads=ch.Heads(4, kv=2, bias=True)).double()
    x = torch.randn(5, 16, dtype=torch.float64)
    weight = {name: getattr(layer, name).linear.weight for name in ("query", "key", "value")}
    contexts = []
    for head in range(4):
        own, shared = slice(4 * head, 4 * head + 4), slice(4 * (head // 2), 4 * (head // 2) + 4)
        q, k, v = x @ weight["query"][own].T, x @ weight["key"][shared].T, x @ weight["value"][shared].T
        contexts.append(torch.softmax(q @ k.T / 2, -1) @ v)
    torch.testing.assert_close(layer(x), torch.cat(contexts, -1) @ layer.output.weight.T + layer.output.bias)


def test_sliced_heads_see_only_their_slice():
    layer = ch.Attention(16, heads=ch.SlicedHeads(4, output=False)).double()
    x = torch.randn(1, 5, 16, dtype=torch.float64, requires_grad=True)
    contexts = []
    for head in range(4):
        piece = x[..., 4 * head : 4 * head + 4]
        q, k, v = (piece @ getattr(layer, name).weight[head] for name in ("query", "key", "value"))
        contexts.append(torch.softmax(q @ k.mT / 2, -1) @ v)
    torch.testing.assert_close(layer(x), torch.cat(contexts, -1))
    (gradient,) = torch.autograd.grad(layer(x)[..., 4:8].sum(), x)
    assert gradient[..., 4:8].abs().min() > 0
    assert gradient[..., :4].abs().max() == gradient[..., 8:].abs().max() == 0


def test_low_rank_values_are_x_down_up():
    layer = ch.Attention(12, heads=ch.Heads(3, value_rank=2, d_value=12)).double()
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    for head in range(3):
        wanted = x[0] @ layer.value.down[head] @ layer.value.up[head]
        torch.testing.assert_close(layer.explain(x).value[0, head], wanted)
        assert torch.linalg.matrix_rank(layer.value.down[head] @ layer.value.up[head]) == 2


@pytest.mark.parametrize(("d_model", "count", "rank"), [(512, 8, 16), (64, 4, 1), (30, 5, 7)])
def test_low_rank_values_have_the_parameters_the_notes_count(d_model, count, rank):
    low = ch.Attention(d_model, heads=ch.Heads(count, d_value=d_model, value_rank=rank))
    full = ch.Attention(d_model, heads=ch.Heads(count, d_value=d_model))
    assert parameters(low.value) == count * 2 * d_model * rank
    assert parameters(full.value) == count * d_model**2


@pytest.mark.parametrize(
    ("layout", "count"),
    [
        (ch.Heads(8), 4 * 64 * 64),
        (ch.Heads(8, bias=True), 4 * (64 * 64 + 64)),
        (ch.Heads(8, kv=2), 2 * 64 * 64 + 2 * 64 * 16),
        (ch.Heads(8, kv=1), 2 * 64 * 64 + 2 * 64 * 8),
        (ch.Heads(8, output=False), 3 * 64 * 64),
        (ch.Heads(8, d_head=16, d_value=4), 2 * 64 * 128 + 2 * 64 * 32),
        (ch.Heads(8, kv=2, value_rank=3, d_value=5), 64 * 64 + 64 * 16 + 2 * (64 * 3 + 3 * 5) + 40 * 64),
        (ch.SlicedHeads(8), 3 * 8 * 8 * 8 + 64 * 64),
        (ch.SlicedHeads(8, output=False, bias=True), 3 * (8 * 8 * 8 + 64)),
    ],
)
def test_parameter_counts(layout, count):
    assert parameters(ch.Attention(64, heads=layout)) == count


def test_the_same_spec_in_two_layers_shares_nothing():
    shape = {"heads": 4, "similarity": ch.similarity.Cosine(), "position": ch.positions.T5Bias()}
    first, second = ch.Attention(16, **shape), ch.Attention(16, **shape)
    ids = [{id(p) for p in layer.parameters()} for layer in (first, second)]
    assert not ids[0] & ids[1]
    random = ch.weighting.Kernelized("random")
    drawn = [ch.Attention(16, heads=4, weighting=random).state_dict()["similarity.features.projection"] for _ in "ab"]
    assert not torch.equal(*drawn)


def test_a_built_part_is_shared_by_the_layers_it_is_given_to():
    bias = ch.positions.T5Bias().build(ch.HeadShape(n_heads=4, n_kv_heads=4, d_head=4))
    first, second = (ch.Attention(16, heads=4, position=bias) for _ in range(2))
    assert first.position is second.position is bias


def test_random_features_are_saved_and_loaded_with_the_layer():
    spec = {"heads": 4, "weighting": ch.weighting.Kernelized("random")}
    first, second, x = ch.Attention(16, **spec), ch.Attention(16, **spec), torch.randn(1, 5, 16)
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(first(x), second(x))


def test_projections_keep_unit_variance():
    layer = ch.Attention(256, heads=ch.Heads(8, value_rank=32, d_value=64))
    steps = layer.explain(torch.randn(4, 64, 256))
    for name in ("query", "key", "value"):
        assert getattr(steps, name).var().item() == pytest.approx(1, rel=0.1)


def test_dropout_acts_in_training_and_rests_in_evaluation():
    layer, x = ch.Attention(16, heads=4, dropout=0.5), torch.randn(1, 9, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["fused", "blockwise", "reference"])
def test_dropout_leaves_out_its_share_and_keeps_the_mean(kernel):
    q, k = torch.randn(1, 2, 30, 8), torch.randn(1, 2, 40, 8)
    identity = torch.eye(40).expand(1, 2, 40, 40)
    weight = ch.explain(q, k, identity).weight
    thinned = torch.stack([ch.attend(q, k, identity, dropout=0.3, kernel=kernel) for _ in range(100)])
    share = (thinned == 0).float().mean().item()
    spread = (0.3 * 0.7 / thinned.numel()) ** 0.5
    assert abs(share - 0.3) < 5 * spread
    torch.testing.assert_close(thinned.mean(0).mean(-1), weight.mean(-1), rtol=0.2, atol=0)


@pytest.mark.parametrize("kernel", ["fused", "blockwise", "reference", "chunked"])
def test_autocast_gives_the_dtype_of_the_autocast(kernel):
    parts = {"weighting": ch.weighting.Kernelized()} if kernel == "chunked" else {}
    for layout in LAYOUTS.values():
        layer, x = ch.Attention(16, heads=layout, kernel=kernel, **parts), torch.randn(2, 5, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.1)


def test_without_a_batch_neither_output_nor_steps_have_one():
    layer, x, memory = ch.Attention(16, heads=4), torch.randn(5, 16), torch.randn(7, 16)
    assert layer(x, memory).shape == (5, 16)
    steps, batched = layer.explain(x, memory), layer.explain(x[None], memory[None])
    assert (steps.weight.shape, batched.weight.shape) == ((4, 5, 7), (1, 4, 5, 7))
    torch.testing.assert_close(steps.context, batched.context[0])


def test_which_kernel_takes_what_forward_takes():
    layer, x = (
        ch.Attention(16, heads=4, weighting=ch.weighting.Kernelized(), mask=ch.masks.causal()),
        torch.randn(5, 16),
    )
    assert layer.which_kernel(x, x, x).kernel == "chunked"
    assert layer.which_kernel(x, key_positions=torch.arange(5)).kernel == "blockwise"


def test_the_layers_own_mask_and_the_calls_mask_both_hold():
    layer, x = ch.Attention(16, heads=4, mask=ch.masks.causal()), torch.randn(2, 6, 16)
    weight = layer.explain(x, mask=ch.masks.padding([3, 6])).weight
    wanted = ch.masks.show(ch.masks.causal() & ch.masks.padding([3, 6]), batch=2, n_query=6, n_key=6)
    assert torch.equal(weight > 0, wanted[:, None].expand_as(weight))


def test_an_empty_row_gives_the_output_maps_bias():
    layer, x = ch.Attention(16, heads=ch.Heads(4, bias=True)), torch.randn(2, 6, 16)
    nn.init.normal_(layer.output.bias)
    y = layer(x, mask=ch.masks.padding([0, 6]))
    torch.testing.assert_close(y[0], layer.output.bias.expand(6, 16))


def test_which_kernel_speaks_for_the_layer():
    layer, x = ch.Attention(16, heads=4, dropout=0.1), torch.randn(1, 6, 16)
    assert "with dropout on the CPU torch builds" in str(layer.which_kernel(x))
    assert layer.eval().which_kernel(x).notes == ()
    linear = ch.Attention(16, heads=4, weighting=ch.weighting.Kernelized())
    assert linear.which_kernel(x).kernel == "chunked"


def test_the_case_of_the_grid_poisons_what_nobody_sees():
    parts = {
        "similarity": "default", "weighting": "softmax", "position": "none", "mask": "padding", "heads": "equal",
        "lengths": "square", "dtype": "float64", "gradients": "needed", "dropout": "0", "positions": "default",
    }  # fmt: skip
    case = Case(Combination("fused", parts), seed=0)
    assert case.tensors[1].isnan().any()
    assert case.tensors[0][0].isnan().all()
    assert case.differences() == []


def test_sliced_heads_of_low_rank_are_a_product_of_two_maps_on_their_own_slice():
    layer, x = ch.Attention(12, heads=ch.SlicedHeads(3, value_rank=2)).double(), torch.randn(2, 5, 12).double()
    square = ch.Attention(12, heads=ch.SlicedHeads(3)).double()
    square.load_state_dict(
        {
            name: layer.value.down @ layer.value.up if name == "value.weight" else layer.state_dict()[name]
            for name in square.state_dict()
        }
    )
    torch.testing.assert_close(layer(x), square(x))
    assert torch.linalg.matrix_rank(layer.value.down @ layer.value.up).tolist() == [2, 2, 2]
    for head in range(3):
        changed = x.clone()
        changed[..., [i for i in range(12) if i // 4 != head]] += 1
        torch.testing.assert_close(layer.value(changed)[:, head], layer.value(x)[:, head])
