"""Replies: JSON at full precision, or raw numbers with their shape in the headers."""

import json

import torch
from jaxtyping import Float, UInt8
from starlette.responses import Response
from torch import Tensor

from clearhead.training.reporting import replace_nonfinite


def as_json(answer: object, status: int = 200) -> Response:
    """Return a JSON reply; a number that is not finite is null."""
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(replace_nonfinite(answer), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, media_type="application/json")


def as_numbers(table: Float[Tensor, "row column"]) -> Response:
    """Return a reply of float32, little-endian, row by row."""
    rows, columns = table.shape
    content = table.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes()
    return raw(content, {"X-Rows": rows, "X-Columns": columns})


def as_bytes(pictures: UInt8[Tensor, "head row column"]) -> Response:
    """Return a reply of one byte a cell, head by head."""
    heads, rows, columns = pictures.shape
    return raw(pictures.cpu().contiguous().numpy().tobytes(), {"X-Heads": heads, "X-Rows": rows, "X-Columns": columns})


def raw(content: bytes, shape: dict[str, int]) -> Response:
    headers = {name: str(size) for name, size in shape.items()}
    return Response(content, media_type="application/octet-stream", headers=headers)
