"""A trace as a file: safetensors, with JSON in its header. It opens without the model it was made from.

It holds queries, keys, values and contexts, the parts that were between them with what they had learned, the stream and
the likeliest answers: all that rebuilding needs, and nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clearhead.attention.call import Call
from clearhead.attention.cells import Positions
from clearhead.attention.masks import Mask, Table
from clearhead.attention.parts import HeadShape, Part
from clearhead.attention.positions import NoPosition
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError, TraceError
from clearhead.model.blocks import AttentionSpec
from clearhead.model.saved import PARTS
from clearhead.tracing.edits import Change, Edit, Swap
from clearhead.tracing.inner import InnerValues
from clearhead.tracing.names import STEPS
from clearhead.tracing.origin import Origin
from clearhead.tracing.rebuilding import Site
from clearhead.tracing.recording import Passed
from clearhead.tracing.trace import Answers, Candidate, Side, Trace
from clearhead.written import from_json, load_tensors, save_tensors, to_json

__all__ = ["load_trace", "save_trace"]

VERSION = 1
HEADER = "clearhead trace"
SLOTS = ("similarity", "weighting", "position")
VECTORS = ("query", "key", "value")


def save_trace(trace: Trace, path: str | Path) -> None:
    """Writes the trace, beside and then renamed."""
    tensors: dict[str, Tensor] = {f"stream/{name}": value for name, value in trace.stream.items()}
    sites = {
        name: written_site(site, spec_of(trace.origin.specs[name], site), tensors) for name, site in trace.sites.items()
    }
    told = {
        "version": VERSION,
        "fingerprint": trace.origin.fingerprint,
        "kind": trace.kind,
        "task": trace.task,
        "notes": list(trace.notes),
        "sides": {name: vars(side) for name, side in trace.sides.items()},
        "stream": list(trace.stream),
        "names": list(trace.all_names),
        "sites": sites,
        "changes": [written_change(change, f"changes/{i}", tensors) for i, change in enumerate(trace.changes)],
        "candidates": [[list(one) for one in row] for row in trace.candidates],
    }
    try:
        save_tensors(path, tensors, told, header=HEADER)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error})") from None


def spec_of(spec: AttentionSpec, site: Site) -> AttentionSpec:
    """The spec of a site, with another weighting where one was put there; its mask is written by itself."""
    for change in site.passed.changes:
        if isinstance(change, Swap):
            kernelized = "kernelized" in (change.weighting.form, (spec.weighting or change.weighting).form)
            spec = replace(spec, weighting=change.weighting, similarity=None if kernelized else spec.similarity)
    return replace(spec, mask=None)


def written_site(site: Site, spec: AttentionSpec, tensors: dict[str, Tensor]) -> dict[str, Any]:
    call = site.call
    for role in VECTORS:
        tensors[f"{site.name}/{role}"] = getattr(call, role)
    tensors[f"{site.name}/context"] = site.made
    for slot in SLOTS:
        part = getattr(call, slot)
        for name, value in part.state_dict().items() if isinstance(part, nn.Module) else ():
            tensors[f"{site.name}/{slot}/{name}"] = value
    if call.given_positions is not None:
        tensors[f"{site.name}/query_positions"], tensors[f"{site.name}/key_positions"] = call.given_positions.sides
    return {
        "spec": to_json(spec, PARTS),
        "mask": written_mask(call, f"{site.name}/mask", tensors),
        "kernel": site.kernel,
        "why": site.why,
    }


def written_mask(call: Call, name: str, tensors: dict[str, Tensor]) -> Any:
    """A rule as it is; what holds tensors or functions as the table it comes to."""
    try:
        return to_json(call.mask, PARTS)
    except OptionError:
        tensors[name] = call.mask.allowed(call.cells())
        return None


def written_change(change: Change, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if isinstance(change, Swap):
        return {"at": change.at, "weighting": to_json(change.weighting, PARTS)}
    told = {field.name: getattr(change, field.name) for field in fields(change)}
    if isinstance(change.to, Tensor):
        tensors[name] = change.to
        told["to"] = {"tensor": name}
    elif isinstance(change.to, float):
        told["to"] = {"number": repr(change.to)}
    return told


def load_trace(path: str | Path, model: nn.Module | None = None) -> Trace:
    """A saved trace. With a `model`, it must be the one it was made from."""
    try:
        told, tensors = load_tensors(path, header=HEADER)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read as a trace ({error})") from None
    if told is None:
        raise TraceError(f"{path}: is no trace of Clearhead; one is written by trace.save")
    if told["version"] != VERSION:
        raise TraceError(f"{path}: was written in version {told['version']} of the format, and this reads {VERSION}")
    specs = {name: from_json(site["spec"], PARTS) for name, site in told["sites"].items()}
    origin = Origin(lambda: told["fingerprint"], specs)
    if model is not None:
        origin.check(model)
    changes = tuple(read_change(one, tensors) for one in told["changes"])
    candidates = [[Candidate(*one) for one in row] for row in told["candidates"]]
    sides = {name: Side(**side) for name, side in told["sides"].items()}
    stream = {name: tensors[f"stream/{name}"] for name in told["stream"]}
    sites = {name: read_site(name, site, tensors, changes) for name, site in told["sites"].items()}
    lengths = {name: len(side.ids) for name, side in sides.items()}
    return Trace(
        kind=told["kind"],
        task=told["task"],
        notes=tuple(told["notes"]),
        sides=sides,
        stream=stream,
        sites=sites,
        changes=changes,
        answers=Answers(lambda: candidates),
        origin=origin,
        inner=None
        if model is None
        else InnerValues(model, sites=sites, stream=stream, lengths=lengths, changes=changes),
        all_names=tuple(told["names"]) if "names" in told else stored_names(stream, sites),
    )


def stored_names(stream: Iterable[str], sites: Iterable[str]) -> tuple[str, ...]:
    """The names of a file that was written before names were."""
    return (*stream, *(f"{site}.{step}" for site in sites for step in STEPS))


def read_site(name: str, told: Mapping[str, Any], tensors: Mapping[str, Tensor], changes: tuple[Change, ...]) -> Site:
    own = {inner.removeprefix(f"{name}/"): tensor for inner, tensor in tensors.items() if inner.startswith(f"{name}/")}
    query, key, value = (own[role] for role in VECTORS)
    spec: AttentionSpec = from_json(told["spec"], PARTS)
    similarity, weighting, position = read_parts(spec, query, key, own)
    mask: Mask = Table(own["mask"]) if told["mask"] is None else from_json(told["mask"], PARTS)
    given = Positions(own["query_positions"], own["key_positions"]) if "query_positions" in own else None
    call = Call(query, key, value, similarity, weighting, position, mask, given)  # type: ignore[arg-type]
    here = tuple(change for change in changes if change.at == name)
    passed = Passed(
        call=call, context=own["context"].unsqueeze(0), kernel=told["kernel"], why=told["why"], changes=here
    )
    return Site(name, passed)


def read_parts(spec: AttentionSpec, query: Tensor, key: Tensor, own: Mapping[str, Tensor]) -> list[Part]:
    """The parts of a site, built, with what they had learned."""
    shape = HeadShape(n_heads=query.shape[1], n_kv_heads=key.shape[1], d_head=query.shape[-1])
    weighting = spec.weighting or Softmax()
    parts: list[Part] = [
        (spec.similarity or weighting.similarity).build(shape),
        weighting.build(shape),
        (spec.position or NoPosition()).build(shape),
    ]
    for slot, part in zip(SLOTS, parts, strict=True):
        state = {name.removeprefix(f"{slot}/"): value for name, value in own.items() if name.startswith(f"{slot}/")}
        if isinstance(part, nn.Module) and state:
            part.to(next(iter(state.values())).dtype).load_state_dict(state)
    return parts


def read_change(told: dict[str, Any], tensors: Mapping[str, Tensor]) -> Change:
    if "weighting" in told:
        return Swap(at=told["at"], weighting=from_json(told["weighting"], PARTS))
    to = told["to"]
    if isinstance(to, dict):
        to = tensors[to["tensor"]] if "tensor" in to else float(to["number"])
    return Edit(**{**told, "to": to})
