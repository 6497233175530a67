"""Hold what transformers computes from an export to what the run computes; and write its model card."""

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.decoding import Rules
from clearhead.errors import ClearheadError, OptionError, RunError
from clearhead.extras import import_peer, peer_version
from clearhead.interop.export.base import ExportFigures
from clearhead.interop.export.samples import (
    Samples,
    count_new,
    count_same,
    draw_samples,
    greedy_tokens,
    largest,
    special_tokens,
    unpad,
    written_frame,
)
from clearhead.interop.huggingface import is_pooler, read_hugging_face
from clearhead.interop.tensor_files import Tensors, read_object
from clearhead.model.int8 import count_weights
from clearhead.training.run import Run

PIPELINES = {
    "generate": "text-generation",
    "instruct": "text-generation",
    "translate": "translation",
    "fill": "fill-mask",
    "classify": "text-classification",
    "embed": "feature-extraction",
}
AUTO = {
    "generate": "AutoModelForCausalLM",
    "instruct": "AutoModelForCausalLM",
    "translate": "AutoModelForSeq2SeqLM",
    "fill": "AutoModelForMaskedLM",
    "classify": "AutoModelForSequenceClassification",
    "embed": "AutoModel",
}
"""The class of transformers that opens a folder, by the run's task."""
POOLED = ("BertModel", "RobertaModel", "XLMRobertaModel")
"""Classes that have a pooler unless they are told to do without."""
CARD = """---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- clearhead
---

# {name}

A model that Clearhead exported for transformers, as `{class_name}`.

- task: {task}
- parameters: {parameters:,}
- longest text: {context:,} tokens
- vocabulary: {vocabulary:,} tokens
- weights: of step {step:,}, in float32
{scores}
```python
from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained(".")
model = {auto}.from_pretrained("."{options})
```
"""


def model_card(run: Run, class_name: str, *, pooler: bool = False) -> str:
    """Return what the model is, what it scored where that is known, and how it is opened: `pooler` if it has one."""
    try:
        evaluation = run.folder.read_evaluation()
    except (ClearheadError, OSError):
        evaluation = {}
    scores = {name: value for name, value in evaluation.items() if isinstance(value, int | float) and name != "format"}
    return CARD.format(
        pipeline=PIPELINES.get(run.task.name, "feature-extraction"),
        name=run.folder.path.resolve().name,
        class_name=class_name,
        task=run.task.name,
        parameters=count_weights(run.model),
        context=run.task.context,
        vocabulary=run.tokenizer.vocabulary,
        step=run.step,
        scores=f"- measured in training: `{json.dumps(scores)}`\n" if scores else "",
        auto=AUTO.get(run.task.name, "AutoModel"),
        options=", add_pooling_layer=False" if class_name in POOLED and not pooler else "",
    )


TOLERANCE = 1e-3


@torch.inference_mode()
def check_with_transformers(run: Run, folder: Path) -> ExportFigures:
    """Compare logits, greedy outputs and ids. Where transformers is not installed, our own reader compares logits."""
    samples = draw_samples(run)
    if importlib.util.find_spec("transformers") is None:
        model, peer = read_hugging_face(folder).model, "clearhead's own reader, since transformers is not installed,"
        theirs, same, outputs = forward(model, samples), 0, 0
    else:
        peer = peer_version("transformers")
        model = load_theirs(run, folder)
        check_ids(run, folder, samples)
        theirs = their_forward(run, model, samples)
        same, outputs = compare_greedy(run, model, samples)
    ours = forward(run.model, samples)
    rows = samples.decoder or samples.encoder
    by_token = ours.ndim == 3
    pair = (unpad(ours, rows), unpad(theirs, rows)) if by_token else ([ours], [theirs])
    return ExportFigures(
        peer=peer,
        texts=str(samples),
        numbers=f"logits of {sum(map(len, rows)) if by_token else len(rows)} {'tokens' if by_token else 'texts'}",
        difference=largest(*pair),
        tolerance=TOLERANCE,
        same=same,
        outputs=outputs,
    )


def load_theirs(run: Run, folder: Path, **options: Any) -> Any:
    """Load a folder by the class of transformers that its task has."""
    peer = import_peer("transformers")
    peer.logging.set_verbosity_error()
    peer.logging.disable_progress_bar()
    if lacks_pooler(folder):
        options["add_pooling_layer"] = False
    loaded = getattr(peer, AUTO[run.task.name]).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True, **options
    )
    model, info = loaded
    strange = {name: sorted(tensor_names) for name, tensor_names in info.items() if tensor_names}
    if strange:
        raise RunError(f"the export fails its check: transformers says of its tensors {strange}")
    return model.eval()


def lacks_pooler(folder: Path) -> bool:
    """Return whether a folder's class would make a random pooler, since the folder has none."""
    [named] = read_object(folder, "config.json")["architectures"]
    with Tensors(folder) as tensors:
        return named in POOLED and not any(map(is_pooler, tensors))


def forward(model: Any, samples: Samples) -> Tensor:
    """Return the logits of the samples by a model of ours."""
    if not samples.encoder:
        return model(samples.padded("decoder")[0])
    source, lengths = samples.padded("encoder")
    if not samples.decoder:
        return model(source, lengths=lengths)
    return model(source, samples.padded("decoder")[0], source_lengths=lengths)


def their_forward(run: Run, model: Any, samples: Samples) -> Tensor:
    rows = samples.encoder or samples.decoder
    tokens, lengths = samples.padded("encoder" if samples.encoder else "decoder")
    mask = (torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)).long()
    assert len(rows) == len(tokens)
    if not (samples.encoder and samples.decoder):
        outputs = model(input_ids=tokens, attention_mask=mask)
        return outputs.logits if "logits" in outputs else outputs.last_hidden_state
    target, _ = samples.padded("decoder")
    return model(input_ids=tokens, attention_mask=mask, decoder_input_ids=target).logits


def compare_greedy(run: Run, model: Any, samples: Samples) -> tuple[int, int]:
    """Return how many greedy outputs are the same, of how many."""
    if not samples.decoder:
        return 0, 0
    n_new, translates = count_new(run), run.model.encoder is not None
    special, frame = special_tokens(run), written_frame(run)
    rows = samples.encoder if translates else [row[: run.task.context - n_new] for row in samples.decoder]
    start = [*frame.before] if translates else []
    if translates and not start and special.start is not None:
        start = [special.start]
    rules = Rules(max_new=n_new, end=frame.ends or special.ends, never=frame.never)
    outputs = greedy_tokens(run.model, rows, rules, start=start if translates else None)
    ours = [[token for token in row if token not in rules.end] for row in outputs]
    theirs = []
    for row in rows:
        ids = torch.tensor([row])
        new = n_new + max(0, len(start) - 1)  # a token that is forced is one that it writes
        tokens = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, num_beams=1
        )[0].tolist()
        written = tokens[len(start) if translates else len(row) :]
        theirs.append(list(itertools.takewhile(lambda token: token not in rules.end, written)))
    return count_same(run, ours, theirs, TOLERANCE, sources=rows, start=start), len(ours)


def check_ids(run: Run, folder: Path, samples: Samples) -> None:
    """Raise RunError where AutoTokenizer gives another ids than the run's task does."""
    tokenizer = import_peer("transformers").AutoTokenizer.from_pretrained(folder)
    side = "encoder" if samples.encoder else "decoder"
    for row in samples.encoder or samples.decoder:
        text = run.tokenizer.decode(row[: max(1, run.task.context // 2)])  # with room for the special tokens around it
        if not text.strip():
            continue
        try:
            ours = run.task.trace_inputs(text).ids[side]
        except OptionError:
            continue  # drawn ids that are no characters are more tokens as text, and may be more than the model reads
        theirs = tokenizer(text)["input_ids"]
        if ours != theirs:
            raise RunError(
                f"the export fails its check: AutoTokenizer reads {text!r} as {theirs}, and the run as {ours}"
            )
