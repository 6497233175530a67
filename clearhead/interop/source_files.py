"""The files of a source folder: no file elsewhere is read, by a link, `..`, an absolute path or a shard's name."""

import os
from pathlib import Path

from clearhead.errors import OptionError
from clearhead.files import is_inside, is_plain_name


def file_in(home: Path, name: str) -> Path:
    """Return the path of a file in a source folder, there or not; OptionError where its name or a link leads out.

    A link may lead to another file of the folder, and in the cache of the Hugging Face hub to a blob of the same
    repository: `models--ORG--NAME/snapshots/COMMIT/config.json` is a link to `../../blobs/HASH`.
    """
    if not is_plain_name(name):
        raise OptionError(f"{home}: {name[:80]!r} is no name of a file in this folder, and no other is read")
    path = home / name
    if is_inside(home, path) or is_own_blob(home, path):
        return path
    raise OptionError(
        f"{path}: is a link that leads out of the folder, to {os.path.realpath(path)}, which is not read. If you trust "
        "it, put the file itself in its place"
    )


def is_own_blob(home: Path, path: Path) -> bool:
    """Return whether a folder is a snapshot in the hub's cache, and a path in it leads to a blob of its repository."""
    snapshot, place = Path(os.path.realpath(home)), Path(os.path.realpath(path))
    repository = snapshot.parent.parent
    is_snapshot = snapshot.parent.name == "snapshots" and repository.name.startswith("models--")
    return is_snapshot and place.parent == repository / "blobs"
