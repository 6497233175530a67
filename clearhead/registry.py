"""The registry of parts: every class that a saved file or an option of a command can name.

Clearhead registers its own parts here, and so does a user, in one line:

    import clearhead as ch

    @ch.register
    @dataclass(frozen=True)
    class Entmax(ch.weighting.Weighting): ...

Files call a part of Clearhead's own by its name, "Softmax", and one of a user's own by the path it is imported from,
"mine:Entmax". A module is never imported because a file names it: only `import_parts` imports, and only what the user's
call or command names.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

import torch

from clearhead.calls import public
from clearhead.errors import ClearheadError, OptionError, no_such
from clearhead.serialization import check_type, hints_of, name_in_files

Parts = str | ModuleType | type | Sequence[str | ModuleType | type]
"""Where parts of a user's own are: a module's name, a module, a class, or several of these."""
Registered = TypeVar("Registered", bound=type)


class Base(NamedTuple):
    """A base class of parts. `saved`: files hold such a part with its fields, so it must be a frozen dataclass."""

    cls: type
    saved: bool


BASES: dict[str, Base] = {}
"""The base class of each kind of part."""
CLASSES: dict[str, type] = {}
"""Every registered class, by the name that files have for it."""
OPTIONS: dict[str, dict[str, type]] = {}
"""By kind, the classes that options of commands have a short name for, by that name."""
EXAMPLES: dict[str, dict[str, Any]] = {}
"""By kind, examples of parts by name; a class stands for the part with its default fields."""


def kind(name: str, *, saved: bool = True) -> Callable[[Registered], Registered]:
    """Declare a base class: classes derived from it are registered as parts of this kind."""

    def declare(base: Registered) -> Registered:
        BASES[name] = Base(base, saved)
        return base

    return declare


@public
def register(part: Registered, *, option: str | None = None, examples: Mapping[str, Any] | None = None) -> Registered:
    """Register a class as a part, so that specs with it are saved, loaded, trained, compared and traced like any other.

    Use it as a decorator above `@dataclass(frozen=True)`, or call it with the class. The kind of part follows from the
    base class: a weighting, similarity, feature map, position, mask, norm, feed-forward, arrangement, schedule or task.

    Args:
        part: The class.
        option: Short name for the command line (`--feed-forward relu`); without one it is `mine:Entmax`.
        examples: Instances by name that go through the grid of tests; the part with its default fields if None.

    Returns:
        The class itself.

    Raises:
        OptionError: If it is not a part, or the name is taken.

    >>> import clearhead as ch
    >>> ch.register(ch.weighting.Softmax)                              # a second time changes nothing
    <class 'clearhead.attention.weighting.softmax.Softmax'>
    """
    kind = kind_of(part)
    check_savable(part, saved=BASES[kind].saved)
    if option is not None and (not isinstance(option, str) or not option):
        raise OptionError(f"option: expected a short name, a str; came {option!r:.80}")
    if examples is not None and not is_examples(examples, part):
        raise OptionError(f"examples: expected parts by name, as {{'mine': {part.__name__}()}}; came {examples!r:.80}")
    name = name_in_files(part)
    earlier = CLASSES.get(name, part)
    # The class of an import that failed is in no module, and the next try may take its place.
    if earlier is not part and getattr(sys.modules[part.__module__], part.__name__, None) is earlier:
        raise OptionError(
            f"two classes are called {name}: one in {place_of(earlier)}, one in {place_of(part)}. Rename one of them; "
            "after a module was loaded again, start Python anew"
        )
    CLASSES[name] = part
    if option is not None and options(kind).setdefault(option, part) is not part:
        raise OptionError(
            f"two parts have the short name {option}: {place_of(options(kind)[option])}, {place_of(part)}"
        )
    if examples is None:
        examples = {option or name: part} if BASES[kind].saved and not needed_fields(part) else {}
    EXAMPLES.setdefault(kind, {}).update(examples)
    return public(part)


def is_examples(examples: object, part: type) -> bool:
    return isinstance(examples, Mapping) and all(
        isinstance(name, str) and (example is part or isinstance(example, part)) for name, example in examples.items()
    )


def kind_of(part: type) -> str:
    """Return the kind of part a class is, by its base class; raise if it has none."""
    if not isinstance(part, type):
        raise OptionError(f"register: expected a class; came {part!r}")
    kinds = [name for name, base in BASES.items() if issubclass(part, base.cls)]
    if not kinds:
        bases = ", ".join(base.cls.__name__ for base in BASES.values())
        raise OptionError(f"{part.__name__} is no part: derive it from one of {bases}")
    return kinds[-1]


def check_savable(part: type, *, saved: bool) -> None:
    """Raise if a class could not be found again from its name, or made again from its fields."""
    module, name = part.__module__, part.__qualname__
    if inspect.isabstract(part):
        missing = ", ".join(sorted(part.__abstractmethods__))
        raise OptionError(f"{name} cannot be registered: it does not define {missing}")
    if module == "__main__" or module not in sys.modules:
        raise OptionError(
            f"{name} cannot be registered: it is defined in {module}, which no other program can import. Put the class "
            "into a file of its own, such as mine.py, and import it from there"
        )
    if "<locals>" in name:
        raise OptionError(
            f"{name} in {module} cannot be registered: a class inside a function cannot be imported. Move it to the "
            "top level of its file"
        )
    # A class that only inherits from a dataclass is none itself: its own annotations would be no fields.
    params = vars(part).get("__dataclass_params__")
    if saved and (params is None or not params.frozen):
        raise OptionError(
            f"{name} in {module} cannot be registered: files hold a part by its fields, so it must be a frozen "
            "dataclass. Put @dataclass(frozen=True) above the class, and @clearhead.register above that"
        )


def needed_fields(part: type) -> list[str]:
    """Return the fields of a dataclass that have no default."""
    return [
        field.name
        for field in dataclasses.fields(cast(Any, part))
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def place_of(part: type) -> str:
    """Return the file and line of a class, for messages; its module if there is no file."""
    try:
        return f"{inspect.getsourcefile(part)}, line {inspect.getsourcelines(part)[1]}"
    except (OSError, TypeError):
        return f"module {part.__module__}"


def options(kind: str) -> dict[str, type]:
    """Return the classes of a kind that options of commands have a short name for; later ones come into it too."""
    return OPTIONS.setdefault(kind, {})


def find_silent(root: torch.nn.Module, ability: str) -> type | None:
    """Return the class of the first part of a model that does not say it has an ability; None if all have it.

    Clearhead's and torch's parts have every one. A part of your own says `recordable = True`, say, in the class that
    defines its `forward`; what it holds, such as its spec, in its class.
    """
    for module in root.modules():
        if not says(type(module), ability):
            if not known_type(type(module)):
                return type(module)
            strange = (kind for kind in set(map(type, vars(module).values())) if not known_type(kind))
            if (kind := next((kind for kind in strange if not getattr(kind, ability, False)), None)) is not None:
                return kind
    return None


def says(kind: type, ability: str, beside: str = "forward") -> bool:
    """Check that the class which defines `beside` says `ability = True`: a subclass that changes it says it again."""
    latest = next(base for base in kind.__mro__ if beside in vars(base) or ability in vars(base))
    return bool(vars(latest).get(ability, False))


@functools.cache
def known_type(of: type) -> bool:
    """Check for a class of Clearhead's, torch's or Python's own."""
    root = of.__module__.partition(".")[0]
    return root in ("clearhead", "torch", "builtins") or (root in sys.stdlib_module_names and root != "__main__")


class Examples(Mapping[str, Any]):
    """Examples of parts of one kind, by name. Those of parts that are registered later come into it too."""

    def __init__(self, kind: str) -> None:
        self.parts = EXAMPLES.setdefault(kind, {})

    def __getitem__(self, name: str) -> Any:
        # Not when it is registered: while its module is being imported, what its checks call may not be there yet.
        if isinstance(self.parts[name], type):
            self.parts[name] = self.parts[name]()
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def find(name: str, *kinds: str, also: Sequence[str] = (), error: type[ClearheadError] = OptionError) -> type:
    """Return the class, of these kinds, that a short name or a path stands for; raise if there is none.

    `also` are other words that are understood where the name comes from; the message lists them with the short names.
    """
    short = {option: cls for kind in reversed(kinds) for option, cls in options(kind).items()}
    if name in short:
        return short[name]
    if ":" not in name:
        names = [*(option for kind in kinds for option in options(kind)), *also]
        raise error(no_such(name, names, ", and parts of your own as module:Class"))
    if name not in CLASSES:
        raise error(
            f"{name[:80]!r} is not registered: import its module (--parts, or parts= in load), and put "
            "@clearhead.register above its class"
        )
    if (kind_found := kind_of(CLASSES[name])) not in kinds:
        raise error(f"{name} is a {kind_found}; expected a {' or a '.join(kinds)}")
    return CLASSES[name]


class PartOption(NamedTuple):
    """A part as an option names it: a class, and those of its fields that are given."""

    cls: type
    fields: Mapping[str, Any]

    def make(self, **usual: Any) -> Any:
        """Return the part. Fields that are not given have the usual values, where it has such fields."""
        hints, name = hints_of(self.cls), name_in_files(self.cls)
        values = {field: value for field, value in usual.items() if field in hints} | dict(self.fields)
        if missing := [field for field in needed_fields(self.cls) if field not in values]:
            raise OptionError(f"{name} has no default for {missing[0]}: write {name}({missing[0]}=…)")
        try:
            return self.cls(**values)
        except ClearheadError:
            raise
        except Exception as problem:  # whatever a user's class raises is reported as an error of that class
            raise OptionError(f"{name}: {type(problem).__name__}: {problem} ({failing_place(problem)})") from problem


def parse(text: str, *kinds: str, also: Sequence[str] = ()) -> PartOption:
    """Return the part that an option's text names: `relu`, `mine:Entmax` or `mine:Entmax(alpha=1.5)`.

    >>> import clearhead.model.feedforward
    >>> parse("relu", "feed-forward").make(d_ff=64, length=9)
    ReLU(64)
    """
    name, bracket, call_text = text.partition("(")
    cls = find(name.strip(), *kinds, also=also)
    fields = read_fields(name, f"part({call_text}") if bracket else {}
    hints = hints_of(cls)
    for field in fields:
        if field not in hints:
            raise OptionError(f"{name} has no field {field!r}; it has {', '.join(hints) or 'none'}")
    checked = {
        field: check_type(value, hints[field], f"{name}: {field}", error=OptionError) for field, value in fields.items()
    }
    return PartOption(cls, checked)


def read_fields(name: str, call: str) -> dict[str, Any]:
    """Return the fields of a call as text, `part(alpha=1.5)`: plain values of Python's, nothing that is run."""
    try:
        read = ast.parse(call.strip(), mode="eval").body
        if not isinstance(read, ast.Call) or not isinstance(read.func, ast.Name) or read.args:
            raise ValueError
        return {field.arg or "**": ast.literal_eval(field.value) for field in read.keywords}
    except (SyntaxError, ValueError):
        fields_text = call.removeprefix("part")
        raise OptionError(f"expected {name}(field=value, …), with plain values; came {name}{fields_text}") from None


def import_parts(parts: Parts | None, *, folder: str | None = None) -> None:
    """Import the modules that are named, so that the parts which they register can be read from files.

    A class is registered itself. `folder` is looked into first while a module is imported, and not afterwards.
    """
    for part in [parts] if isinstance(parts, str | ModuleType | type) else parts or ():
        if isinstance(part, type):
            register(part)
        elif isinstance(part, str):
            import_module(part.partition(":")[0], folder)
        elif not isinstance(part, ModuleType):
            raise OptionError(f"parts: expected the name of a module, a module or a class; came {part!r}")


def import_module(name: str, folder: str | None) -> None:
    """Import a module of the user's; OptionError, with file and line, where it cannot be."""
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        hint = f": write {Path(name).stem}" if name.endswith(".py") else ""
        raise OptionError(f"parts: expected the name of a module, as `import` takes it; came {name!r}{hint}")
    before = list(sys.path)
    sys.path[:0] = [] if folder is None else [folder]
    try:
        importlib.invalidate_caches()  # it may have been written a moment ago
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
            searched = f"in {folder} or " if folder else ""
            raise OptionError(f"parts: there is no module {name} {searched}on Python's path (PYTHONPATH)") from None
        reason = str(error) if isinstance(error, ClearheadError) else f"{type(error).__name__}: {error}"
        raise OptionError(f"parts: {name} cannot be imported: {reason} ({failing_place(error)})") from error
    finally:
        sys.path[:] = before


def failing_place(error: BaseException) -> str:
    """Return file and line of an error in a user's module: of its last frame that is in no installed package."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    installed = (str(Path(__file__).parent), str(Path(torch.__file__).parents[1]), str(Path(ast.__file__).parent))
    theirs = [frame for frame in frames if not frame.filename.startswith((*installed, "<frozen"))]
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}" if theirs else "no line is known"
