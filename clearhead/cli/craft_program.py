"""Find the RASP program that a `clearhead craft` verb is given: by its name, or in the user's own file."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from clearhead.attention.weighting import Weighting
from clearhead.errors import ClearheadError, ProgramError, WordError, no_such
from clearhead.rasp import PROGRAMS, Program, ProgramPlan, run
from clearhead.rasp.compiler import AVERAGING
from clearhead.rasp.language import Sequence as Output

OWN_MODULE = "clearhead_own_program"


@dataclass(frozen=True, kw_only=True)
class ProgramChanges:
    """The options of the command line that change a program; None if one is not given."""

    vocabulary: str | None = None
    source_vocabulary: str | None = None
    length: int | None = None
    causal: bool = False


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A program, how it is to be compiled, and the file it came from if it is the user's own."""

    program: Program
    weighting: Weighting = AVERAGING
    sharpness: float = 1.0
    file: Path | None = None

    @property
    def exact(self) -> bool:
        """Return whether the model must equal the interpreter."""
        return self.weighting == AVERAGING

    def plan(self) -> ProgramPlan:
        return self.program.plan(weighting=self.weighting, sharpness=self.sharpness)


def find_program(name: str, changes: ProgramChanges) -> Ask:
    """Return the program of this name, or of `file.py:name`, changed as the options say."""
    if name in PROGRAMS:
        return Ask(program=apply_changes(PROGRAMS[name], changes))
    path, colon, inside = name.rpartition(":")
    if colon and path.endswith(".py"):
        return program_from_file(Path(path), inside, changes)
    if name.endswith(".py"):
        raise WordError("PROGRAM", f"which program of {name}? Write {name}:NAME, a name that the file gives a sequence")
    raise WordError("PROGRAM", no_such(name, PROGRAMS, "; or a file of yours, file.py:NAME"))


def apply_changes(program: Program, changes: ProgramChanges) -> Program:
    source = program.source_vocabulary
    return replace(
        program,
        vocabulary=symbols(changes.vocabulary) if changes.vocabulary is not None else program.vocabulary,
        source_vocabulary=symbols(changes.source_vocabulary) if changes.source_vocabulary is not None else source,
        length=changes.length or program.length,
        causal=program.causal or changes.causal,
    )


def program_from_file(path: Path, name: str, changes: ProgramChanges) -> Ask:
    """Return a program of the user's file, which is run for it."""
    module = load_file(path)
    found = getattr(module, name, None)
    if isinstance(found, Program):
        return Ask(program=apply_changes(found, changes), file=path)
    if not isinstance(found, Output):
        # `tokens` and `indices`, which every file imports, are made of no other sequence.
        sequences = {
            key: value for key, value in vars(module).items() if isinstance(value, Output) and [*value.inputs()]
        }
        names = [key for key, value in vars(module).items() if isinstance(value, Program) or key in sequences]
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        hint = f"There are: {', '.join(names)}" if names else "The file gives no name to a sequence or a Program"
        raise WordError("PROGRAM", f"{path}: {name!r} is {kind} there, and no program. {hint}")
    if changes.vocabulary is None or changes.length is None:
        raise WordError("alphabet", f"{name} is a sequence alone: say its tokens and length, --alphabet abc --length 8")
    program = Program(name=name, about=found.name, output=found, vocabulary=(), plain=lambda *texts: run(found, *texts))
    return Ask(program=apply_changes(program, changes), file=path)


def load_file(path: Path) -> ModuleType:
    """Run the user's file as a module; it finds what lies beside it."""
    if not path.is_file():
        raise WordError("PROGRAM", f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(OWN_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[OWN_MODULE] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with errors_with_line(path):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


@contextlib.contextmanager
def errors_with_line(path: Path | None) -> Iterator[None]:
    """Add the line of the user's file to an error that came from it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place = None if path is None else place_in(path, error)
        if place is None:
            raise
        kind = "" if isinstance(error, ClearheadError) else f"{type(error).__name__}: "
        message = error.msg if isinstance(error, SyntaxError) else error
        raise ProgramError(f"{place}: {kind}{message}") from error


def place_in(path: Path, error: BaseException) -> str | None:
    """Return the last line of the file that the error passed through, or else the line that it was raised for."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == path.resolve():
        return f"{path}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    if lines:
        return f"{path}:{lines[-1]}"
    return None if error.__context__ is None else place_in(path, error.__context__)


def symbols(text: str) -> tuple[str, ...]:
    """Split tokens as they are typed: words with spaces between them, or single characters."""
    tokens = text.split() if " " in text.strip() else list(text.strip())
    if not tokens:
        raise WordError("vocabulary", "there is no token in it; write abc, or words with spaces between them")
    return tuple(dict.fromkeys(tokens))


def tokens_of(text: str, vocabulary: Sequence[Any], option: str) -> list[Any]:
    """Split a text into tokens: its words if they are all tokens, else its characters."""
    token_of = {str(token): token for token in vocabulary}
    words = text.split()
    for parts in (words, list("".join(words))):
        if parts and all(part in token_of for part in parts):
            return [token_of[part] for part in parts]
    odd = next((part for part in (words if len(words) > 1 else text) if part not in token_of), text)
    raise WordError(option, f"{odd!r} is no token of this program. Its tokens: {' '.join(token_of)}")


def in_words(values: Sequence[Any]) -> str:
    """Join values with spaces between them; a dash for nothing."""
    return " ".join("–" if value is None else str(value) for value in values)
