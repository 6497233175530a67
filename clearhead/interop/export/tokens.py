"""The vocabulary of a run as other programs are given it: every token by its id, and the tokenizer.json itself."""

import json
from collections.abc import Mapping
from pathlib import Path

from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run import Run

__all__ = ["save_tokenizers", "token_names"]


def token_names(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens by id; ids that no token has are given a name, since other programs want one for each."""
    whole = json.loads(tokenizer.to_json())
    vocabulary = whole["model"]["vocab"]
    pairs = vocabulary.items() if isinstance(vocabulary, Mapping) else ((one[0], i) for i, one in enumerate(vocabulary))
    names = dict(pairs) | {token["content"]: token["id"] for token in whole["added_tokens"]}
    by_id = {place: name for name, place in names.items()}
    return [by_id.get(place, f"<id:{place}>") for place in range(tokenizer.vocabulary)]


def save_tokenizers(run: Run, folder: Path) -> None:
    """Write tokenizer.json; where source and target have one each, source.tokenizer.json and target.tokenizer.json."""
    if len({id(one) for one in run.task.tokenizers.values()}) == 1:
        run.tokenizer.save(folder / "tokenizer.json")
        return
    for field, tokenizer in run.task.tokenizers.items():
        tokenizer.save(folder / f"{field}.tokenizer.json")
