"""Make corpora from what a Debian machine has: package descriptions, manuals, message catalogues and docstrings.

Nobody tuned on them. Tables have a header and the columns `text` and `label`. All records of a source package or manual
are on one side of the split, and so are the messages of a catalogue that begin alike.

    python benchmarks/budget_texts.py carried/texts
    python benchmarks/budget_texts.py carried/texts --lines

- `sections-*.tsv`: one-line descriptions of packages, and the section of the archive (some 57 labels)
- `roles-*.tsv`: the same descriptions, and the package's `role::` tag, by Debian's volunteers
- `whatis-*.tsv`: the line in which a manual says what it is about, and the manual's section
- `catalogues-*.en`, `.de`: messages of programs and their translation
- `manuals-*.txt`, `docstrings-*.txt`: text for language models

With `--lines` the texts are there, and `lines.json` gets what simple models score on the test texts: scikit-learn's
linear SVM on word pairs and letters for labels, a byte 7-gram with Kneser–Ney for text, and for messages a translation
memory, which answers with the translation of the most similar message (tf-idf of letters).
"""

import argparse
import ast
import contextlib
import gzip
import hashlib
import json
import re
import struct
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

Records = Iterable[tuple[str, str, str]]
"""What decides on which side a record is, then its two fields."""
TESTED = 10
"""One group in so many is held out, and one more for the dev file of corpora that have one."""
MANUALS = Path("/usr/share/man")
MOST_BYTES = 6_000_000
"""Of manuals and of docstrings."""
FEWEST = 20
"""A label has so many records at least."""
ROFF = (
    (re.compile(r"\\f(\[\w*\]|\(\w\w|.)|\\s[+-]?\d|\\[&|^/,%:]|\\[mM]\[\w*\]"), ""),
    (re.compile(r"\\(-|\(hy|\[hy\])"), "-"),
    (re.compile(r"\\\(aq|\\\(cq|\\\[aq\]|\\'"), "'"),
    (re.compile(r"\\\(lq|\\\(rq|\\\(dq|\\\[dq\]|\\\*\(L\"|\\\*\(R\""), '"'),
    (re.compile(r"\\e|\\\(rs|\\\[rs\]"), r"\\"),
    (re.compile(r"\\[~ 0]"), " "),
    (re.compile(r"\\\".*|\\\(..|\\\[[^\]]*\]|\\\*\(..|\\\*\[[^\]]*\]|\\c"), ""),
)
MACRO = re.compile(r"^[.']\s*(SH|SS|B|I|BR|IR|RB|RI|BI|IB|IP|TP|Nm|Nd|Fl|Ar|Sh)\b\s*(.*)$")


def side(group: str) -> str:
    """Return on which side all records of a group are: a hash decides."""
    number = hashlib.blake2b(group.encode(), digest_size=4).digest()
    return {0: "test", 1: "dev"}.get(int.from_bytes(number, "big") % TESTED, "train")


def read_packages() -> Iterator[dict[str, str]]:
    """Yield the fields of every package that the machine's lists know."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for paragraph in listed.split("\n\n"):
        lines = re.sub(r"\n[ \t]+", " ", paragraph).splitlines()
        yield dict(line.split(": ", 1) for line in lines if ": " in line)


def package_records(field: str, pattern: str) -> Iterator[tuple[str, str, str]]:
    """Yield the source, the description and what a pattern finds in a field of each package."""
    for package in read_packages():
        label, text = re.search(pattern, package.get(field, "")), package.get("Description", "")
        if label and text and "transitional" not in text and "dummy" not in text:
            yield package.get("Source", package["Package"]).split()[0], text, label[1]


def find_manuals() -> list[Path]:
    """Return the manuals of Debian's own packages; gcloud's, which repeat one template, are not."""
    found = MANUALS.glob("man[1-8]/*.gz")
    return sorted(path for path in found if not path.is_symlink() and not path.name.startswith("gcloud"))


def manual_text(path: Path) -> str:
    """Return a manual without its roff."""
    lines = []
    for line in gzip.decompress(path.read_bytes()).decode(errors="ignore").splitlines():
        macro = MACRO.match(line)
        if line[:1] in ".'" and not macro:
            continue
        text = macro[2].replace('"', "") if macro else line
        for pattern, plain in ROFF:
            text = pattern.sub(plain, text)
        lines.append(("\n" if macro and macro[1] in ("SH", "SS", "Sh") else "") + text)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def whatis_records() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the line about it and the section of every manual."""
    for path in find_manuals():
        about = re.search(r"^NAME\n+(?:[^\n]*\n)??[^\n]*? -+ ([^\n]{8,})", manual_text(path), re.MULTILINE)
        if about:
            yield path.name.split(".")[0], about[1].strip(), path.parent.name.removeprefix("man")


def read_catalogue(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the messages of a compiled catalogue and their translations, those in UTF-8 and without plural forms."""
    content = path.read_bytes()
    count, *tables = struct.unpack_from("<3I", content, 8)
    for i in range(count):
        places = [struct.unpack_from("<2I", content, table + 8 * i) for table in tables]
        message, translated = (content[start : start + length] for length, start in places)
        if message and b"\0" not in message:
            with contextlib.suppress(UnicodeDecodeError):
                yield message.decode(), translated.decode()


def catalogue_records(language: str) -> Iterator[tuple[str, str, str]]:
    """Yield the catalogue, the message and its translation, where both are neither very short nor long."""
    for path in sorted(Path("/usr").glob(f"**/{language}/LC_MESSAGES/*.mo")):
        for pair in read_catalogue(path):
            message, translated = (" ".join(text.split()) for text in pair)
            if all(8 <= len(text) <= 300 for text in (message, translated)) and message != translated:
                yield path.stem, message, translated


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the module and the text of every docstring of Python's own library."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("**/*.py")):
        if "test" in path.parts or "site-packages" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield path.stem, text + "\n"


def unique(records: Records) -> list[tuple[str, str, str]]:
    """Return the records, each text once."""
    return list({text: (group, text, other) for group, text, other in records}.values())


def write_table(folder: Path, name: str, records: Records) -> None:
    """Write the records of labels that are frequent enough as tables."""
    by_label = defaultdict[str, list[tuple[str, str, str]]](list)
    for record in unique(records):
        by_label[record[2]].append(record)
    rows = dict[str, list[str]](train=[], test=[])
    for label, found in by_label.items():
        for group, text, _ in found if len(found) >= FEWEST else ():
            rows["test" if side(group) != "train" else "train"].append(f"{text}\t{label}\n".replace('"', "'"))
    for part, lines in rows.items():
        (folder / f"{name}-{part}.tsv").write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")


def write_pairs(folder: Path, name: str, records: Records) -> None:
    sides = defaultdict[str, list[tuple[str, str]]](list)
    for group, source, target in unique(records):
        sides[side(group + source[:20])].append((source, target))
    for part, pairs in sides.items():
        for suffix, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}-{part}.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_text(folder: Path, name: str, texts: Iterable[tuple[str, str]]) -> None:
    sides, total = defaultdict[str, list[str]](list), 0
    for group, text in texts:
        sides[side(group)].append(text)
        total += len(text.encode())
        if total > MOST_BYTES:
            break
    for part, found in sides.items():
        (folder / f"{name}-{part}.txt").write_text("\n".join(found), encoding="utf-8")


def svm_line(folder: Path, name: str) -> dict[str, object]:
    from classify_trials import read_table, svm_scores

    sides = (read_table(folder / f"{name}-{part}.tsv", header=True) for part in ("train", "test"))
    (texts, labels), (others, truths) = (tuple(map(list, zip(*part, strict=True))) for part in sides)
    return {"name": "linear SVM", **svm_scores(texts, labels, others, truths)}


def ngram_line(folder: Path, name: str) -> dict[str, object]:
    from clearhead.training.baseline import score_ngrams

    train, test = ((folder / f"{name}-{part}.txt").read_bytes() for part in ("train", "test"))
    return {"name": "byte 7-gram", "bits_per_byte": round(score_ngrams([train], [test]).bits_per_byte, 4)}


def memory_line(folder: Path, name: str) -> dict[str, object]:
    from budget_ends import TRANSLATED
    from sklearn.feature_extraction.text import TfidfVectorizer

    from clearhead.training.scores import score_translations

    texts = {
        (part, language): (folder / f"{name}-{part}.{language}").read_text(encoding="utf-8").splitlines()
        for part in ("train", "test")
        for language in ("en", "de")
    }
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    known, asked = letters.fit_transform(texts["train", "en"]), letters.transform(texts["test", "en"][:TRANSLATED])
    nearest = (asked[i : i + 100] @ known.T for i in range(0, TRANSLATED, 100))
    answers = [texts["train", "de"][at] for block in nearest for at in block.argmax(1).A1]
    scores = score_translations(answers, texts["test", "de"][:TRANSLATED])
    return {"name": "translation memory", "chrf": round(scores.chrf, 2), "bleu": round(scores.bleu, 2)}


def write_lines(folder: Path) -> None:
    lines = {"sections": svm_line(folder, "sections"), "catalogues": memory_line(folder, "catalogues")}
    lines |= {name: ngram_line(folder, name) for name in ("manuals", "docstrings")}
    (folder / "lines.json").write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", action="store_true")
    asked = parser.parse_args()
    folder = asked.folder
    if asked.lines:
        write_lines(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder, "sections", package_records("Section", r"(\S+)"))
    write_table(folder, "roles", package_records("Tag", r"role::([\w-]+)"))
    write_table(folder, "whatis", whatis_records())
    write_pairs(folder, "catalogues", catalogue_records("de"))
    spread = sorted(find_manuals(), key=lambda path: hashlib.blake2b(path.name.encode()).digest())
    write_text(folder, "manuals", ((path.name.split(".")[0], manual_text(path)) for path in spread))
    write_text(folder, "docstrings", docstrings())
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        lines = len(content.splitlines())
        print(f"{path.name}: {lines:,} lines, {len(content):,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
