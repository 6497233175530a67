"""The architectures that can be read and written: one small table from names to names each, over the same specs."""

from collections.abc import Mapping

from clearhead.errors import OptionError
from clearhead.interop.architectures.base import Architecture
from clearhead.interop.architectures.bert import BERT_FAMILY
from clearhead.interop.architectures.gpt2 import GPT2
from clearhead.interop.architectures.llama import LLAMA_FAMILY
from clearhead.interop.architectures.marian import MARIAN_FAMILY
from clearhead.interop.architectures.parallel import PARALLEL_FAMILY
from clearhead.interop.architectures.t5 import T5
from clearhead.interop.tables import Config

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture"]

ARCHITECTURES: Mapping[str, Architecture] = {
    one.model_type: one for one in (GPT2, *LLAMA_FAMILY, *PARALLEL_FAMILY, *BERT_FAMILY, *MARIAN_FAMILY, T5)
}
"""By the `model_type` of config.json."""


def find_architecture(config: Config) -> Architecture:
    """Return the architecture that a configuration names; OptionError if it is none of these."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise OptionError(
            f"{config.where}: model_type {name!r:.80} cannot be read; there are {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
