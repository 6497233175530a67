"""The vocabulary of a run as other programs are given it: every token by its id, and the tokenizer.json itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run import Run
from clearhead.training.tasks.framing import Framing

__all__ = ["SpecialTokens", "save_tokenizers", "special_tokens", "token_names", "written_frame"]


class SpecialTokens(NamedTuple):
    """Ids of a run's special tokens, None for one that it has not; `source_end` closes what a translator reads."""

    start: int | None
    end: int | None
    source_end: int | None
    unknown: int | None
    pad: int | None
    mask: int | None

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the end tokens as `Rules` takes them: empty where the tokeniser has none."""
        return () if self.end is None else (self.end,)


def written_frame(run: Run) -> Framing:
    """Return the framing of what the run writes; of one that writes nothing, of what it reads."""
    return run.task.frame([*run.task.tokenizers][-1])


def special_tokens(run: Run) -> SpecialTokens:
    """Return the special tokens as the run uses them: an imported Marian starts from its padding token, say."""
    fields = [*run.task.tokenizers]
    reads, writes = run.task.frame(fields[0]), written_frame(run)
    tokenizer = run.task.tokenizers[fields[-1]]
    start, end, unknown, pad, mask = (
        token_id if token_id >= 0 else None
        for token_id in (tokenizer.start, tokenizer.end, tokenizer.unknown, tokenizer.pad, tokenizer.mask)
    )
    return SpecialTokens(
        start=writes.before[0] if writes.before else start,
        end=writes.ends[0] if writes.ends else end,
        source_end=reads.after[-1] if reads.after else None,
        unknown=unknown,
        pad=pad,
        mask=mask,
    )


def token_names(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens by id; ids that no token has are given a name, since other programs want one for each."""
    config = json.loads(tokenizer.to_json())
    vocabulary = config["model"]["vocab"]
    pairs = (
        vocabulary.items() if isinstance(vocabulary, Mapping) else ((entry[0], i) for i, entry in enumerate(vocabulary))
    )
    names = dict(pairs) | {token["content"]: token["id"] for token in config["added_tokens"]}
    by_id = {token_id: name for name, token_id in names.items()}
    return [by_id.get(token_id, f"<id:{token_id}>") for token_id in range(tokenizer.vocabulary)]


def save_tokenizers(run: Run, folder: Path) -> None:
    """Write tokenizer.json; where source and target have one each, source.tokenizer.json and target.tokenizer.json."""
    if len({id(tokenizer) for tokenizer in run.task.tokenizers.values()}) == 1:
        run.tokenizer.save(folder / "tokenizer.json")
        return
    for field, tokenizer in run.task.tokenizers.items():
        tokenizer.save(folder / f"{field}.tokenizer.json")
