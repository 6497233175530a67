"""What cannot be is told at once: what was expected, what came, what to do. As a user runs it, without the hook."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.errors import (
    ClearheadError,
    DeviceError,
    DtypeError,
    NotBuiltError,
    OptionError,
    ShapeError,
    UnsupportedError,
)

M, P, S, W = ch.masks, ch.positions, ch.similarity, ch.weighting
BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE = 2, 4, 3, 5, 6, 7
SHAPE = ch.HeadShape(n_heads=HEADS, n_kv_heads=HEADS, d_head=WIDTH)
NOT_SHAPE = ch.HeadShape(n_heads=HEADS + 1, n_kv_heads=1, d_head=WIDTH)

Case = tuple[Callable[[], object], type[ClearheadError], str]


def query(*shape: int) -> Tensor:
    return torch.zeros(shape or (BATCH, HEADS, QUERIES, WIDTH))


def key(*shape: int) -> Tensor:
    return torch.zeros(shape or (BATCH, HEADS, KEYS, WIDTH))


def value(*shape: int) -> Tensor:
    return torch.zeros(shape or (BATCH, HEADS, KEYS, VALUE))


def attend(q: object = None, k: object = None, v: object = None, **parts) -> Callable[[], object]:
    """The call with what is wrong in it, and all else right."""
    q, k, v = (
        default() if given is None else given for given, default in zip((q, k, v), (query, key, value), strict=True)
    )
    return lambda: ch.attend(q, k, v, **parts)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


SHAPES: dict[str, Case] = {
    "one axis": (attend(query(6)), ShapeError, r"query: expected \(batch, head, n, d\).*came \(6,\)"),
    "five axes": (
        attend(query(1, 2, 4, 3, 6)),
        ShapeError,
        r"query: expected \(batch, head, n, d\).*\(1, 2, 4, 3, 6\)",
    ),
    "fewer axes in key": (attend(k=key(5, 6)), ShapeError, "key has 2 axes and query 4; give all three the same axes"),
    "fewer axes in value": (attend(v=value(4, 5, 7)), ShapeError, "value has 3 axes and query 4; give all three"),
    "batch of key": (attend(k=key(3, 4, 5, 6)), ShapeError, r"batch sizes.*query \(2, 4, 3, 6\), key \(3, 4, 5, 6\)"),
    "batch of value": (attend(v=value(1, 4, 5, 7)), ShapeError, r"batch sizes.*value \(1, 4, 5, 7\)"),
    "heads of value": (attend(v=value(2, 2, 5, 7)), ShapeError, r"same number of heads.*key \(2, 4.*value \(2, 2"),
    "key heads that do not divide": (
        attend(k=key(2, 3, 5, 6), v=value(2, 3, 5, 7)),
        ShapeError,
        r"key heads must divide the query heads.*query \(2, 4, .*key \(2, 3, ",
    ),
    "more key heads": (
        attend(k=key(2, 8, 5, 6), v=value(2, 8, 5, 7)),
        ShapeError,
        r"key heads must divide the query heads.*query \(2, 4, .*key \(2, 8, ",
    ),
    "width of key": (attend(k=key(2, 4, 5, 7)), ShapeError, r"same width.*query \(2, 4, 3, 6\), key \(2, 4, 5, 7\)"),
    "number of values": (
        attend(v=value(2, 4, 6, 7)),
        ShapeError,
        r"one value for each key.*\(2, 4, 5, 6\).*\(2, 4, 6, 7\)",
    ),
    "no queries": (attend(query(2, 4, 0, 6)), ShapeError, r"query: an axis is empty, \(2, 4, 0, 6\); attention needs"),
    "no keys": (attend(k=key(2, 4, 0, 6), v=value(2, 4, 0, 7)), ShapeError, r"key: an axis is empty, \(2, 4, 0, 6\)"),
    "no batch on one side": (
        attend(query(0, 4, 3, 6)),
        ShapeError,
        r"batch sizes must be the same: query \(0, 4, 3, 6\)",
    ),
    "no heads": (attend(query(2, 0, 3, 6)), ShapeError, r"query: an axis is empty, \(2, 0, 3, 6\)"),
    "value of width 0": (attend(v=value(2, 4, 5, 0)), ShapeError, r"value: an axis is empty, \(2, 4, 5, 0\)"),
    "odd width for rotary": (
        attend(query(3, 5), key(4, 5), value(4, 5), position=P.Rotary()),
        ShapeError,
        r"Rotary turns pairs: expected an even width of at most d_head = 5; came 5",
    ),
    "rotary wider than the head": (
        attend(position=P.Rotary(width=8)),
        ShapeError,
        r"expected an even width of at most d_head = 6; came 8",
    ),
}
DTYPES_AND_DEVICES: dict[str, Case] = {
    "a list": (attend([[1.0]]), OptionError, "query must be a torch tensor; came list"),
    "whole numbers": (attend(query().long()), DtypeError, r"query: expected float16, .*; came torch.int64"),
    "whole numbers in value": (attend(v=value().int()), DtypeError, r"value: expected float16, .*; came torch.int32"),
    "complex": (attend(k=key().cfloat()), DtypeError, r"key: expected float16, .*; came torch.complex64"),
    "mixed": (attend(k=key().double()), DtypeError, "key is torch.float64 and query torch.float32; convert one"),
    "mixed halves": (
        attend(query().half(), key().half(), value().bfloat16()),
        DtypeError,
        "value is torch.bfloat16 and query torch.float16; convert one",
    ),
    "devices": (attend(k=key().to("meta")), DeviceError, "key is on meta and query on cpu; move one of them"),
    "device of value": (attend(v=value().to("meta")), DeviceError, "value is on meta and query on cpu; move one"),
    "device of a mask tensor": (
        attend(mask=ones(QUERIES, KEYS).to("meta")),
        DeviceError,
        "mask tensor: on meta, but the query is on cpu; move it there",
    ),
    "device of lengths": (
        attend(mask=M.padding(torch.tensor([1, 2], device="meta"))),
        DeviceError,
        "padding lengths: on meta, but the query is on cpu; move",
    ),
    "device of prefix lengths, inside a combination": (
        attend(mask=M.causal() & ~(M.prefix(torch.tensor([1, 2], device="meta")) | M.causal())),
        DeviceError,
        "prefix lengths: on meta, but the query is on cpu; move",
    ),
    "device of document ids": (
        attend(mask=M.document(torch.arange(3), torch.zeros(5, dtype=torch.long, device="meta"))),
        DeviceError,
        "document ids.*on meta, but the query is on cpu; move",
    ),
    "device of positions": (
        attend(key_positions=torch.empty(KEYS, dtype=torch.long, device="meta")),
        DeviceError,
        "key_positions is on meta and query on cpu; move one of them",
    ),
    "device of a built part": (
        attend(similarity=S.Cosine().build(SHAPE).to("meta")),
        DeviceError,
        "meta.*cpu|cpu.*meta",
    ),
}
MASKS: dict[str, Case] = {
    "of floats": (
        attend(mask=torch.zeros(QUERIES, KEYS)),
        DtypeError,
        r"must be bool, True where the query may attend; came torch.float32.*mask == 0",
    ),
    "of whole numbers": (attend(mask=ones(QUERIES, KEYS).int()), DtypeError, r"bool.*came torch.int32.*mask.bool\(\)"),
    "of keys alone": (attend(mask=ones(KEYS)), ShapeError, r"2 to 4 axes.*came \(5,\)"),
    "of five axes": (attend(mask=ones(1, 1, 1, 3, 5)), ShapeError, r"2 to 4 axes.*came \(1, 1, 1, 3, 5\)"),
    "batch and key": (
        attend(mask=ones(BATCH, KEYS)),
        ShapeError,
        r"broadcast to \(batch, head, query, key\) = \(2, 4, 3, 5\); came .*2, 5\).*mask\[:, None, None, :\]",
    ),
    "transposed": (attend(mask=ones(KEYS, QUERIES)), ShapeError, r"= \(2, 4, 3, 5\); came .*5, 3\)"),
    "of other heads": (attend(mask=ones(1, 2, 3, 5)), ShapeError, r"= \(2, 4, 3, 5\); came \(1, 2, 3, 5\)"),
    "a list": (
        attend(mask=[[True]]),
        OptionError,
        r"mask must be one of clearhead.masks, a bool tensor or None; came list",
    ),
    "lengths for a mask": (attend(mask=3), OptionError, r"came int. For lengths write clearhead.masks.padding"),
    "the maker for the mask": (
        attend(mask=M.causal),
        OptionError,
        r"mask must be one of clearhead.masks.*came function",
    ),
    "with what is none": (lambda: M.causal() & "padding", OptionError, "mask must be one of clearhead.masks.*came str"),
    "or what is none": (lambda: M.causal() | 1, OptionError, "mask must be one of clearhead.masks.*came int"),
    "a list for a tensor": (lambda: M.tensor([[True]]), DtypeError, "bool.*came list"),
    "too few lengths": (attend(mask=M.padding([1, 2, 3])), ShapeError, "padding lengths: .*2 batch rows; came 3"),
    "lengths of two axes": (
        lambda: M.padding(torch.ones(2, 1, dtype=torch.long)),
        ShapeError,
        r"padding.*came \(2, 1\)",
    ),
    "one number for lengths": (
        lambda: M.padding(torch.tensor(3)),
        ShapeError,
        r"padding lengths: expected .*came \(\)",
    ),
    "no lengths": (lambda: M.padding([]), ShapeError, r"padding lengths: expected .*not empty; came \(0,\)"),
    "float lengths": (
        lambda: M.padding(torch.tensor([1.0, 2.0])),
        DtypeError,
        "padding lengths: expected whole numbers, came torch.float32",
    ),
    "float lengths in a list": (lambda: M.padding([1.5, 2.0]), DtypeError, "padding lengths: expected whole numbers"),
    "a mask for lengths": (
        lambda: M.padding(torch.tensor([True, False])),
        DtypeError,
        "padding lengths: expected whole numbers, came torch.bool",
    ),
    "prefix lengths": (attend(mask=M.prefix([1, 2, 3])), ShapeError, "prefix lengths: .*2 batch rows; came 3"),
    "too few ids": (
        attend(mask=M.document([0, 0, 1])),
        ShapeError,
        "document ids are read by position, and there are 5 keys but 3 ids; give one for each position",
    ),
    "ids of another batch": (
        attend(mask=M.document(torch.zeros(3, 5, dtype=torch.long))),
        ShapeError,
        "document ids: .*2 batch rows; came 3",
    ),
    "ids of two sequences": (
        attend(mask=M.document([0, 0], [0, 0, 0, 1, 1])),
        ShapeError,
        "document ids: expected one for each of the 3 query places; came 2",
    ),
    "key ids of two sequences": (
        attend(mask=M.document([0, 0, 1], [0, 0, 0, 1, 1, 1])),
        ShapeError,
        "document ids: expected one for each of the 5 key places; came 6",
    ),
    "float ids": (
        lambda: M.document(torch.zeros(5)),
        DtypeError,
        "document ids: expected whole numbers, came torch.float32",
    ),
    "ragged ids": (lambda: M.document([[0, 1], [0]]), ShapeError, "document ids: expected .*came"),
    "a window of -1": (lambda: M.window(-1), OptionError, "left and right count positions, 0 or more; came left=-1"),
    "a window ahead of -1": (lambda: M.window(2, -3), OptionError, "0 or more; came left=2, right=-3"),
    "half a position": (
        lambda: M.window(1.5),
        OptionError,
        r"window: left and right count positions, 0 or more; came left=1.5, right=0. Give whole numbers",
    ),
    "half a position ahead": (lambda: M.window(1, 0.5), OptionError, "came left=1, right=0.5. Give whole numbers"),
    "a yes for a window": (lambda: M.window(True), OptionError, "came left=True, right=0. Give whole numbers"),
    "a text for a window": (lambda: M.window("3"), OptionError, "came left='3', right=0. Give whole numbers"),
    "half a prefix": (lambda: M.prefix(1.5), DtypeError, "prefix lengths: expected whole numbers, came torch.float32"),
    "a yes for a prefix": (
        lambda: M.prefix(True),
        DtypeError,
        "prefix lengths: expected whole numbers, came torch.bool",
    ),
    "a rule that scores": (
        attend(mask=M.function(lambda query, key: (query - key).float())),
        DtypeError,
        "must return a bool tensor, True where the query may attend; it returned torch.float32",
    ),
    "a rule that returns no tensor": (
        attend(mask=M.function(lambda query, key: True)),
        DtypeError,
        "must return a bool tensor, .*it returned bool",
    ),
    "a rule of another shape": (
        attend(mask=M.function(lambda query, key: ones(2, 2))),
        ShapeError,
        r"mask function.*\(2, 2\)",
    ),
}
POSITIONS: dict[str, Case] = {
    "too few": (
        attend(query_positions=torch.arange(2)),
        ShapeError,
        r"query_positions: expected \(3,\) or \(2, 3\); came \(2,\)",
    ),
    "of another batch": (
        attend(key_positions=torch.zeros(3, 5, dtype=torch.long)),
        ShapeError,
        r"key_positions: expected \(5,\) or \(2, 5\); came \(3, 5\)",
    ),
    "of one axis too many": (
        attend(key_positions=torch.zeros(2, 4, 5, dtype=torch.long)),
        ShapeError,
        r"key_positions: expected \(5,\) or \(2, 5\); came \(2, 4, 5\)",
    ),
    "floats": (
        attend(query_positions=torch.zeros(3)),
        DtypeError,
        "query_positions: expected whole numbers, came torch.float32",
    ),
    "bools": (attend(key_positions=ones(5)), DtypeError, "key_positions: expected whole numbers, came torch.bool"),
    "complex": (
        attend(key_positions=torch.zeros(5, dtype=torch.cfloat)),
        DtypeError,
        "key_positions: expected whole numbers, came torch.complex64",
    ),
    "a list": (attend(query_positions=[0, 1, 2]), OptionError, "query_positions.*tensor.*came list"),
    "past a learned table": (
        lambda: P.Learned(4).embed(8)(5),
        ShapeError,
        "has positions 0 to 3, and 0 to 4 were asked for; shorten the text",
    ),
    "before a sinusoidal table": (lambda: P.Sinusoidal().embed(8)(2, start=-1), ShapeError, "-1"),
}
PARTS: dict[str, Case] = {
    "a class for similarity": (
        attend(similarity=S.Cosine),
        OptionError,
        r"similarity must be a part such as clearhead.similarity.Cosine\(\), an instance.*came <class",
    ),
    "a class for weighting": (
        attend(weighting=W.Argmax),
        OptionError,
        r"weighting must be a part.*came <class .*Argmax",
    ),
    "a class for position": (attend(position=P.Rotary), OptionError, r"position must be a part.*came <class .*Rotary"),
    "a name for similarity": (attend(similarity="cosine"), OptionError, r"similarity must be a part.*came 'cosine'"),
    "a name for weighting": (attend(weighting="softmax"), OptionError, r"weighting must be a part.*came 'softmax'"),
    "a name for position": (attend(position="rotary"), OptionError, r"position must be a part.*came 'rotary'"),
    "None for weighting": (attend(weighting=None), OptionError, "weighting must be a part.*came None"),
    "parts in each other's place": (
        attend(similarity=W.Softmax()),
        OptionError,
        "similarity must be a part.*came Softmax",
    ),
    "sinusoidal inside attention": (
        attend(position=P.Sinusoidal()),
        OptionError,
        "Sinusoidal is added to the embeddings, before attention.*Inside attention there are Rotary",
    ),
    "learned positions inside attention": (
        attend(position=P.Learned(9)),
        OptionError,
        "Learned is added to the embeddings",
    ),
    "similarity for Kernelized": (
        attend(similarity=S.Dot(), weighting=W.Kernelized()),
        OptionError,
        r"Kernelized attention defines its own score.*leave similarity out \(came Dot\(\)\)",
    ),
    "ALiBi with Kernelized": (
        attend(position=P.ALiBi(), weighting=W.Kernelized()),
        OptionError,
        "Kernelized attention has no score to add a bias to, and ALiBi is one: use Rotary",
    ),
    "T5 with Kernelized": (
        attend(position=P.T5Bias(), weighting=W.Kernelized()),
        OptionError,
        "T5Bias is one: use Rotary",
    ),
    "features without Kernelized": (
        attend(similarity=W.Kernelized().similarity),
        OptionError,
        "features, which belongs to weighting.Kernelized",
    ),
    "unbuilt additive": (
        attend(similarity=S.Additive()),
        NotBuiltError,
        r"Additive has learned weights.*clearhead.Attention\(similarity=.*build\(clearhead.HeadShape",
    ),
    "unbuilt T5": (
        attend(position=P.T5Bias()),
        NotBuiltError,
        r"T5Bias has learned values.*clearhead.Attention\(position=.*build\(clearhead.HeadShape",
    ),
    "cosine built for other heads": (attend(similarity=S.Cosine().build(NOT_SHAPE)), ShapeError, "5.*4|4.*5"),
    "cosine built for more heads than one": (
        attend(query(3, 6), key(5, 6), value(5, 7), similarity=S.Cosine().build(SHAPE)),
        ShapeError,
        "4.*1|1.*4",
    ),
    "additive built for other heads": (attend(similarity=S.Additive().build(NOT_SHAPE)), ShapeError, "5.*4|4.*5"),
    "T5 built for other heads": (attend(position=P.T5Bias().build(NOT_SHAPE)), ShapeError, "5.*4|4.*5"),
}
OPTIONS: dict[str, Case] = {
    "kernel": (attend(kernel="flash"), OptionError, "unknown kernel 'flash'; there are auto, fused, .*reference"),
    "kernel None": (attend(kernel=None), OptionError, "unknown kernel None; there are auto"),
    "fused argmax": (
        attend(kernel="fused", weighting=W.Argmax()),
        UnsupportedError,
        "kernel 'fused' cannot do this: .*softmax, and no other weighting. These can: auto, .*reference",
    ),
    "fused additive": (
        attend(kernel="fused", similarity=S.Additive().build(SHAPE)),
        UnsupportedError,
        "kernel 'fused' cannot do this: .*dot product.*These can: auto, .*reference",
    ),
    "dropout 1": (attend(dropout=1.0), OptionError, "dropout is the share of weights left out, from 0 .*; came 1.0"),
    "dropout below 0": (attend(dropout=-0.1), OptionError, "dropout.*came -0.1"),
    "dropout NaN": (attend(dropout=torch.nan), OptionError, "dropout.*came nan"),
    "temperature 0": (
        lambda: W.Softmax(temperature=0),
        OptionError,
        r"Softmax: temperature must be above 0 and finite; came 0. For 0 use Argmax\(\)",
    ),
    "temperature below 0": (
        lambda: W.Softmax(temperature=-1.0),
        OptionError,
        "temperature must be above 0 and finite; came -1.0",
    ),
    "temperature NaN": (
        lambda: W.Softmax(temperature=torch.nan),
        OptionError,
        "temperature must be above 0 and finite; came nan",
    ),
    "temperature inf": (lambda: W.Softmax(temperature=torch.inf), OptionError, "temperature must be .*; came inf"),
    "cosine's temperature": (
        lambda: S.Cosine(temperature=0.0),
        OptionError,
        "Cosine: temperature must be above 0 and finite; came 0.0",
    ),
    "features": (
        lambda: W.Kernelized("gelu"),
        OptionError,
        "features must be one of elu, relu, softmax, random or a part; came 'gelu'",
    ),
    "a class for features": (
        lambda: W.Kernelized(W.Elu),
        OptionError,
        "features must be one of elu.*or a part; came <class",
    ),
    "a number for features": (lambda: W.Kernelized(64), OptionError, "features must be one of elu.*or a part; came 64"),
    "no random features": (lambda: W.RandomFeatures(count=0), OptionError, "count must be 1 or more; came 0"),
    "random features' factor": (
        lambda: W.RandomFeatures(factor=-1.0),
        OptionError,
        "factor must be above 0; came -1.0",
    ),
    "ties": (lambda: W.Argmax(ties="frist"), OptionError, "ties must be one of first, last, average; came 'frist'"),
    "argmax's gradient": (
        lambda: W.Argmax(gradient="soft"),
        OptionError,
        "gradient must be one of straight-through, none; came 'soft'",
    ),
    "tolerance": (lambda: W.Argmax(tolerance=-1e-3), OptionError, "tolerance must be 0 or more; came -0.001"),
    "additive of width 0": (lambda: S.Additive(width=0), OptionError, "Additive: width must be 1 or more; came 0"),
    "rotary pairing": (
        lambda: P.Rotary(pairing="half"),
        OptionError,
        "pairing must be interleaved or halves; came 'half'",
    ),
    "rotary base": (lambda: P.Rotary(base=0.0), OptionError, "base must be above 0; came 0.0"),
    "rotary of odd width": (lambda: P.Rotary(width=3), OptionError, "width must be even and at least 2.*came 3"),
    "rotary of width 0": (lambda: P.Rotary(width=0), OptionError, "width must be even and at least 2.*came 0"),
    "T5 buckets": (lambda: P.T5Bias(buckets=7), OptionError, "buckets must be even and at least 4.*came buckets=7"),
    "T5 reach": (lambda: P.T5Bias(reach=16), OptionError, "reach more than half of them; came buckets=32, reach=16"),
    "sinusoidal layout": (
        lambda: P.Sinusoidal(layout="half"),
        OptionError,
        "layout must be interleaved or halves; came 'half'",
    ),
    "sinusoidal of odd width": (lambda: P.Sinusoidal().embed(7), OptionError, "d_model must be even; came 7"),
    "sinusoidal of width 0": (lambda: P.Sinusoidal().embed(0), OptionError, "d_model must be even.*; came 0"),
    "learned of length 0": (lambda: P.Learned(0), OptionError, "length must be 1 or more; came 0"),
    "learned of width 0": (lambda: P.Learned(3).embed(0), OptionError, "d_model must be 1 or more; came 0"),
}


def layer(source: Tensor, *more: Tensor, **given) -> Callable[[], object]:
    return lambda: ch.Attention(8, heads=2)(source, *more, **given)


LAYERS: dict[str, Case] = {
    "heads that do not divide": (
        lambda: ch.Attention(10, heads=4),
        OptionError,
        "4 heads do not divide d_model = 10; choose another count, or give d_head",
    ),
    "slices that do not divide": (
        lambda: ch.Attention(10, heads=ch.SlicedHeads(4)),
        OptionError,
        "4 slices do not divide d_model = 10; choose another count",
    ),
    "zero heads": (lambda: ch.Attention(8, heads=0), OptionError, "Heads: count must be 1 or more; came 0"),
    "zero slices": (lambda: ch.SlicedHeads(0), OptionError, "SlicedHeads: count must be 1 or more; came 0"),
    "sliced heads that share keys": (
        lambda: ch.SlicedHeads(4, kv=2),
        OptionError,
        r"head i sees slice i alone, so heads cannot share keys and values; came kv=2. .*use Heads\(4, kv=2\)",
    ),
    "sliced heads of rank 0": (
        lambda: ch.SlicedHeads(4, value_rank=0),
        OptionError,
        "SlicedHeads: value_rank must be 1 or more; came 0",
    ),
    "rank 0": (lambda: ch.Heads(2, value_rank=0), OptionError, "Heads: value_rank must be 1 or more; came 0"),
    "rank below 0": (lambda: ch.Heads(2, value_rank=-4), OptionError, "Heads: value_rank must be 1 or more; came -4"),
    "d_head 0": (lambda: ch.Heads(2, d_head=0), OptionError, "Heads: d_head must be 1 or more; came 0"),
    "d_value 0": (lambda: ch.Heads(2, d_value=0), OptionError, "Heads: d_value must be 1 or more; came 0"),
    "kv 0": (lambda: ch.Heads(2, kv=0), OptionError, "Heads: kv must be 1 or more; came 0"),
    "kv that does not divide": (lambda: ch.Heads(6, kv=4), OptionError, "kv must divide the 6 heads; came kv=4"),
    "more kv than heads": (lambda: ch.Heads(2, kv=4), OptionError, "kv must divide the 2 heads; came kv=4"),
    "d_model 0": (lambda: ch.Attention(0), OptionError, "d_model must be 1 or more; came 0"),
    "a name for heads": (lambda: ch.Attention(8, heads="eight"), OptionError, "heads.*came 'eight'"),
    "a class for heads": (lambda: ch.Attention(8, heads=ch.Heads), OptionError, "heads.*came <class"),
    "a name for weighting": (
        lambda: ch.Attention(8, heads=2, weighting="linear"),
        OptionError,
        "weighting must be a part.*came 'linear'",
    ),
    "bias with Kernelized": (
        lambda: ch.Attention(8, heads=2, weighting=W.Kernelized(), position=P.ALiBi()),
        OptionError,
        "Kernelized attention has no score to add a bias to, and ALiBi is one",
    ),
    "sinusoidal": (
        lambda: ch.Attention(8, heads=2, position=P.Sinusoidal()),
        OptionError,
        "Sinusoidal is added to the embeddings",
    ),
    "a kernel": (
        lambda: ch.Attention(8, heads=2, kernel="flash"),
        OptionError,
        "unknown kernel 'flash'; there are auto",
    ),
    "dropout": (lambda: ch.Attention(8, heads=2, dropout=1.0), OptionError, "dropout.*came 1.0"),
    "a mask": (
        lambda: ch.Attention(8, heads=2, mask="causal"),
        OptionError,
        "mask must be one of clearhead.masks.*came str",
    ),
    "rotary on odd heads": (
        lambda: ch.Attention(6, heads=2, position=P.Rotary())(torch.zeros(1, 4, 6)),
        ShapeError,
        "even width of at most d_head = 3; came 3",
    ),
    "width of the source": (
        layer(query(2, 3, 9)),
        ShapeError,
        r"query source: expected \(batch, n, 8\) or \(n, 8\); came \(2, 3, 9\)",
    ),
    "width of the memory": (
        layer(query(2, 3, 8), query(2, 5, 4)),
        ShapeError,
        r"key source: expected .*8\); came \(2, 5, 4\)",
    ),
    "width of the value source": (
        layer(query(2, 3, 8), query(2, 5, 8), query(2, 5, 4)),
        ShapeError,
        r"value source: expected .*8\); came \(2, 5, 4\)",
    ),
    "axes of the source": (layer(query(2, 3, 4, 8)), ShapeError, r"query source: expected .*came \(2, 3, 4, 8\)"),
    "batch of the memory": (layer(query(2, 3, 8), query(3, 5, 8)), ShapeError, "batch sizes"),
    "number of values": (layer(query(2, 3, 8), query(2, 5, 8), query(2, 6, 8)), ShapeError, "one value for each key"),
    "an empty source": (layer(query(2, 0, 8)), ShapeError, "an axis is empty.*attention needs at least one"),
    "dtype of the source": (
        layer(query(2, 3, 8).double()),
        DtypeError,
        "query source is torch.float64 and the layer torch.float32",
    ),
    "token ids for a source": (layer(torch.ones(2, 8, dtype=torch.long)), DtypeError, "query source is torch.int64"),
    "device of the source": (
        layer(query(2, 3, 8), query(2, 5, 8).to("meta")),
        DeviceError,
        "key source is on meta and the layer on cpu; move one of them",
    ),
    "a list for a source": (layer([[0.0] * 8]), OptionError, "query source must be a torch tensor; came list"),
    "mask of the source": (
        layer(query(2, 3, 8), mask=ones(2, 3)),
        ShapeError,
        r"broadcast to \(batch, head, query, key\) = \(2, 2, 3, 3\)",
    ),
}
CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "shapes": SHAPES,
        "dtypes and devices": DTYPES_AND_DEVICES,
        "masks": MASKS,
        "positions": POSITIONS,
        "parts": PARTS,
        "options": OPTIONS,
        "layers": LAYERS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_told(name: str):
    call, error, message = CASES[name]
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        call()


@pytest.mark.parametrize("verb", [ch.explain, ch.which_kernel], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"query": query(2, 4, 3, 5)}, ShapeError),
        ({"query": query().double()}, DtypeError),
        ({"key": key().to("meta")}, DeviceError),
        ({"value": value(2, 4, 0, 7)}, ShapeError),
        ({"weighting": "softmax"}, OptionError),
        ({"similarity": S.Dot(), "weighting": W.Kernelized()}, OptionError),
        ({"mask": ones(KEYS, QUERIES)}, ShapeError),
        ({"query_positions": torch.zeros(3)}, DtypeError),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_every_verb_tells_the_same(verb: Callable, change: dict, error: type[ClearheadError]):
    right = {"query": query(), "key": key(), "value": value()}
    with pytest.raises(error) as told:
        verb(**right | change)
    with pytest.raises(error, match=re.escape(str(told.value))):
        ch.attend(**right | change)


def test_which_kernel_tells_of_a_kernel_that_is_unknown_or_refuses():
    tensors = query(), key(), value()
    with pytest.raises(OptionError, match="unknown kernel 'flash'"):
        ch.which_kernel(*tensors, kernel="flash")
    with pytest.raises(UnsupportedError, match="kernel 'fused' cannot do this"):
        ch.which_kernel(*tensors, kernel="fused", weighting=W.Sparsemax())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_positions_of_any_whole_type_count_alike(dtype: torch.dtype):
    q = torch.randn(4, 6)
    for parts in ({"mask": M.window(1, 1)}, {"position": P.ALiBi()}, {"position": P.Rotary()}):
        given = {"query_positions": torch.arange(4, dtype=dtype), "key_positions": torch.arange(4, dtype=dtype)}
        torch.testing.assert_close(ch.attend(q, q, q, **parts, **given), ch.attend(q, q, q, **parts))


def test_the_family_is_one_of_value_and_runtime_errors():
    for error in (ShapeError, DtypeError, DeviceError, OptionError):
        assert issubclass(error, ClearheadError)
        assert issubclass(error, ValueError)
    for error in (NotBuiltError, UnsupportedError):
        assert issubclass(error, ClearheadError)
        assert issubclass(error, RuntimeError)
