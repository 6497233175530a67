"""An environment with the wheel and nothing but what its metadata asks for, made without a download.

The wheel is installed by pip into a new venv. Of what it depends on, the packages of this interpreter are linked into
the venv, each by its own list of files: those that the metadata names, and theirs. What it does not name, such as
matplotlib, is not there; nor is the source.
"""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


@dataclass(frozen=True)
class Environment:
    """A venv with the wheel, and a folder to work in, away from the source."""

    folder: Path

    @property
    def packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.folder / "venv")}))

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def command(self, *args: str) -> list[str]:
        return [str(self.folder / "venv/bin" / args[0]), *args[1:]]

    def variables(self) -> dict[str, str]:
        """The environment's variables: nothing that would lead Python to the source.

        Bytecode may be written: the first process compiles the package for those after it.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLEARHEAD"))}
        return kept | {"OMP_NUM_THREADS": "1"}

    def run(self, *args: str, code: int = 0, text: str = "") -> str:
        """Run a program of the environment, and return what it prints; an error goes with it."""
        done = subprocess.run(
            self.command(*args),
            cwd=self.work,
            env=self.variables(),
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def link(self, *names: str) -> None:
        """Link packages of this interpreter, and what they depend on, into the environment."""
        for found in closure(names):
            for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                source, target = Path(str(found.locate_file(top))), self.packages / top
                if top != "__pycache__" and not target.exists():
                    target.symlink_to(source)


def closure(names: tuple[str, ...]) -> list[Distribution]:
    """Return packages and all that they require on this machine, extras left out."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found[name] = distribution(name)
        for line in found[name].requires or ():
            wanted = Requirement(line)
            # On Linux torch from PyPI asks for CUDA's packages; the CPU's build, which may be here, does without.
            if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and is_here(wanted.name):
                waiting.append(wanted.name)
    return list(found.values())


def is_here(name: str) -> bool:
    try:
        distribution(name)
    except ModuleNotFoundError:
        return False
    return True


def create_environment(folder: Path, wheel: Path) -> Environment:
    """Make a venv in a folder, install the wheel there, and link what its metadata requires."""
    made = Environment(folder)
    made.work.mkdir()
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet"]
    install = [*pip, "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    done = subprocess.run(install, env=made.variables(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (info,) = made.packages.glob("clearhead-*.dist-info")
    wanted = [Requirement(line) for line in Distribution.at(info).requires or ()]
    made.link(*(one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})))
    return made
