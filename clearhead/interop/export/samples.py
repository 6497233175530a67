"""Texts that an export is checked on: those of the run's own validation set, or drawn where it has none;
and its vocabulary and special tokens as other programs are given them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.decoding.session import pad_right
from clearhead.errors import ClearheadError
from clearhead.interop.export.base import skipped_token, spec_of
from clearhead.text.store import Store
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.validation_split import spread
from clearhead.training.run import Run
from clearhead.training.tasks.texts import Framing

COUNT, LONGEST = 24, 48
"""How many texts there are, and how many tokens of each are read."""


@dataclass(frozen=True)
class Samples:
    """Rows of token ids as the run's model is given them: of the encoder, of the decoder, or of both."""

    encoder: list[list[int]]
    decoder: list[list[int]]
    drawn: bool

    def __str__(self) -> str:
        count = len(self.encoder or self.decoder)
        return f"{count} drawn texts" if self.drawn else f"{count} texts of the run's validation set"

    def padded(self, side: str) -> tuple[Tensor, Tensor]:
        """Return the rows of a side as one batch, padded after each, and their lengths."""
        return pad_right(self.encoder if side == "encoder" else self.decoder, torch.device("cpu"))

    def split(self, outputs: Tensor) -> list[Tensor]:
        """Return of each row of a padded batch what belongs to its tokens; outputs of whole texts as they are."""
        if outputs.ndim < 3:
            return [outputs]
        return [padded[: len(row)] for padded, row in zip(outputs, self.decoder or self.encoder, strict=True)]


def draw_samples(run: Run, count: int = COUNT) -> Samples:
    """Return rows of the run's validation set; random ids where the run has no such set."""
    rows = list(stored_rows(run, count))
    drawn = not rows
    if drawn:
        rows = list(random_rows(run, count))
    encoder, decoder = ([row[side] for row in rows if side in row] for side in ("encoder", "decoder"))
    return Samples(encoder, decoder, drawn)


def stored_rows(run: Run, count: int) -> Iterator[Mapping[str, list[int]]]:
    """Yield the ids of texts from the run's validation set, each side cut to `LONGEST` tokens."""
    try:
        store = Store(run.folder.data / str(run.folder.read_description()["data"]) / "dev")
        texts = list(run.task.examples(store, spread(len(store), count)))[:count]
    except (ClearheadError, OSError, KeyError):
        return  # an imported run has no texts, one that was moved may have lost them, and pairs are written as texts
    for text in texts:
        try:
            inputs = run.task.trace_inputs(text["source"], text.get("target"))
        except ClearheadError:
            continue  # longer than the model reads
        yield {side: ids[: min(LONGEST, run.task.context)] for side, ids in inputs.ids.items()}


def random_rows(run: Run, count: int) -> Iterator[Mapping[str, list[int]]]:
    spec = spec_of(run)
    draw = torch.Generator().manual_seed(0)
    longest = min(LONGEST, run.task.context)

    def ids(vocabulary: int) -> list[int]:
        length = int(torch.randint(1, longest + 1, (), generator=draw))
        return torch.randint(vocabulary, (length,), generator=draw).tolist()

    for _ in range(count):
        if spec.encoder is not None and spec.decoder is not None:
            # M2M100 counts no padding in a target where it has no cache, and counts it where it has: no output has any.
            target = replace_token(ids(spec.decoder.vocabulary), skipped_token(spec))
            yield {"encoder": ids(spec.encoder.vocabulary), "decoder": target}
        else:
            yield {spec.kind: ids(spec.stacks[0].vocabulary)}


def replace_token(ids: Sequence[int], token: int | None) -> list[int]:
    """Return the ids with another in the place of this one."""
    other = 0 if token else 1
    return [other if token_id == token else token_id for token_id in ids]


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
        """Return the end tokens as `Rules` takes them: empty if the tokeniser has none."""
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
