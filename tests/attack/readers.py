"""Load a run again and again while another process trains it: once there is a checkpoint, every load must succeed."""

import shutil
from dataclasses import replace
from pathlib import Path

from clearhead.errors import ClearheadError
from clearhead.training.folder import RunFolder
from clearhead.training.run import load
from tests.attack import forking
from tests.attack.small import go_on, recipe_of
from tests.attack.table import Row, Tries, attack


@attack("readers", "loads of a run, again and again, while another process trains it")
def readers(home: Path, tries: Tries) -> Row:
    recipe = recipe_of(home)
    row, draw = Row(""), tries.draw()
    recipe = replace(
        recipe, checkpointing=replace(recipe.checkpointing, save=1, checkpoints=1), seed=draw.randrange(100)
    )
    while row.tried < (tries.count or (60 if tries.short else 300)):
        run = home / "read"
        child = forking.start(lambda run=run: go_on(run, recipe))
        loaded = False
        while not child.ended():
            if RunFolder(run).exists():
                loaded = load_once(row, run, loaded)
        if problem := child.wait().unclear():
            row.add(problem, "the run in training")
        shutil.rmtree(run)
    return row


def load_once(row: Row, run: Path, loaded: bool) -> bool:
    """Load a run; return whether it ever was loaded, after which a load may not fail."""
    try:
        load(run, device="cpu", log=lambda line: None)
    except ClearheadError as error:
        row.add(str(error) if loaded else "", f"load {row.tried}")
        return loaded
    except BaseException as error:
        row.add(f"{type(error).__name__}: {error}", f"load {row.tried}")
        return loaded
    row.add("", "")
    return True
