"""Builds the wheel with the explorer's page inside, checks what is in it, and prints its size and its files.

Beside it a bill of materials is written, and hashes if asked for (release/bom.py).

    python -m release.wheel [FOLDER]        # FOLDER: dist, unless another is given

It builds from a copy of what belongs to the package, so nothing of an earlier build gets into it.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from release.addresses import read_addresses, with_absolute_links
from release.bom import write_beside

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "clearhead")
PAGE = ("index.html", "live.html")
"""What `make web` builds, and a user of the wheel cannot."""
BELONGS = re.compile(
    r"""clearhead/([\w/]+\.py|py\.typed|cli/completions\.json|exercises/[a-z]+/(\d\d-)?[a-z0-9-]+\.md)
      | clearhead/serve/static/((index|live|page)\.html|assets/[\w.-]+\.(js|css|svg|woff2|wasm))
      | clearhead-[\d.]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|top_level\.txt|licenses/LICENSE)""",
    re.VERBOSE,
)
"""Every file that a wheel may have."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder and return its path; SystemExit where the page is not built."""
    static = ROOT / "clearhead/serve/static"
    if missing := [name for name in PAGE if not (static / name).is_file()]:
        raise SystemExit(f"{', '.join(missing)}: not built; build the page first: make web")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "source"
        copy.mkdir()
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, copy / name)
        readme, addresses = copy / "README.md", read_addresses((ROOT / "release/ADDRESSES").read_text(encoding="utf-8"))
        readme.write_text(
            with_absolute_links(readme.read_text(encoding="utf-8"), addresses["SOURCE"]), encoding="utf-8"
        )
        code = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
        command = [sys.executable, "-c", code, str(folder.resolve())]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"setuptools could not build the wheel:\n{done.stderr[-2000:]}")
    return folder / done.stdout.splitlines()[-1]


def stray_files(wheel: Path) -> list[str]:
    """Return the files of a wheel that do not belong there, and the parts of the page that are missing from it."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    wanted = {f"clearhead/serve/static/{name}" for name in PAGE}
    return [name for name in names if not BELONGS.fullmatch(name)] + sorted(wanted - set(names))


def table_of_files(wheel: Path) -> str:
    """Return the size of a wheel, and below it the number and the size of its files by folder."""
    folders: dict[str, list[int]] = {}
    with ZipFile(wheel) as archive:
        for file in archive.infolist():
            folder = file.filename.rpartition("/")[0]
            folders.setdefault(folder, []).append(file.file_size)
    lines = [f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {sum(map(len, folders.values()))} files"]
    lines += [f"  {len(sizes):4} files {sum(sizes) / 1e3:9.1f} kB  {name}" for name, sizes in sorted(folders.items())]
    return "\n".join(lines)


def main() -> None:
    """Build, check and print; every file by name with --files."""
    parser = argparse.ArgumentParser(description="Build the wheel, with the explorer's page inside.")
    parser.add_argument("folder", nargs="?", default="dist", help="where to write it (dist)")
    parser.add_argument("--files", action="store_true", help="list every file")
    parser.add_argument("--hashes", action="store_true", help="write hashes for pip too, which takes the network")
    asked = parser.parse_args()
    wheel = build_wheel(Path(asked.folder))
    print(table_of_files(wheel))
    if asked.files:
        with ZipFile(wheel) as archive:
            print(*sorted(archive.namelist()), sep="\n")
    if stray := stray_files(wheel):
        raise SystemExit(f"not as it should be: {', '.join(stray)}")
    print(*(path.name for path in write_beside(wheel, with_hashes=asked.hashes)), sep="\n")


if __name__ == "__main__":
    main()
