"""`slackwater data` and scenarios that name providers, against the loopback server and on a real clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cases import CASES, KEYS, SECRETS
from click.testing import CliRunner, Result
from loopback import Loopback, Reply, running

from slackwater.cli.main import cli

RANGE = ["--start", "2025-03-01T00:00Z", "--end", "2025-03-02T00:00Z"]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Loopback]]:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SLACKWATER_KEYS", str(tmp_path / "none.toml"))
    monkeypatch.setenv("SLACKWATER_LOOPBACK_HTTP", "1")
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    with ExitStack() as stack:
        made = {case.name: stack.enter_context(running(case.fake(), datetime.now(UTC))) for case in CASES}
        for name, server in made.items():
            monkeypatch.setenv(f"SLACKWATER_URL_{name.upper()}", server.address)
        yield made


def run(*words: str) -> Result:
    result = CliRunner().invoke(cli, words)
    assert not any(secret in result.output for secret in SECRETS)
    return result


def test_fetch_show_and_clear(servers: dict[str, Loopback], tmp_path: Path) -> None:
    fetched = run("data", "fetch", "FR,DE", *RANGE, "--provider", "electricitymaps")
    assert fetched.exit_code == 0, fetched.output
    assert "FR" in fetched.stdout
    shown = run("data", "show", "--json")
    covered = json.loads(shown.stdout)["covered"]
    assert [(row["zone"], row["kind"], row["hours"]) for row in covered] == [
        ("DE", "actual", 24.0),
        ("FR", "actual", 24.0),
    ]
    assert covered[0]["runs"] == [["2025-03-01T00:00Z", "2025-03-02T00:00Z"]]
    asked = len(servers["electricitymaps"].asked)
    assert run("data", "fetch", "FR,DE", *RANGE, "--provider", "electricitymaps").exit_code == 0
    assert len(servers["electricitymaps"].asked) == asked
    assert "removed 24 values" in run("data", "clear", "--zone", "FR").stderr
    assert "removed 12 values" in run("data", "clear", "--before", "2025-03-01T12:00Z").stderr
    assert "removed 12 values" in run("data", "clear").stderr
    assert run("data", "show").stderr.endswith(
        "intensity.sqlite is empty. Fill it with: slackwater data fetch ZONES --start TIME --end TIME\n"
    )


def test_the_cache_of_the_command_line(servers: dict[str, Loopback], tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    run("data", "fetch", "GB", *RANGE, "--factor", "direct", "--cache", str(file))
    assert file.exists()
    assert "GB" in run("data", "show", "--cache", str(file)).stdout


def test_a_picture_of_what_is_covered(servers: dict[str, Loopback], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    soon = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    run("data", "fetch", "GB", *RANGE, "--factor", "direct")
    ahead = ["--start", f"{soon:%Y-%m-%dT%H:%MZ}", "--end", f"{soon + timedelta(hours=9):%Y-%m-%dT%H:%MZ}"]
    assert run("data", "fetch", "GB", *ahead, "--kind", "forecast", "--factor", "direct").exit_code == 0
    drawn = run("data", "show", "--chart", str(tmp_path / "cover.png"))
    assert drawn.exit_code == 0, drawn.output
    assert b"Description\x001 zone from 2025-03-01T00:00Z to " in (tmp_path / "cover.png").read_bytes()
    assert run("data", "show", "--chart", str(tmp_path / "c.svg"), "--zone", "XX").exit_code == 1


def test_what_fails_is_said_and_what_came_is_kept(servers: dict[str, Loopback]) -> None:
    result = run("data", "fetch", "DE,SE-SE3", *RANGE, "--provider", "energycharts")
    assert result.exit_code == 1
    assert "error: energycharts does not have the zone SE-SE3." in result.stderr
    assert "DE" in result.stdout
    verbose = run("--verbose", "data", "fetch", "SE-SE3", *RANGE, "--provider", "entsoe")
    assert "info: entsoe: GET http://127.0.0.1:" in verbose.stderr
    servers["eia"].always = Reply(status=403, body=b'{"error": "eia-key is not valid"}')
    refused = run("--verbose", "data", "fetch", "US-CAL-CISO", *RANGE, "--provider", "eia")
    assert (
        "error: eia forbids this request (403: *** is not valid). Does the key's plan include the zone"
        in refused.stderr
    )


def test_json_has_notes_and_failures(servers: dict[str, Loopback]) -> None:
    result = run("data", "fetch", "DE,XX", *RANGE, "--provider", "energycharts", "--json")
    told = json.loads(result.stdout)
    assert list(told["failures"]) == ["XX"]
    assert told["fetched"][0]["zone"] == "DE"


def test_mistakes(servers: dict[str, Loopback]) -> None:
    misspelt = run("data", "fetch", "GB", *RANGE, "--provider", "nesso").stderr
    assert misspelt.startswith("error: There is no provider 'nesso'. Did you mean 'neso'? Known: eia, ")
    assert run("data", "fetch", "GB").stderr.startswith("error: Missing option '--start'.\nFor help: ")
    few = run("data", "fetch", "FR,DE,IT", *RANGE, "--provider", "electricitymaps", "--requests", "1")
    assert few.stderr.endswith(
        "error: The limit of 1 requests was reached before electricitymaps was asked. Fetched values are kept: run it again, "
        "ask for a shorter range or fewer zones, or raise the limit (--requests).\n"
    )


SCENARIO = """
start = 2025-03-01T00:00:00Z
rounds = 4
slack = 12
budget_kg = 2.0
[data]
{data}
[[client]]
name = "berlin"
zone = "DE"
power_w = 300
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
"""


def plan(tmp_path: Path, data: str) -> Result:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.format(data=data), encoding="utf-8")
    return run("plan", str(file), "--json")


def test_a_plan_on_providers(servers: dict[str, Loopback], tmp_path: Path) -> None:
    result = plan(tmp_path, 'source = ["energycharts", "electricitymaps"]')
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert made["provenance"][0]["source"].startswith("energycharts: 16 h actual, lifecycle, fetched ")
    assert (made["factor"], made["synthetic"]) == ("lifecycle", False)
    for server in servers.values():
        server.always = Reply(status=404)
    again = json.loads(plan(tmp_path, 'source = ["energycharts", "electricitymaps"]').stdout)
    assert again["objective"] == made["objective"], "from the cache"


def test_a_plan_with_providers_by_zone_and_mixed_factors(servers: dict[str, Loopback], tmp_path: Path) -> None:
    by_zone = 'source = {DE = ["energycharts"], FR = ["entsoe"]}'
    refused = plan(tmp_path, f'{by_zone}\nfactor = "direct"')
    assert refused.exit_code == 1
    assert refused.stderr == (
        "error: energycharts has lifecycle intensity, not direct; the two are not mixed by default. Use factor lifecycle, "
        "another provider, or mix_factors.\n"
    )
    assert json.loads(plan(tmp_path, f'{by_zone}\nfactor = "mixed"').stdout)["factor"] == "lifecycle"
    regions = 'source = {DE = ["energycharts"], FR = ["watttime:FR=FR"]}'
    assert json.loads(plan(tmp_path, f'{regions}\nfactor = "mixed"').stdout)["factor"] == "mixed"
    marginal = 'source = ["watttime:FR=FR;DE=DE"]\nfactor = "marginal"'
    assert json.loads(plan(tmp_path, marginal).stdout)["factor"] == "marginal"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("source = []", "A list names providers"),
        ("source = [3]", "A list names providers"),
        ('source = ["nesso"]', "Did you mean 'neso'"),
        ('source = "typical"\nfactor = "marginal"', "choose 'direct' or 'lifecycle'"),
        ('source = ["neso"]\nkey = "em-key"', "unknown key 'key'"),
    ],
)
def test_mistakes_in_a_scenario(servers: dict[str, Loopback], tmp_path: Path, data: str, words: str) -> None:
    result = plan(tmp_path, data)
    assert result.exit_code == 2
    assert words in result.stderr
