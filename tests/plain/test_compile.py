"""torch.compile as one full graph and torch.export, on the default path; flex compiled; eager without a compiler."""

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead import compiling
from clearhead.attention.kernels import flex
from tests.covering import few

pytestmark = pytest.mark.slow


class Layer(nn.Module):
    """A causal layer in a padded batch: what a decoder runs."""

    def __init__(self, **parts):
        super().__init__()
        self.attention = ch.Attention(16, heads=ch.Heads(4, kv=2), mask=ch.masks.causal(), **parts)

    def forward(self, x, lengths):
        return self.attention(x, mask=ch.masks.padding(lengths))


def results(layer, run, x, lengths):
    x = x.clone().requires_grad_()
    y = run(x, lengths)
    return y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])


@pytest.mark.parametrize(
    "parts",
    few(
        [
            {},  # the graphs of others are checked below, without a compiler
            {"weighting": ch.weighting.Kernelized("elu")},
            {"position": ch.positions.Rotary()},
            {"position": ch.positions.ALiBi()},
            {"similarity": ch.similarity.Cosine()},
            {"weighting": ch.weighting.Argmax(ties="average")},
        ],
        1,
    ),
    ids=["default", "kernelized", "rotary", "alibi", "cosine", "argmax"],
)
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
def test_a_compiled_layer_is_one_graph_and_the_same(parts):
    layer, x, lengths = Layer(**parts), torch.randn(2, 9, 16), torch.tensor([4, 9])
    compiled = ch.compile(layer)
    for a, b in zip(results(layer, compiled, x, lengths), results(layer, layer, x, lengths), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


ONE_OF_EACH_CLASS = {type(part): name for name, part in ch.weighting.TABLE.items()}
BELOW = (ch.weighting.Softmax, ch.weighting.Argmax, ch.weighting.Kernelized)
OFTEN = [name for kind, name in ONE_OF_EACH_CLASS.items() if kind not in BELOW]
"""Weightings of one class differ in a field, and those below are compiled as torch 2.11 does it."""


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("argmax", "eager"),  # torch 2.11 could not rebuild the inputs here
        *(
            pytest.param(name, "aot_eager", marks=() if name in OFTEN else pytest.mark.thorough)
            for name in ch.weighting.TABLE
        ),
    ],
)
def test_every_weighting_compiles_without_a_compiler(name, backend):
    """By backends that trace as inductor does and run torch's own operations, so they need no C++."""
    torch._dynamo.reset()
    layer = ch.Attention(16, heads=2, mask=ch.masks.causal(), weighting=ch.weighting.TABLE[name])
    compiled, x = torch.compile(layer, fullgraph=True, backend=backend), torch.randn(2, 9, 16)
    own = list(layer.parameters())
    got, wanted = (
        [out.detach(), *torch.autograd.grad(out.square().sum(), own, materialize_grads=True)]
        for out in (compiled(x), layer(x))
    )
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", few([7, 1, 40], 1))
def test_a_query_that_is_nan_gives_nan_in_a_compiled_graph(n):
    torch._dynamo.reset()
    q, k = torch.randn(1, 2, n, 8), torch.randn(1, 2, n, 8)
    q[0, 1, n // 2, 3] = torch.nan
    compiled = torch.compile(lambda q, k: ch.attend(q, k, k), fullgraph=True, backend="aot_eager")
    wanted = torch.zeros(1, 2, n, 8, dtype=torch.bool)
    wanted[0, 1, n // 2] = True
    assert torch.equal(compiled(q, k).isnan(), wanted)


@pytest.mark.parametrize(
    ("kernel", "dtype", "n"),
    [
        *(("fused", dtype, n) for dtype in (torch.float32, torch.bfloat16) for n in (1, 7, 40, 130)),
        # On a CPU it has no bfloat16, and is compiled for seconds; a block has 128 keys.
        *(pytest.param("flex", torch.float32, n, marks=pytest.mark.thorough) for n in (1, 7, 40, 130)),
    ],
)
def test_a_query_that_is_nan_gives_nan_for_any_number_of_keys(kernel, dtype, n):
    q, k = torch.randn(1, 2, 3, 8, dtype=dtype), torch.randn(1, 2, n, 8, dtype=dtype)
    q[0, 1, 1, 3] = torch.nan
    wanted = torch.zeros(1, 2, 3, 8, dtype=torch.bool)
    wanted[0, 1, 1] = True
    assert torch.equal(ch.attend(q, k, k, kernel=kernel).isnan(), wanted)
    lost = torch.full_like(k, torch.nan)
    assert ch.attend(torch.randn_like(q), lost, k, kernel=kernel).isnan().all()


@pytest.mark.parametrize("n", few([130, 7], 1))
def test_a_query_that_is_nan_gives_nan_in_flex_as_it_is_traced(n, monkeypatch):
    """Compiled it is above, for `make test-all`."""
    monkeypatch.setattr(flex, "BACKEND", "eager")
    test_a_query_that_is_nan_gives_nan_for_any_number_of_keys("flex", torch.float32, n)


def test_maps_that_are_not_plain_compile_as_the_modules_they_are():
    torch._dynamo.reset()
    layer, x = ch.Attention(16, heads=2), torch.randn(2, 5, 16)
    layer.query.linear = nn.Sequential(layer.query.linear, nn.Tanh())
    layer.key.linear.register_forward_hook(lambda module, given, made: made * 2)
    layer.value.linear.bias = nn.Parameter(torch.randn(16))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_a_watched_model_compiles_again_without_its_watchers():
    torch._dynamo.reset()
    layer, x, seen = ch.Attention(16, heads=2), torch.randn(2, 5, 16), []
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    wanted = compiled(x)
    with ch.watching(layer, lambda name, value: seen.append(name)):
        layer(x)
    torch.testing.assert_close(compiled(x), wanted)
    with ch.replacing(layer, lambda name, value: value * 0):
        assert compiled(x).abs().max() == 0
    torch.testing.assert_close(compiled(x), wanted)
    assert seen == ["query", "key", "value", "context", "concat", "out"]


def test_the_default_layer_traces_as_one_graph():
    layer, x, lengths = Layer(), torch.randn(2, 9, 16), torch.tensor([4, 9])
    found = torch._dynamo.explain(layer)(x, lengths)
    assert (found.graph_count, found.graph_break_count) == (1, 0)


def test_the_default_layer_exports_with_free_batch_and_length():
    layer, x, lengths = Layer(), torch.randn(2, 9, 16), torch.tensor([4, 9])
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    program = torch.export.export(layer, (x, lengths), dynamic_shapes=({0: batch, 1: length}, {0: batch}))
    other, other_lengths = torch.randn(3, 13, 16), torch.tensor([1, 13, 0])
    torch.testing.assert_close(program.module()(other, other_lengths), layer(other, other_lengths))


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["padding", *(name for name in ch.masks.TABLE if name != "padding")], 1))
def test_flex_compiled_serves_every_mask(name):
    extent = ch.masks.Extent(2, 4, 40, 50, torch.device("cpu"))
    q, k, v = torch.randn(2, 4, 40, 16), torch.randn(2, 4, 50, 16), torch.randn(2, 4, 50, 16)
    options = {"mask": ch.masks.TABLE[name](extent), "position": ch.positions.ALiBi()}
    wanted = ch.attend(q, k, v, **options, kernel="reference")
    torch.testing.assert_close(ch.attend(q, k, v, **options, kernel="flex"), wanted, rtol=1e-4, atol=1e-5)


def test_without_a_compiler_it_runs_eagerly_and_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    layer = ch.Attention(16, heads=4)
    with pytest.warns(UserWarning, match=r"running eagerly.*no-such-compiler.*install one"):
        assert ch.compile(layer) is layer
    q = torch.randn(1, 2, 5, 8)
    choice = ch.which_kernel(q, q, q, kernel="flex")
    assert "runs eagerly" in choice.notes[0]
    torch.testing.assert_close(ch.attend(q, q, q, kernel="flex"), ch.attend(q, q, q, kernel="reference"))


def test_where_torch_has_no_flex_for_the_processor_it_runs_eagerly_and_says_so(monkeypatch):
    monkeypatch.setattr(flex, "CPU_SERVES", False)
    monkeypatch.setattr(flex, "compile_flex", None)
    q = torch.randn(1, 2, 5, 8)
    assert "runs eagerly, as `fused`" in ch.which_kernel(q, q, q, kernel="flex").notes[0]
    assert "AVX2" in ch.which_kernel(q, q, q, kernel="flex").notes[0]
    torch.testing.assert_close(ch.attend(q, q, q, kernel="flex"), ch.attend(q, q, q, kernel="reference"))


def test_a_compiler_is_looked_for_by_the_name_torch_uses(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    there = {"/with": "/with/g++"}
    monkeypatch.setattr(compiling.shutil, "which", lambda name, path: there.get(path) if name == "g++" else None)
    monkeypatch.setenv("PATH", "/with")
    assert compiling.missing_compiler() is None
    monkeypatch.setenv("PATH", "/without")  # what was found is remembered for this PATH
    assert "g++" in str(compiling.missing_compiler())
    assert compiling.missing_compiler("cuda") is None


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "weighting",
    [
        pytest.param(ch.weighting.Softmax(), marks=pytest.mark.thorough),  # the first layer above is compiled with it
        ch.weighting.Argmax(ties="average"),
        pytest.param(ch.weighting.Kernelized("elu"), marks=pytest.mark.slow),
        pytest.param(ch.weighting.Kernelized("random"), marks=(pytest.mark.slow, pytest.mark.thorough)),
    ],
    ids=["softmax", "argmax", "kernelized", "random features"],
)
@pytest.mark.usefixtures("dynamo_of_torch_2_11")
def test_a_layer_is_one_graph_forward_and_backward_on_torch_2_11(weighting):
    torch._dynamo.reset()
    layer, x, lengths = Layer(weighting=weighting), torch.randn(2, 9, 16), torch.tensor([4, 9])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for a, b in zip(results(layer, compiled, x, lengths), results(layer, layer, x, lengths), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


MASKS = {
    "window": lambda box, step: ch.masks.window(20 + step),
    "padding": lambda box, step: ch.masks.padding(box.lengths()),
    "prefix": lambda box, step: ch.masks.prefix(box.lengths()),
    "causal padding": lambda box, step: ch.masks.causal() & ch.masks.padding(box.lengths()),
    "documents": lambda box, step: ch.masks.causal() & ch.masks.document(box.places(box.n_key + step) // 50),
    "documents of each row": lambda box, step: ch.masks.document((box.places(box.n_key) // 50).expand(2, -1)),
    "scattered documents": lambda box, step: ch.masks.document(box.places(box.n_key) % 7),
    "negation": lambda box, step: ~ch.masks.window(20 + step),
    "function": lambda box, step: ch.masks.function(lambda query, key: (query - key) % 2 == 0),
    "tensor": lambda box, step: ch.masks.TABLE["tensor"](box),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_any_length_is_compiled_twice_at_most(name):
    """As one graph for the first length, and one for all others; with the numbers of the reference."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda q, mask: ch.attend(q, q, q, mask=mask, kernel="flex"), backend=counter, fullgraph=True
    )
    for step, n in enumerate((300, 260, 390, 513)):
        query, box = torch.randn(2, 2, n, 16), ch.masks.Extent(2, 2, n, n, torch.device("cpu"))
        mask = MASKS[name](box, step)
        wanted = ch.attend(query, query, query, mask=mask, kernel="reference")
        torch.testing.assert_close(compiled(query, mask), wanted)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["window", "padding", "causal padding"])
def test_a_mask_made_inside_a_compiled_function_is_compiled_twice_at_most(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    make = {
        "window": lambda lengths, step: ch.masks.window(step),
        "padding": lambda lengths, step: ch.masks.padding(lengths),
        "causal padding": lambda lengths, step: ch.masks.causal() & ch.masks.padding(lengths),
    }[name]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def run(query, lengths, step):
        return ch.attend(query, query, query, mask=make(lengths, step), kernel="flex")

    compiled = torch.compile(run, backend=counter, fullgraph=True)
    for step, n in enumerate((300, 260, 390, 513), start=2):
        query, lengths = torch.randn(2, 2, n, 16), torch.tensor([n, n // 3])
        wanted = ch.attend(query, query, query, mask=make(lengths, step), kernel="reference")
        torch.testing.assert_close(compiled(query, lengths, step), wanted)
    assert counter.frame_count <= 2
