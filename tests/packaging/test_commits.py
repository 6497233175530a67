"""Commits have a body: why, and how it was checked."""

import subprocess

import pytest

from release.commits import commits_without_body

SINCE = "2026-11-18T09:00:00+00:00"


@pytest.fixture
def repository(tmp_path):
    """A repository of three commits: one from before the rule, one with a body, one with a subject alone."""
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, "old", date="2026-11-17T09:00:00+00:00")
    commit(tmp_path, "good\n\nWhy, and how it was checked.")
    commit(tmp_path, "bare")
    return tmp_path


def git(folder, *words, date="2026-11-18T10:00:00+00:00"):
    names = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", "-C", folder, *words], check=True, env={"PATH": "/usr/bin:/bin", **names, **dates})


def commit(folder, message, **named):
    git(folder, "commit", "-q", "--allow-empty", "-m", message, **named)


def names(folder):
    return [about.partition(" ")[2] for about in commits_without_body(folder, SINCE)]


def test_a_commit_of_a_subject_alone_is_found_unless_it_is_old_or_a_merge(repository):
    git(repository, "switch", "-q", "-c", "side", "HEAD~1")
    commit(repository, "aside\n\nWhy.")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge main", "main")
    assert names(repository) == ["bare"]


def test_a_shallow_clone_is_checked_as_far_as_it_reaches(repository, tmp_path):
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    assert names(tmp_path / "shallow") == ["bare"]
    git(repository, "switch", "-q", "-c", "side", "HEAD~1")
    commit(repository, "aside\n\nWhy.")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge main into side", "main")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "merged")
    assert names(tmp_path / "merged") == []
