"""The engine of a live page under node, and what it is held against: the explorer's answers to the same questions."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch

from clearhead.serve.explorer import Explorer
from clearhead.serve.live import live_page
from clearhead.training.reporting import replace_nonfinite
from tests.browser.looking import missing
from tests.once import made_once
from tests.serve.asking import ask

WEB = Path(__file__).parents[2] / "web"
TOLERANCE = 1e-4
"""The most that a number may be off, times the larger of 1 and itself."""
ODD = "Zürich 4711 – “naïve”\tcafé <s> 日本語 😀  don't"
"""Letters, signs and spaces that few texts have."""
OWN = {"id", "kernel", "why"}
"""What a page says in its own way."""


def bundle(factory):
    """The engine as one file that node runs."""
    node, rolldown = shutil.which("node"), WEB / "node_modules" / ".bin" / "rolldown"
    if node is None or not rolldown.exists():
        missing("there is no node with web/node_modules on this machine; run `make web`")

    def build(home):
        command = [rolldown, "dev/ask.ts", "-o", home / "ask.mjs", "--platform", "node"]
        subprocess.run(list(map(str, command)), cwd=WEB, check=True, capture_output=True)

    return made_once(factory, "engine", build) / "ask.mjs"


class Engine:
    """Asks the page of a run; many questions go together, since each time it starts anew."""

    def __init__(self, script, run, folder, *, film=False):
        folder.mkdir(parents=True, exist_ok=True)
        self.script, self.folder = script, folder
        page = live_page(run, film=film)
        (folder / "page").write_text("\n".join([page.data, page.weights, *page.film.lines]), encoding="utf-8")

    def ask(self, requests):
        path = self.folder / "requests"
        path.write_text("".join(f"{json.dumps(one)}\n" for one in requests), encoding="utf-8")
        command = ["node", self.script, self.folder / "page", path]
        made = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
        assert made.returncode == 0, made.stderr[-2000:]
        return [json.loads(line) for line in made.stdout.rstrip("\n").split("\n")]


def same(found, wanted, where=""):
    """Hold an answer of the page against the server's: every number and every word."""
    match wanted:
        case {"index": _, "text": _, "weight": weight} if weight < TOLERANCE:
            assert found["weight"] < TOLERANCE, where  # of tokens that are not looked at, any may be named
        case dict():
            assert isinstance(found, dict), where
            assert set(found) - OWN == set(wanted) - OWN, (where, set(found) ^ set(wanted))
            for name in set(wanted) - OWN:
                same(found[name], wanted[name], f"{where}.{name}")
        case list() if wanted and isinstance(wanted[0], dict) and set(wanted[0]) == {"id", "text", "p"}:
            same_candidates(found, wanted, where)
        case list() if (
            wanted
            and isinstance(wanted[0], dict)
            and set(wanted[0]) in ({"id", "text", "change"}, {"id", "text", "cosine"})
        ):
            same_ranking(found, wanted, where)
        case list() | tuple():
            assert isinstance(found, list), where
            assert len(found) == len(wanted), (where, len(found), len(wanted))
            if wanted and all(isinstance(one, float) for one in wanted) and None not in found:
                same_numbers(found, wanted, where)
                return
            for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
                same(one, other, f"{where}[{place}]")
        case float():
            same_numbers([math.nan if found is None else found], [wanted], where)
        case _:
            assert found == wanted, (where, found, wanted)


def same_numbers(found, wanted, where):
    found, wanted = np.array(found, dtype=float), np.array(wanted, dtype=float)
    off = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
    assert (off <= TOLERANCE).all(), (where, off.max(), found[off.argmax()], wanted[off.argmax()])


def same_candidates(found, wanted, where):
    """The likeliest answers: where two are equally likely, either may come first."""
    same_numbers([one["p"] for one in found], [one["p"] for one in wanted], where)
    texts = {one["id"]: one["text"] for one in wanted}
    last = wanted[-1]["p"]
    for one in found:
        assert one["id"] in texts or abs(one["p"] - last) < TOLERANCE, (where, one)
        assert texts.get(one["id"], one["text"]) == one["text"], (where, one)


def same_ranking(found, wanted, where):
    """Answers that a unit promotes, or neighbours: of equal ones either may come first, and either may be the last."""
    [number] = set(wanted[0]) - {"id", "text"}
    same_numbers([one[number] for one in found], [one[number] for one in wanted], where)
    texts, last = {one["id"]: one["text"] for one in wanted}, wanted[-1][number]
    for one in found:
        assert texts.get(one["id"], one["text"]) == one["text"], (where, one)
        assert one["id"] in texts or abs(one[number] - last) < TOLERANCE, (where, one)


def as_json(answer):
    """An answer of the explorer as its server sends it."""
    if isinstance(answer, torch.Tensor):
        flat = answer.flatten().tolist()
        return replace_nonfinite(flat)
    return json.loads(json.dumps(replace_nonfinite(answer)))


class Asked:
    """A run's page and its explorer, asked the same questions."""

    def __init__(self, script, run, folder, *, film=False):
        self.engine, self.explorer = Engine(script, run, folder, film=film), Explorer(run)

    def check(self, requests):
        """Ask both, and hold the answers together. A request is what `ask.ts` takes."""
        last = ""
        for request, got in zip(requests, self.engine.ask(requests), strict=True):
            method, given = request
            wanted = self.expected(method, last, given)
            where = json.dumps(request)[:200]
            assert "answer" in got, (where, got)
            answer = got["answer"]
            if method == "trace":
                last = wanted["id"]
                # On the page there is no kernel, so an edit inside is nothing to remark.
                wanted["notes"] = [note for note in wanted["notes"] if "ran the reference" not in note]
            if method in ("tile", "vectors", "thumbs"):
                answer = answer["data"]
                if method == "thumbs":  # a byte may be rounded the other way
                    assert np.abs(np.array(answer) - np.array(wanted)).max() <= 1, where
                    continue
            same(answer, wanted, where)

    def expected(self, method, last, given):
        asked = {name: value for name, value in given.items() if name != "trace"}
        if "places" in asked:
            asked["places"] = ",".join(map(str, asked["places"]))
        return as_json(ask(self.explorer, method, asked, last if "trace" in given else None))


def everything(meta, run_facts):
    """Every question about a trace: of each attention its steps, of each box its numbers, and so on."""
    for site in meta["sites"]:
        name, heads, queries, keys = site["name"], site["n_heads"], site["n_query"], site["n_key"]
        query, key, here = queries - 1, keys // 2, {"trace": "$", "site": name}
        for step in ("score", "scaled", "masked", "weight", "allowed"):
            yield ["tile", tile(name, heads - 1, step)]
        yield ["tile", tile(name, "mean", "weight")]
        yield ["tile", tile(name, heads - 1, "weighted")]
        yield from (["tile", {**tile(name, "mean", step), "rollout": 1}] for step in ("weight", "allowed"))
        yield from (["thumbs", {**here, "weighted": weighted}] for weighted in (0, 1))
        yield ["row", {**here, "head": heads - 1, "query": query}]
        yield ["row", {**here, "head": "mean", "query": 0}]
        yield ["column", {**here, "head": 0, "key": key}]
        yield ["cell", {**here, "head": heads - 1, "query": query, "key": key}]
        for role in ("query", "key", "value", "context"):
            yield ["vectors", {**here, "head": heads - 1, "role": role}]
        if site["slot"] == "attention":
            yield ["spaces", {**here, "head": 0, "places": [0, query]}]
    for box in (box["name"] for side in run_facts["sides"] for box in side["boxes"] if box["kind"] == "feed_forward"):
        last = len(meta["sides"][box.partition(".")[0]]["ids"]) - 1
        yield ["neurons", {"trace": "$", "at": box, "token": last, "most": 4, "unit": 1}]
    for table in tables(run_facts):
        yield ["neighbours", {"table": table, "token": 3}]
    yield ["readings", {"trace": "$"}]
    yield ["effects", {"trace": "$", "site": meta["sites"][-1]["name"]}]
    if meta["candidates"]:
        yield ["lens", {"trace": "$"}]
    heads = min(site["n_heads"] for site in meta["sites"])
    for side in run_facts["sides"]:
        yield ["stream", {"trace": "$", "side": side["side"]}]
        last = len(meta["sides"][side["side"]]["ids"]) - 1
        for box in side["boxes"]:
            yield ["box", {"trace": "$", "box": box["name"], "token": last, "key": 0, "head": heads - 1}]
            for value in box["values"]:
                if value["map"]:
                    row = 0 if value["rows"] in ("key", "whole") else last
                    yield ["terms", {"trace": "$", "name": value["name"], "row": row, "unit": 0, "head": heads - 1}]


def tables(run_facts):
    """The tables that a model surely has: of two sides the second may share the first's."""
    return [f"{run_facts['sides'][0]['side']}.embedding"]


def tile(site, head, step):
    return {"trace": "$", "site": site, "head": head, "step": step, "level": 0, "row": 0, "column": 0}
