"""The package with one promise broken at a time: `make attack` must notice each, or its table would prove nothing.

A mutant is a copy of the package in which one piece of text is replaced. The attack named beside it runs on the copy
up to its first failure, which must say what the broken promise leads to: a mutant that fails otherwise is not caught.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.attack.forking import ONE_THREAD

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 900
"""How long an attack may take to notice; one that has not by then is not finished, and has not noticed."""


class Mutant(NamedTuple):
    """One broken promise: where the text is, what takes its place, which attack (and cases) notices, and what it says;
    `tries`: how many it may take, if the short form has too few.
    """

    name: str
    file: str
    old: str
    new: str
    attack: str
    says: str
    tries: int = 0


MUTANTS = (
    Mutant("no lock", "system.py", "            fcntl.flock(handle, (", "            (lambda *_: 0)(handle, (",
           "pairs-train", "nobody can train there|is missing|is damaged|other bytes|metrics are others|written", 60),
    Mutant("no flush", "files.py", "        os.fsync(handle)", "        pass",
           "power rename", "cannot go on.*(not JSON|cannot be read|damaged|checksum|is empty)"),
    Mutant("no atomic rename", "files.py",
           "        yield partial\n        flush(partial)\n        os.replace(partial, path)",
           "        os.replace(partial, path)\n        yield path",
           "kill open recipe.json", "cannot go on.*recipe.json"),
    Mutant("imports are written in place", "files.py",
           "        partial, handle = make_locked(path)\n        yield partial",
           "        path.mkdir()\n        yield path\n        return",
           "kill-verbs import.*kill'", "cannot be given again"),
    Mutant("no checksum of JSON", "files.py", 'if content.get("sha256") != checksum(content)', "if False",
           "flips-scores", "another score, and not a word", 60),
    Mutant("no checksum of weights", "training/checkpoints.py", "if sha256_of_file(path) != self.sums[name]",
           "if False", "flips", "safetensors.*another output, and not a word", 200),
    Mutant("no token in the path", "serve/guard.py", "not secrets.compare_digest(first, self.token)",
           "len(first) != len(self.token)", "strangers-at-the-door bent_token", "-> b.HTTP/1.1 200"),
    Mutant("no token in the header", "serve/guard.py", 'if scheme.lower() != "bearer" or not right', "if False",
           "strangers-at-the-door bent_bearer", "-> b.HTTP/1.1 200"),
    Mutant("no Host check", "serve/guard.py", "if len(hosts) != 1 or not self.place.knows(hosts[0])", "if False",
           "strangers-at-the-door foreign_host", "-> b.HTTP/1.1 200"),
    Mutant("no Origin check", "serve/guard.py", "if origin not in self.origins and (", "if False and (",
           "strangers-at-the-door foreign_origin", "-> b.HTTP/1.1 200"),
    Mutant("forms of other sites", "serve/guard.py", "if len(kinds) != 1 or kinds[0]", "if False and kinds[0]",
           "strangers-at-the-door form_post", "-> b.HTTP/1.1 200"),
    Mutant("no bound on a body", "serve/guard.py", "    room = limits.body\n", "    room = 10**12\n",
           "limits too_large", "chunked: b.HTTP/1.1 (408|200)"),
    Mutant("no deadline of a body", "serve/guard.py", "asyncio.timeout(limits.arrival)", "asyncio.timeout(None)",
           "limits ^half_bodies", "5 of 5 connections are still open"),
    Mutant("no deadline of a head", "serve/connections.py", "self.deadline = self.loop.call_later(seconds, self.drop)",
           "pass", "limits ^silent", "5 of 5 connections are still open"),
    Mutant("no bound on connections", "serve/connections.py", "and not self.make_room()", "and False",
           "limits many_silent", "silent connections are kept"),
    Mutant("no bound on half bodies", "serve/connections.py", "elif self not in self.bodies:", "elif False:",
           "limits many_half_bodies", "half-sent bodies are kept"),
    Mutant("the server connects elsewhere", "serve/guard.py", "        self.authenticate(scope, headers)",
           "        socket.socket().connect_ex((self.place.host, 9))\n        self.authenticate(scope, headers)",
           "limits half_heads", "it connects to"),
    Mutant("replies need not be read", "serve/connections.py",
           "self.unread = self.loop.call_later(self.limits.reading, self.drop)", "pass",
           "limits unread", "a client that reads nothing keeps its connection"),
    Mutant("numbers of 400 digits", "serve/params.py", "except OverflowError:", "except ZeroDivisionError:",
           "limits numbers", "-> b.HTTP/1.1 500"),
    Mutant("open to every network", "serve/server.py", "if private and not ipaddress", "if False and not ipaddress",
           "open-server every network", "it listens on 0.0.0.0"),
    Mutant("a second signal is ignored", "serve/connections.py", "            signal.signal(number, signal.SIG_DFL)",
           "            signal.signal(number, signal.SIG_IGN)", "server-signals", "still at work 4 s after"),
    Mutant("templates without a time", "bounds.py", "RENDERING = FileBounds(seconds=2,",
           "RENDERING = FileBounds(seconds=12,", "bombs never ends", r"1\d\.\d s and .* are the bounds|still running"),
    Mutant("templates without a size", "bounds.py", "memory=500_000_000, output=50_000_000)",
           "memory=500_000_000, output=500_000_000)", "bombs 100 MB", "not refused by a sentence"),
    Mutant("templates without a bound on memory", "bounds.py", "        limit_memory(bounds.memory)\n", "",
           "bombs 1.5 GB", "not refused by a sentence"),
    Mutant("Parquet without a bound", "text/table_readers.py",
           "check_unpacked(unpacked, os.path.getsize(here))", "pass", "bombs Parquet", "not refused by a sentence"),
    Mutant("gzip without a bound", "text/lines.py", "check_unpacked(self.given, self.packed.given)", "pass",
           "bombs gzip", "not refused by a sentence"),
    Mutant("tokenizers without a bound", "text/tokenizer_bounds.py", "growth > MOST_GROWTH", "False",
           "bombs 10,000 letters", "not refused by a sentence"),
    Mutant("JSON of any depth", "files.py", "    check_depth(value)\n", "",
           "bombs nested", "not refused by a sentence"),
    Mutant("JSON of any size", "bounds.py", "JSON_BYTES, JSON_DEPTH, JSON_VALUES = 64_000_000",
           "JSON_BYTES, JSON_DEPTH, JSON_VALUES = 640_000_000", "bombs JSON of 70", "not refused by a sentence"),
    Mutant("compressed archives", "interop/tensor_files.py", "if packed or sum(", "if False and sum(",
           "bombs compressed", "not refused by a sentence|are the bounds"),
    Mutant("pickle is run", "interop/tensor_files.py", "    try:\n        with zipfile.ZipFile(path) as archive:",
           "    torch.load(path, weights_only=False)\n    try:\n        with zipfile.ZipFile(path) as archive:",
           "bombs pickle", "it ran code"),
    Mutant("links are followed", "interop/tensor_files.py", "if is_inside(home, path) or is_own_blob(home, path):",
           "if True:", "leaks a link to a secret", "the secret is in"),
    Mutant("names lead out", "interop/tensor_files.py", "    if not is_plain_name(name):",
           '    if ".." in name:\n        return home / name\n    if not is_plain_name(name):',
           "leaks above", "it is read"),
    Mutant("absolute shards", "interop/tensor_files.py", "    if not is_plain_name(name):",
           '    if name.startswith("/"):\n        return Path(name)\n    if not is_plain_name(name):',
           "leaks absolute", "it is read"),
    Mutant("refused trainings list before they lock", "training/train.py",
           "        with folder.lock(log) as hold, claiming.leave_nothing(hold):",
           "        from types import SimpleNamespace\n"
           "        early = SimpleNamespace(run=folder.path, guarded=True, check=lambda: None)\n"
           "        with claiming.leave_nothing(early), folder.lock(log) as hold:",
           "pairs-stop good good", "has no run.json|is missing|is damaged|could not be written"),
    Mutant("litter of the living is removed", "files.py",
           "            handle = None if abandoned.is_symlink() else lock_folder(abandoned)",
           "            handle = os.open(abandoned, os.O_RDONLY)", "pairs-import", "was taken from it"),
    Mutant("renames follow links", "files.py", "        os.replace(partial, path)",
           "        os.replace(partial, os.path.realpath(path))",
           "links curves.svg', .file", "changed through the link"),
    Mutant("a moved folder is not noticed", "training/folder_lock.py",
           "if stat_now is None or not os.path.samestat(stat_now, stat_before):", "if False:",
           "moved replace_run", "the user's .* changed|saves were written to the old place"),
    Mutant("a resume forgets", "training/loop.py", "restore_tensors(", "(lambda *_: None)(",
           "kill-resume", "model.safetensors has other bytes"),
    Mutant("a second signal of training is ignored", "training/reporting.py", "            os._exit(128 + number)",
           "            return", "signal-twice", "it goes on to save after", 60),
    Mutant("workers outlive their launcher", "system.py", "ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)",
           "pass", "kill-processes", "are still at work", 12),
    Mutant("comparisons do not lock", "experiments/comparing.py", "    with hold_folder(home, log):\n",
           "    home.mkdir(parents=True, exist_ok=True)\n    if True:\n",
           "pairs-compare", "lacks a run|both were refused|is missing", 30),
    Mutant("resumes do not lock", "training/resume.py", "    with folder.lock(log) as hold:",
           "    with Hold(folder.path) as hold:",
           "pairs-resume", "both were refused|other bytes|metrics are others|damaged", 20),
    Mutant("a stop is not saved", "training/loop.py", "        elif self.saved_step < self.done:",
           "        elif self.saved_step < self.done and not self.stop_signal:",
           "signal", "says that step . is saved", 60),
    Mutant("errors of a disk are raised as they are", "files.py",
           "    except OSError as error:\n        raise RunError(\n",
           "    except KeyError as error:\n        raise RunError(\n", "disk", "Traceback", 40),
    Mutant("a disk's later error is told", "files.py",
           "        with contextlib.suppress(OSError):  # a disk that stays broken has told its first error",
           "        with contextlib.suppress(KeyError):", "disk-broken", "it tells of a later error", 40),
    Mutant("no checksum of token ids", "text/preparing.py", "    if verify:\n", "    if False:\n",
           "flips-resume", "data.*other bytes", 60),
    Mutant("users' files are taken for a run's", "training/claiming.py", "        if names:\n", "        if False:\n",
           "users-files", "the user's file was changed", 25),
    Mutant("bytes that are no UTF-8", "text/lines.py", "except UnicodeDecodeError as error:",
           "except KeyError as error:", "texts-sources", "UnicodeDecodeError", 60),
    Mutant("halves of surrogate pairs", "text/tokenizer.py", "except UnicodeEncodeError as error:",
           "except KeyError as error:", "texts-tokenizers", "UnicodeEncodeError", 200),
    Mutant("what is no JSON", "files.py", "    except ValueError as problem:\n", "    except KeyError as problem:\n",
           "damage", "JSONDecodeError|UnicodeDecodeError"),
    Mutant("shards that are none", "interop/tensor_files.py",
           "unreadable(path, SafetensorError, error", "unreadable(path, error",
           "strangers-indices", "SafetensorError", 100),
    Mutant("names of a GGUF file", "interop/gguf_file.py", "except UnicodeDecodeError:", "except KeyError:",
           "strangers-gguf", "UnicodeDecodeError", 200),
    Mutant("refused imports leave their folder", "files.py",
           "            shutil.rmtree(partial, ignore_errors=True)\n        remove_empty",
           "            pass\n        remove_empty",
           "pairs-import", "they left", 20),
    Mutant("strangers under load", "serve/guard.py", 'if scheme.lower() != "bearer" or not right', "if False",
           "load", "stranger: let in"),
    Mutant("weights that are none", "interop/tensor_files.py",
           "unreadable(path, SafetensorError, error", "unreadable(path, error",
           "strangers-model", "SafetensorError", 100),
    Mutant("archives that are none", "interop/tensor_files.py",
           "except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError)", "except OSError",
           "strangers-pytorch_model.bin", "BadZipFile", 100),
    Mutant("a tokenizer that is nested deeply", "text/tokenizer.py",
           '    except ValueError as error:\n        raise DataError(f"{name}: {error}; expected',
           '    except KeyError as error:\n        raise DataError(f"{name}: {error}; expected',
           "strangers-tokenizer.json", "ValueError: it is nested", 400),
    Mutant("templates in this process", "text/templates.py", "    return call_bounded(render_here, {",
           "    return render_here(text, variables) or call_bounded(render_here, {",
           "strangers-chat", "(Undefined|Template|Type|Value|Security|Memory|Overflow|Recursion)\\w*Error", 200),
    Mutant("Parquet in this process", "text/table_readers.py",
           'stream_bounded(read_here, arguments, TABLE, where=f"{name}: as Parquet", error=DataError)',
           "read_here(**arguments)", "strangers-parquet", "MemoryError|crashed|took", 60),
    Mutant("damaged gzip", "text/lines.py", "except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:",
           "except KeyError as error:", "strangers-texts", r"error: Error -\d", 400),
    Mutant("errors that name no file", "files.py", 'f"{where}: was changed since', 'f"was changed since',
           "commands", "the error names no file", 60),
    Mutant("logs that are not cut back", "training/reporting.py", "            self.file.truncate(size)\n", "",
           "kill-random", "metrics", 12),
    *(Mutant(f"errors of a disk are raised as they are ({attack})", "files.py",
             "    except OSError as error:\n        raise RunError(\n",
             "    except KeyError as error:\n        raise RunError(\n", attack, "Traceback", 40)
      for attack in ("disk-resume", "disk-limits", "disk-real")),
    Mutant("a resume changes the run before it is refused", "training/resume.py",
           "            check_fit(task, spec, str(folder.model_file))",
           '            (folder.path / "metrics.jsonl").unlink(missing_ok=True)\n'
           "            check_fit(task, spec, str(folder.model_file))",
           "unreachable data', 'gone", "refused, and yet changed metrics.jsonl"),
    Mutant("a checkpoint that is pruned meanwhile", "training/weights.py",
           "    if folder.checkpoints.folders() != before:", "    if False:",
           "readers", "no checkpoint can be used|there is no whole checkpoint", 400),
    Mutant("numbers of 400 digits, by schema", "serve/params.py", "except OverflowError:", "except ZeroDivisionError:",
           "requests", "-> 500", 1200),
    Mutant("grammars of any size", "decoding/grammar.py", "initial_lexer_fuel=FUEL", "initial_lexer_fuel=50 * FUEL",
           "limits grammars", "s of processor time"),
    Mutant("circuits that are no XML", "circuits/files.py",
           "except (OSError, ElementTree.ParseError, KeyError, ValueError)",
           "except (OSError, KeyError, ValueError)", "strangers-circuits", "ParseError", 100),
    Mutant("shards of any size", "text/remote.py", "size = max(coming or 0, came)", "size = 0",
           "bombs web server", "bytes were taken"),
    Mutant("parts are not locked", "text/parts.py",
           "        handle = files.lock_folder(folder)", "        handle = None",
           "preparing at once", "No such file|not a whole|File exists", 60),
    Mutant("parts are written through links", "text/parts.py", "if folder.is_symlink() or any(", "if False and any(",
           "preparing a link", "changed through the link", 60),
    Mutant("parts are removed in place", "text/parts.py", "shutil.rmtree(folder.rename(own))", "shutil.rmtree(folder)",
           "preparing kill", "cannot be given again: .*not a whole store", 300),
    Mutant("tokenisers of a kill are not checked", "text/preparing.py", "!= sums.get(file):", "== 0:",
           "preparing flipped", "tokenizer.json", 100),
    *(Mutant(f"bytes that are no UTF-8 ({attack})", "text/lines.py", "except UnicodeDecodeError as error:",
             "except KeyError as error:", attack, "UnicodeDecodeError|unclear error", 100)
      for attack in ("texts-preparing", "texts-verbs")),
)  # fmt: skip
"""Every promise broken once, with the attack that notices."""


def mutants_of(attack: str) -> str:
    """Return the names of the mutants that an attack notices."""
    return "; ".join(mutant.name for mutant in MUTANTS if mutant.attack.split()[0] == attack)


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder with the tests and the package, in which one text is replaced; the rest is links."""
    with tempfile.TemporaryDirectory() as name:
        home, unneeded = Path(name), shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "clearhead", home / "clearhead", copy_function=os.symlink, ignore=unneeded)
        (home / "tests").symlink_to(ROOT / "tests")
        path = home / "clearhead" / mutant.file
        text = path.read_text(encoding="utf-8")
        path.unlink()
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        yield home


def attack_mutant(mutant: Mutant) -> tuple[str, str]:
    """Attack a mutant; return "caught", or why not, and after how many tries with what the attack said."""
    attack, _, case = mutant.attack.partition(" ")
    command = [sys.executable, "-m", "tests.attack", "--first", "--workers", "1", "--seconds", str(MOST_SECONDS)]
    command += ["--count", str(mutant.tries)] if mutant.tries else ["--short"]
    with mutated(mutant) as home:
        env = os.environ | ONE_THREAD | {"PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
        command += ["--only", attack, "--case", case]
        ended = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1) or "broke down" in ended.stdout:
            return "NOT FINISHED", (ended.stdout + ended.stderr)[-2000:]
        [row] = json.loads((home / "build" / "attack.json").read_text(encoding="utf-8"))["rows"]
    told = f"{row['tried']}: {' '.join(row['failures'][0].split()) if row['failures'] else 'survived'}"
    if not row["failures"]:
        return "MISSED", told
    return "caught" if re.search(mutant.says, told) else "BY CHANCE", told


def main(only: Sequence[str], workers: int) -> int:
    """Print the table of mutants, with the tries after which each was caught and what the attack said; return 1 if one
    was not caught.
    """
    chosen = [one for one in MUTANTS if not only or any(part in one.name for part in only)]
    since, missed = time.monotonic(), 0
    with ThreadPoolExecutor(workers) as pool:
        working = {pool.submit(attack_mutant, mutant): mutant for mutant in chosen}
        for done in as_completed(working):
            mutant, (end, told) = working[done], done.result()
            missed += end != "caught"
            shown = told[:160] if end == "caught" else told
            print(f"{end:<7} {mutant.name:<40} {mutant.attack:<36} {shown}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught, {time.monotonic() - since:.0f} s")
    return 1 if missed else 0
