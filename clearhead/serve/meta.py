"""The summary of a trace: its tokens, its attentions, and the model's answer."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clearhead.serve import messages
from clearhead.serve.facts import part_name
from clearhead.serve.program import load_program
from clearhead.serve.trace_request import TraceRequest
from clearhead.tracing.arithmetic import weighting_kind
from clearhead.tracing.edits import Edit
from clearhead.tracing.site import ALLOWED, Site
from clearhead.tracing.trace import Candidate, Trace
from clearhead.training.run import Run

MANY, FEW = 512, 5
"""Of more places than the first number, only the second number of candidates are sent."""
SIZES = ("n_heads", "n_kv_heads", "d_head", "d_value", "n_query", "n_key")


def meta_of(request: TraceRequest, run: Run, trace: Trace) -> dict[str, Any]:
    n_told = None if len(trace.candidates) <= MANY else FEW
    program = load_program(run)
    answers = None if program is None else program.answers_to(run, trace)
    if answers is None or run.task.target == "writes":
        answer = run.task.traced_answer(request.source, trace)
    else:  # a compiled program's, at every token
        answer = " ".join(answers)
    return {
        "id": request.id,
        "source": request.source,
        "target": run.task.traced_target(request.target, trace),
        "edits": request.edits,
        "step": run.step,
        "notes": list(trace.notes),
        "kind": trace.kind,
        "sides": {name: asdict(side) for name, side in trace.sides.items()},
        "sites": [site_facts(site) for site in trace.sites.values()],
        "names": trace.names,
        "candidates": [as_candidates(row[:n_told]) for row in trace.candidates],
        "answer": answer,
        **({} if program is None or answers is None else {"program": {"answers": answers, "offset": program.offset}}),
    }


def as_candidates(row: Sequence[Candidate]) -> list[messages.Candidate]:
    return [{"id": candidate.id, "text": candidate.text, "p": math.exp(candidate.log_prob)} for candidate in row]


def site_facts(site: Site) -> dict[str, Any]:
    edits_allowed = any(isinstance(change, Edit) and change.step == ALLOWED for change in site.recorded.changes)
    return {
        "name": site.name,
        "side": site.side,
        "layer": site.layer,
        "slot": site.slot,
        **{name: getattr(site, name) for name in SIZES},
        "query_side": site.side,
        "key_side": "encoder" if site.slot == "cross" else site.side,
        "similarity": part_name(site.similarity),
        "weighting": part_name(site.weighting),
        "position": part_name(site.position),
        "mask": " & ".join(part_name(term) for term in site.mask.terms),
        "words": {
            "similarity": site.similarity.called,
            "weighting": site.weighting.called,
            "position": site.position.called,
            "mask": site.mask.called,
        },
        "arithmetic": {
            "kind": weighting_kind(site.weighting),
            "rule": site.weighting.summary,
            "blocked": site.weighting.blocked if math.isfinite(site.weighting.blocked) else None,
            "formula": site.similarity.formula,
            "prepared": site.similarity.prepared,
            "scale_reason": site.similarity.scale_reason,
            "biased": site.position.bias_kind != "none",
            "turns": site.position.turns,
            "masks": edits_allowed or site.mask.kinds != {"none"},
            "causal": "causal" in site.mask.kinds,
        },
        "scale": [head.scale for head in site.head],
        "kernel": site.kernel,
        "why": site.why,
        "edited": site.is_edited,
    }
