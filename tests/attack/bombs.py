"""Files made to take memory, time or secrets: each is refused by a sentence, at little cost, and nothing leaks.

A case runs in a child with a bound on memory. Its processor time and its memory, with those of the processes that it
has started, are compared with the bounds that docs/reliability.md promises.
"""

import gzip
import json
import os
import pickle
import random
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from clearhead import bounds
from clearhead.errors import ClearheadError
from clearhead.files import read_json, seal
from clearhead.interop.run import import_model
from clearhead.interop.tensor_files import read_archive
from clearhead.text import remote
from clearhead.text.lines import Problems
from clearhead.text.sources import Documents
from clearhead.text.table_readers import parquet_rows
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run import load
from tests.attack import forking
from tests.attack.servers import ENDLESS
from tests.attack.strangers import GROW
from tests.attack.table import Row, Tries, attack
from tests.interop import saved_models
from tests.text.shard_server import ShardServer
from tests.training.tiny import quiet

SECRET = "the password is swordfish"
CHILD = 4_000_000_000
"""Bytes that a case may map: a bound that is broken must not take the machine with it."""


def template(text: str) -> Callable[[Path], object]:
    return lambda home: ChatTemplate(text).render([{"role": "user", "content": "Hello"}])


def parquet(home: Path) -> None:
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(25_000, "int32")), pyarrow.array(["a" * 50_000]))
    parquet.write_table(pyarrow.table({"text": texts}), home / "bomb.parquet", compression="brotli", store_schema=False)
    for _ in parquet_rows(str(home / "bomb.parquet"), ("text",), Problems(skip=True)):
        pass


def tokenizer(home: Path, parts: int = 8) -> None:
    saved_models.save("bert", home / "source", rows=3)
    config = json.loads((home / "source" / "tokenizer.json").read_text(encoding="utf-8"))
    config["normalizer"] = {"type": "Sequence", "normalizers": [GROW] * parts}
    (home / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")
    Tokenizer.load(home / "tokenizer.json").encode("a")


def packed(home: Path) -> None:
    member = gzip.compress((b"the cat eats the plum " * 4_000 + b"\n") * 125, 1)
    (home / "t.txt.gz").write_bytes(member * 110)
    for _ in Documents(paths=(str(home / "t.txt.gz"),), unit="line").records(Problems(skip=True)):
        pass


def deep_json(home: Path) -> None:
    (home / "run.json").write_text("[" * 70 + "]" * 70, encoding="utf-8")
    read_json(home / "run.json")


def long_json(home: Path) -> None:
    (home / "run.json").write_bytes(b'"' + b"x" * 70_000_000 + b'"')
    read_json(home / "run.json")


def packed_archive(home: Path) -> None:
    with zipfile.ZipFile(home / "x.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data/0", bytes(300_000_000))
    read_archive(home / "x.bin")


class Opens:
    """What a pickle makes a file by, if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def pickled(home: Path) -> None:
    torch.save({"weight": torch.zeros(2), "x": Opens(home / "LEAKED")}, home / "x.bin")
    read_archive(home / "x.bin")


def endless_shard(home: Path, **headers: str) -> None:
    """Ask for a shard of a server that never ends: its length is not told, or was told as 100 bytes."""
    (home / "x.txt").write_bytes(b"x" * 100)
    os.environ |= {remote.FOLDER: str(home / "cache"), remote.GIGABYTES: "0.01"}
    web = ShardServer(home, {"/x.txt": ["endless"] * remote.TRIES})
    web.headers = {"/x.txt": (200, headers)} if headers else {}
    with web.serve() as address:
        try:
            remote.local_path(f"{address}/x.txt")
        finally:
            if web.sent > 100_000_000:
                raise RuntimeError(f"{web.sent:,} bytes were taken")


BOMBS: dict[str, tuple[Callable[[Path], object], float, float]] = {
    "a template that never ends": (template(ENDLESS), 8, 1.5),
    "a template with 100 MB of output": (template("{{ 'a' * 100000000 }}"), 8, 1.5),
    "a template that takes 1.5 GB": (template("{{ ('a' * 1500000000) | length }}"), 8, 1.3),
    "Parquet that unpacks to 1.2 GB": (parquet, 60, 3.0),
    "a tokenizer that makes 10^16 letters of one": (tokenizer, 40, 3.0),
    "a tokenizer that makes 10,000 letters of one": (lambda home: tokenizer(home, 2), 40, 3.0),
    "gzip that unpacks to more than 1 GB": (packed, 120, 2.0),
    "JSON that is nested 70 deep": (deep_json, 10, 2.0),
    "JSON of 70 MB": (long_json, 10, 2.0),
    "a compressed pytorch_model.bin": (packed_archive, 20, 2.0),
    "a pickle that makes a folder": (pickled, 10, 2.0),
    "a web server without an end": (lambda home: endless_shard(home, ETag="1"), 10, 2.0),
    "a web server that sends more than it said": (endless_shard, 10, 2.0),
}
"""What is made and read, and the seconds of processor time and GB that it may take."""


def cost(work: Callable[[Path], object], home: Path) -> list[object]:
    """Do the work; return its error, and the seconds and GB that it and its processes took."""
    told = ""
    try:
        work(home)
    except ClearheadError as error:
        told = str(error)
    bounds.end_idle()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [told, sum(one.ru_utime + one.ru_stime for one in used), max(one.ru_maxrss for one in used) / 1e6]


@attack(
    "bombs", "files that never end, unpack to gigabytes, nest deeply or hold a pickle: one sentence, within the bounds"
)
def bombs(home: Path, tries: Tries) -> Row:
    def case(name: str, draw: random.Random) -> str:
        (home / "bomb").mkdir()
        work, most_seconds, most_memory = BOMBS[name]
        ended = forking.run(lambda: cost(work, home / "bomb"), memory=CHILD, seconds=10 * most_seconds + 30)
        leaked = (home / "bomb" / "LEAKED").exists()
        shutil.rmtree(home / "bomb")
        if ended.value is None:
            return ended.unclear() or f"ended with {ended.code}: {ended.err[-300:]}"
        told, seconds, memory = ended.value
        if leaked or not told or len(told) > 1000:
            return "it ran code" if leaked else f"it is not refused by a sentence: {told[:200]!r}"
        if seconds > most_seconds or memory > most_memory:
            return f"{seconds:.1f} s and {memory:.1f} GB; {most_seconds} and {most_memory} are the bounds"
        return ""

    return tries.each([*BOMBS], case, short=len(BOMBS))


def link_out(source: Path, secret: Path) -> None:
    (source / "chat_template.jinja").unlink(missing_ok=True)
    (source / "chat_template.jinja").symlink_to(secret)


def shard(name: str) -> Callable[[Path, Path], None]:
    def change(source: Path, secret: Path) -> None:
        tensors = load_file(source / "model.safetensors")
        (source / "model.safetensors").rename(secret.parent / "shard.safetensors")
        save_file({**tensors}, secret.parent / "shard.safetensors")
        index = {"weight_map": dict.fromkeys(tensors, name.format(home=secret.parent))}
        (source / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    return change


LEAKS: dict[str, Callable[[Path, Path], None]] = {
    "a link to a secret": link_out,
    "a shard above the folder": shard("../shard.safetensors"),
    "a shard by an absolute path": shard("{home}/shard.safetensors"),
}


@attack(
    "leaks", "an import whose links, shards or names lead to a file elsewhere: refused, and none of it is in the run"
)
def leaks(home: Path, tries: Tries) -> Row:
    forking.run(lambda: bool(saved_models.save("llama", home / "model", rows=3)))

    def case(name: str, draw: random.Random) -> str:
        place = home / "case"
        shutil.copytree(home / "model", place / "source")
        (place / "secret").write_text("{{ '" + SECRET + "' }}", encoding="utf-8")
        LEAKS[name](place / "source", place / "secret")
        ended = forking.run(lambda: cost(lambda where: import_model(where / "source", where / "run", log=quiet), place))
        told = ended.value[0] if ended.value else ended.err
        taken = [path for path in (place / "run").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        shutil.rmtree(place)
        if taken:
            return f"the secret is in {[path.name for path in taken]}"
        return "" if "leads out" in told or "is no name of a file" in told else f"it is read: {told[-200:]}"

    row = tries.each([*LEAKS], case, short=len(LEAKS))
    row.add(linked_tokenizer(home / "linked"), "a run whose tokenizer is a link")
    row.add(redirected_shard(home / "web"), "a shard that is redirected to a file")
    return row


def linked_tokenizer(home: Path) -> str:
    """Load a run whose description has no checksums, as of old, and whose tokenizer is a link out of it."""
    from tests.attack.small import make, recipe_of

    home.mkdir()
    run = make(home / "run", recipe_of(home, "fill"))
    shutil.move(run / "tokenizer.json", home / "elsewhere.json")
    (run / "tokenizer.json").symlink_to(home / "elsewhere.json")
    description = json.loads((run / "model.json").read_text(encoding="utf-8"))
    del description["sha256"]
    (run / "model.json").write_text(json.dumps(seal(description)), encoding="utf-8")
    ended = forking.run(lambda: cost(lambda where: load(where, device="cpu", log=quiet), run))
    told = ended.value[0] if ended.value else ended.err
    return "" if "leads out" in told else f"it is read: {told[-200:]}"


def redirected_shard(home: Path) -> str:
    """Ask for a shard of a server that leads to a file of this machine."""
    home.mkdir()
    (home / "secret.txt").write_text(SECRET, encoding="utf-8")

    def work() -> str:
        os.environ[remote.FOLDER] = str(home / "cache")
        web = ShardServer(home)
        web.headers = {"/x.txt": (302, {"Location": f"file://{home}/secret.txt"})}
        with web.serve() as address:
            try:
                return Path(remote.local_path(f"{address}/x.txt")).read_text(encoding="utf-8")
            except ClearheadError as error:
                return str(error)

    ended = forking.run(work)
    return "" if "no such file" in str(ended.value) else f"it is read: {ended.value or ended.err[-200:]}"
