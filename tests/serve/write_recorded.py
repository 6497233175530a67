"""Writes web/dev/recorded.json, the demo's answers that the page's unit tests read.

clearhead demo
python -m tests.serve.write_recorded runs/demo
"""

import json
import sys
from pathlib import Path

from clearhead.serve.explorer import Explorer
from clearhead.serve.questions.question import Matrix
from clearhead.serve.recorded import answer_name
from clearhead.training.reporting import replace_nonfinite
from clearhead.training.run import load
from tests.serve.asking import ask

WRITTEN = Path(__file__).parents[2] / "web/dev/recorded.json"
SOURCE = "achtundvierzigtausendsiebenundsechzig"
SITE = "decoder.1.attention"
HEADS = range(4)
DIGITS = 6


def record(explorer: Explorer) -> dict[str, object]:
    """Return answers by question and what was asked: each box at one token, all weights, the vectors of a site."""
    run, meta = ask(explorer, "run"), ask(explorer, "trace", {"source": SOURCE})
    boxes = [box["name"] for side in run["sides"] for box in side["boxes"] if box["kind"] != "output"]
    tile = {"step": "weight", "level": 0, "row": 0, "column": 0}
    asked = [
        *(("box", {"box": box, "token": 1, "key": 0, "head": 0}) for box in boxes),
        *(("tile", {**tile, "site": site["name"], "head": head}) for site in meta["sites"] for head in HEADS),
        *(
            ("vectors", {"site": SITE, "head": head, "role": role})
            for head in HEADS
            for role in ("query", "key", "value")
        ),
        *(("stream", {"side": side["side"]}) for side in run["sides"]),
        ("lens", {}),
        ("readings", {}),
        ("cell", {"site": SITE, "head": 1, "query": 6, "key": 3}),
    ]
    answers = {answer_name(name, given): ask(explorer, name, given, meta["id"]) for name, given in asked}
    return {"run": run | {"path": run["name"]}, "trace": meta, **answers}


def plain(value: object) -> object:
    """Return the answer as JSON has it, with numbers of six digits."""
    match value:
        case Matrix():
            rows, columns = value.data.shape
            return {"rows": rows, "columns": columns, "data": plain(value.data.flatten().tolist())}
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {name: plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return value


if __name__ == "__main__":
    recorded = replace_nonfinite(plain(record(Explorer(load(sys.argv[1], device="cpu")))))
    WRITTEN.write_text(json.dumps(recorded, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
