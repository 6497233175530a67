"""The vocabulary of a run as other programs are given it: every token by its id, and the tokenizer.json itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run import Run
from clearhead.training.tasks.framing import Framing


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


class OutputTokens(NamedTuple):
    """How a run writes: the ids that an output begins with, those that end it, and those that it may not have."""

    before: tuple[int, ...]
    ends: tuple[int, ...]
    never: tuple[int, ...]


def decoding_of(run: Run) -> OutputTokens:
    """Return how the run writes; a decoder's output begins with its text, and `before` is what that begins with."""
    frame, special = written_frame(run), special_tokens(run)
    begun = frame.before
    if not begun and len(run.model.stacks) > 1 and special.start is not None:
        begun = (special.start,)
    return OutputTokens(before=begun, ends=frame.ends or special.ends, never=frame.never)


def special_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of a tokenizer's special tokens by what they are for, None for one that it has not.

    Padding of an imported model that names none is id 0 here, where no one sees it: for other programs it is none.
    """
    if tokenizer.imported is not None:
        return tokenizer.imported.by_name()
    return {name: getattr(tokenizer, name) for name in ("pad", "unknown", "start", "end", "mask")}


def special_tokens(run: Run) -> SpecialTokens:
    """Return the special tokens as the run uses them: an imported Marian starts from its padding token, say."""
    fields = [*run.task.tokenizers]
    reads, writes = run.task.frame(fields[0]), written_frame(run)
    own = special_ids(run.task.tokenizers[fields[-1]])
    return SpecialTokens(
        start=writes.before[0] if writes.before else own["start"],
        end=writes.ends[0] if writes.ends else own["end"],
        source_end=reads.after[-1] if reads.after else None,
        unknown=own["unknown"],
        pad=own["pad"],
        mask=own["mask"],
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
