"""The package with one promise broken at a time: `make attack` must notice each, or its table would prove nothing.

A mutant is a copy of the package in which one piece of text is replaced; it fails loudly where that text is no longer
there. The attack named beside it runs on the copy, in its short form, and must end with exit code 1.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.attack.forking import ONE_THREAD

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One broken promise: where the text is, what takes its place, and which attack (and case) notices."""

    name: str
    file: str
    old: str
    new: str
    attack: str
    case: str = ""


MUTANTS = (
    Mutant(
        "no lock", "system.py", "            fcntl.flock(handle", "            (lambda *_: 0)(handle", "pairs-train"
    ),
    Mutant("no flush", "files.py", "        os.fsync(handle)", "        pass", "power"),
    Mutant(
        "no atomic rename",
        "files.py",
        "        yield partial\n        flush(partial)\n        os.replace(partial, path)",
        "        os.replace(partial, path)\n        yield path",
        "kill",
        "open recipe.json",
    ),
    Mutant(
        "no checksum of JSON", "files.py", 'if content.get("sha256") != checksum(content)', "if False", "flips-scores"
    ),
    Mutant(
        "no checksum of weights",
        "training/checkpoints.py",
        "if sha256_of_file(path) != self.sums[name]",
        "if False",
        "flips",
    ),
    Mutant(
        "no token in the path",
        "serve/guard.py",
        "not secrets.compare_digest(first, self.token)",
        "False",
        "strangers-at-the-door",
        "bent_token",
    ),
    Mutant(
        "no token in the header",
        "serve/guard.py",
        'if scheme.lower() != "bearer" or not right',
        "if False",
        "strangers-at-the-door",
        "bent_bearer",
    ),
    Mutant(
        "no Host check",
        "serve/guard.py",
        "if len(hosts) != 1 or not self.place.knows(hosts[0])",
        "if False",
        "strangers-at-the-door",
        "foreign_host",
    ),
    Mutant(
        "no Origin check",
        "serve/guard.py",
        "if origin not in self.origins and (",
        "if False and (",
        "strangers-at-the-door",
        "foreign_origin",
    ),
    Mutant(
        "forms of other sites",
        "serve/guard.py",
        "if len(kinds) != 1 or kinds[0]",
        "if False and kinds[0]",
        "strangers-at-the-door",
        "form_post",
    ),
    Mutant(
        "no bound on a body", "serve/guard.py", "    room = limits.body\n", "    room = 10**12\n", "limits", "too_large"
    ),
    Mutant(
        "no deadline of a body",
        "serve/guard.py",
        "asyncio.timeout(limits.arrival)",
        "asyncio.timeout(None)",
        "limits",
        " half_bodies",
    ),
    Mutant(
        "no deadline of a head",
        "serve/connections.py",
        "self.deadline = self.loop.call_later(seconds, self.drop)",
        "pass",
        "limits",
        "silent",
    ),
    Mutant(
        "no bound on connections",
        "serve/connections.py",
        "and not self.make_room()",
        "and False",
        "limits",
        "many_silent",
    ),
    Mutant(
        "no bound on half bodies",
        "serve/connections.py",
        "elif self not in self.bodies:",
        "elif False:",
        "limits",
        "many_half_bodies",
    ),
    Mutant(
        "replies need not be read",
        "serve/connections.py",
        "self.unread = self.loop.call_later(self.limits.reading, self.drop)",
        "pass",
        "limits",
        "unread",
    ),
    Mutant(
        "numbers of 400 digits", "files.py", "    if not math.isfinite(value):", "    if False:", "limits", "numbers"
    ),
    Mutant(
        "open to every network",
        "serve/server.py",
        "if private and not ipaddress",
        "if False and not ipaddress",
        "open-server",
        "every network",
    ),
    Mutant(
        "a second signal is ignored",
        "serve/connections.py",
        "            signal.signal(number, signal.SIG_DFL)",
        "            signal.signal(number, signal.SIG_IGN)",
        "server-signals",
    ),
    Mutant(
        "templates without a time",
        "bounds.py",
        "RENDERING = FileBounds(seconds=2,",
        "RENDERING = FileBounds(seconds=2_000,",
        "bombs",
        "never ends",
    ),
    Mutant(
        "templates without a size",
        "bounds.py",
        "RENDERING = FileBounds(seconds=2, memory=500_000_000, output=50_000_000)",
        "RENDERING = FileBounds(seconds=2, memory=500_000_000, output=500_000_000)",
        "bombs",
        "100 MB",
    ),
    Mutant(
        "templates without a bound on memory",
        "bounds.py",
        "        limit_memory(bounds.memory)\n",
        "",
        "bombs",
        "1.5 GB",
    ),
    Mutant(
        "Parquet without a bound",
        "text/parquet.py",
        "check_unpacked(unpacked, os.path.getsize(path))",
        "pass",
        "bombs",
        "Parquet",
    ),
    Mutant(
        "gzip without a bound",
        "text/lines.py",
        "check_unpacked(self.given, self.packed.given)",
        "pass",
        "bombs",
        "gzip",
    ),
    Mutant(
        "tokenizers without a bound",
        "text/tokenizer_bounds.py",
        "growth > MOST_GROWTH",
        "False",
        "bombs",
        "10,000 letters",
    ),
    Mutant("JSON of any depth", "files.py", "    check_depth(value)\n", "", "bombs", "nested"),
    Mutant(
        "JSON of any size",
        "bounds.py",
        "JSON_BYTES, JSON_DEPTH, JSON_VALUES = 64_000_000",
        "JSON_BYTES, JSON_DEPTH, JSON_VALUES = 640_000_000",
        "bombs",
        "JSON of 70",
    ),
    Mutant(
        "compressed archives",
        "interop/torch_archive.py",
        "if packed or sum(",
        "if False and sum(",
        "bombs",
        "compressed",
    ),
    Mutant(
        "pickle is run",
        "interop/torch_archive.py",
        "    try:\n        with zipfile.ZipFile(path) as archive:",
        "    torch.load(path, weights_only=False)\n    try:\n        with zipfile.ZipFile(path) as archive:",
        "bombs",
        "pickle",
    ),
    Mutant(
        "links are followed",
        "interop/source_files.py",
        "if is_inside(home, path) or is_own_blob(home, path):",
        "if True:",
        "leaks",
        "a link",
    ),
    Mutant(
        "names lead out",
        "interop/source_files.py",
        "    if not is_plain_name(name):",
        '    if ".." in name:\n        return home / name\n    if not is_plain_name(name):',
        "leaks",
        "above",
    ),
    Mutant(
        "absolute shards",
        "interop/source_files.py",
        "    if not is_plain_name(name):",
        '    if name.startswith("/"):\n        return Path(name)\n    if not is_plain_name(name):',
        "leaks",
        "absolute",
    ),
    Mutant(
        "refused trainings list before they lock",
        "training/train.py",
        "    with folder.lock(log) as hold, leave_nothing(hold):",
        "    from clearhead.training.holding import Hold\n"
        "    with leave_nothing(Hold(folder.path) if folder.path.exists() else Hold(folder.path.parent)), "
        "folder.lock(log) as hold:",
        "pairs-train",
    ),
    Mutant(
        "litter of the living is removed",
        "files.py",
        "            handle = None if abandoned.is_symlink() else lock_folder(abandoned)",
        "            handle = os.open(abandoned, os.O_RDONLY)",
        "pairs-import",
    ),
    Mutant(
        "writes through links",
        "system.py",
        'NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)',
        "NO_LINK: int = 0",
        "links",
        ".lock",
    ),
    Mutant(
        "a moved folder is not noticed",
        "training/holding.py",
        "if stat_now is None or not os.path.samestat(stat_now, stat_before):",
        "if False:",
        "moved",
    ),
    Mutant("a resume forgets", "training/loop.py", "restore_tensors(", "(lambda *_: None)(", "kill-resume"),
    Mutant(
        "a second signal of training is ignored",
        "training/stopping.py",
        "            os._exit(128 + number)",
        "            return",
        "signal-twice",
    ),
    Mutant(
        "workers outlive their launcher",
        "system.py",
        "ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)",
        "pass",
        "kill-processes",
    ),
)
"""Every promise broken once, with the attack that notices."""


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder with the tests and the package, in which one text is replaced; the rest is links."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        shutil.copytree(
            ROOT / "clearhead",
            home / "clearhead",
            copy_function=os.symlink,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (home / "tests").symlink_to(ROOT / "tests")
        path = home / "clearhead" / mutant.file
        text = path.read_text(encoding="utf-8")
        if mutant.old not in text:
            raise LookupError(f"{mutant.name}: {mutant.file} no longer has {mutant.old!r}")
        path.unlink()
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        yield home


def noticed(mutant: Mutant) -> tuple[bool, str]:
    """Attack a mutant; return whether the attack has noticed, and what it printed."""
    with mutated(mutant) as home:
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.attack",
                "--short",
                "--workers",
                "1",
                "--only",
                mutant.attack,
                "--case",
                mutant.case,
            ],
            cwd=home,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    told = [line for line in ended.stdout.splitlines() if re.match(r"  [a-z-]+: ", line)]
    broke_down = not told or "broke down" in told[0]
    return ended.returncode == 1 and not broke_down, "\n".join(told) or (ended.stdout + ended.stderr)[-500:]


def main(only: Sequence[str], workers: int) -> int:
    """Print the table of mutants, with what each attack said; return 1 if one was not noticed."""
    chosen = [one for one in MUTANTS if not only or any(part in one.name for part in only)]
    missed = 0
    with ThreadPoolExecutor(workers) as pool:
        for mutant, (seen, told) in zip(chosen, pool.map(noticed, chosen), strict=True):
            missed += not seen
            first = told.strip().splitlines()[0][:110] if told.strip() else ""
            print(f"{'caught' if seen else 'MISSED':<7} {mutant.name:<42} {mutant.attack:<22} {first}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0
