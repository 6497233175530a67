"""Strangers' files in every format that is read: damaged, or made to take memory and time; in batches, each in a child.

Each gives a whole import, or one sentence. The child may map MEMORY bytes more than it has, and each file may take
SECONDS; what is not the batch's own is in bounded processes (clearhead/bounds.py), which have their own bounds.
"""

import functools
import gzip
import io
import json
import random
import resource
import shutil
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from clearhead.circuits import Circuit, Graph, read_circuit, write_circuit
from clearhead.errors import ClearheadError
from clearhead.exercises.lesson import find_lesson, lesson_tags
from clearhead.exercises.progress import Attempts, LearnProgress, hand_in, read_progress, write_progress
from clearhead.experiments.tracing import trace
from clearhead.interop.run import import_model
from clearhead.interop.tensor_files import Tensors, read_archive
from clearhead.model.presets import gpt2
from clearhead.text.lines import Problems
from clearhead.text.sources import Documents, Table
from clearhead.text.table_readers import parquet_rows
from clearhead.text.templates import ChatTemplate
from clearhead.text.tokenizer import Tokenizer
from clearhead.text.vectors import read_vectors, vector_size
from clearhead.training.run import load
from tests.attack import changing, forking
from tests.attack.table import Row, Tries, attack
from tests.interop import saved_models

MEMORY, SECONDS, LONGEST = 3_000_000_000, 60, 3_000
"""What a file may take in the process that reads it, and how long its error may be."""
CIRCUITS = ("c.graphml", "c.mib.json", "c.neuronpedia.json")
NAMES = ("llama", "bert", "marian")
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors")
GROW = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
PARTS = (
    GROW,
    {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 50},
    {"type": "Prepend", "prepend": "▁" * 40},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": "(?:[a-z]|[a-y])*!"}, "behavior": "Removed", "invert": True},
    *({"type": name} for name in ("NFKD", "Lowercase", "ByteLevel", "Whitespace", "Fuse", "StripAccents", "nothing")),
)
TEMPLATES = (
    *("{{ messages }}", "{% for m in messages %}", "{{ m.content }}", "{% endfor %}", "{% endif %}", "{{ bos_token }}"),
    *("{% for a in range(99999) %}", "{% if messages %}", "{{ 'a' * 30000000 }}", "{{ 'a' * 3000000000 }}", "{{ (("),
    *("{{ messages | tojson(indent=9999) }}", "{% set x = 'a' * 999999 %}", "{{ x * 999 }}", "{{ 9 ** 99999999 }}"),
    *("{{ ''.__class__.__mro__ }}", "{% include 'x' %}", "{{ raise_exception('no') }}", "{{ 'x'.center(10 ** 10) }}"),
    *("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "\x00", "{#"),
)


def change_header(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file with a header changed, and its length made to fit or not."""
    size = int.from_bytes(data[:8], "little")
    header, _ = changing.change_json(data[8 : 8 + size], draw)
    length = len(header) if draw.random() < 0.8 else draw.choice([0, 1, 2**40, 2**63, len(header) + 9])
    return length.to_bytes(8, "little") + header + data[8 + size :]


def change(data: bytes, draw: random.Random) -> bytes:
    """A file changed in one to three ways: of safetensors the header, too."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        header = data[8:9] == b"{" and draw.random() < 0.5
        data = change_header(data, draw) if header else changing.change(data, draw)[0]
    return data


def through_import(sources: Path, home: Path, draw: random.Random) -> str:
    """Import a folder that is not as it was saved. What can be read all the same may be imported."""
    name = draw.choice(NAMES)
    shutil.copytree(sources / name, home / "source")
    file = draw.choice([file for file in FILES if (home / "source" / file).exists()])
    path = home / "source" / file
    data = change(path.read_bytes(), draw)
    path.unlink() if draw.random() < 0.05 else path.write_bytes(data)
    dtype = draw.choice(("float32", "bfloat16", "int8"))
    try:
        found = import_model(home / "source", home / "run", dtype=dtype, device="cpu", log=lambda line: None)
    except ClearheadError:
        left = sorted(one.name for one in home.iterdir())
        if left != ["source"]:
            return f"it left {left}"
        raise
    trace(load(found.folder.path, device="cpu"), "the cat <mask>", "ein" if found.task.target == "writes" else None)
    return ""


def through_gguf(sources: Path, home: Path, draw: random.Random) -> str:
    (home / "m.gguf").write_bytes(change((sources / "m.gguf").read_bytes(), draw))
    import_model(home / "m.gguf", home / "run", device="cpu", log=lambda line: None)
    return ""


def through_archive(sources: Path, home: Path, draw: random.Random) -> str:
    (home / "x.bin").write_bytes(change((sources / "x.bin").read_bytes(), draw))
    sum(float(tensor.float().sum()) for tensor in read_archive(home / "x.bin").values())
    return ""


def through_index(sources: Path, home: Path, draw: random.Random) -> str:
    shutil.copytree(sources / "shards", home / "shards")
    path = home / "shards" / draw.choice(("model.safetensors.index.json", "a.safetensors"))
    path.write_bytes(change(path.read_bytes(), draw))
    with Tensors(home / "shards") as found:
        sum(float(found[name].float().sum()) for name in found)
    return ""


def through_tokenizer_file(sources: Path, home: Path, draw: random.Random) -> str:
    data = (sources / draw.choice(NAMES) / "tokenizer.json").read_bytes()
    config = json.loads(data)
    if draw.random() < 0.7:
        role, inner = draw.choice(
            (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders"))
        )
        parts = draw.choices(PARTS, k=draw.choice((1, 2, 8, 30)))
        config[role] = parts[0] if len(parts) == 1 else {"type": "Sequence", inner: parts}
        data = json.dumps(config).encode()
    if draw.random() < 0.6:
        data = change(data, draw)
    (home / "tokenizer.json").write_bytes(data)
    tokenizer = Tokenizer.load(home / "tokenizer.json")
    tokenizer.decode(tokenizer.encode("the cat eats " * 5))
    return ""


def through_template(sources: Path, home: Path, draw: random.Random) -> str:
    template = ChatTemplate("".join(draw.choices(TEMPLATES, k=draw.randint(1, 6))))
    template.check("chat_template.jinja")
    template.render([{"role": "user", "content": "Hello"}])
    return ""


def through_parquet(sources: Path, home: Path, draw: random.Random) -> str:
    path = home / "t.parquet"
    path.write_bytes(change((sources / draw.choice(("t.parquet", "bomb.parquet"))).read_bytes(), draw))
    for _ in parquet_rows(str(path), ("text",), Problems(skip=True)):
        pass
    return ""


def through_texts(sources: Path, home: Path, draw: random.Random) -> str:
    """Lines, tables and vectors, packed or not; one in four is a long run of one character."""
    good = (b"cat 1 2\n", b'{"text": "a", "label": "b"}\n', b"text,label\n", b'a,"b\n', b"9" * 6000 + b" 3\n", b"2 2\n")
    data = b"".join(draw.choices(good, k=draw.randint(1, 40)))
    if draw.random() < 0.25:
        data += draw.choice((b"[", b"{", b'"', b" ", b"a,", b"\0")) * draw.choice((5_000, 3_000_000))
    packed = draw.random() < 0.5
    data = gzip.compress(data, 1) if packed else data
    path = home / f"t.{draw.choice(('csv', 'jsonl', 'tsv', 'txt'))}"
    path.write_bytes(change(data, draw) if draw.random() < 0.7 else data)
    match draw.randrange(3):
        case 0:
            read_vectors(str(path), ["cat"])
            vector_size(str(path))
        case 1 if path.suffix != ".txt":
            table = Table(paths=(str(path),), columns=("text",), fields=("text",))
            sum(1 for _ in table.records(Problems(skip=True)))
        case _:
            documents = Documents(paths=(str(path),), unit=draw.choice(("line", "file")))
            sum(1 for _ in documents.records(Problems(skip=True)))
    return ""


def through_circuits(sources: Path, home: Path, draw: random.Random) -> str:
    """A circuit, a lesson, or what a pupil has solved; half of them with one value of their JSON changed."""
    name = draw.choice((*CIRCUITS, "lesson.md", "learn.json"))
    (home / name).write_bytes(change((sources / name).read_bytes(), draw))
    if name == "learn.json":
        str(hand_in(read_progress(home), "Ada"))
    elif name == "lesson.md":
        tags = lesson_tags(find_lesson(str(home / name)))
        return "it writes tags into the page" if tags.count("<") != tags_of_a_lesson().count("<") else ""
    else:
        found = read_circuit(small_graph(), home / name)
        write_circuit(found, home / f"again-{name}", tokens=["a"])
    return ""


@functools.cache
def small_graph() -> Graph:
    return Graph(gpt2("tiny", vocabulary=20).build().eval())


@functools.cache
def tags_of_a_lesson() -> str:
    return lesson_tags(find_lesson("attention"))


def save_small_files(home: Path) -> None:
    graph = small_graph()
    chosen = torch.arange(len(graph.edges)) < 30
    circuit = Circuit(graph=graph, scores=torch.ones(1, len(graph.edges)), chosen=chosen)
    for name in CIRCUITS:
        write_circuit(circuit, home / name, tokens=["a", "b"])
    records = {"dot-product": Attempts(tries=2, hints=1, begun=1.0, solved=100.0), "softmax": Attempts(tries=1)}
    write_progress(home, LearnProgress(records=records))
    (home / "lesson.md").write_bytes((files("clearhead.exercises") / "lessons" / "attention.md").read_bytes())


WAYS: dict[str, tuple[Callable[[Path, Path, random.Random], str], int]] = {
    "model folders": (through_import, 2_000),
    "GGUF files": (through_gguf, 3_000),
    "pytorch_model.bin": (through_archive, 3_000),
    "indices and shards": (through_index, 2_000),
    "tokenizer.json": (through_tokenizer_file, 3_500),
    "chat templates": (through_template, 500),
    "Parquet": (through_parquet, 2_000),
    "texts, gzip, tables and vectors": (through_texts, 4_000),
    "circuits, lessons and progress": (through_circuits, 2_000),
}
"""What reads the files of a format, and how many: 22,000 in all."""


def save_sources(home: Path) -> Path:
    """Save a right file of each format."""
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    from clearhead.interop.export import export

    for name in NAMES:
        saved_models.save(name, home / name, rows=3)
    save_small_files(home)
    tensors = load_file(home / "llama" / "model.safetensors")
    torch.save(tensors, home / "x.bin")
    (home / "shards").mkdir()
    for shard in "ab":
        save_file(tensors, home / "shards" / f"{shard}.safetensors")
    file_of = {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(tensors)}
    (home / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    saved_models.save("gpt2", home / "gpt2", rows=3)
    run = import_model(home / "gpt2", home / "run", device="cpu", log=lambda line: None)
    export(run, to="gguf", path=home / "gguf")
    shutil.copy(next((home / "gguf").glob("*.gguf")), home / "m.gguf")
    rows = pyarrow.table({"text": [f"line {i}" for i in range(500)], "label": ["a"] * 500})
    parquet.write_table(rows, home / "t.parquet", row_group_size=100)
    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(20_000, "int32")), pyarrow.array(["a" * 900_000])
    )
    bomb = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": texts}), bomb, compression="brotli", store_schema=False)
    (home / "bomb.parquet").write_bytes(bomb.getvalue())
    return home


def attempt(sources: Path, home: Path, name: str, seed: str) -> str:
    """Read one file; return what is wrong with how that ended, or ""."""
    home.mkdir()
    since, refused = time.perf_counter(), False
    try:
        problem = WAYS[name][0](sources, home, random.Random(seed))
    except ClearheadError as error:
        refused = True
        problem = f"an error of {len(str(error)):,} characters" if len(str(error)) > LONGEST else ""
    except BaseException as error:
        problem = f"{type(error).__name__}: {error!s:.200}"
    finally:
        shutil.rmtree(home)
    seconds = time.perf_counter() - since
    with (sources / "seconds").open("a") as file:
        file.write(f"{seconds:.2f} {refused:d}\n")
    return problem or (f"took {seconds:.0f} s" if seconds > SECONDS else "")


def attack_way(name: str, full: int) -> None:
    """Put the attack by one format into the table."""

    def strangers(home: Path, tries: Tries) -> Row:
        sources = home / "sources"
        forking.run(lambda: bool(save_sources(sources)))  # in a child: threads of a library would not survive a fork
        case = lambda i, draw: attempt(sources, home / f"{i}", name, str(draw.random()))  # noqa: E731
        row = tries.batches(case, full=full, short=max(10, full // 400), memory=MEMORY)
        seconds, refused = zip(*(line.split() for line in (sources / "seconds").read_text().splitlines()), strict=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        most = max(map(float, seconds))
        row.note = f"{refused.count('1'):,} refused; at most {most:.1f} s a file, and {peak:.1f} GB in a process"
        return row

    attack(
        f"strangers-{name.split(maxsplit=1)[0].strip(',').lower()}",
        f"strangers' files, damaged or made to take memory and time: {name}",
    )(strangers)


for each, (_, often) in WAYS.items():
    attack_way(each, often)
