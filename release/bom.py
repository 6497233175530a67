"""Writes what a release consists of and depends on, beside its wheel: `python -m release.wheel --hashes` does.

`clearhead-0.2.0.cdx.json` is a software bill of materials in CycloneDX: the wheel, the packages it needs and their
versions in this environment (from installed metadata), and the npm packages that the page was built with (from
web/package-lock.json). `--hashes` asks pip's index, which takes the network, and writes `clearhead-0.2.0.hashes.txt`:
the SHA-256 of the wheel and of each package's file for this system and Python. torch and what it alone needs are left
out, since a torch may come from another source:

    pip install torch && pip install --require-hashes --no-deps -r clearhead-0.2.0.hashes.txt
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = ("", "demo", "parquet", "plots", "serve", "tensorboard")
"""What a user may install of it: not what tests and development take."""
TORCH = "torch"


def needed(extras: Iterable[str] = EXTRAS, *, without: str | None = None) -> dict[str, Distribution]:
    """Return the packages that clearhead needs, and those they need, by name; without one and what it alone needs."""
    found: dict[str, Distribution] = {}
    waiting = [("clearhead", tuple(extras))]
    while waiting:
        name, asked = waiting.pop()
        for line in distribution(name).requires or ():
            requirement = Requirement(line)
            marker, key = requirement.marker, canonicalize_name(requirement.name)
            if key == without or (marker and not any(marker.evaluate({"extra": extra}) for extra in asked or ("",))):
                continue
            try:
                is_new = key not in found
                found.setdefault(key, distribution(key))
            except PackageNotFoundError:
                continue  # an extra that is not installed here
            if is_new or requirement.extras:
                waiting.append((key, ("", *requirement.extras)))
    return dict(sorted(found.items()))


def bundled_packages() -> list[dict[str, Any]]:
    """Return the npm packages of the page as components, with the checksums of the lock file."""
    locked = json.loads((ROOT / "web/package-lock.json").read_text(encoding="utf-8"))["packages"]
    names = {name.removeprefix("node_modules/"): about for name, about in locked.items() if name}
    waiting, bundled = ["d3-interpolate", "d3-scale", "d3-shape", "svelte"], dict[str, dict[str, Any]]()
    while waiting:
        name = waiting.pop()
        if name not in bundled and name in names:
            bundled[name] = names[name]
            waiting += names[name].get("dependencies", {})
    return [
        {
            "type": "library",
            "name": name,
            "version": about["version"],
            "purl": f"pkg:npm/{name.replace('@', '%40')}@{about['version']}",
            "licenses": [{"expression": about["license"]}] if "license" in about else [],
        }
        for name, about in sorted(bundled.items())
    ]


def component(package: Distribution) -> dict[str, Any]:
    """Return a Python package as a component; what its metadata does not say is left out."""
    name, version = canonicalize_name(package.metadata["Name"]), package.version.partition("+")[0]
    license_named = package.metadata.get("License-Expression")
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"expression": license_named}] if license_named else [],
    }


def bill_of_materials(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials of a wheel; the same wheel and environment give the same one."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    itself = {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32])}",
        "version": 1,
        "metadata": {"component": {**itself, "hashes": [{"alg": "SHA-256", "content": digest}]}},
        "components": [*map(component, needed().values()), *bundled_packages()],
    }


def hashes(wheel: Path) -> str:
    """Return lines for `pip install --require-hashes`: the packages without torch, and the wheel beside the file."""
    pins = [f"{name}=={package.version}" for name, package in needed(without=TORCH).items()]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report))
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *pins], check=True)
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = {}
    for one in installed:
        about = one["metadata"]
        lines[f"{about['name']}=={about['version']}"] = one["download_info"]["archive_info"]["hashes"]["sha256"]
    lines[f"./{wheel.name}"] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return "".join(f"{name} --hash=sha256:{digest}\n" for name, digest in sorted(lines.items(), key=str))


def write_beside(wheel: Path, *, with_hashes: bool) -> list[Path]:
    """Write the files beside a wheel and return their paths."""
    base_name = "-".join(wheel.name.split("-")[:2])
    bill = wheel.with_name(f"{base_name}.cdx.json")
    bill.write_text(json.dumps(bill_of_materials(wheel), indent=1) + "\n", encoding="utf-8")
    if not with_hashes:
        return [bill]
    listed = wheel.with_name(f"{base_name}.hashes.txt")
    listed.write_text(hashes(wheel), encoding="utf-8")
    return [bill, listed]
