"""The texts of a live page: a run's tokenisers and task as JSON that web/src/live/ can run.

A tokenizer.json is written as it is, with its regular expressions in JavaScript's spelling. A component that the page
does not know is refused by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clearhead.decoding.rules import USUAL_NEW
from clearhead.errors import OptionError
from clearhead.serialization import name_in_files
from clearhead.serve.program import load_program
from clearhead.serve.questions.decoding import GENERATED
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run import Run
from clearhead.training.tasks import Classify, Embed, Generate, Instruct, Label, Task, Translate
from clearhead.training.tasks.fill import BLANK, Fill

TASKS: dict[type, str] = {
    Translate: "translate",
    Generate: "generate",
    Instruct: "generate",
    Fill: "fill",
    Classify: "text",
    Label: "text",
    Embed: "embed",
}
"""How the page reads a text for each task; it has no other."""
KNOWN = {
    "normalizer": (
        "Sequence", "Replace", "Prepend", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Strip",
        "BertNormalizer",
    ),
    "pre_tokenizer": (
        "Sequence", "ByteLevel", "Digits", "Metaspace", "Split", "WhitespaceSplit", "Whitespace", "BertPreTokenizer",
    ),
    "model": ("BPE", "Unigram", "WordLevel", "WordPiece"),
    "decoder": ("Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "ByteLevel", "WordPiece", "Metaspace"),
}  # fmt: skip
"""The components of a tokenizer.json that web/src/live/tokenizer.ts has."""
UNKNOWN_TO_PAGE = "Open the run with `clearhead look` instead"
IDENTITY = re.compile(r"\\([^\w\s^$\\.*+?()\[\]{}|/])")
IGNORED_CASE = re.compile(r"\(\?i:((?:[^()\\]|\\.)*)\)")
UNSUPPORTED = re.compile(r"\\[AZzGhHRXKQEb]|\(\?[a-zA-Z-]+\)|\(\?>|[*+?]\+|\{\d[\d,]*\}\+|\[\[:|\(\?<[^=!]")


def task_plan(run: Run) -> dict[str, Any]:
    """Return how the run's task frames a text, what it may write, and what its answers are called."""
    task = run.task
    if type(task) not in TASKS:
        raise OptionError(
            f"{run.folder.path}: a page that runs by itself does not know the task {name_in_files(type(task))}. "
            f"{UNKNOWN_TO_PAGE}"
        )
    names = list(task.tokenizers)
    program = load_program(run)
    answers = program is not None and run.step == 0 and bool(program.answer_ids)
    return {
        "reads": TASKS[type(task)],
        "name": task.name,
        "target": task.target,
        "context": task.context,
        "longest": task.reads,
        "labels": list(task.labels),
        "fields": names,
        "frames": {name: frame_plan(task, name) for name in names},
        "opener": list(task.opener()),
        "blank": BLANK,
        "usual": {"trace": USUAL_NEW, "decode": GENERATED},
        "program": {
            name: getattr(program, name)
            for name in ("answers", "answer_ids", "numeric", "threshold", "offset", "beside")
        }
        if answers
        else None,
    }


def frame_plan(task: Task, field: str) -> dict[str, list[int]]:
    frame = task.frame(field)
    return {name: list(getattr(frame, name)) for name in ("before", "after", "ends", "opening", "never")}


def tokenizer_plan(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer.json with the ids of its special tokens; raise OptionError for a component that is unknown."""
    config = json.loads(tokenizer.to_json())
    for part, names in KNOWN.items():
        for component in components(config[part]):
            if (kind := component["type"]) not in names:
                raise OptionError(
                    f"tokenizer.json: {part}: a page that runs by itself does not know {kind}. {UNKNOWN_TO_PAGE}"
                )
    check_model(config["model"])
    kept_parts = {name: with_javascript(config[name]) for name in ("normalizer", "pre_tokenizer", "decoder")}
    names = ("pad", "unknown", "start", "end", "mask")
    return {
        **kept_parts,
        "model": config["model"],
        "added": [
            {name: token[name] for name in ("id", "content", "special", "normalized")} for token in added(config)
        ],
        "trims": trims(config["post_processor"]),
        "imported": tokenizer.imported is not None,
        "special": sorted(tokenizer.special),
        "ids": {name: getattr(tokenizer, name) for name in names},
        "kind": tokenizer.kind,
        "lower": tokenizer.lower,
        "vocabulary": tokenizer.vocabulary,
    }


def added(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens that are found before any other; one with rules of its own about spaces is refused."""
    for token in config["added_tokens"]:
        odd = [name for name in ("single_word", "lstrip", "rstrip") if token[name]]
        if odd and not token["special"]:
            raise OptionError(
                f"tokenizer.json: added_tokens: {token['content']!r} has {odd[0]}, which a page that runs by itself "
                f"does not know. {UNKNOWN_TO_PAGE}"
            )
    return config["added_tokens"]


def trims(part: dict[str, Any] | None) -> list[dict[str, bool]]:
    """Return the post-processors that take the spaces at a token's ends out of the characters it stands for."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [each for inner in part["processors"] for each in trims(inner)]
    trimming = part["type"] in ("ByteLevel", "RobertaProcessing") and part["trim_offsets"]
    return [{"add_prefix_space": part["add_prefix_space"]}] if trimming else []


def check_model(model: Mapping[str, Any]) -> None:
    """Raise OptionError for what the model of a tokenizer may have and the page has not."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model["type"] == "BPE" and model.get(name):
            raise OptionError(f"tokenizer.json: model: a page that runs by itself has no {name}. {UNKNOWN_TO_PAGE}")


def components(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a component of a tokenizer.json and those inside it."""
    if part is None:
        return
    yield part
    for inner in (*part.get("normalizers", ()), *part.get("pretokenizers", ()), *part.get("decoders", ())):
        yield from components(inner)


def with_javascript(part: Any) -> Any:
    """Return a component with its regular expressions in JavaScript's spelling."""
    if isinstance(part, list):
        return [with_javascript(item) for item in part]
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("Regex"), str):
        return {"Regex": to_javascript(part["Regex"])}
    return {name: with_javascript(item) for name, item in part.items()}


def to_javascript(pattern: str) -> str:
    r"""Return a regular expression of Oniguruma's for JavaScript's flag v; OptionError where it has no such thing.

    >>> to_javascript(r"[\p{L}\p{M}&&[^\x{0E00}]]|(?i:s|ve)|\s+(?!\S)")
    '[[\\p{L}\\p{M}]&&[^\\u{0E00}]]|(?:[sS]|[vV][eE])|\\p{White_Space}+(?!\\P{White_Space})'
    """
    if unsupported := UNSUPPORTED.search(pattern):
        raise OptionError(
            f"tokenizer.json: a page that runs by itself cannot read {unsupported[0]!r} of the regular expression "
            f"{pattern[:80]!r}. {UNKNOWN_TO_PAGE}"
        )
    either_case = IGNORED_CASE.sub(lambda group: f"(?:{re.sub('[a-z]', both_cases, group[1])})", pattern)
    text = re.sub(r"\\x\{([0-9A-Fa-f]+)\}", r"\\u{\1}", either_case)
    text = text.replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")
    # Within brackets JavaScript takes one operand on each side of &&.
    text = re.sub(r"\[((?:\\p\{\w+\})+)&&", r"[[\1]&&", text)
    return IDENTITY.sub(r"\1", text)


def both_cases(letter: re.Match[str]) -> str:
    return f"[{letter[0]}{letter[0].upper()}]"
