"""Whatever a user gives a public call, an error that comes of it is Clearhead's own, with a sentence. Fuzzed.

Each call below is right. One argument after another is exchanged for a wrong one: another type, shape, range, name,
device or dtype, or nothing at all.
"""

import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadError
from tests.registering import registry_restored

WRONG: dict[str, Any] = {
    "None": None,
    "a word": "wrong",
    "an empty word": "",
    "a number": 3,
    "zero": 0,
    "below zero": -1,
    "a large number": 97,
    "a fraction": 0.5,
    "nan": float("nan"),
    "yes": True,
    "an empty list": [],
    "a list": [1, 2],
    "a list of words": ["a", "b"],
    "a list of lists": [[1, 99]],
    "a dictionary": {"a": 1},
    "an object": object(),
    "a class": int,
    "a function": len,
    "a scalar": torch.tensor(1.0),
    "a vector": torch.ones(3),
    "a matrix": torch.ones(2, 2),
    "five axes": torch.ones(1, 1, 1, 1, 1),
    "empty": torch.ones(1, 0, 8),
    "whole numbers": torch.ones(1, 2, 3, 8, dtype=torch.long),
    "ids": torch.tensor([[1, 999]]),
    "booleans": torch.ones(5, 5, dtype=torch.bool),
    "doubles": torch.ones(1, 2, 3, 8, dtype=torch.float64),
    "no device": torch.ones(1, 2, 3, 8, device="meta"),
    "a path": Path("/nowhere/at/all"),
}


FIVE = 5


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """Run each call in an empty folder: a wrong word may be the name of a file that it writes."""
    monkeypatch.chdir(tmp_path)


class Call(NamedTuple):
    """A call that works: its function, and its arguments by name; `places` come first, without their names."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    places: tuple[Any, ...] = ()


def finish(found: Any) -> None:
    """Take what a call gives as far as it goes: iterators to their first item, contexts inside."""
    if isinstance(found, Iterator):
        next(found, None)
    elif hasattr(found, "__enter__") and hasattr(found, "gen"):
        with found:
            pass


Q = torch.ones(1, 2, 3, 8)
X = torch.ones(1, 3, 8)
IDS = torch.tensor([[1, 2, 3]])


def attention_calls() -> dict[str, Call]:
    layer = ch.Attention(8, 2)
    tensors: dict[str, Any] = {"query": Q, "key": Q, "value": Q}
    options: dict[str, Any] = {
        "similarity": None,
        "weighting": ch.weighting.Softmax(),
        "position": ch.positions.NoPosition(),
        "mask": None,
        "query_positions": None,
        "key_positions": None,
    }
    sources: dict[str, Any] = {"query_source": X, "key_source": X, "value_source": X}
    inner: dict[str, Any] = {"mask": None, "query_positions": None, "key_positions": None}
    return {
        "attend": Call(ch.attend, tensors | options | {"dropout": 0.0, "kernel": "auto"}),
        "explain": Call(ch.explain, tensors | options),
        "which_kernel": Call(ch.which_kernel, tensors | options | {"dropout": 0.0, "kernel": "auto"}),
        "Attention": Call(
            ch.Attention,
            {
                "d_model": 8,
                "heads": 2,
                "similarity": None,
                "weighting": None,
                "position": None,
                "mask": None,
                "dropout": 0.0,
                "kernel": "auto",
            },
        ),
        "layer": Call(layer, sources | inner),
        "layer.explain": Call(layer.explain, sources | inner),
        "layer.which_kernel": Call(layer.which_kernel, sources | inner),
        "watching": Call(ch.watching, {"model": layer, "observe": lambda *_: None}),
        "replacing": Call(ch.replacing, {"model": layer, "replace": lambda _, value: value}),
        "register": Call(ch.register, {"part": ch.weighting.Softmax, "option": None, "examples": None}),
        "compile": Call(ch.compile, {"target": layer}),
        **{f"masks.{name}": Call(getattr(ch.masks, name), arguments) for name, arguments in MASKS.items()},
    }


MASKS: dict[str, dict[str, Any]] = {
    "window": {"left": 2, "right": 1},
    "prefix": {"lengths": [2]},
    "padding": {"lengths": [2]},
    "document": {"ids": torch.tensor([[0, 0, 1]])},
    "tensor": {"table": torch.ones(3, 3, dtype=torch.bool)},
    "function": {"rule": lambda cells: cells.query >= cells.key},
    "show": {"mask": ch.masks.causal(), "n_query": 3, "n_key": 3},
}


def model_calls() -> dict[str, Call]:
    size = ch.presets.Size(1, 8, 2, 2, 16)
    decoder = ch.presets.gpt2(size, vocabulary=20, length=10).build()
    both = ch.presets.classic(20, size=size).build()
    decoding = {"method": ch.Greedy(), "rules": ch.Rules(max_new=2), "prefix": None, "candidates": 0}
    block = decoder.spec.blocks[0]
    attention = ch.model.AttentionSpec(heads=2)
    common = {"vocabulary": 20, "attention": None, "dropout": 0.0}
    return {
        "decoder": Call(decoder, {"tokens": IDS, "lengths": None, "mask": None, "positions": None}),
        "both": Call(both, {"source": IDS, "target": IDS, "source_lengths": None, "mask": None}),
        "encoder": Call(both.encoder, {"tokens": IDS, "lengths": None, "mask": None, "segments": None}),
        "generate": Call(ch.generate, {"model": decoder, "inputs": [[1, 2]], **decoding}),
        "stream": Call(ch.stream, {"model": decoder, "inputs": [[1, 2]], **decoding}),
        "score": Call(ch.score, {"model": decoder, "inputs": [[1, 2]], "outputs": [[3]], "prefix": None}),
        "translate": Call(ch.generate, {"model": both, "inputs": [[1, 2]], **decoding, "prefix": [[1]]}),
        "gpt2": Call(ch.presets.gpt2, {"size": size, "length": 10, **common}),
        "bert": Call(ch.presets.bert, {"size": size, "length": 10, "output": ch.model.Blanks(), **common}),
        "llama": Call(
            ch.presets.llama,
            {"size": size, "vocabulary": 20, "rotary_base": 1e4, "tied": False, "attention": None},
        ),
        "tiny": Call(ch.presets.tiny, {**common}),
        "classic": Call(
            ch.presets.classic,
            {"size": size, "arrangement": ch.model.PostNorm(), "tied": "three", **common},
        ),
        "DecoderSpec": Call(
            lambda **fields: ch.model.DecoderSpec(**fields).build(),
            {"vocabulary": 20, "d_model": 8, "blocks": (block,), "embedding": ch.model.Embedding()},
        ),
        "BlockSpec": Call(
            lambda **fields: ch.model.DecoderSpec(
                vocabulary=20, d_model=8, blocks=(ch.model.BlockSpec(**fields),), embedding=ch.model.Embedding()
            ).build(),
            {
                "attention": attention,
                "feed_forward": ch.model.ReLU(16),
                "arrangement": ch.model.PreNorm(),
                "dropout": 0.0,
            },
        ),
        "Size": Call(
            lambda **fields: ch.presets.gpt2(ch.presets.Size(**fields), vocabulary=20).build(), dict(size._asdict())
        ),
        **{
            cls.__name__: Call(cls, {name: getattr(part, name) for name in inspect.signature(cls).parameters})
            for cls, part in PARTS.items()
        },
    }


PARTS: dict[type, Any] = {
    type(part): part
    for part in (
        *(ch.Greedy(), ch.Sample(), ch.Beam(), ch.Rules(max_new=3), ch.Heads(2)),
        *(ch.model.ReLU(8), ch.model.GELU(8), ch.model.SwiGLU(8), ch.model.LayerNorm(), ch.model.RMSNorm()),
        *(ch.model.Embedding(), ch.model.AttentionSpec(heads=2), ch.model.Classes(2), ch.model.NextToken()),
        *(ch.weighting.Softmax(), ch.weighting.Argmax(), ch.weighting.Sigmoid(), ch.weighting.RandomFeatures()),
        *(ch.similarity.ScaledDot(), ch.similarity.Cosine(), ch.similarity.Additive()),
        *(ch.positions.Rotary(), ch.positions.ALiBi(), ch.positions.T5Bias(), ch.positions.Learned(8)),
        *(ch.positions.Sinusoidal(), ch.training.Optimizer(), ch.training.Batching(), ch.training.Budget(steps=1)),
        *(ch.training.Checkpointing(), ch.training.Machine(), ch.training.Tokenizing(), ch.training.CosineDecay()),
        *(ch.training.Ema(), ch.training.Last(), ch.training.Constant(), ch.training.InverseSqrt()),
        ch.Edit(at="decoder.0.attention", step="context", times=0.0),
        ch.Swap(at="decoder.0.attention", weighting=ch.weighting.Argmax()),
    )
}


def tracing_calls() -> dict[str, Call]:
    size = ch.presets.Size(1, 8, 2, 2, 16)
    model = ch.presets.classic(20, size=size).build().eval()
    trace = ch.tracing.trace_model(model, IDS, IDS)
    head, site = trace.decoder[0].cross.head[0], trace.decoder[0].attention
    folder = Path(tempfile.mkdtemp())
    trace.save(folder / "a.trace")
    page = trace.show()
    edit = ch.Edit(at="decoder.0.cross", step="context", times=0.0)
    return {
        "trace_model": Call(
            ch.tracing.trace_model, {"segments": None, "changes": [edit], "pieces": None}, (model, IDS, IDS)
        ),
        "trace_model tokens": Call(lambda tokens: ch.tracing.trace_model(model, IDS, tokens), {"tokens": IDS}),
        "trace_model model": Call(lambda model: ch.tracing.trace_model(model, IDS, IDS), {"model": model}),
        "recording": Call(ch.tracing.recording, {"model": model, "changes": [edit]}),
        "trace.value": Call(trace.value, {"name": "decoder.output.logits", "rows": slice(0, 1)}),
        "trace.show": Call(trace.show, {"site": "decoder.0.cross", "head": 0}),
        "trace.rollout": Call(trace.rollout, {"name": "encoder"}),
        "trace.save": Call(trace.save, {"path": folder / "b.trace"}),
        "Trace.load": Call(ch.Trace.load, {"path": folder / "a.trace", "model": model, "parts": None}),
        "trace[]": Call(trace.__getitem__, {}, ("decoder.0.cross",)),
        "trace.decoder[]": Call(lambda index: trace.decoder[index], {"index": 0}),
        "head[]": Call(lambda index: site.head[index], {"index": 0}),
        "site.show": Call(site.show, {"head": 0}),
        "page.save": Call(page.save, {"path": folder / "page.html"}),
        "head.rows": Call(head.rows, {"start": 0, "stop": 1}),
        "head.column": Call(head.column, {"key": 0}),
        "head.cell": Call(head.cell, {"query": 0, "key": 0}),
        "head.ties": Call(head.ties, {"query": 0}),
        "head.turn": Call(head.turn, {"query": 0, "key": 0}),
        "head.tile": Call(head.tile, {"step": "weight", "level": 0, "row": 0, "column": 0}),
        "readings": Call(ch.tracing.readings, {"trace": trace, "site": site, "rows": None}),
        "lens": Call(ch.tracing.lens, {"trace": trace, "model": model, "shown": 2}),
        "compare_spaces": Call(
            ch.tracing.compare_spaces, {"trace": trace, "site": "decoder.0.attention", "head": 0, "places": [0, 1]}
        ),
        "effects": Call(
            ch.tracing.effects,
            {"model": model, "forward": lambda changes: model(IDS, IDS), "site": "decoder.0.cross", "n_heads": 2},
        ),
    }


def craft_calls() -> dict[str, Call]:
    craft, rasp = ch.craft, ch.rasp
    words = craft.inputs(["a", "b"], 4)
    head = craft.by_content(words, {"a": ["b"]})
    decoder = ch.presets.gpt2(ch.presets.Size(1, 8, 2, 2, 16), vocabulary=20, length=10).build()
    site = "decoder.0.attention"
    fitted = craft.fit_content(decoder, IDS, at=site)
    equal = rasp.select(rasp.tokens, rasp.tokens, lambda key, query: key == query)
    return {
        "craft.inputs": Call(craft.inputs, {"vocabulary": ["a", "b"], "length": 4}),
        "by_content": Call(
            craft.by_content, {"read": words, "asks": {"a": ["b"]}, "query": "token", "key": "token", "scale": 1.0}
        ),
        "by_position": Call(craft.by_position, {"read": words, "offset": -1, "scale": 1.0}),
        "combine": Call(craft.combine, {"weights": [1.0, 2.0]}, (head, head)),
        "craft.layer": Call(craft.layer, {"weighting": None}, (head,)),
        "install": Call(craft.install, {"model": decoder, "design": fitted, "at": site, "head": 0, "frozen": True}),
        "fit_content": Call(
            lambda model, tokens, at: craft.fit_content(model, tokens, at=at),
            {"model": decoder, "tokens": IDS, "at": site},
        ),
        "design.weights": Call(head.weights, {"tokens": ["a", "b"], "weighting": None, "labels": None}),
        "design.sharpness": Call(head.sharpness, {"n": 3, "epsilon": 0.01}),
        "previous_token": Call(craft.ready.previous_token, {"read": words}),
        "tokens_back": Call(craft.ready.tokens_back, {"read": words, "count": 2}),
        "rasp.select": Call(
            lambda keys, queries: rasp.select(keys, queries, lambda key, query: key == query),
            {"keys": rasp.tokens, "queries": rasp.tokens},
        ),
        "rasp.aggregate": Call(rasp.aggregate, {}, (equal, rasp.tokens)),
        "rasp.selector_width": Call(rasp.selector_width, {}, (equal,)),
        "rasp.numeric": Call(rasp.numeric, {}, (rasp.selector_width(equal),)),
        "rasp.run": Call(rasp.run, {}, (rasp.selector_width(equal), ["a", "b"])),
        "rasp.compile": Call(
            lambda vocabulary: rasp.compile(rasp.selector_width(equal), vocabulary=vocabulary, length=3),
            {"vocabulary": ["a", "b"]},
        ),
    }


GROUPS = {
    "attention": attention_calls,
    "model": model_calls,
    "tracing": tracing_calls,
    "craft": craft_calls,
}


def run_calls(translator: Any, documents: Any, filler: Any, classifier: Any) -> dict[str, Call]:
    beams = {"texts": ["eins"], "beam": 2, "length_penalty": 1.0}
    writing = {"prompts": ["the"], "max_new": 2, "method": ch.Greedy()}
    path, path_again = translator.folder.path, str(translator.folder.path)
    return {
        "translate": Call(translator.translate, beams),
        "translations": Call(translator.translations, beams | {"n_best": 2}),
        "run.generate": Call(documents.generate, writing),
        "run.stream": Call(documents.stream, {"prompt": "the", "max_new": 2, "method": ch.Greedy()}),
        "embed": Call(filler.embed, {"texts": ["the"], "pooling": "mean", "normalize": False}),
        "fill": Call(filler.fill, {"texts": ["the <mask>"], "shown": 2}),
        "classify": Call(classifier.classify, {"texts": ["red plum"]}),
        "answer": Call(translator.answer, {"texts": ["eins"]}),
        "unseen": Call(translator.unseen, {"text": "eins"}),
        "evaluate": Call(
            lambda beam, **options: None if beam is FIVE else translator.evaluate(None, beam=beam, **options),
            {"beam": FIVE, "length_penalty": 1.0, "tokenize": "13a", "lower": False, "stride": None},
        ),
        "trace": Call(ch.trace, {"run": translator, "source": "eins", "target": None, "edits": (), "method": None}),
        "load": Call(
            ch.load, {"path": path, "device": "cpu", "dtype": None, "step": None, "parts": None, "merge": True}
        ),
        "export": Call(
            lambda **options: (
                ch.export(**options) if options["to"] != "gguf" or options["run"] is not translator else 0
            ),
            {"run": translator, "to": "gguf", "path": "/nowhere/at/all", "quantization": None},
        ),
        "default_recipe": Call(
            lambda **options: ch.training.default_recipe(**options) if options["task"] != "fill" else None,
            {"task": "fill", "corpus": None},
        ),
        "resume": Call(lambda path: None if path is path_again else ch.training.resume(path), {"path": path_again}),
    }


def escapes(name: str, call: Call) -> list[str]:
    """Return what is raised that is not Clearhead's, for each wrong argument of a call."""
    finish(call.function(*call.places, **call.arguments))
    wrong_calls = (
        [
            (f"{name}({key}={word})", call.places, call.arguments | {key: value})
            for key in call.arguments
            for word, value in WRONG.items()
            if not (callable(value) and key in ("asks", "forward"))  # what the user's own function raises is the user's
        ]
        + [
            (f"{name}(…{place}: {word})", (*call.places[:place], value, *call.places[place + 1 :]), call.arguments)
            for place in range(len(call.places))
            for word, value in WRONG.items()
        ]
    )
    found = []
    for said, places, arguments in wrong_calls:
        try:
            finish(call.function(*places, **arguments))
        except ClearheadError:
            pass
        except Exception as error:
            found.append(f"{said}: {type(error).__name__}: {str(error)[:90]}")
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", GROUPS)
def test_every_error_is_ours(group):
    with registry_restored():
        assert [line for name, call in GROUPS[group]().items() for line in escapes(name, call)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_error_of_a_run_is_ours(translator, documents, filler, classifier):
    calls = run_calls(translator, documents, filler, classifier)
    with registry_restored():
        assert [line for name, call in calls.items() for line in escapes(name, call)] == []
