"""Check that every commit has a body: python -m release.commits, which `make check` runs.

The subject says what changed for a user or a reader; the body says why, and how it was checked. Merges are left out. It
reads the commits that are there, so a shallow clone is checked as far as it reaches.
"""

import subprocess
import sys
from pathlib import Path

SINCE = "2026-11-18T09:00:00+00:00"
"""Commits from before the rule are as they are."""
ROOT = Path(__file__).parents[1]


def commits_without_body(root: Path, since: str = SINCE) -> list[str]:
    """Return the commits of a checkout since then that have a subject alone, each as its hash and subject."""
    command = ["git", "-C", str(root), "log", "--no-merges", f"--since={since}", "--format=%h %s%x1f%b%x1e"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pairs = [record.strip().partition("\x1f") for record in listed.split("\x1e") if record.strip()]
    # A shallow clone does not know the parents of its last commit, so a merge is known by its subject there.
    return [about for about, _, body in pairs if not body.strip() and not about.partition(" ")[2].startswith("Merge ")]


def main() -> int:
    if not (ROOT / ".git").exists():
        print("no git repository here: commits are not checked")
        return 0
    found = commits_without_body(ROOT)
    for about in found:
        print(f"{about}: has no body; say why it was done, and how it was checked (git commit --amend)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
