"""Hold what CTranslate2 computes from an export to what the run computes."""

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.decoding import Rules
from clearhead.extras import import_peer, peer_version
from clearhead.interop.export.base import ExportFigures, skipped_token, spec_of
from clearhead.interop.export.samples import (
    Samples,
    count_new,
    count_same,
    decoding_of,
    draw_samples,
    greedy_tokens,
    largest,
    replace_token,
    special_tokens,
    token_names,
    unpad,
)
from clearhead.model.transformers import Encoder
from clearhead.training.run import Run

TOLERANCE = 1e-3
"""Of log-probabilities, logits and vectors, computed in float32 from the weights as they are written."""


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


def draw_counted(run: Run) -> Samples:
    """Return samples without a token that takes no position: CTranslate2 gives one to every token."""
    samples = draw_samples(run)
    rows = [replace_token(row, skipped_token(spec_of(run))) for row in samples.encoder]
    return Samples(rows, samples.decoder, samples.drawn)


@torch.inference_mode()
def check_encoder_decoder(run: Run, folder: Path, quantization: str) -> ExportFigures:
    """Compare log-probabilities of targets, and greedy translations."""
    samples, exact = draw_counted(run), open_with("Translator", folder, "float32")
    source, target = run.task.tokenizers["source"], run.task.tokenizers["target"]
    special = special_tokens(run)
    assert special.start is not None
    assert special.end is not None
    assert special.source_end is not None
    room = run.task.context - 1  # beside the end of a source, and the start of a target
    sources = [(row[:-1] if row[-1] == special.source_end else row)[:room] for row in samples.encoder]
    targets = [(row[1:] if row[0] == special.start else row)[:room] for row in samples.decoder]
    read, written = token_names(source), token_names(target)
    words = [[read[i] for i in row] for row in sources]
    scored = exact.score_batch(words, [[written[i] for i in row] for row in targets])
    theirs = [torch.tensor(score.log_probs) for score in scored]
    closed = [[*row, special.source_end] for row in sources]
    framed = Samples(closed, [[special.start, *row] for row in targets], samples.drawn)
    ours = target_log_probs(round_as_written(run, quantization), framed, special.end)
    translator = open_with("Translator", folder, quantization)
    n_new = count_new(run)
    before, ends, never = decoding_of(run)
    forced = [written[token_id] for token_id in before[1:]]
    translated = translator.translate_batch(
        words,
        target_prefix=[forced] * len(words) if forced else None,
        suppress_sequences=[[written[token_id]] for token_id in never] or None,
        end_token=[*ends],
        beam_size=1,
        max_decoding_length=n_new + len(forced),
        min_decoding_length=0,
    )
    ids = {name: token_id for token_id, name in enumerate(written)}
    greedy = [[ids[token] for token in translation.hypotheses[0]][len(forced) :] for translation in translated]
    outputs = greedy_tokens(run.model, closed, Rules(max_new=n_new, end=ends, never=never), start=before)
    own = [[token for token in row if token not in ends] for row in outputs]
    return ExportFigures(
        peer=peer_version("ctranslate2"),
        texts=str(samples),
        numbers=f"{sum(map(len, ours))} log-probabilities",
        difference=largest(ours, theirs),
        tolerance=TOLERANCE,
        same=count_same(run, own, greedy, TOLERANCE, sources=closed, start=[*before]),
        outputs=len(own),
        must_agree=quantization == "float32",
    )


def target_log_probs(model: nn.Module, samples: Samples, end: int) -> list[Tensor]:
    """Return the log-probability of each target token and of the end after it, of each row."""
    source, source_lengths = samples.padded("encoder")
    target, _ = samples.padded("decoder")
    log_probs = model(source, target, source_lengths=source_lengths).log_softmax(-1)
    targets = [torch.tensor([*row[1:], end]) for row in samples.decoder]
    return [
        row_log_probs[: len(row)].gather(-1, row.unsqueeze(-1)).squeeze(-1)
        for row_log_probs, row in zip(log_probs, targets, strict=True)
    ]


@torch.inference_mode()
def check_decoder(run: Run, folder: Path, quantization: str) -> ExportFigures:
    """Compare logits, and what is written greedily after each text."""
    samples, exact = draw_samples(run), open_with("Generator", folder, "float32")
    tokens, _ = samples.padded("decoder")
    theirs = torch.from_numpy(np.array(exact.forward_batch(samples.decoder)))
    ours = round_as_written(run, quantization)(tokens)
    names, (_, ends, never) = token_names(run.tokenizer), decoding_of(run)
    n_new = count_new(run)
    rows = [row[: run.task.context - n_new] for row in samples.decoder]
    generator = open_with("Generator", folder, quantization)
    # One at a time: in a batch the prompts past the shortest are part of the result, and of its length.
    written = [
        generator.generate_batch(
            [[names[token] for token in row]],
            max_length=n_new,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[*ends],
            suppress_sequences=[[names[place]] for place in never] or None,
        )[0].sequences_ids[0]
        for row in rows
    ]
    greedy = [[token for token in row if token not in ends] for row in written]
    outputs = greedy_tokens(run.model, rows, Rules(max_new=n_new, end=ends, never=never))
    own = [[token for token in row if token not in ends] for row in outputs]
    return ExportFigures(
        peer=peer_version("ctranslate2"),
        texts=str(samples),
        numbers=f"logits of {sum(map(len, samples.decoder))} tokens",
        difference=largest(unpad(ours, samples.decoder), unpad(theirs, samples.decoder)),
        tolerance=TOLERANCE,
        same=count_same(run, own, greedy, TOLERANCE, sources=rows),
        outputs=len(own),
        must_agree=quantization == "float32",
    )


@torch.inference_mode()
def check_encoder(run: Run, folder: Path, quantization: str) -> ExportFigures:
    """Compare the vectors after the last block: the output is applied by whoever uses them."""
    samples, encoder = draw_counted(run), open_with("Encoder", folder, "float32")
    tokens, lengths = samples.padded("encoder")
    theirs = torch.from_numpy(np.array(encoder.forward_batch(samples.encoder).last_hidden_state))
    ours = cast(Encoder, round_as_written(run, quantization)).states(tokens, lengths=lengths)
    return ExportFigures(
        peer=peer_version("ctranslate2"),
        texts=str(samples),
        numbers=f"vectors of {sum(map(len, samples.encoder))} tokens",
        difference=largest(unpad(ours, samples.encoder), unpad(theirs, samples.encoder)),
        tolerance=TOLERANCE,
    )
