"""A run's token ids as files that other programs train on."""

from pathlib import Path

from clearhead.calls import public
from clearhead.errors import RunError
from clearhead.files import replacing_folder
from clearhead.text.token_files import FILES, FORMATS, TOKENIZER, check_format
from clearhead.training.folder import RunFolder
from clearhead.training.train import load_prepared


@public
def write_token_files(run: str | Path, path: str | Path, form: str) -> None:
    """Write the token ids that a run was trained on, to be read by another program: train.bin, val.bin, tokenizer.json.

    Args:
        run: Folder of a run that generates.
        path: Folder to write to; it must not be there yet.
        form: `nanogpt`, `llm.c` or `megatron`.

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
    check_format(prepared.train, form)
    with replacing_folder(home) as partial:
        for name, store in (("train", prepared.train), ("dev", prepared.dev)):
            FORMATS[form](store, partial / FILES[name])
        task.tokenizer.save(partial / TOKENIZER)
