"""Training: from text files to a run folder, and from a run folder to answers.

```
corpus = Corpus(train=Aligned(source=("train.de",), target=("train.en",)))
run = train("runs/de-en", default_recipe("translate", corpus))
run.translate(["zweiundvierzig"])
```
"""

from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned, Documents, Table
from clearhead.training.averaging import Ema, Last, Unaveraged
from clearhead.training.defaults import default_recipe
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe
from clearhead.training.run import Run, load
from clearhead.training.schedules import Constant, CosineDecay, InverseSqrt, WarmupStableDecay
from clearhead.training.train import resume, train

__all__ = [
    "Aligned",
    "Batching",
    "Budget",
    "Checkpointing",
    "Constant",
    "Corpus",
    "CosineDecay",
    "Documents",
    "Ema",
    "InverseSqrt",
    "Last",
    "Machine",
    "Optimizer",
    "Recipe",
    "Run",
    "Table",
    "Tokenizing",
    "Unaveraged",
    "WarmupStableDecay",
    "default_recipe",
    "load",
    "resume",
    "train",
]
