"""Training: from text files to a run folder, and from a run folder to answers.

```
corpus = Corpus(train=Aligned(source=("train.de",), target=("train.en",)))
run = train("runs/de-en", default_recipe("translate", corpus))
run.translate(["zweiundvierzig"])
```
"""

from clearhead.model.variants import map_attention, with_parts
from clearhead.serialization import to_json
from clearhead.text.encoding import Corpus
from clearhead.text.filtering import LengthFilter, QualityFilter, TextFilter
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.text.token_files import TokenFiles
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import tasks
from clearhead.training.classified import ClassifierFilter
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.reporting import TensorBoard
from clearhead.training.resume import resume
from clearhead.training.run import Run, load
from clearhead.training.schedules import Constant, CosineDecay, Ema, InverseSqrt, Last, Unaveraged, WarmupStableDecay
from clearhead.training.tasks import default_recipe
from clearhead.training.tokens_out import write_token_files
from clearhead.training.train import train

__all__ = [
    "Aligned",
    "Batching",
    "Budget",
    "Checkpointing",
    "ClassifierFilter",
    "Constant",
    "Corpus",
    "CosineDecay",
    "Documents",
    "Ema",
    "InverseSqrt",
    "Last",
    "LengthFilter",
    "Machine",
    "Optimizer",
    "QualityFilter",
    "Recipe",
    "Run",
    "Table",
    "TensorBoard",
    "TextFilter",
    "TokenFiles",
    "Tokenizer",
    "Tokenizing",
    "Unaveraged",
    "WarmupStableDecay",
    "default_recipe",
    "load",
    "map_attention",
    "resume",
    "tasks",
    "to_json",
    "train",
    "with_parts",
    "write_token_files",
]
