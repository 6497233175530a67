"""Fetch a model folder from the Hugging Face hub: only where a source begins with `hub:`, and by `huggingface_hub`."""

import os
import re
from pathlib import Path

from clearhead.errors import OptionError
from clearhead.interop.peers import import_peer

PREFIX = "hub:"
NAME = re.compile(r"(?:\w[\w.-]{0,95}/)?\w[\w.-]{0,95}(?:@[\w./-]{1,96})?", re.ASCII)
"""ORG/NAME, with a branch, a tag or a commit after an @."""
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
WEIGHTS, PICKLED = ("model*.safetensors", "model.safetensors.index.json"), ("pytorch_model*.bin*",)
"""Weights as they are asked for first, and where there are none of these."""


def fetch_from_hub(source: str, *, cache: Path | None = None) -> Path:
    """Fetch the files of `hub:ORG/NAME` that an import reads, and return the folder they are in.

    They are kept in `cache`, else where `huggingface_hub` keeps its own; what is there already is not fetched again.
    The environment variable HF_ENDPOINT names another server. OptionError where they cannot be fetched.
    """
    name = source.removeprefix(PREFIX)
    if not NAME.fullmatch(name):
        raise OptionError(f"{source}: expected {PREFIX}ORG/NAME, such as {PREFIX}HuggingFaceTB/SmolLM2-135M")
    hub = import_peer("huggingface_hub")
    repository, _, revision = name.partition("@")
    for weights in (WEIGHTS, PICKLED):
        try:
            snapshot = hub.snapshot_download(
                repository,
                revision=revision or None,
                cache_dir=cache,
                allow_patterns=[*FILES, *weights],
                ignore_patterns=["*/*"],
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        except Exception as error:  # the library raises its own, those of its network library, and OSError
            message = next(iter(str(error).splitlines()), type(error).__name__)
            raise OptionError(f"{source}: could not be fetched ({type(error).__name__}: {message[:200]})") from None
        if any(Path(snapshot).glob(weights[0])):
            break
    return Path(snapshot)
