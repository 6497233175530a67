"""A trace as a file: safetensors, with JSON in its header. It opens without the model it was made from.

It holds queries, keys, values and contexts, the attention's parts with their learned values, the residual stream and
the likeliest answers: all that rebuilding needs, and nothing else. The JSON is sealed and has the tensors' checksum.

What a trace is made of beside its sites: tokens, answers, a fingerprint of its model and the specs of its
attentions; and the part of it that goes into a file.
"""

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.mask_rules import Mask, TensorMask
from clearhead.attention.parts import HeadShape, Part
from clearhead.attention.positions import NoPosition
from clearhead.attention.score_index import Positions
from clearhead.attention.weighting import Softmax
from clearhead.errors import ClearheadError, OptionError, TraceError
from clearhead.files import check_seal, seal
from clearhead.model.blocks import AttentionSpec
from clearhead.model.sizes import PARTS, counts_in
from clearhead.registry import Parts, import_parts
from clearhead.serialization import (
    check_fields,
    check_registered,
    check_type,
    from_json,
    hints_of,
    load_tensors,
    names_in,
    save_tensors,
    to_json,
)
from clearhead.tracing.edits import Change, Edit, Swap
from clearhead.tracing.inner import InnerValues
from clearhead.tracing.names import Names, sides_of
from clearhead.tracing.recording import RecordedAttention
from clearhead.tracing.site import Site


def fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's weights and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


class TraceOrigin:
    """The model of a trace, as far as the trace must know it."""

    def __init__(self, make: Callable[[], str], specs: Mapping[str, AttentionSpec]) -> None:
        self.make, self.specs = make, specs

    def __repr__(self) -> str:
        return "Origin(...)"

    @staticmethod
    def of(model: nn.Module) -> "TraceOrigin":
        parts = sides_of(model)
        specs = {}
        for name in Names(model).sites:
            side, layer, slot = name.split(".")
            specs[name] = getattr(parts[side][1].spec.blocks[int(layer)], slot)
        return TraceOrigin(lambda: fingerprint(model), specs)

    @functools.cached_property
    def fingerprint(self) -> str:
        return self.make()

    def check(self, model: nn.Module) -> None:
        """Raise TraceError if it is another model."""
        if fingerprint(model) != self.fingerprint:
            raise TraceError("this trace was not made from this model: their weights differ; take the run it is of")


class Candidate(NamedTuple):
    """A token (or a class) the model may answer with."""

    id: int
    text: str
    log_prob: float


@dataclass(frozen=True, kw_only=True)
class Side:
    """The tokens of one side, as ids and as they are shown."""

    ids: list[int]
    tokens: list[str]
    n_layers: int
    d_model: int


class Answers:
    """What the model answers, made when asked for: from the last vectors, or as it was saved."""

    def __init__(self, make: Callable[[], list[list[Candidate]]]) -> None:
        self.make = make
        self.candidates: list[list[Candidate]] | None = None

    def __repr__(self) -> str:
        return "Answers(...)"

    @property
    def likeliest(self) -> list[list[Candidate]]:
        if self.candidates is None:
            self.candidates = self.make()
        return self.candidates


@dataclass(frozen=True, kw_only=True)
class TraceContent:
    """The fields of a `Trace` that are saved: all but what its model makes again."""

    kind: str
    sides: Mapping[str, Side]
    sites: Mapping[str, Site]
    stream: Mapping[str, Tensor]
    task: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    answers: Answers
    origin: TraceOrigin
    all_names: tuple[str, ...]


HEADER = "clearhead trace"
SLOTS = ("similarity", "weighting", "position")
VECTORS = ("query", "key", "value")
TURNED = ("query", "key")
"""The vectors that rotary turns; they are also stored as they were before."""
SITE_NAME = re.compile(r"(encoder|decoder)\.(0|[1-9]\d{0,5})\.(attention|cross)")
FIELDS = {
    "fingerprint": str,
    "kind": Literal["encoder", "decoder", "encoder-decoder"],
    "task": str,
    "notes": list[str],
    "sides": dict[str, dict[str, Any]],
    "stream": list[str],
    "names": list[str],
    "sites": dict[str, dict[str, Any]],
    "changes": list[dict[str, Any]],
    "candidates": list[list[list[Any]]],
    "tensors": str | None,
}
"""The fields of the header's JSON beside its seal."""
SITE_FIELDS = {"spec": dict[str, Any], "mask": dict[str, Any] | None, "kernel": str, "why": str}
CANDIDATE = tuple[int, str, float | None]
"""As in `Candidate`; a probability of 0 has no logarithm in JSON, and is null."""


def save_trace(trace: TraceContent, path: str | Path) -> None:
    """Write the trace to a file, atomically."""
    tensors: dict[str, Tensor] = {f"stream/{name}": value for name, value in trace.stream.items()}
    sites = {
        name: site_to_json(site, spec_of(trace.origin.specs[name], site), tensors) for name, site in trace.sites.items()
    }
    content = {
        "fingerprint": trace.origin.fingerprint,
        "kind": trace.kind,
        "task": trace.task,
        "notes": list(trace.notes),
        "sides": {name: vars(side) for name, side in trace.sides.items()},
        "stream": list(trace.stream),
        "names": list(trace.all_names),
        "sites": sites,
        "changes": [change_to_json(change, f"changes/{i}", tensors) for i, change in enumerate(trace.changes)],
        "candidates": [
            [
                [candidate.id, candidate.text, candidate.log_prob if math.isfinite(candidate.log_prob) else None]
                for candidate in row
            ]
            for row in trace.answers.likeliest
        ],
        "tensors": checksum_of(tensors),
    }
    try:
        save_tensors(path, tensors, seal(content), header=HEADER)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error})") from None


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, shapes and dtypes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def spec_of(spec: AttentionSpec, site: Site) -> AttentionSpec:
    """Return the spec of a site, with the weighting of a Swap; its mask is saved by itself."""
    for change in site.recorded.changes:
        if isinstance(change, Swap):
            kernelized = "kernelized" in (change.weighting.form, (spec.weighting or change.weighting).form)
            spec = replace(spec, weighting=change.weighting, similarity=None if kernelized else spec.similarity)
    return replace(spec, mask=None)


def site_to_json(site: Site, spec: AttentionSpec, tensors: dict[str, Tensor]) -> dict[str, Any]:
    call = site.call
    for role in VECTORS:
        tensors[f"{site.name}/{role}"] = getattr(call, role)
    tensors[f"{site.name}/context"] = site.recorded_context
    if site.projected is not None:
        for role, vectors in zip(TURNED, site.projected, strict=True):
            tensors[f"{site.name}/projected_{role}"] = vectors
    for slot in SLOTS:
        part = getattr(call, slot)
        for name, value in part.state_dict().items() if isinstance(part, nn.Module) else ():
            tensors[f"{site.name}/{slot}/{name}"] = value
    if call.given_positions is not None:
        tensors[f"{site.name}/query_positions"], tensors[f"{site.name}/key_positions"] = call.given_positions.sides
    return {
        "spec": to_json(spec, PARTS),
        "mask": mask_to_json(call, f"{site.name}/mask", tensors),
        "kernel": site.kernel,
        "why": site.why,
    }


def mask_to_json(call: AttentionInputs, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a mask's rule as JSON; a mask of tensors or functions is saved as a table, and None returned."""
    try:
        return to_json(call.mask, PARTS)
    except OptionError:
        tensors[name] = call.mask.allowed(call.cells())
        return None


def change_to_json(change: Change, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if isinstance(change, Swap):
        return {"at": change.at, "weighting": to_json(change.weighting, PARTS)}
    content = {field.name: getattr(change, field.name) for field in fields(change)}
    if isinstance(change.to, Tensor):
        tensors[name] = change.to
        content["to"] = {"tensor": name}
    elif isinstance(change.to, float):
        content["to"] = {"number": repr(change.to)}
    return content


def load_trace(
    path: str | Path, model: nn.Module | None = None, *, parts: Parts | None = None
) -> tuple[TraceContent, InnerValues | None]:
    """Return what a file of a trace holds; with the `model` it was made from, also what makes its inner values.

    `parts`: as in `clearhead.load`.
    """
    import_parts(parts)
    try:
        header, tensors = load_tensors(path, header=HEADER)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read as a trace ({error})") from None
    if header is None:
        raise TraceError(f"{path}: is no trace of Clearhead; one is written by trace.save")
    header = check_header(header, tensors, str(path))
    check_registered(names_in(header), PARTS, str(path), error=TraceError)
    try:
        return read_trace(header, tensors, model)
    except TraceError:
        raise
    except (ClearheadError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise TraceError(f"{path}: is a trace that lacks something or is damaged ({reason})") from None


def check_header(header: Any, tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """Return the JSON of a trace, every field checked; raise TraceError if it or a tensor was changed."""
    check_type(header, dict, where, error=TraceError)
    check_seal(header, where, error=TraceError)
    if header.get("tensors") != checksum_of(tensors):
        raise TraceError(f"{where}: was changed since it was written: the checksum of its tensors is wrong")
    content = {name: value for name, value in header.items() if name not in ("format", "sha256")}
    checked = check_fields(content, FIELDS, where, error=TraceError)
    for name, site in checked["sites"].items():
        if not SITE_NAME.fullmatch(name):
            raise TraceError(f"{where}: {name[:60]!r} is no name of an attention")
        check_fields(site, SITE_FIELDS, f"{where}: {name}", error=TraceError)
    return checked


def read_trace(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], model: nn.Module | None
) -> tuple[TraceContent, InnerValues | None]:
    """Return a trace from the contents of its file."""
    specs = {name: read_spec(site["spec"]) for name, site in header["sites"].items()}
    origin = TraceOrigin(lambda: header["fingerprint"], specs)
    if model is not None:
        origin.check(model)
    sides = {name: read_side(side, name) for name, side in header["sides"].items()}
    check_sites(header["sites"], sides)
    changes = tuple(read_change(item, tensors) for item in header["changes"])
    candidates = [[read_candidate(item) for item in row] for row in header["candidates"]]
    stream = {name: tensors[f"stream/{name}"] for name in header["stream"]}
    sites = {name: read_site(name, site, specs[name], tensors, changes) for name, site in header["sites"].items()}
    ids = {name: side.ids for name, side in sides.items()}
    content = TraceContent(
        kind=header["kind"],
        task=header["task"],
        notes=tuple(header["notes"]),
        sides=sides,
        stream=stream,
        sites=sites,
        changes=changes,
        answers=Answers(lambda: candidates),
        origin=origin,
        all_names=tuple(header["names"]),
    )
    if model is None:
        return content, None
    return content, InnerValues(model, sites=sites, stream=stream, ids=ids, changes=changes)


def read_spec(content: Any) -> AttentionSpec:
    spec = from_json(content, PARTS, where="spec")
    if not isinstance(spec, AttentionSpec):
        raise TypeError(f"{type(spec).__name__} is no attention")
    return spec


def read_side(content: Any, name: str) -> Side:
    side = Side(**check_fields(content, hints_of(Side), f"the side {name}"))
    if len(side.ids) != len(side.tokens):
        raise ValueError(f"the {name} has {len(side.ids)} ids and {len(side.tokens)} tokens")
    return side


def check_sites(names: Iterable[str], sides: Mapping[str, Side]) -> None:
    """Raise ValueError unless every layer of every side has its attention, and no other layer has."""
    layers = {name.removesuffix(".attention") for name in names if name.endswith(".attention")}
    many = sum(side.n_layers for side in sides.values())
    if many != len(layers) or layers != {f"{name}.{i}" for name, side in sides.items() for i in range(side.n_layers)}:
        raise ValueError(f"it has {len(layers)} attentions, and not one for each of {many} layers")
    if not {name.removesuffix(".cross") for name in names if name.endswith(".cross")} <= layers:
        raise ValueError("it has attention to a source in a layer that is not there")


def read_candidate(content: Any) -> Candidate:
    token, text, log_prob = check_type(tuple(content), CANDIDATE, "candidates")
    return Candidate(token, text, -math.inf if log_prob is None else log_prob)


def read_site(
    name: str,
    stored: Mapping[str, Any],
    spec: AttentionSpec,
    tensors: Mapping[str, Tensor],
    changes: tuple[Change, ...],
) -> Site:
    site_tensors = {
        inner.removeprefix(f"{name}/"): tensor for inner, tensor in tensors.items() if inner.startswith(f"{name}/")
    }
    check_shapes(site_tensors, name)
    largest = max(size for tensor in site_tensors.values() for size in tensor.shape)
    for field, count in counts_in((spec.similarity, spec.weighting, spec.position)):
        if count > largest:
            raise ValueError(f"{name} has a {field} of {count:,}, and no tensor so large")
    query, key, value = (site_tensors[role] for role in VECTORS)
    similarity, weighting, position = read_parts(spec, query, key, site_tensors)
    mask: Any = TensorMask(site_tensors["mask"]) if stored["mask"] is None else from_json(stored["mask"], PARTS)
    check_type(mask, Mask, f"{name}: mask")
    positions = (
        Positions(site_tensors["query_positions"], site_tensors["key_positions"])
        if "query_positions" in site_tensors
        else None
    )
    call = AttentionInputs(query, key, value, similarity, weighting, position, mask, positions)  # type: ignore[arg-type]
    site_changes = tuple(change for change in changes if change.at == name)
    passed = RecordedAttention(
        call=call,
        context=site_tensors["context"].unsqueeze(0),
        kernel=stored["kernel"],
        projected=read_projected(site_tensors, name),
        why=stored["why"],
        changes=site_changes,
    )
    return Site(name, passed)


def read_projected(site_tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor] | None:
    """Return queries and keys from before rotary; None if nothing turns."""
    if not any(f"projected_{role}" in site_tensors for role in TURNED):
        return None
    query, key = (site_tensors[f"projected_{role}"].unsqueeze(0) for role in TURNED)
    if query.shape != site_tensors["query"].shape or key.shape != site_tensors["key"].shape:
        raise ValueError(f"the queries and keys of {name} have other shapes before their turn than after it")
    return query, key


def check_shapes(site_tensors: Mapping[str, Tensor], name: str) -> None:
    """Raise ValueError if the vectors of an attention do not fit together."""
    query, key, value, context = (site_tensors[role] for role in (*VECTORS, "context"))
    if not all(vectors.is_floating_point() for vectors in (query, key, value, context)):
        raise ValueError(f"the vectors of {name} are no numbers with a fraction")
    (batch, heads, n, d_head), (*shared, n_key, d_key), (*value_shape, n_value, d_value) = (
        query.shape,
        key.shape,
        value.shape,
    )
    fits = batch == 1 and d_head == d_key and n_key == n_value and shared == value_shape and len(shared) == 2
    if not fits or not shared[1] or heads % shared[1] or context.shape != (heads, n, d_value):
        shapes = ", ".join(f"{role} {tuple(site_tensors[role].shape)}" for role in (*VECTORS, "context"))
        raise ValueError(f"the vectors of {name} do not fit together: {shapes}")


def read_parts(spec: AttentionSpec, query: Tensor, key: Tensor, site_tensors: Mapping[str, Tensor]) -> list[Part]:
    """Return the parts of a site, built, with their learned values."""
    shape = HeadShape(n_heads=query.shape[1], n_kv_heads=key.shape[1], d_head=query.shape[-1])
    weighting = spec.weighting or Softmax()
    parts: list[Part] = [
        (spec.similarity or weighting.similarity).build(shape),
        weighting.build(shape),
        (spec.position or NoPosition()).build(shape),
    ]
    for slot, part in zip(SLOTS, parts, strict=True):
        state = {
            name.removeprefix(f"{slot}/"): value for name, value in site_tensors.items() if name.startswith(f"{slot}/")
        }
        if isinstance(part, nn.Module) and state:
            part.to(next(iter(state.values())).dtype).load_state_dict(state)
    return parts


def read_change(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> Change:
    if "weighting" in content:
        read = {**content, "weighting": from_json(content["weighting"], PARTS)}
        return Swap(**check_fields(read, hints_of(Swap), "a change"))
    to = content["to"]
    if isinstance(to, dict):
        to = tensors[to["tensor"]] if "tensor" in to else float(to["number"])
    plain = {**content, "to": None}
    return Edit(**{**check_fields(plain, hints_of(Edit), "a change"), "to": to})
