"""`clearhead look`: an address, a server behind it, and an end with Ctrl-C."""

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import pytest

from clearhead.cli import look, run
from clearhead.serve import explorer_routes, server
from tests.covering import few

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/[\w-]{20,}/")


@pytest.fixture
def page(monkeypatch, tmp_path):
    """A page that is built."""
    (tmp_path / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(explorer_routes, "STATIC", tmp_path)
    return tmp_path


@pytest.fixture
def command(capsys, plain_terminal):
    def ran(*args):
        code = run(["look", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


@pytest.mark.slow
@pytest.mark.thorough  # a signal ends it below; tests/browser/test_compare.py ends the command by Ctrl-C
def test_it_serves_until_ctrl_c_and_ends_well(classifier, page):
    """In a process of its own, as in a terminal."""
    script = "from pathlib import Path; from clearhead.serve import explorer_routes; "
    script += f"explorer_routes.STATIC = Path({str(page)!r}); "
    script += f"from clearhead.cli import main; main(['look', {str(classifier.folder.path)!r}, '--no-open'])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert ADDRESS.fullmatch(line.strip()), process.stderr.read() if process.stderr else ""
        address = urllib.parse.urlsplit(line.strip())
        connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=300)
        with contextlib.closing(connection):
            connection.request("GET", f"{address.path}api/run")
            assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.fixture
def unserved(monkeypatch):
    """A server that ends at once; and what browsers were told to open."""
    opened = []
    monkeypatch.setattr(server.Server, "run", lambda self: self.socket.close())
    monkeypatch.setattr(look.webbrowser, "open", lambda page: opened.append(linked_from(page)))
    return opened


def linked_from(page):
    """The address that a page on this disk leads to."""
    assert page.startswith("file://")
    text = Path(urllib.parse.unquote(urllib.parse.urlsplit(page).path)).read_text()
    [link] = re.findall(r'href="([^"]+)"', text)
    assert f'http-equiv="refresh" content="0; url={link}"' in text
    return link


def test_the_browser_is_opened_unless_told_not_to(command, classifier, page, unserved, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    code, out, err = command(classifier.folder.path)
    assert (code, err) == (0, "")
    assert ADDRESS.fullmatch(out.strip())
    assert unserved == [out.strip()]
    assert command(classifier.folder.path, "--no-open")[0] == 0
    assert len(unserved) == 1


@pytest.mark.usefixtures("unserved")
def test_a_second_run_is_served_beside_the_first(command, classifier, translator, page, monkeypatch):
    made = []
    monkeypatch.setattr(server.Server, "run", lambda self: (made.append(self), self.socket.close()))
    assert command(classifier.folder.path, translator.folder.path, "--no-open")[0] == 0
    [pages] = made[0].services
    assert (pages.explorer.run.task.name, pages.explorer.beside.run.task.name) == ("classify", "translate")
    code, _, err = command(classifier.folder.path, page / "nothing", "--no-open")
    assert code != 0
    assert "is not a run folder" in " ".join(err.split())


@pytest.mark.parametrize("end", few([signal.SIGTERM, signal.SIGINT], 1))
@pytest.mark.slow
def test_the_browsers_command_line_does_not_hold_the_token(classifier, page, tmp_path, end):
    """Every user of a machine can read the command lines of all; the page that leads there only its owner."""
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}.part; ls -ld "${{1#file://}}" >> {told}.part\n')
    with browser.open("a") as file:
        file.write(f'cat "${{1#file://}}" >> {told}.part; mv {told}.part {told}\n')
    browser.chmod(0o755)
    script = "from pathlib import Path; from clearhead.serve import explorer_routes; "
    script += f"explorer_routes.STATIC = Path({str(page)!r}); "
    script += f"from clearhead.cli import main; main(['look', {str(classifier.folder.path)!r}])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BROWSER": str(browser), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            token = address.split("/")[3]
            latest = time.monotonic() + 300
            while not told.exists() and time.monotonic() < latest:
                time.sleep(0.05)
            argument, mode, *content = told.read_text().splitlines()
            opened = Path(argument.removeprefix("file://"))
            assert opened.parent.parent == tmp_path
            assert opened.parent.stat().st_mode & 0o777 == 0o700
            place = urllib.parse.urlsplit(address)
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=300)
            ) as connection:
                connection.request("GET", f"{place.path}api/health")
                assert connection.getresponse().status == 200  # so it serves by now, and a signal ends it well
            process.send_signal(end)
            process.communicate(timeout=300)
        finally:
            process.kill()  # or a failure would wait for it for ever
    assert token not in argument
    assert mode.startswith("-rw-------")
    assert f'<a href="{address}">' in "".join(content)
    assert not opened.parent.exists()


def test_without_a_screen_no_browser_takes_the_terminal(command, classifier, page, unserved, monkeypatch):
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert command(classifier.folder.path)[0] == 0
    assert unserved == []


def test_each_time_has_a_token_of_its_own(command, classifier, page, unserved):
    tokens = {command(classifier.folder.path, "--no-open")[1].split("/")[3] for _ in range(3)}
    assert len(tokens) == 3


TOKEN = "lesson-7_Kepler-school"


def test_a_token_of_ones_own_makes_an_address_that_stays(command, classifier, page, unserved, monkeypatch):
    code, out, err = command(classifier.folder.path, "--no-open", "--token", TOKEN)
    assert (code, err) == (0, "")
    assert out.strip().endswith(f"/{TOKEN}/")
    monkeypatch.setenv("CLEARHEAD_TOKEN", f"{TOKEN}-2")
    assert command(classifier.folder.path, "--no-open")[1].strip().endswith(f"/{TOKEN}-2/")
    assert command(classifier.folder.path, "--no-open", "--token", TOKEN)[1].strip().endswith(f"/{TOKEN}/")


def test_a_poor_token_is_refused_and_not_repeated(command, classifier, page, unserved):
    code, out, err = command(classifier.folder.path, "--no-open", "--token", "shortish")
    assert (code, out) == (2, "")
    assert "it needs 16 characters at least; this one has 8" in err
    assert "shortish" not in err


def test_another_host_is_warned_about(command, classifier, page, unserved):
    code, out, err = command(classifier.folder.path, "--host", "0.0.0.0", "--no-open")
    assert code == 0
    assert ADDRESS.fullmatch(out.strip())
    assert "Listening on 0.0.0.0: anyone on the network who has the address can open this page" in err


def test_a_port_that_is_taken_is_told(command, classifier, page):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = command(classifier.folder.path, "--port", port, "--no-open")
    assert (code, out) == (1, "")
    assert f"port {port} of 127.0.0.1 cannot be had (Address already in use); choose another --port" in err


def test_a_host_that_does_not_exist_is_told(command, classifier, page):
    code, out, err = command(classifier.folder.path, "--host", "203.0.113.1", "--no-open")
    assert (code, out) == (2, "")
    assert "host: 203.0.113.1 is no address of this machine; take 127.0.0.1" in err


def test_a_page_that_is_not_built_is_told(command, classifier, page):
    (page / "index.html").unlink()
    code, out, err = command(classifier.folder.path, "--no-open")
    assert (code, out) == (1, "")
    assert "run `make web`" in err


def test_what_is_no_run_is_told(command, tmp_path):
    code, out, err = command(tmp_path / "nowhere")
    assert (code, out) == (1, "")
    assert str(tmp_path / "nowhere") in err


def test_help_has_examples_and_fits_the_page(command):
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    assert "\n    clearhead look " in out[out.index("Examples") :]
    assert max(len(line) for line in out.splitlines()) <= 80
