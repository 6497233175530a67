"""Pre-trained word vectors as a start: they fill the rows of a model's token tables whose words a file has."""

from collections.abc import Callable

import torch

from clearhead.errors import OptionError
from clearhead.model.embedding import TokenEmbedding
from clearhead.model.transformers import Transformer
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.vectors import WordVectors, read_vectors
from clearhead.training.tasks.base import Task


def start_from_vectors(model: Transformer, task: Task, path: str, log: Callable[[str], None]) -> None:
    """Copy the vectors of a file into the model's token tables, and log how many words were found.

    What enters the model for such a word is the file's vector itself, whatever factor the embedding has. Words that the
    file does not have keep their random start. A word is looked up as it is written, then in lower case.
    """
    tables = embeddings_of(model, task)
    words = {name: tokenizer.pieces(range(tokenizer.vocabulary)) for name, (_, tokenizer) in tables.items()}
    for name, (_, tokenizer) in tables.items():
        if tokenizer.kind != "word":
            raise OptionError(
                f"vectors: they are of words, and the tokens of the {name} are of kind {tokenizer.kind!r}; choose the "
                "tokeniser word"
            )
    spellings = {form for every in words.values() for word in every for form in (word, word.lower())}
    word_vectors = read_vectors(path, spellings)
    for name, (embedding, _) in tables.items():
        filled = fill(embedding, words[name], word_vectors)
        share = f"{filled:,} of {len(words[name]):,} words of the {name}"
        log(f"vectors: {share} are in {path}, which has {word_vectors.count:,}")


def embeddings_of(model: Transformer, task: Task) -> dict[str, tuple[TokenEmbedding, Tokenizer]]:
    """Return the embeddings that have a table of their own, and the tokenisers of what they read, by name."""
    if len(model.stacks) == 1:
        return {"text": (model.stacks[0].embedding, task.tokenizer)}
    source, target = (stack.embedding for stack in model.stacks)
    tables = {"source": (source, task.tokenizers["source"]), "target": (target, task.tokenizers["target"])}
    if source.table is target.table:
        return {"text": tables["target"]}
    return tables


@torch.no_grad()
def fill(embedding: TokenEmbedding, words: list[str], word_vectors: WordVectors) -> int:
    """Copy the vectors into the table's rows; return for how many words there was a vector."""
    width = embedding.table.shape[1]
    if word_vectors.size != width:
        raise OptionError(f"vectors: they have {word_vectors.size} numbers each, and the model is {width} wide")
    count = 0
    for row, word in enumerate(words):
        vector = word_vectors.vectors.get(word) or word_vectors.vectors.get(word.lower())
        if vector is not None:
            embedding.table[row] = torch.tensor(vector) / embedding.factor
            count += 1
    return count
