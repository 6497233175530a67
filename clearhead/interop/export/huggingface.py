"""Hugging Face: a folder that `AutoModel…from_pretrained` and `AutoTokenizer` open with no code of ours.

Which class expresses a model is asked of each architecture in turn (`clearhead.interop.architectures`).
"""

import importlib.util
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from clearhead.attention.positions import Sinusoidal
from clearhead.errors import ClearheadError, OptionError, RunError
from clearhead.extras import import_peer, peer_version
from clearhead.files import write_text
from clearhead.interop.architectures import ARCHITECTURES, Architecture
from clearhead.interop.export.base import chat_of, spec_of, task_written_as
from clearhead.interop.export.format import Format, Peer, forward
from clearhead.interop.export.samples import (
    OutputTokens,
    Samples,
    special_ids,
    special_tokens,
    token_names,
    written_frame,
)
from clearhead.interop.huggingface import is_pooler, read_hugging_face, read_pooler
from clearhead.interop.tables import Config, gather
from clearhead.interop.tensor_files import Tensors, read_object
from clearhead.model.int8 import count_weights
from clearhead.model.sizes import Spec
from clearhead.model.transformers import DecoderSpec, EncoderSpec
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.recipe import Origin
from clearhead.training.run import Run

SPECIALS = {"unk_token": "unknown", "bos_token": "start", "eos_token": "end", "pad_token": "pad", "mask_token": "mask"}
"""What Hugging Face calls the special tokens, and what they are called here."""


class Expression(NamedTuple):
    """A model as an architecture says it."""

    architecture: Architecture
    config: dict[str, Any]
    spec: Spec
    """The model, or one with a part more that changes nothing where it is zeros."""
    reordered: bool = False
    """Whether its vectors are written with the even entries before the odd ones, so that sines come before cosines."""

    @property
    def class_name(self) -> str:
        return str(self.config["architectures"][0])


class HuggingFace(Format):
    """config.json, model.safetensors, tokenizer.json and what belongs to them, with a model card."""

    name = "hf"
    about = "Hugging Face transformers: the models that one of its classes expresses"
    packages = ("transformers",)

    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        if len(set(tokenizers)) > 1:
            return ["class with a tokeniser each for source and target"]
        expressed = express(spec, task, context=2048)
        return [] if isinstance(expressed, Expression) else [f"class for this model: {reason}" for reason in expressed]

    def write(self, run: Run, folder: Path, quantization: str) -> None:
        run = with_single_texts(run)
        if len({tokenizer.fingerprint() for tokenizer in run.task.tokenizers.values()}) > 1:
            raise OptionError("hf: source and target have a tokeniser each, and a folder of Hugging Face's has one")
        expression = express(spec_of(run), run.task.name, run.task.context, first=architecture_of(run))
        if not isinstance(expression, Expression):
            raise OptionError(f"no class of Hugging Face's expresses this model: {'; '.join(expression)}")
        # What the architecture says comes last: RoBERTa begins its positions after its padding token.
        config = token_ids(run) | expression.config | labels_of(run) | {"dtype": "float32"}
        tensors = their_tensors(run.model, expression)
        if task_written_as(run.task.name) == "embed":  # a bare model's names have no prefix
            tensors = {name.removeprefix(expression.architecture.prefix): tensor for name, tensor in tensors.items()}
            tensors |= read_pooler(run.folder.path, expression.spec.d_model) if expression.spec.decoder is None else {}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(folder / "config.json", config)
        write_json(folder / "generation_config.json", token_ids(run) | decoding_rules(run))
        write_json(folder / "tokenizer_config.json", tokenizer_config(run))
        write_text(folder / "tokenizer.json", framed_tokenizer(run))
        if chat := chat_of(run):
            write_text(folder / "chat_template.jinja", chat.text)
        write_text(folder / "README.md", model_card(run, expression.class_name, pooler=any(map(is_pooler, tensors))))

    def open(self, run: Run, folder: Path, quantization: str) -> Peer:
        """Open it with transformers; where that is not installed, by our own reader, which computes logits alone."""
        installed = importlib.util.find_spec("transformers") is not None
        return (TransformersPeer if installed else OwnReader)(with_single_texts(run), folder)


def with_single_texts(run: Run) -> Run:
    """Return a run that classifies pairs as one that classifies texts: its tokenizer.json says how two are joined."""
    return Run(run.folder, run.task.exported(), run.model, run.step)


def architecture_of(run: Run) -> str | None:
    """Return the `model_type` that an imported run came with; None for one that was trained here."""
    origin = run.folder.origin() if run.folder.recipe_file.exists() else None
    return origin.architecture if isinstance(origin, Origin) else None


def express(spec: Spec, task: str, context: int, *, first: str | None = None) -> Expression | list[str]:
    """Return how the first architecture that can says a model; where none can, why each cannot.

    `first` is the one that is asked before the others: that of an imported model, so that it goes back as it came.
    """
    task = task_written_as(task)
    reasons: dict[str, dict[str, None]] = {}
    for architecture in sorted(ARCHITECTURES.values(), key=lambda candidate: candidate.model_type != first):
        if task not in architecture.classes.values():
            continue
        for tried in dict.fromkeys((spec, sines_first(spec), with_segment(spec))):
            try:
                config = architecture.config_of(tried, context=context)
            except OptionError as error:
                name, _, reason = str(error).partition(" cannot say ")
                reasons.setdefault(reason, {})[name] = None
                continue
            if Config(config, "config.json").task(architecture.classes) == task:
                return Expression(architecture, config, tried, reordered=tried == sines_first(spec) != spec)
    messages = [f"{', '.join(names)} cannot say {reason}" for reason, names in reasons.items()]
    return messages or [f"none is there to {task}"]


def sines_first(spec: Spec) -> Spec:
    """Return an encoder-decoder with sines before cosines, where it has them side by side: the same up to an order."""
    if spec.encoder is None or spec.decoder is None:
        return spec
    sides = [with_halves(side) for side in (spec.encoder, spec.decoder)]
    changed = [side != old for side, old in zip(sides, (spec.encoder, spec.decoder), strict=True)]
    return replace(spec, encoder=cast(Any, sides[0]), decoder=cast(Any, sides[1])) if all(changed) else spec


def with_segment(spec: Spec) -> Spec:
    """Return an encoder with one segment, whose vector is to be zeros, where it has none: BERT has one at least."""
    if spec.decoder is not None or spec.embedding.segments is not None:
        return spec
    return replace(spec, embedding=replace(spec.embedding, segments=1))


def with_halves(side: EncoderSpec | DecoderSpec) -> EncoderSpec | DecoderSpec:
    position = side.embedding.position
    if not isinstance(position, Sinusoidal):
        return side
    return replace(side, embedding=replace(side.embedding, position=replace(position, layout="halves")))


INPUTS = ("embedding.table", "output.table", "linear.weight", "up.weight", "gate.weight")
OUTPUTS = ("output.weight", "output.bias", "down.weight", "down.bias", ".gamma", ".beta")
"""How the names of tensors end whose columns, and whose rows, are entries of the model's vectors."""


def reorder(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor of an encoder-decoder with the even entries of the model's vectors before the odd ones.

    Maps, norms and products do not see in which order the entries are. Only the sinusoids do.
    """
    axis = 1 if name.endswith(INPUTS) else 0 if name.endswith(OUTPUTS) else None
    if axis is None:
        return tensor
    n = tensor.shape[axis]
    return tensor.index_select(axis, torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)]))


@torch.no_grad()
def their_tensors(model: nn.Module, expression: Expression) -> dict[str, Tensor]:
    """Return the tensors by their names, each a copy in float32; a bias that the model lacks is zeros."""
    ours = {name: parameter.float().cpu() for name, parameter in model.named_parameters(remove_duplicate=False)}
    if expression.reordered:
        ours = {name: reorder(name, tensor) for name, tensor in ours.items()}
    if "embedding.segment" not in ours and expression.spec.decoder is None and expression.spec.embedding.segments:
        ours["embedding.segment"] = torch.zeros(expression.spec.embedding.segments, expression.spec.d_model)
    config = Config(expression.config, "config.json")
    copies = expression.architecture.copies(config)
    tensors = gather(ours, expression.architecture.rows(config))
    if expression.architecture.values is not None and expression.architecture.saves_values:
        tensors |= expression.architecture.values(config)
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items() if name not in copies}


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def token_ids(run: Run) -> dict[str, Any]:
    """Return the ids that config.json and generation_config.json have of special tokens."""
    special, bos = special_tokens(run), run.tokenizer.start
    settings: dict[str, Any] = {
        "bos_token_id": bos if bos >= 0 else None,
        "eos_token_id": special.end,
        "pad_token_id": special.pad,
    }
    if len(ends := written_frame(run).ends) > 1:
        settings["eos_token_id"] = list(ends)
    if len(run.model.stacks) > 1:
        settings["decoder_start_token_id"] = special.start
    return settings


def decoding_rules(run: Run) -> dict[str, Any]:
    """Return what an imported model brought for its decoding: a token that outputs begin with, those never written."""
    frame, settings = written_frame(run), dict[str, Any]()
    if len(run.model.stacks) > 1 and len(frame.before) > 1:
        settings["forced_bos_token_id"] = frame.before[1]
    if frame.never:
        settings["bad_words_ids"] = [[token_id] for token_id in frame.never]
    return settings


def labels_of(run: Run) -> dict[str, Any]:
    labels = run.task.labels
    if not labels:
        return {}
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def tokenizer_config(run: Run) -> dict[str, Any]:
    names = token_names(run.tokenizer)
    ids = special_ids(run.tokenizer)
    special = {theirs: names[token_id] for theirs, ours in SPECIALS.items() if (token_id := ids[ours]) is not None}
    if run.model.decoder is None:  # what stands around a text has names of its own there
        before, after = frame_of(run)
        special |= {"cls_token": names[before[0]]} if before else {}
        special |= {"sep_token": names[after[-1]]} if after else {}
    # Without this the tokenizer keeps the segments of a pair to itself, and the model takes both texts for the first.
    inputs = (
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if run.task.frame().segment else {}
    )
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.task.context,
        "clean_up_tokenization_spaces": False,
        "padding_side": "right",
        **inputs,
        **special,
    }


def framed_tokenizer(run: Run) -> str:
    """Return the tokenizer.json with the special tokens that the run's task puts around a text.

    One that does so by itself, as an imported one mostly does, is left as it is.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers.processors import TemplateProcessing

    before, after = frame_of(run)
    framed = Library.from_str(run.tokenizer.to_json())
    if not reads_alike(framed, run):
        names = token_names(run.tokenizer)
        single = [*(names[i] for i in before), "$A", *(names[i] for i in after)]
        special = [(names[i], i) for i in dict.fromkeys((*before, *after, *run.task.frame().between))]
        framed.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            single=" ".join(single), pair=pair_template(run, names), special_tokens=special
        )
    return framed.to_str(pretty=True)


def reads_alike(tokenizer: Any, run: Run) -> bool:
    """Return whether a tokenizer of the library puts around a text, and around two, what the run's task does."""
    (before, after), text, frame = frame_of(run), find_probe(run.tokenizer), run.task.frame()
    ids = run.tokenizer.encode(text)
    if tokenizer.encode(text).ids != [*before, *ids, *after]:
        return False
    if not frame.between:
        return True
    pair = tokenizer.encode(text, text)
    first = [*before, *ids, *frame.between]
    segments = [0] * len(first) + [frame.segment] * len([*ids, *after])
    return (pair.ids, pair.type_ids) == ([*first, *ids, *after], segments)


def pair_template(run: Run, names: Sequence[str]) -> str | None:
    """Return how two texts become one row, each piece with its segment; None for a run that reads no pairs."""
    frame = run.task.frame()
    if not frame.between:
        return None
    first = [f"{names[i]}:0" for i in (*frame.before, *frame.opening)]
    between = [f"{names[i]}:0" for i in frame.between]
    last = [f"{names[i]}:{frame.segment}" for i in frame.after]
    return " ".join([*first, "$A:0", *between, f"$B:{frame.segment}", *last])


def frame_of(run: Run) -> tuple[list[int], list[int]]:
    """Return the ids that the task puts before and after the ids of a text."""
    text = find_probe(run.tokenizer)
    ids, inputs = run.tokenizer.encode(text), run.task.trace_inputs(text).ids
    row = inputs["encoder"] if "encoder" in inputs else inputs["decoder"]
    start = next(i for i in range(len(row)) if row[i : i + len(ids)] == ids)
    return row[:start], row[start + len(ids) :]


def find_probe(tokenizer: Tokenizer) -> str:
    """Return a text that is encoded to a token at least."""
    probes = itertools.chain(("a", "1"), (tokenizer.decode([i]) for i in range(tokenizer.vocabulary)))
    return next(text for text in probes if tokenizer.encode(text))


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


class OwnReader(Peer):
    """The folder as it is imported here."""

    name = "clearhead's own reader, since transformers is not installed,"

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run)
        self.read = read_hugging_face(folder).model

    def theirs(self, samples: Samples) -> list[Tensor]:
        return samples.split(forward(self.read, samples))


class TransformersPeer(Peer):
    """The folder as transformers opens it, with the ids that its tokenizer gives."""

    def __init__(self, run: Run, folder: Path) -> None:
        super().__init__(run)
        self.folder, self.name, self.opened = folder, peer_version("transformers"), load_theirs(run, folder)

    def theirs(self, samples: Samples) -> list[Tensor]:
        check_ids(self.run, self.folder, samples)
        tokens, lengths = samples.padded("encoder" if samples.encoder else "decoder")
        inputs = {"input_ids": tokens, "attention_mask": (torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)).long()}
        if samples.encoder and samples.decoder:
            inputs["decoder_input_ids"], _ = samples.padded("decoder")
        outputs = self.opened(**inputs)
        return samples.split(outputs.logits if "logits" in outputs else outputs.last_hidden_state)

    def greedy(self, rows: Sequence[list[int]], written: OutputTokens, n_new: int) -> list[list[int]]:
        translates, found = self.run.model.encoder is not None, list[list[int]]()
        for row in rows:
            ids, begun = torch.tensor([row]), written.before if translates else row
            new = n_new + max(0, len(written.before) - 1)  # a token that is forced is one that it writes
            tokens = self.opened.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, num_beams=1
            )
            found.append(tokens[0].tolist()[len(begun) :])
        return found


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
