"""A call with a wrong argument is answered with a sentence that names the right word. As a user runs it."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Sequence

import pytest
import torch

import clearhead as ch
from clearhead.calls import WORDS, public
from clearhead.compiling import missing_compiler
from clearhead.errors import ArgumentError, ClearheadError
from tests.registering import registry_restored

Q = torch.zeros(1, 2, 3, 8)
X = torch.zeros(1, 3, 16)
LAYER = ch.Attention(16, 4)
WRONG = {
    "is_causal": (
        lambda: ch.attend(Q, Q, Q, is_causal=True),
        r"attend has no argument 'is_causal': write mask=ch\.mas",
    ),
    "attn_mask": (lambda: ch.attend(Q, Q, Q, attn_mask=None), "write mask=…, in which True means that the query may"),
    "dropout_p": (lambda: ch.attend(Q, Q, Q, dropout_p=0.1), r"attend has no argument 'dropout_p': write dropout=0\.1"),
    "scale": (lambda: ch.explain(Q, Q, Q, scale=1.0), r"write similarity=ch\.similarity\.ScaledDot"),
    "enable_gqa": (lambda: ch.attend(Q, Q, Q, enable_gqa=True), "leave it out; key and value may have fewer heads"),
    "num_heads": (lambda: ch.Attention(16, num_heads=2), "Attention has no argument 'num_heads': write heads=2"),
    "n_heads": (lambda: ch.Attention(16, n_heads=2), "write heads=2"),
    "embed_dim": (lambda: ch.Attention(embed_dim=16, num_heads=2), "'embed_dim': write d_model=16"),
    "mask in a layer": (
        lambda: LAYER(X, attn_mask=None),
        r"Attention\.forward has no argument 'attn_mask': write mask=",
    ),
    "need_weights": (lambda: LAYER(X, need_weights=True), "leave it out; `explain`, with the same arguments"),
    "explain of a layer": (lambda: LAYER.explain(X, is_causal=True), r"Attention\.explain has no .* write mask="),
    "vocab_size": (
        lambda: ch.presets.gpt2("tiny", vocab_size=9),
        "gpt2 has no argument 'vocab_size': write vocabulary=9",
    ),
    "layers": (lambda: ch.presets.gpt2(n_layers=9), r"write size=ch\.presets\.Size\(n_layers, d_model"),
    "heads of Heads": (lambda: ch.Heads(num_heads=9), "Heads has no argument 'num_heads': write count=9"),
    "padding of a model": (
        lambda: ch.presets.gpt2("tiny", vocabulary=9).build()(torch.zeros(1, 2, dtype=torch.long), attention_mask=None),
        "write lengths=…, how many tokens each row has",
    ),
    "max_new_tokens": (lambda: ch.generate(None, [1], max_new_tokens=5), r"write rules=ch\.Rules\(max_new=50\)"),
    "temperature": (lambda: ch.stream(None, [1], temperature=5), r"write method=ch\.Sample\(temperature=0\.8\)"),
    "eps": (lambda: ch.model.LayerNorm(eps=1e-6), "LayerNorm has no argument 'eps': write epsilon=1e-06"),
    "learning rate": (lambda: ch.training.Optimizer(learning_rate=1.0), r"write lr=1\.0"),
    "a slip": (lambda: ch.attend(Q, Q, Q, maks=None), "attend has no argument 'maks': write mask=…"),
    "a word of nobody's": (lambda: ch.weighting.Softmax(colour="red"), "'colour': it takes temperature"),
    "by place": (
        lambda: ch.attend(Q, Q, Q, None),
        r"takes 3 positional arguments \(query, key, value\); came 4; .* mask=…",
    ),
    "dropout by place": (lambda: ch.Attention(16, 4, 0.1), r"takes 2 positional arguments \(d_model, heads\); came 3"),
    "nothing": (lambda: ch.attend(Q), "attend needs key and value; came without"),
    "nothing of a spec": (ch.Heads, "Heads needs count; came without"),
    "part of a size": (lambda: ch.presets.Size(1, 2), "Size needs n_heads and n_kv_heads and d_ff"),
    "twice": (lambda: ch.attend(Q, Q, Q, key=Q), "attend: key is given twice, by its place and by its name"),
    "a word for a number": (lambda: ch.Heads("4"), "Heads: count must be int; came '4'"),
    "a fraction for a number": (lambda: ch.Heads(4.0), r"Heads: count must be int; came 4\.0"),
    "a word for yes or no": (lambda: ch.Heads(4, bias="yes"), "Heads: bias must be bool; came 'yes'"),
    "a word for a size": (lambda: ch.presets.Size("a", 1, 1, 1, 1), "Size: n_layers must be int; came 'a'"),
    "a word for a width": (lambda: ch.Attention("512"), "Attention: d_model must be int; came '512'"),
    "a word for a share": (lambda: ch.attend(Q, Q, Q, dropout="x"), "attend: dropout must be float; came 'x'"),
    "no function": (lambda: ch.compile(3), "compile: expected a model or a function; came 3"),
    "no corpus": (lambda: ch.training.default_recipe("fill", "x.txt"), "corpus must be Corpus; came 'x.txt'"),
    "a context manager": (lambda: ch.watching(LAYER), "watching needs observe; came without"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    call, message = WRONG[name]
    with pytest.raises(ClearheadError, match=message) as caught:
        call()
    assert type(caught.value) is ArgumentError
    assert isinstance(caught.value, TypeError)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def public_calls():
    """Every function and class that a user calls, of the package and its namespaces, by name."""
    calls = {}
    for home in (ch, *(getattr(ch, name) for name in ch.__all__ if inspect.ismodule(getattr(ch, name)))):
        for name in home.__all__:
            target = getattr(home, name)
            made = inspect.isclass(target) and dataclasses.is_dataclass(target) and not inspect.isabstract(target)
            if made or inspect.isfunction(target):
                calls[f"{target.__module__}.{target.__qualname__}"] = target
    return calls


RESULTS = (
    *("Activations", "Choice", "Hypothesis", "Installed", "Measured", "ProgramPlan", "Steps", "TextLayout", "Trace"),
    *("Effect", "Lens", "Readings", "Spaces", "softmax_rows"),
)
"""Classes that users are given and do not make; and a function of kernels, which is called where every call counts."""
CALLS = {name: target for name, target in public_calls().items() if target.__name__ not in RESULTS}


@pytest.mark.parametrize("name", CALLS)
def test_every_public_call_answers(name):
    with pytest.raises(ArgumentError, match=f"{CALLS[name].__name__} has no argument 'zzz': it takes "):
        CALLS[name](zzz=1)


def test_there_are_public_calls():
    assert len(CALLS) > 120


def test_an_error_inside_is_left_as_it_is():
    def inner(a):
        raise TypeError("mine")

    @public
    def outer(a):
        return inner(a, b=1) if a else inner(a)

    with pytest.raises(TypeError, match="mine") as caught:
        outer(0)
    assert type(caught.value) is TypeError
    with pytest.raises(TypeError, match=r"inner\(\) got an unexpected keyword argument 'b'") as caught:
        outer(1)
    assert type(caught.value) is TypeError


def test_an_error_inside_is_left_as_it_is_where_the_arguments_are_right():
    @public
    def broken(rows: Sequence[int] | Sequence[Sequence[int]] | torch.Tensor, sizes: tuple[int, ...] | None = None):
        return 1 / 0

    for right in ([1, 2], [[1], [2]], torch.ones(1)):
        with pytest.raises(ZeroDivisionError):
            broken(right, (1, 2))
    with pytest.raises(ArgumentError, match=r"rows must be Sequence\[int\] .* came \[1.5\]") as caught:
        broken([1.5])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_signatures_and_docstrings_are_those_of_the_function():
    assert list(inspect.signature(ch.attend).parameters)[:4] == ["query", "key", "value", "similarity"]
    assert list(inspect.signature(ch.Attention).parameters)[:2] == ["d_model", "heads"]
    assert ch.attend.__doc__.startswith("Return the context of every query")
    assert "attend_directly" in inspect.getsource(ch.attend)


def test_parts_are_copied_and_pickled_as_before():
    for part in (ch.Heads(4, kv=2), ch.presets.Size(1, 2, 3, 4, 5), ch.weighting.Softmax(), ch.Rules(max_new=3)):
        assert pickle.loads(pickle.dumps(part)) == copy.deepcopy(part) == part
    assert pickle.loads(pickle.dumps(ch.attend)) is ch.attend


def test_a_class_is_prepared_once():
    before = ch.weighting.Softmax.__init__
    with registry_restored():
        assert public(ch.weighting.Softmax).__init__ is ch.register(ch.weighting.Softmax).__init__ is before


def test_no_word_is_in_the_table_twice():
    words = [word for words in WORDS for word in words.split()]
    assert len(words) == len(set(words))


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_a_compiled_call_is_one_graph():
    def blurred(query):
        mask = ch.masks.causal()
        return ch.attend(query, query, query, mask=mask) + ch.attend(
            query, query, query, mask=mask, weighting=ch.weighting.Sigmoid()
        )

    query = torch.randn(1, 2, 5, 8)
    torch.testing.assert_close(torch.compile(blurred, fullgraph=True, backend="eager")(query), blurred(query))
    layer = ch.Attention(16, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(compiled(x), layer(x))
