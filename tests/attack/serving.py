"""The explorer's server: random and mutated requests beside silent connections, and how much memory it holds after."""

from pathlib import Path

from tests.attack import requests
from tests.attack.table import Row

GROWTH = 0.05
"""The share by which memory may grow after the first fifth of the requests."""


def attack(home: Path, seed: int, *, short: bool) -> list[Row]:
    found = requests.attack(300 if short else 100_000, seed, silent=50 if short else requests.SILENT)
    asked = Row("random and mutated requests to the explorer", found["requests"])
    wrong = found["server_errors"] + found["unclear"] + found["unanswered"]
    told = [*found["examples"], found["stderr"] or "not answered, or answered with an error of the server's own"]
    asked.failures = [told[min(i, len(told) - 1)] for i in range(wrong)]
    asked.note = f"{found['statuses'].get(200, 0):,} answered, the others refused; {found['seconds']:.0f} s"
    silent = Row("connections that send nothing or half a header, beside them", found["silent"])
    silent.failures = [found["stderr"]] if found["stderr"] else []
    memory = Row("memory of the server, before and after", 1)
    memory.note = f"{found['rss_before'] / 1e6:,.0f} MB and {found['rss_after'] / 1e6:,.0f} MB"
    if not short and found["growth"] > GROWTH:
        memory.failures = [f"it has grown by {found['growth']:.0%}"]
    return [asked, silent, memory]
