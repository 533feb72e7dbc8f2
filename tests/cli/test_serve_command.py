"""`slackwater serve` as a user starts and ends it."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.scenario import SCENARIO


@contextmanager
def _served(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    (folder / "scenario.toml").write_text(SCENARIO)
    command = [sys.executable, "-m", "slackwater", "serve", "--port", "0", "--no-open", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_it_prints_its_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with _served(tmp_path) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        assert "token" not in address
        with urllib.request.urlopen(address) as answer:
            assert b"Slackwater" in answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert errors.strip().endswith("stopped.")
        assert "Traceback" not in errors


def test_off_the_loopback_it_prints_a_token_and_asks_for_it(tmp_path: Path) -> None:
    with _served(tmp_path, "--host", "0.0.0.0") as (address, _):
        bare, _, token = address.partition("?token=")
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(bare)
        assert caught.value.code == 401
        caught.value.close()
        asked = urllib.request.Request(f"{bare}api/sources", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200


def _status(address: str, path: str = "/api/sources", **headers: str) -> int:
    """The status of an answer, whatever it is; `headers` with _ for -."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    status = connection.getresponse().status
    connection.close()
    return status


def test_on_the_loopback_it_asks_for_a_token_where_that_is_required(tmp_path: Path) -> None:
    with _served(tmp_path, "--require-token") as (address, process):
        bare, _, token = address.partition("/?token=")
        assert bare.startswith("http://127.0.0.1:")
        assert len(token) >= 32
        for path in ("/", "/api/sources", "/app.js", "/?token=", "/?token=" + "x" * len(token)):
            assert _status(bare, path) == 401, path
        assert _status(bare, f"/?token={token}") == 303
        assert _status(bare, Authorization=f"Bearer {token}") == 200
        assert _status(bare, Authorization=f"Bearer {token[:-1]}") == 401
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert "The token is shown only here." in errors
        assert token not in errors


def test_a_further_name_is_answered_and_no_other(tmp_path: Path) -> None:
    with _served(tmp_path, "--allow-host", "grid.example", "--allow-host", "Other.example") as (address, _):
        port = urlsplit(address).port
        for name in ("grid.example", "other.example", "GRID.example"):
            # A proxy in front has a port of its own, and sends none where it is the usual one.
            for host in (name, f"{name}:{port}", f"{name}:8443"):
                assert _status(address, Host=host) == 200, host
        for host in (f"127.0.0.1:{port}", "127.0.0.1:8443", "localhost:9000"):  # as through a tunnel
            assert _status(address, Host=host) == 200
        for host in ("evil.example", f"evil.example:{port}", f"sub.grid.example:{port}", "192.0.2.1:8443", ""):
            assert _status(address, Host=host) == 421, host
        assert _status(address, Host="grid.example", Origin="https://grid.example") == 200
        assert _status(address, Host="grid.example", Origin="https://evil.example") == 403
    with _served(tmp_path) as (address, _):
        assert _status(address, Host=f"grid.example:{urlsplit(address).port}") == 421


@pytest.mark.parametrize("name", ["https://grid.example", "grid.example:443", "grid.example/page", "", "a b"])
def test_a_further_name_is_a_bare_one(name: str, tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    refused = CliRunner().invoke(cli, ["serve", str(tmp_path), "--no-open", "--port", "0", "--allow-host", name])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(
        f"error: Invalid value for '--allow-host': {name!r} is not a bare host name, such as dash.example.\n"
    )


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    run = CliRunner()
    missing = run.invoke(cli, ["serve", str(tmp_path / "no.toml"), "--no-open"])
    assert missing.exit_code == 2
    assert missing.stderr == f"error: {tmp_path}/no.toml does not exist. Write a scenario with: slackwater init\n"
    empty = run.invoke(cli, ["serve", str(tmp_path), "--no-open"])
    assert empty.exit_code == 2
    assert empty.stderr == (
        f"error: There is no scenario.toml, plan or run in {tmp_path}. Write a scenario with: slackwater init "
        f"{tmp_path}/scenario.toml\n"
    )
    (tmp_path / "x.txt").write_text("")
    other = run.invoke(cli, ["serve", str(tmp_path / "x.txt"), "--no-open"])
    assert other.stderr.startswith(
        f"error: {tmp_path}/x.txt is not a scenario (.toml), a plan (plan.json) or a run folder. Write a scenario with: "
    )
    (tmp_path / "scenario.toml").write_text("rounds = ")
    broken = run.invoke(cli, ["serve", str(tmp_path / "scenario.toml"), "--no-open"])
    assert broken.exit_code == 2
    assert broken.stderr.startswith(f"error: {tmp_path}/scenario.toml is not valid TOML: Invalid value (at ")


def test_a_port_in_use_is_a_sentence(tmp_path: Path) -> None:
    with _served(tmp_path) as (address, _):
        port = address.rstrip("/").rpartition(":")[2]
        taken = CliRunner().invoke(cli, ["serve", str(tmp_path), "--no-open", "--port", port])
    assert taken.exit_code == 1
    assert taken.stderr == (
        f"error: Cannot listen on port {port} of 127.0.0.1: Address already in use. Choose another port, or 0 for a free one, "
        "with --port.\n"
    )
