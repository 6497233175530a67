"""CTranslate2 as the peer of an export: what it computes from a folder, in our order."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.extras import import_peer, peer_version
from clearhead.interop.export.base import skipped_token, spec_of
from clearhead.interop.export.format import Peer
from clearhead.interop.export.samples import (
    OutputTokens,
    Samples,
    draw_samples,
    replace_token,
    special_tokens,
    token_names,
)
from clearhead.training.run import Run


def round_as_written(run: Run, quantization: str) -> nn.Module:
    """Return the run's model with its weights as the export has them: in int8, each row in 127 steps of its largest.

    So the numbers can be held to a tight tolerance, though CTranslate2 rounds activations too when it computes in int8.
    """
    if quantization == "float32":
        return run.model
    model = copy.deepcopy(run.model)
    for name, weight in model.named_parameters():
        if name.endswith((".weight", "embedding.table", "output.table")):
            largest_of_row = weight.detach().abs().amax(1, keepdim=True)
            # To the last bit as CTranslate2 does it: `127 / largest_of_row` would multiply by a rounded reciprocal, and
            # a weight halfway between two steps would go to the other one.
            scale = torch.full_like(largest_of_row, 127).div(largest_of_row)
            weight.data = torch.where(scale.isfinite(), (weight * scale).round() / scale, weight)
    return model


def open_with(kind: str, folder: Path, quantization: str) -> Any:
    """Open a folder as a Translator, a Generator or an Encoder, on the CPU, with as many threads as torch has."""
    peer = import_peer("ctranslate2")
    return getattr(peer, kind)(
        str(folder), device="cpu", compute_type=quantization, inter_threads=1, intra_threads=torch.get_num_threads()
    )


class CTranslate2Peer(Peer):
    """A folder in CTranslate2. Numbers are computed in float32 from the weights as they are written."""

    kind: str

    def __init__(self, run: Run, folder: Path, quantization: str) -> None:
        super().__init__(run)
        self.name, self.exact = peer_version("ctranslate2"), quantization == "float32"
        self.model = round_as_written(run, quantization)
        self.computing, self.writing = (open_with(self.kind, folder, number) for number in ("float32", quantization))

    def samples(self) -> Samples:
        """Return samples without a token that takes no position: CTranslate2 gives one to every token."""
        samples = draw_samples(self.run)
        rows = [replace_token(row, skipped_token(spec_of(self.run))) for row in samples.encoder]
        return Samples(rows, samples.decoder, samples.drawn)


class GeneratorPeer(CTranslate2Peer):
    kind = "Generator"

    def theirs(self, samples: Samples) -> list[Tensor]:
        return samples.split(torch.from_numpy(np.array(self.computing.forward_batch(samples.decoder))))

    def greedy(self, rows: Sequence[list[int]], written: OutputTokens, n_new: int) -> list[list[int]]:
        names = token_names(self.run.tokenizer)
        # One at a time: in a batch the prompts past the shortest are part of the result, and of its length.
        return [
            self.writing.generate_batch(
                [[names[token] for token in row]],
                max_length=n_new,
                sampling_topk=1,
                include_prompt_in_result=False,
                end_token=[*written.ends],
                suppress_sequences=[[names[place]] for place in written.never] or None,
            )[0].sequences_ids[0]
            for row in rows
        ]


class EncoderPeer(CTranslate2Peer):
    """The vectors after the last block: the output is applied by whoever uses them."""

    kind = "Encoder"
    numbers = "vectors"

    def ours(self, samples: Samples) -> list[Tensor]:
        tokens, lengths = samples.padded("encoder")
        return samples.split(self.model.states(tokens, lengths=lengths))

    def theirs(self, samples: Samples) -> list[Tensor]:
        vectors = self.computing.forward_batch(samples.encoder).last_hidden_state
        return samples.split(torch.from_numpy(np.array(vectors)))


class TranslatorPeer(CTranslate2Peer):
    """The log-probability of each token of a target and of the end after it. CTranslate2 frames both sides itself."""

    kind = "Translator"
    numbers = "log-probabilities"

    def __init__(self, run: Run, folder: Path, quantization: str) -> None:
        super().__init__(run, folder, quantization)
        special = special_tokens(run)
        assert special.start is not None
        assert special.end is not None
        assert special.source_end is not None
        self.start, self.end, self.source_end = special.start, special.end, special.source_end
        self.read, self.written = (token_names(run.task.tokenizers[side]) for side in ("source", "target"))

    def samples(self) -> Samples:
        samples, room = (
            super().samples(),
            self.run.task.context - 1,
        )  # beside the end of a source, the start of a target
        targets = [(row[1:] if row[0] == self.start else row)[:room] for row in samples.decoder]
        sources = [[*self.unclosed(row)[:room], self.source_end] for row in samples.encoder]
        return Samples(sources, [[self.start, *row] for row in targets], samples.drawn)

    def unclosed(self, row: list[int]) -> list[int]:
        return row[:-1] if row[-1] == self.source_end else row

    def words(self, sources: Sequence[list[int]]) -> list[list[str]]:
        return [[self.read[token] for token in self.unclosed(row)] for row in sources]

    def ours(self, samples: Samples) -> list[Tensor]:
        source, lengths = samples.padded("encoder")
        target, _ = samples.padded("decoder")
        log_probs = samples.split(self.model(source, target, source_lengths=lengths).log_softmax(-1))
        wanted = [torch.tensor([*row[1:], self.end]).unsqueeze(-1) for row in samples.decoder]
        return [row.gather(-1, tokens).squeeze(-1) for row, tokens in zip(log_probs, wanted, strict=True)]

    def theirs(self, samples: Samples) -> list[Tensor]:
        targets = [[self.written[token] for token in row[1:]] for row in samples.decoder]
        scores = self.computing.score_batch(self.words(samples.encoder), targets)
        return [torch.tensor(score.log_probs) for score in scores]

    def greedy(self, rows: Sequence[list[int]], written: OutputTokens, n_new: int) -> list[list[int]]:
        forced = [self.written[token] for token in written.before[1:]]
        translated = self.writing.translate_batch(
            self.words(rows),
            target_prefix=[forced] * len(rows) if forced else None,
            suppress_sequences=[[self.written[token]] for token in written.never] or None,
            end_token=[*written.ends],
            beam_size=1,
            max_decoding_length=n_new + len(forced),
            min_decoding_length=0,
        )
        ids = {name: token for token, name in enumerate(self.written)}
        return [[ids[name] for name in translation.hypotheses[0]][len(forced) :] for translation in translated]
