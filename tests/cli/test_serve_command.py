"""`slackwater serve` as a user starts and ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.scenario_template import SCENARIO


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
        assert errors.strip().endswith("ended.")
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


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    run = CliRunner()
    missing = run.invoke(cli, ["serve", str(tmp_path / "no.toml"), "--no-open"])
    assert missing.exit_code == 2
    assert "is not there" in missing.stderr
    empty = run.invoke(cli, ["serve", str(tmp_path), "--no-open"])
    assert empty.exit_code == 2
    assert "slackwater init" in empty.stderr
    (tmp_path / "x.txt").write_text("")
    assert "is not a scenario" in run.invoke(cli, ["serve", str(tmp_path / "x.txt"), "--no-open"]).stderr
    (tmp_path / "scenario.toml").write_text("rounds = ")
    broken = run.invoke(cli, ["serve", str(tmp_path / "scenario.toml"), "--no-open"])
    assert broken.exit_code == 2
    assert "TOML" in broken.stderr


def test_a_port_in_use_is_a_sentence(tmp_path: Path) -> None:
    with _served(tmp_path) as (address, _):
        port = address.rstrip("/").rpartition(":")[2]
        taken = CliRunner().invoke(cli, ["serve", str(tmp_path), "--no-open", "--port", port])
    assert taken.exit_code == 1
    assert f"Port {port}" in taken.stderr
