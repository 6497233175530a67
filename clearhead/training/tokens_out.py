"""A run's token ids as files that other programs train on."""

from pathlib import Path

from clearhead.calls import public
from clearhead.errors import RunError
from clearhead.files import replacing_folder
from clearhead.text.token_files import FORMATS, TOKENIZER, TokenSet, check_format
from clearhead.training.folder import RunFolder
from clearhead.training.train import load_prepared


@public
def write_token_files(run: str | Path, path: str | Path, form: str) -> None:
    """Write what a run was trained on for another program: `train`, `val` and tokenizer.json.

    Args:
        run: Folder of a run that generates.
        path: Folder to write to; it must not be there yet.
        form: `nanogpt`, `llm.c`, `megatron` or `mds` for token ids; `mds-text` or `nanochat` for the text of documents.

    Raises:
        OptionError: If the format is unknown, or the ids do not fit into it.
        RunError: If the folder is there already.

    >>> import clearhead as ch
    >>> ch.training.write_token_files("runs/poems", "tokens", "megatron")  # doctest: +SKIP
    """
    folder, home = RunFolder(Path(run)), Path(path)
    recipe, task = folder.recipe(), folder.task()
    if home.exists():
        raise RunError(f"{home}: is there already; choose another folder")
    prepared = load_prepared(folder.data, folder, recipe, task)
    check_format(prepared.train, task.tokenizer, form)
    with replacing_folder(home) as partial:
        for name, store in (("train", prepared.train), ("val", prepared.dev)):
            FORMATS[form](TokenSet(store, task.tokenizer, partial / name, recipe.batching.context))
        task.tokenizer.save(partial / TOKENIZER)
