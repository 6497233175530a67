"""Inner values: what a trace does not store, computed again by the model's own modules from what it stores.

A trace stores the residual stream and the inputs and outputs of each attention. Everything between follows from them: a
norm, a feed-forward, W_O or an output is run again on its input, for all tokens or for a few. The result must be what
was recorded, or it is an error.

From them follow too how unlikely each token is to the model (surprise, −log p in nats), and attention rollout (Abnar
and Zuidema, 2020): a layer adds what attention brings to what was there, so it counts as (A + I) / 2, with A the mean
of the heads' weights, and the rollout is the product of the layers. It follows weights, and says nothing of what they
carry.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.attention.layer import Attention
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError, TraceError
from clearhead.model.arrangements import BranchConnection
from clearhead.model.fast_step import Explained
from clearhead.model.transformers import apply_output
from clearhead.taps import replacing
from clearhead.tracing.edits import ALL_ROWS, Change, apply_edits
from clearhead.tracing.names import CONCAT, STEPS, DiagramBox, Names
from clearhead.tracing.recording import alone_with, check_stopped
from clearhead.tracing.site import MATRICES, TOLERANCE, Site


class Products(NamedTuple):
    """The terms of one number that a linear map makes: the sum of `weight` times `x`, and `bias`.

    Of sliced heads they are those of the head's slice; `start` counts where it begins.
    """

    x: Tensor
    weight: Tensor
    bias: float
    start: int = 0


def site_value(site: Site, step: str, rows: slice = ALL_ROWS) -> Tensor:
    """Return a step of an attention for all its heads; `concat` has them side by side. `rows` are of queries or
    keys.
    """
    if step == CONCAT:
        return site.context[:, rows].transpose(0, 1).flatten(1)
    if step in MATRICES:
        start, stop, _ = rows.indices(site.n_query)
        return torch.stack([getattr(head.rows(start, stop), step) for head in site.head])
    return getattr(site, step)[:, rows]


class InnerValues:
    """The values of a traced model that are computed again when they are asked for."""

    def __init__(
        self,
        model: nn.Module,
        *,
        sites: Mapping[str, Site],
        stream: Mapping[str, Tensor],
        ids: Mapping[str, Sequence[int]],
        changes: Sequence[Change] = (),
    ) -> None:
        self.model, self.sites, self.stream = model, sites, stream
        self.ids, self.changes = ids, changes
        self.names = Names(model)
        recorded = [*stream.values(), *(site.recorded_context for site in sites.values())]
        self.tolerance = max(TOLERANCE[value.dtype] for value in recorded)
        """That of the coarsest numbers: under autocast some are of half precision."""

    def __repr__(self) -> str:
        return f"InnerValues({len(self.names.all)} names)"

    def value(self, name: str, rows: slice = ALL_ROWS) -> Tensor:
        """Return the value of that name; of a value with a row for each token, these rows."""
        at, _, step = name.rpartition(".")
        if name in self.stream:
            return self.stream[name][rows]
        if at in self.sites and (step in STEPS or (step == CONCAT and not self.changes)):
            return site_value(self.sites[at], step, rows)
        if at in self.sites and step.startswith(("projected_", "mapped_", "latent_")):
            with alone_with(self.model):
                return self.project(at, step, rows)
        return self.section(self.names.box_of[name], rows)[name]

    def section(self, box: DiagramBox, rows: slice = ALL_ROWS) -> dict[str, Tensor]:
        """Return the values that are computed together with those of a box, by name."""
        make = {"embedding": self.embedding, "norm": self.last_norm, "output": self.output}.get(box.section[1])
        make = make or functools.partial(self.branch, box.section[1], box.section[2])
        with alone_with(self.model):
            if not self.changes and rows != ALL_ROWS:
                with contextlib.suppress(TraceError):
                    return make(box.side, rows)
            # whole: a change counts its places from the first, and a part of the user's own may look at other positions
            values = make(box.side, ALL_ROWS)
        return {name: self.select_rows(name, value, rows) for name, value in values.items()}

    def select_rows(self, name: str, value: Tensor, rows: slice) -> Tensor:
        """Return some rows of a value that was computed whole."""
        value_facts = next(facts for facts in self.names.box_of[name].values if facts.name == name)
        if value_facts.rows in ("none", "whole"):
            return value
        return value[:, rows] if value_facts.per_head else value[rows]

    def embedding(self, side: str, rows: slice) -> dict[str, Tensor]:
        part = self.names.sides[side][1].embedding
        names = [f"{side}.embedding.token", f"{side}.embedding.segment"]
        recorded = {name: self.stream[name] for name in names if name in self.stream}
        with eval_mode(self.model), self.collect_taps({part: f"{side}.embedding"}) as taps:
            x = torch.stack([*recorded.values()]).sum(0).unsqueeze(0)
            tokens = torch.tensor([self.ids[side]], device=x.device)
            out = part.with_position(x, positions=part.count_positions(tokens))[0]
        self.check(f"{side}.embedding.out", out)
        taps |= recorded
        alone = part.position is None and part.segment is None
        norm_input = taps[f"{side}.embedding.{'token' if alone else 'sum'}"] if part.norm is not None else out
        values = {**taps, **self.norm_steps(part.norm, f"{side}.embedding.norm", norm_input)}
        return {name: self.select_rows(name, value, rows) for name, value in values.items()}

    def branch(self, number: str, branch: str, side: str, rows: slice) -> dict[str, Tensor]:
        """Return the values of a block's branch with its connection: the norm, W_O or the feed-forward, the sum."""
        at = f"{side}.{number}.{branch}"
        block = self.names.sides[side][1].stack.blocks[int(number)]
        around: BranchConnection = getattr(block, f"around_{branch}")
        module = getattr(block, branch)
        inputs = [value[rows].unsqueeze(0) for value in self.inputs_of(side, number, branch)]

        def run(x: Tensor) -> Tensor:
            if not isinstance(module, Attention):
                returned = module(x)
                taps.setdefault(f"{at}.out", returned[0])  # a network of the user's own may tap nothing
                return returned
            return module.finish(self.sites[at].context[:, rows].unsqueeze(0).to(x.dtype))

        with eval_mode(self.model), self.collect_taps({around: at, module: at}) as taps:
            out = around(inputs[0], run, *inputs[1:])[0]
        self.check(f"{at}.{around.passes}", out, rows)
        before = inputs[-1][0]
        for step in around.steps:
            if step.box == "norm":
                taps |= self.norm_steps(getattr(around, step.module), f"{at}.{step.module}", before)
            before = taps[f"{at}.{step.out or 'out'}"]
        return taps

    def inputs_of(self, side: str, number: str, branch: str) -> list[Tensor]:
        """Return what goes into the connection around a branch: the stream, and the block's input if it reads that."""
        tables = (self.names.inputs, self.names.reads)
        return [self.stream[table[side, number, branch]] for table in tables if (side, number, branch) in table]

    def project(self, at: str, step: str, rows: slice) -> Tensor:
        """Return queries or keys before rotary or before their norm, or latent values before V_up.

        What the layer makes of them must be what was recorded.
        """
        (before, _, role), site = step.partition("_"), self.sites[at]
        asked, rows = rows, ALL_ROWS if self.changes else rows  # a change counts its places from the first
        linear_map = self.names.input_map(at, role)
        source = self.value(linear_map.of, rows).unsqueeze(0)
        with eval_mode(self.model):
            vectors = turned = getattr(self.names.sites[at], role)(source)
            if role != "value":
                turned = site.position.turn(vectors, getattr(site.call.positions, role)[..., rows])
            turned = apply_edits(f"{at}.{role}", turned, self.changes)
        self.compare(f"{at}.{role}", turned[0], getattr(site.call, role)[0, :, rows])
        if before != "projected":
            with eval_mode(self.model):
                vectors = linear_map.apply(source)
        vectors = vectors[0, :, asked] if self.changes else vectors[0]
        return vectors.repeat_interleave(site.n_heads // len(vectors), 0)

    def last_norm(self, side: str, rows: slice) -> dict[str, Tensor]:
        norm, out = self.names.sides[side][1].stack.norm, f"{side}.normed"
        norm_input = self.stream[self.names.inputs[side, "norm"]][rows]
        assert norm is not None
        with eval_mode(self.model):
            normed = apply_edits(out, norm(norm_input.unsqueeze(0)), self.changes)[0]
        self.check(out, normed, rows)
        return {**self.norm_steps(norm, f"{side}.norm", norm_input), out: normed}

    def output(self, side: str, rows: slice) -> dict[str, Tensor]:
        part, at = self.names.sides[side][1], f"{side}.output"
        assert part.output is not None
        logits_facts = self.names.boxes[at].values[0]
        rows = ALL_ROWS if logits_facts.rows == "whole" else rows
        last = self.stream[self.names.inputs[side, "output"]][rows].unsqueeze(0)
        tokens = torch.tensor([self.ids[side]], device=last.device)
        lengths = torch.tensor([tokens.shape[1]], device=last.device) if logits_facts.rows == "whole" else None
        with eval_mode(self.model), self.collect_taps({part.output: at}) as taps:
            logits = apply_output(part, last, lengths, tokens)
            logits = logits if logits.ndim == 2 else logits[0]
            wide = torch.promote_types(logits.dtype, torch.float32)
            return {**taps, f"{at}.logits": logits, f"{at}.probability": torch.softmax(logits.to(wide), -1)}

    def norm_steps(self, norm: nn.Module | None, at: str, x: Tensor) -> dict[str, Tensor]:
        if not isinstance(norm, Explained):
            return {}
        with eval_mode(self.model):
            return {f"{at}.{name}": value for name, value in norm.explain(x).items()}

    def products(self, name: str, row: int, element: tuple[int, ...]) -> Products:
        """Return the terms of one number that a linear map makes: that of `row`, at the index `element` within it."""
        linear_map = self.names.maps.get(name)
        if linear_map is None:
            raise OptionError(f"{name} is not made by one linear map: it has no sum of products to show")
        at, x = name.rpartition(".")[0], self.value(linear_map.of, slice(row, row + 1)).detach()
        x = x[element[0]] if x.ndim == 3 else x  # of latent values, the head's own
        with torch.enable_grad(), torch.inference_mode(mode=False):
            x = x.clone().requires_grad_()
            out, zero = linear_map.apply(x.unsqueeze(0)), linear_map.apply(torch.zeros_like(x).unsqueeze(0))
            # (batch, head, n, d) of the maps to heads, else (batch, n, d)
            index = (
                (0, element[0] * out.shape[1] // self.sites[at].n_heads, 0, element[1])
                if out.ndim == 4
                else (0, 0, element[-1])
            )
            [weight] = torch.autograd.grad(out[index], x)
        reads = linear_map.reads(index[1])
        return Products(x.detach()[0, reads], weight[0, reads], zero[index].item(), reads.start or 0)

    @contextlib.contextmanager
    def collect_taps(self, modules: Mapping[nn.Module, str]) -> Iterator[dict[str, Tensor]]:
        """Collect what these modules tap, by name and with the changes applied."""
        taps: dict[str, Tensor] = {}
        names = set(self.names.taps.values())

        def keep(at: str, tap: str, value: Tensor) -> Tensor:
            name = f"{at}.{tap}"
            if name in names and name not in taps:
                value = apply_edits(name, value, self.changes)
                taps[name] = value[0] if value.ndim > 2 else value
            return value

        with contextlib.ExitStack() as watchers:
            for module, at in modules.items():
                watchers.enter_context(replacing(module, functools.partial(keep, at)))
            yield taps

    def check(self, name: str, computed: Tensor, rows: slice = ALL_ROWS) -> None:
        self.compare(name, computed, self.stream[name][rows])

    def compare(self, name: str, computed: Tensor, recorded: Tensor) -> None:
        """Raise TraceError if a value computed again is not what was recorded."""
        if not recorded.numel():  # a row that there is not: whoever asked tells so
            return
        most = torch.nan_to_num(recorded.abs()).max().item()
        allowed = self.tolerance * max(1.0, most)
        if not torch.allclose(computed.to(recorded.dtype), recorded, rtol=0, atol=allowed, equal_nan=True):
            off = (computed - recorded).abs().max().item()
            raise TraceError(
                f"{name}: made again from what was recorded it is off by {off:.1e}, and {allowed:.1e} is allowed. Have "
                "the model's weights changed since, was it traced in training mode with dropout, or were positions "
                "given? Trace it anew, in eval mode"
            )


ROWS = 256
"""The number of positions whose logits are computed at a time."""


def read_surprise(inner: InnerValues, side: str) -> Float[Tensor, "n"]:
    """Return −log p of each token of the side that answers; NaN for a token that nothing predicts.

    A language model and a translator predict a token at the place before it, so the first has none. A model that fills
    blanks predicts each token at its own place, where it also reads it.
    """
    part, ids = inner.names.sides[side][1], torch.tensor(inner.ids[side])
    output = part.spec.output
    if output is None or not output.by_position or len(output_row(inner, side)) != part.spec.vocabulary:
        raise OptionError("this model does not predict tokens, so no token can surprise it")
    shift = 1 if output.causal else 0
    surprise = torch.full((len(ids),), float("nan"))
    for start in range(0, len(ids) - shift, ROWS):
        check_stopped()
        stop = min(start + ROWS, len(ids) - shift)
        logits = inner.value(f"{side}.output.logits", slice(start, stop))
        rows = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
        tokens = ids[start + shift : stop + shift].to(rows.device).unsqueeze(-1)
        surprise = surprise.to(rows.dtype)
        surprise[start + shift : stop + shift] = -rows.gather(-1, tokens)[:, 0].cpu()
    return surprise


def output_row(inner: InnerValues, side: str) -> Tensor:
    return inner.value(f"{side}.output.logits", slice(0, 1))[0]


def roll_out(sites: Mapping[str, Site], name: str) -> Float[Tensor, "query token"]:
    """Return the rollout through all layers of a side, or through those up to a site's.

    A self-attention (`encoder.2.attention`) is rolled out from the first layer of its side to its own. For a
    cross-attention it is the mean of that layer's heads, after the rollout of the whole encoder.
    """
    if name in sites and sites[name].slot == "cross":
        return mean_weight(sites[name]) @ roll_out(sites, "encoder")
    side = sites[name].side if name in sites else name
    layers_of_side = [site for site in sites.values() if site.side == side and site.slot == "attention"]
    if not layers_of_side:
        sides = sorted({site.side for site in sites.values()})
        raise OptionError(f"there is no {name!r} to roll out; give a side ({', '.join(sides)}) or {', '.join(sites)}")
    last = sites[name].layer if name in sites else max(site.layer for site in layers_of_side)
    rollout: Tensor | None = None
    for site in sorted(layers_of_side, key=lambda site: site.layer)[: last + 1]:
        check_stopped()
        layer = mean_weight(site)
        layer = (layer + torch.eye(len(layer), dtype=layer.dtype, device=layer.device)) / 2
        rollout = layer if rollout is None else layer @ rollout
    assert rollout is not None
    return rollout


def mean_weight(site: Site) -> Float[Tensor, "query key"]:
    """Return the mean of the heads' weights, one head held at a time."""
    total = site.head[0].weight.clone()
    for head in site.head[1:]:
        total += head.weight
    return total / site.n_heads
