"""A model's spec as JSON, and back: with the weights, all there is to a model.

>>> from clearhead.model import presets, spec_json
>>> spec = presets.tiny(vocabulary=100)
>>> spec_json.spec_from_json(spec_json.spec_to_json(spec)) == spec
True
"""

import dataclasses
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

from clearhead.errors import RunError
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.embedding import Embedding
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec, EncoderDecoderSpec, EncoderSpec
from clearhead.model.wide import NgramLogits
from clearhead.registry import CLASSES
from clearhead.serialization import from_json, table_of, to_json

SPECS = table_of((AttentionSpec, BlockSpec, Embedding, EncoderSpec, DecoderSpec, EncoderDecoderSpec, NgramLogits))
"""What holds parts in a model, and is none itself."""
PARTS: Mapping[str, type] = ChainMap(CLASSES, SPECS)
"""Everything a saved model can have, by name: registered parts, of users too."""


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """Return the spec as JSON; raise where a part of it is not one that `spec_from_json` could make again."""
    return to_json(spec, PARTS)


def spec_from_json(content: Any, *, where: str = "JSON") -> Spec:
    """Return the spec, every field checked; errors begin with `where`, the file."""
    spec = from_json(content, PARTS, where=where)
    if not isinstance(spec, Spec):
        raise RunError(f"{where}: a model was expected, and a {type(spec).__name__} was written")
    return spec


COUNTS = ("count", "heads", "buckets", "width")
"""Fields of parts that say how often or how wide something is built: each is an axis of one of its tensors."""


def counts_in(part: Any) -> Iterator[tuple[str, int]]:
    """Yield the counts anywhere in a spec or a part, by the names of their fields.

    >>> from clearhead.attention.heads import Heads
    >>> list(counts_in(Heads(8, kv=2)))
    [('count', 8)]
    """
    if isinstance(part, tuple):
        for item in part:
            yield from counts_in(item)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name in COUNTS and isinstance(value, int):
                yield field.name, value
            yield from counts_in(value)
