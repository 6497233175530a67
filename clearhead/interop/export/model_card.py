"""The model card of an export: README.md of a Hugging Face folder."""

import json

from clearhead.errors import ClearheadError
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
