"""The plan of a live page: a built model as JSON that web/src/live/ can run, and its tensors.

Every part that the page computes has a line in one of the tables here, by its exact class. A part that has none, a
user's own among them, is refused by name: the page never shows numbers that the model would not give.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from clearhead.attention import mask_rules
from clearhead.attention.heads import LowRankMap, LowRankSliceMap, SliceMap, WholeMap, columns_read
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Mask
from clearhead.attention.positions import ALiBi, NoPosition, Position, Rotary, Sinusoidal
from clearhead.attention.positions.biases import LearnedT5Bias
from clearhead.attention.positions.embedded import LearnedTable
from clearhead.attention.similarity import Cosine, Dot, LearnedAdditive, LearnedCosine, ScaledDot, Similarity
from clearhead.attention.weighting import Weighting
from clearhead.attention.weighting.features import DrawnFeatures, Elu, FeatureDot, LogFeatureDot, Relu, SoftmaxFeatures
from clearhead.errors import OptionError
from clearhead.model import Decoder, Encoder, Int8Linear
from clearhead.model.arrangements import BranchOnly, NormFirst, NormLast, ResidualOnly
from clearhead.model.blocks import Block, BlockSpec
from clearhead.model.embedding import TokenEmbedding
from clearhead.model.feedforward import GELU, Gated, GeGLU, Plain, ReLU, SiLU, SwiGLU
from clearhead.model.lora import AdaptedLinear
from clearhead.model.norms import BuiltLayerNorm, BuiltRMSNorm
from clearhead.model.outputs import ORDERS, ToClasses, ToNgramLogits, ToVocabulary
from clearhead.serialization import name_in_files
from clearhead.serve.edit_json import weightings
from clearhead.serve.questions.run import part_name
from clearhead.tracing.arithmetic import weighting_kind
from clearhead.tracing.names import sides_of

Plan = dict[str, Any]
LINEAR = (nn.Linear, AdaptedLinear, Int8Linear)
HEAD_MAPS = (WholeMap, LowRankMap, SliceMap, LowRankSliceMap)
CONNECTIONS = (NormFirst, NormLast, ResidualOnly, BranchOnly)
ACTIVATIONS: dict[type, Callable[[Any], str]] = {
    ReLU: lambda spec: "relu",
    GELU: lambda spec: f"gelu {spec.form}",
    SiLU: lambda spec: "silu",
    SwiGLU: lambda spec: "silu",
    GeGLU: lambda spec: f"gelu {spec.form}",
}
FEATURES = {Elu: "elu", Relu: "relu", SoftmaxFeatures: "softmax", DrawnFeatures: "random"}


def refuse(part: object, where: str) -> NoReturn:
    name = name_in_files(type(part))
    raise OptionError(
        f"{where}: a page that runs by itself cannot compute {name}: it knows most parts of Clearhead's, and none of "
        "yours. Open the run with `clearhead look`, or save one text with `clearhead trace RUN TEXT --html FILE`"
    )


def known_weightings() -> dict[str, Plan]:
    """Return what a page can put in a weighting's place, by name, each with the similarity it brings."""
    plans = {}
    for name, weighting in weightings().items():
        similarity = weighting.similarity
        known = type(similarity) is ScaledDot or (
            isinstance(similarity, FeatureDot) and type(similarity.features) in FEATURES
        )
        if weighting.page_arithmetic is None or not known:
            continue
        plans[name] = {**weighting_plan(weighting, name), "similarity": swapped_similarity(weighting)}
    return plans


def swapped_similarity(weighting: Weighting) -> Plan:
    """Return the similarity that a swap to this weighting brings; "scaled dot" leaves the scale to the site."""
    similarity = weighting.similarity
    if isinstance(similarity, FeatureDot):
        return {
            "kind": "features",
            "features": FEATURES[type(similarity.features)],
            "scale": [1.0],
            **similarity_words(similarity),
        }
    return {"kind": "dot", "scale": None, **similarity_words(similarity)}


def weighting_plan(weighting: Weighting, where: str) -> Plan:
    arithmetic = weighting.page_arithmetic
    if arithmetic is None:
        refuse(weighting, where)
    return {
        "arithmetic": arithmetic,
        "form": weighting.form,
        "blocked": None if weighting.blocked == float("-inf") else weighting.blocked,
        "name": part_name(weighting),
        "words": weighting.called,
        "kind": weighting_kind(weighting),
        "rule": weighting.summary,
        "temperature": weighting.temperature,
    }


def similarity_words(similarity: Similarity) -> Plan:
    return {
        "name": part_name(similarity),
        "words": similarity.called,
        "formula": similarity.formula,
        "prepared": similarity.prepared,
        "scale_reason": similarity.scale_reason,
    }


def mask_plan(mask: Mask, where: str) -> Plan:
    """Return a mask as a tree of those that a page knows."""
    match type(mask):
        case mask_rules.Everything:
            return {"kind": "everything"}
        case mask_rules.Causal:
            return {"kind": "causal"}
        case mask_rules.Window:
            return {"kind": "window", "left": mask.left, "right": mask.right}  # type: ignore[attr-defined]
        case mask_rules.Both:
            return {"kind": "both", "parts": [mask_plan(part, where) for part in mask.terms]}
        case mask_rules.Either:
            sides = (mask.left, mask.right)  # type: ignore[attr-defined]
            return {"kind": "either", "parts": [mask_plan(part, where) for part in sides]}
        case mask_rules.Not:
            return {"kind": "not", "parts": [mask_plan(mask.mask, where)]}  # type: ignore[attr-defined]
        case _:
            refuse(mask, where)


class Planner:
    """Writes the plan of a model, and collects the tensors it names: one that several parts share is held once."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[tuple[int, tuple[int, ...]], str] = {}
        self.held: list[Tensor] = []
        """What was seen, so that no other tensor comes to have its address."""
        with torch.no_grad():
            self.plan: Plan = {side: self.side(part, side) for side, (_, part) in sides_of(model).items()}

    def tensor(self, value: Tensor, name: str) -> str:
        """Return the name under which the page holds a tensor."""
        key = value.data_ptr(), tuple(value.shape)
        if value.numel() and key in self.names:
            return self.names[key]
        self.names[key] = name
        self.held.append(value)
        self.tensors[name] = value.detach().float().cpu()
        return name

    def side(self, part: Encoder | Decoder, side: str) -> Plan:
        blocks = zip(part.spec.blocks, part.stack.blocks, strict=True)
        return {
            "vocabulary": part.spec.vocabulary,
            "d_model": part.spec.d_model,
            "embedding": self.embedding(part.embedding, part.spec.embedding.position, f"{side}.embedding"),
            "blocks": [self.block(spec, block, f"{side}.{i}") for i, (spec, block) in enumerate(blocks)],
            "norm": self.norm(part.stack.norm, f"{side}.norm"),
            "output": self.output(part.output, f"{side}.output"),
        }

    def embedding(self, built: TokenEmbedding, position: Any, at: str) -> Plan:
        added: Plan | None = None
        if type(position) is Sinusoidal:
            added = {"kind": "sinusoidal", "layout": position.layout, "base": position.base}
            added |= {"first": position.first, "skips": position.skips}
        elif type(built.position) is LearnedTable:
            table = built.position
            added = {"kind": "learned", "table": self.tensor(table.table, f"{at}.position")}
            added |= {"first": table.first, "skips": table.skips}
        elif position is not None:
            refuse(position, at)
        return {
            "table": self.tensor(built.table, f"{at}.table"),
            "factor": built.factor,
            "position": added,
            "segment": None if built.segment is None else self.tensor(built.segment, f"{at}.segment"),
            "norm": self.norm(built.norm, f"{at}.norm"),
        }

    def norm(self, norm: nn.Module | None, at: str) -> Plan | None:
        if norm is None:
            return None
        if type(norm) is BuiltLayerNorm:
            beta = None if norm.beta is None else self.tensor(norm.beta, f"{at}.beta")
            gamma = self.tensor(norm.gamma, f"{at}.gamma")
            return {"kind": "layer", "epsilon": norm.epsilon, "gamma": gamma, "beta": beta}
        if type(norm) is BuiltRMSNorm:
            gamma = self.tensor(norm.factor, f"{at}.gamma")
            return {"kind": "rms", "epsilon": norm.epsilon, "gamma": gamma, "beta": None}
        refuse(norm, at)

    def linear(self, module: nn.Module, at: str) -> Plan:
        if type(module) not in LINEAR:
            refuse(module, at)
        assert isinstance(module, nn.Linear)
        plain = module.merge() if isinstance(module, AdaptedLinear) else module
        bias = None if plain.bias is None else self.tensor(plain.bias, f"{at}.bias")
        return {"weight": self.tensor(plain.weight, f"{at}.weight"), "bias": bias}

    def head_map(self, module: nn.Module, d_model: int, at: str) -> Plan:
        """Return a map to the heads as one matrix, whichever way it is made of smaller ones; of low rank, those too.

        `slice` is how many numbers each head reads, where it does not read all of them.
        """
        if type(module) not in HEAD_MAPS:
            refuse(module, at)
        if isinstance(module, WholeMap):
            if module.joint and module.norm is not None:
                refuse(module.norm, f"{at} (all heads together)")
            norm = self.norm(module.norm, f"{at}.norm")
            return {**self.linear(module.linear, at), "norm": norm, "slice": None, "latent": None}
        wide, latent = copy.deepcopy(module).double(), None
        plan = self.one_matrix(wide, wide, d_model, at)
        if isinstance(wide, LowRankMap | LowRankSliceMap):
            up = {"weight": self.tensor(wide.up.mT.flatten(0, 1), f"{at}.up"), "bias": plan["bias"]}
            latent = {"down": self.one_matrix(wide, wide.map_down, d_model, f"{at}.down"), "up": up}
        return {**plan, "norm": None, "slice": columns_read(module, 0).stop, "latent": latent}

    def one_matrix(self, module: nn.Module, apply: Callable[[Tensor], Tensor], d_model: int, at: str) -> Plan:
        """Return a linear map to the heads, of a module in double precision, as one matrix and a bias."""
        every = torch.eye(d_model, dtype=torch.float64, device=next(module.parameters()).device)
        zero = apply(torch.zeros_like(every[:1]).unsqueeze(0))[0, :, 0].flatten()
        weight = apply(every.unsqueeze(0))[0].transpose(1, 2).flatten(0, 1) - zero.unsqueeze(1)
        bias = self.tensor(zero, f"{at}.bias") if bool(zero.any()) else None
        return {"weight": self.tensor(weight, f"{at}.weight"), "bias": bias}

    def block(self, spec: BlockSpec, block: Block, at: str) -> list[Plan]:
        branches: list[Plan] = []
        for branch in ("attention", "cross", "feed_forward"):
            module = getattr(block, branch)
            if module is None:
                continue
            around, name = getattr(block, f"around_{branch}"), f"{at}.{branch}"
            if type(around) not in CONNECTIONS:
                refuse(spec.arrangement, name)
            contents = (
                {"attention": self.attention(module, name)}
                if branch != "feed_forward"
                else {"network": self.network(spec.feed_forward, module, name)}
            )
            steps = [step._asdict() for step in around.steps]
            branches.append(
                {"branch": branch, "places": steps, "norm": self.norm(around.norm, f"{name}.norm"), **contents}
            )
        return branches

    def network(self, spec: Any, module: nn.Module, at: str) -> Plan:
        if type(spec) not in ACTIVATIONS or type(module) not in (Plain, Gated):
            refuse(spec, at)
        gate = self.linear(module.gate, f"{at}.gate") if isinstance(module, Gated) else None
        up, down = (self.linear(getattr(module, name), f"{at}.{name}") for name in ("up", "down"))
        return {"activation": ACTIVATIONS[type(spec)](spec), "gate": gate, "up": up, "down": down}

    def attention(self, layer: Attention, at: str) -> Plan:
        if type(layer) is not Attention:
            refuse(layer, at)
        shape, width = layer.shape, layer.d_model
        value = self.head_map(layer.value, width, f"{at}.value")
        output = None if isinstance(layer.output, nn.Identity) else self.linear(layer.output, f"{at}.output")
        return {
            "n_heads": shape.n_heads,
            "n_kv_heads": shape.n_kv_heads,
            "d_head": shape.d_head,
            "d_value": self.tensors[value["weight"]].shape[0] // shape.n_kv_heads,
            "query": self.head_map(layer.query, width, f"{at}.query"),
            "key": self.head_map(layer.key, width, f"{at}.key"),
            "value": value,
            "output": output,
            "similarity": self.similarity(layer.similarity, shape.n_heads, shape.d_head, at),
            "weighting": weighting_plan(layer.weighting, at),
            "position": self.position(layer.position, shape.d_head, at),
            "mask": {
                **mask_plan(layer.mask, at),
                "name": " & ".join(part_name(term) for term in layer.mask.terms),
                "words": layer.mask.called,
                "masks": layer.mask.kinds != {"none"},
                "causal": "causal" in layer.mask.kinds,
            },
        }

    def similarity(self, part: Similarity, n_heads: int, d_head: int, at: str) -> Plan:
        scale = part.scale(d_head)
        scales = [scale] * n_heads if isinstance(scale, int | float) else scale.flatten().tolist()
        shared = {"scale": scales, **similarity_words(part)}
        if type(part) in (Dot, ScaledDot):
            return {"kind": "dot", **shared}
        if type(part) in (Cosine, LearnedCosine):
            return {"kind": "cosine", **shared}
        if isinstance(part, LearnedAdditive):
            maps = {name: self.tensor(getattr(part, name), f"{at}.additive.{name}") for name in ("query", "key", "out")}
            return {"kind": "additive", **maps, **shared}
        if isinstance(part, FeatureDot | LogFeatureDot) and type(part.features) in FEATURES:
            features, drawn = part.features, {}
            if isinstance(features, DrawnFeatures):
                factor = d_head**-0.5 if features.factor is None else features.factor
                drawn = {"projection": self.tensor(features.projection, f"{at}.projection"), "factor": factor}
            kind = "features" if isinstance(part, FeatureDot) else "log features"
            return {"kind": kind, "features": FEATURES[type(features)], **drawn, **shared}
        refuse(part, at)

    def position(self, part: Position, d_head: int, at: str) -> Plan:
        shared = {
            "name": part_name(part),
            "words": part.called,
            "biased": part.bias_kind != "none",
            "turns": part.turns,
        }
        if type(part) is NoPosition:
            return {"kind": "none", **shared}
        if type(part) is ALiBi:
            return {"kind": "alibi", **shared}
        if isinstance(part, LearnedT5Bias):
            spec = part.spec
            sizes = {"buckets": spec.buckets, "reach": spec.reach, "two_sided": spec.two_sided}
            return {"kind": "t5", "table": self.tensor(part.table, f"{at}.bias"), **sizes, **shared}
        if type(part) is Rotary:
            small = torch.tensor([1e-3], dtype=torch.float64)  # so small that no angle goes round
            cos, sin = part.angles(small, d_head)
            frequency = torch.atan2(sin, cos).flatten() / small
            return {"kind": "rotary", "frequency": frequency.tolist(), "pairs": part.pairs(d_head), **shared}
        refuse(part, at)

    def output(self, output: nn.Module | None, at: str) -> Plan | None:
        if output is None:
            return None
        if type(output) is ToVocabulary and output.cap is None:
            bias = None if output.bias is None else self.tensor(output.bias, f"{at}.bias")
            transform = None
            if output.transform is not None:
                first, _, norm = output.transform.children()
                transform = {**self.linear(first, f"{at}.transform"), "norm": self.norm(norm, f"{at}.transform.norm")}
            table = self.tensor(output.table, f"{at}.table")
            return {"kind": "vocabulary", "table": table, "bias": bias, "factor": output.factor, "transform": transform}
        if type(output) is ToClasses:
            hidden = None if output.hidden is None else self.linear(output.hidden, f"{at}.hidden")
            wide = None if output.wide is None else self.wide(output.wide, f"{at}.wide")
            out = self.linear(output.out, f"{at}.out")
            parts = {"pool": output.pool, "activation": output.activation, "hidden": hidden, "out": out, "wide": wide}
            return {"kind": "classes", **parts}
        refuse(output, at)

    def wide(self, wide: ToNgramLogits, at: str) -> Plan:
        buffers: Mapping[str, Tensor] = dict(wide.named_buffers())
        tables = [
            {
                "order": order,
                "slots": None if order == 1 else buffers[f"slots_{name}"].nonzero().flatten().tolist(),
                "table": self.tensor(buffers[f"table_{name}"], f"{at}.table_{name}"),
                "square": self.tensor(buffers[f"square_{name}"], f"{at}.square_{name}"),
            }
            for name, order in ORDERS.items()
        ]
        bias = self.tensor(buffers["bias"], f"{at}.bias")
        return {"buckets": wide.buckets, "shares": buffers["shares"].tolist(), "tables": tables, "bias": bias}
