"""The bill of materials beside a wheel, and the hashes of a release."""

import hashlib
import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from release import bom

pytestmark = pytest.mark.slow


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "clearhead-0.2.0-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return path


def test_the_bill_names_the_wheel_what_it_needs_and_what_its_page_was_built_with(wheel):
    [path] = bom.write_beside(wheel, with_hashes=False)
    bill = json.loads(path.read_text(encoding="utf-8"))
    assert (path.name, bill["bomFormat"], bill["specVersion"]) == ("clearhead-0.2.0.cdx.json", "CycloneDX", "1.6")
    itself = bill["metadata"]["component"]
    assert itself["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"a wheel").hexdigest()}]
    found = {one["purl"]: one for one in bill["components"]}
    assert len(found) == len(bill["components"])
    assert f"pkg:pypi/torch@{version('torch').partition('+')[0]}" in found
    assert f"pkg:pypi/markupsafe@{version('markupsafe')}" in found  # what torch's jinja2 needs
    assert any(purl.startswith("pkg:npm/svelte@") for purl in found)
    assert not any(name in purl for purl in found for name in ("pytest", "ruff", "eslint", "clearhead"))
    assert bom.bill_of_materials(wheel) == bill


def test_hashes_are_of_everything_but_torch_and_what_it_alone_needs(wheel, monkeypatch):
    def report(command, check):
        pins = [word.split("==") for word in command if "==" in word]
        archive = {"archive_info": {"hashes": {"sha256": "0" * 64}}}
        listed = [{"metadata": {"name": name, "version": v}, "download_info": archive} for name, v in pins]
        Path(command[command.index("--report") + 1]).write_text(json.dumps({"install": listed}))

    monkeypatch.setattr(subprocess, "run", report)
    lines = bom.write_beside(wheel, with_hashes=True)[1].read_text(encoding="utf-8").splitlines()
    assert f"./{wheel.name} --hash=sha256:{hashlib.sha256(b'a wheel').hexdigest()}" in lines
    assert f"einops=={version('einops')} --hash=sha256:{'0' * 64}" in lines
    assert not [line for line in lines if line.startswith(("torch==", "sympy=="))]
