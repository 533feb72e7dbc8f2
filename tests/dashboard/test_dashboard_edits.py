"""Edited scenarios, and what a server that may write accepts."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from made import CLIENT, HOSTILE, SCENARIO, scenario, small_plan, start_run

import slackwater as sw
from slackwater.dashboard.edits import data_choices, scenario_file, tag_of
from slackwater.dashboard.jobs import Jobs
from slackwater.dashboard.server import Dashboard
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.scenario import SCENARIO as DEMO
from slackwater.scenario import ScenarioEdit, edited_text, load_scenario

Serve = Callable[..., Dashboard]


def _changes(path: Path, **more: Any) -> str:
    return json.dumps({"of": tag_of(scenario_file(path)), **more})


def _ask(
    server: Dashboard, path: str, body: Any = None, *, headers: dict[str, str] | None = None, own: bool = True
) -> tuple[int, Any]:
    """The status and JSON of an answer; with a body a POST, as the page itself sends it where `own`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    token = {"Authorization": f"Bearer {server.guard.token}"} if server.guard.token else {}
    page = {"Origin": f"http://127.0.0.1:{server.port}", "Content-Type": "application/json"} if own else {}
    text = body if isinstance(body, str | None) else json.dumps(body)
    connection.request("GET" if text is None else "POST", path, text, token | page | (headers or {}))
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def _source(server: Dashboard, changes: str = "") -> str:
    base = _ask(server, "/api/sources")[1]["sources"][0]["id"]
    return f"{base}~{changes}" if changes else base


def test_the_text_keeps_all_that_is_not_changed() -> None:
    edit = ScenarioEdit(
        settings={"budget_kg": 2.25, "slack": 50, "deadline": None},
        data={"source": "typical", "factor": "direct"},
        clients={0: None, 1: {"name": HOSTILE[0], "power_w": 120}, 6: {"power_w": 90, "energy_kwh": None}},
        added=({"name": HOSTILE[2], "zone": "PL", "power_w": 50, "unavailable": ["sat,sun"]},),
    )
    text = edited_text(DEMO, edit)
    before, after = tomllib.loads(DEMO), tomllib.loads(text)
    assert {key: after[key] for key in ("budget_kg", "slack", "rounds", "start")} == {
        "budget_kg": 2.25, "slack": 50, "rounds": before["rounds"], "start": before["start"],
    }  # fmt: skip
    assert after["data"]["factor"] == "direct"
    first, *_, paris, new = after["client"]
    assert first == before["client"][1] | {"name": HOSTILE[0], "power_w": 120}
    assert paris == {"name": "paris", "zone": "FR", "power_w": 90}
    assert new == {"name": HOSTILE[2], "zone": "PL", "power_w": 50, "unavailable": ["sat,sun"]}
    kept = set(text.splitlines())
    comments = {line for line in DEMO.splitlines() if line.startswith("#")}
    assert comments <= kept
    assert edited_text(DEMO, ScenarioEdit()) == DEMO


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + (SCENARIO + CLIENT.format(name='"a"', zone="DE")).replace("\n", "\r\n"),
        SCENARIO + 'client = [{ name = "a", zone = "DE", power_w = 300 }]\n',
        SCENARIO + CLIENT.format(name='"a"', zone="DE") + '\n[data]\nsource = "typical"\n',
        SCENARIO + "client = [\n]\n[server]\nzone = 'IE'\npower_w = 1\n",
        SCENARIO,
    ],
)
def test_every_way_to_write_a_scenario_can_be_edited(text: str, tmp_path: Path) -> None:
    some = "client" in text and "[\n]" not in text.replace("\r", "")
    edit = ScenarioEdit(
        settings={"slack": 7},
        data={"factor": "direct"},
        clients={0: {"zone": "FR"}} if some else {},
        added=({"name": "b", "zone": "PL", "power_w": 10},),
    )
    made = edited_text(text, edit)
    assert ("\r\n" in made) == ("\r\n" in text)
    found = load_scenario(tmp_path / "x.toml", text=made)
    assert (found.slack, found.data.factor) == (7, "direct")
    assert [(one.name, one.zone) for one in found.client] == [*([("a", "FR")] if some else []), ("b", "PL")]


def test_a_text_that_cannot_be_edited_is_a_sentence() -> None:
    with pytest.raises(ScenarioError, match="cannot be edited"):
        edited_text("rounds = ", ScenarioEdit(settings={"slack": 1}))
    with pytest.raises(ScenarioError, match="cannot be edited"):
        edited_text('data = "x"\n', ScenarioEdit(data={"factor": "direct"}))
    with pytest.raises(ScenarioError, match="7 clients; there is no client number 100"):
        edited_text(DEMO, ScenarioEdit(clients={99: None}))


def test_an_edited_source_is_planned_as_the_downloaded_file_is(serve: Serve, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    server = serve(path)
    added = [{"name": HOSTILE[1], "zone": "PL", "power_w": 20, "unavailable": ["daily 05:00-06:00"]}]
    source = _source(server, _changes(path, clients={"0": None, "2": {"power_w": 450}}, added=added, factor="direct"))
    asked = f"source={quote(source)}&budget_kg=1.25&slack=12"
    status, best = _ask(server, f"/api/plan/best?{asked}")
    assert status == 200
    status, file = _ask(server, f"/api/scenario?{asked}")
    assert file["name"] == "scenario.toml"
    copy = tmp_path / "copy.toml"
    copy.write_text(file["toml"], encoding="utf-8")
    problem = load_scenario(copy).problem()
    assert [str(name) for name in problem.fleet.names] == ["GB", "IE", "FI", "SE-SE3", "DE", "FR", HOSTILE[1]]
    assert (problem.slack, problem.budget_kg, problem.traces.factor) == (12, 1.25, "direct")
    assert best["emissions_kg"] == pytest.approx(sw.plan(problem).emissions_kg)
    assert _ask(server, f"/api/problem?source={quote(source)}")[1]["label"] == "scenario.toml, edited"
    assert _ask(server, f"/api/map?source={quote(source)}")[0] == 200


def test_a_source_of_data_is_chosen_from_a_list_and_never_named(serve: Serve, tmp_path: Path) -> None:
    path = scenario(tmp_path, names=("BE", "GB"))
    (tmp_path / "mine").mkdir()
    for zone, first in (("BE", 100), ("GB", 200)):
        hours = [f"2022-01-{1 + at // 24:02d}T{at % 24:02d}:00Z,{first + at}" for at in range(48)]
        (tmp_path / "mine" / f"{zone}_2022.csv").write_text("\n".join(["datetime_utc,ci_lca_g_per_kwh", *hours]) + "\n")
    (tmp_path / "other.csv").write_text("a,b\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.db").touch()
    (tmp_path / "run" / "lines.csv").touch()
    (tmp_path / "link.csv").symlink_to("/etc/passwd")
    choices = data_choices(path)
    assert sorted(choices.values()) == [".", "mine", "other.csv", "typical"]
    chosen = next(key for key, name in choices.items() if name == "mine")
    server = serve(path)
    source = _source(server, _changes(path, data=chosen))
    status, problem = _ask(server, f"/api/problem?source={quote(source)}")
    assert status == 200, problem
    assert not problem["synthetic"]
    assert problem["intensity_g_per_kwh"][0][:3] == [100, 101, 102]
    assert 'source = "mine"' in _ask(server, f"/api/scenario?source={quote(source)}")[1]["toml"]
    for other in ("mine", "/etc", "../..", 7, None):
        status, content = _ask(server, f"/api/problem?source={quote(_source(server, _changes(path, data=other)))}")
        assert status == 400
        assert "no such source of data" in content["error"]


@pytest.mark.parametrize(
    ("changes", "tells"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"path": "/etc/passwd"}', "cannot be read"),
        ('{"of": "0123"}', "has changed since"),
        ('{"clients": {"0": null}}', "has changed since"),
        ("[" * 5_000, "cannot be read"),
        ('{"of": "' + "x" * 7_000 + '"}', "too many changes"),
    ],
)
def test_changes_that_cannot_be_read_are_sentences(serve: Serve, tmp_path: Path, changes: str, tells: str) -> None:
    server = serve(scenario(tmp_path))
    status, content = _ask(server, f"/api/problem?source={quote(_source(server, changes))}")
    assert status == 400
    assert tells in content["error"]


@pytest.mark.parametrize(
    ("change", "tells"),
    [
        ({"clients": {"0": {"zone": "XX"}}}, "XX"),
        ({"clients": {"0": {"name": "GB"}}}, "GB"),
        ({"clients": {"0": {"name": ""}}}, "name of a client"),
        ({"clients": {"0": {"power_w": "300"}}}, "number of watts"),
        ({"clients": {"0": {"power_w": True}}}, "number of watts"),
        ({"clients": {"0": {"power_w": -1}}}, "power_w"),
        ({"clients": {"0": {"unavailable": "sat"}}}, "list"),
        ({"clients": {"0": {"unavailable": ["someday"]}}}, "someday"),
        ({"clients": {"0": {"levels": []}}}, "changed by"),
        ({"clients": {"-1": None}}, "cannot be read"),
        ({"clients": {"7": None}}, "no client number 8"),
        ({"added": [{"name": "x"}]}, "zone"),
        ({"factor": "magic"}, "factor"),
    ],
)
def test_a_change_that_makes_no_scenario_is_a_sentence(
    serve: Serve, tmp_path: Path, change: dict[str, Any], tells: str
) -> None:
    path = scenario(tmp_path)
    server = serve(path)
    status, content = _ask(server, f"/api/problem?source={quote(_source(server, _changes(path, **change)))}")
    assert status == 400, content
    assert tells in content["error"]


def test_only_a_scenario_is_edited(serve: Serve, tmp_path: Path) -> None:
    plan = small_plan()
    plan.save(tmp_path / "plan.json")
    with start_run(tmp_path / "run", plan):
        server = serve(tmp_path)
        for one in _ask(server, "/api/sources")[1]["sources"]:
            assert _ask(server, f"/api/edit?source={one['id']}")[1]["file"] is None
            assert _ask(server, f"/api/problem?source={one['id']}~%7B%7D")[0] == 404


def test_without_writable_nothing_is_written(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path), token="t")
    before = sorted(tmp_path.rglob("*"))
    for path in ("/api/save", "/api/start", "/api/plan", "/"):
        status, content = _ask(server, path, {"source": _source(server), "kind": "train"})
        assert status == 405
        assert "only reads" in content["error"]
    assert _ask(server, "/api/jobs")[0] == 404
    assert sorted(tmp_path.rglob("*")) == before


def test_a_server_that_writes_has_a_token(tmp_path: Path) -> None:
    from slackwater.cli.output_commands import open_library

    with pytest.raises(ValueError, match="token"):
        Dashboard(open_library(scenario(tmp_path)), host="127.0.0.1", port=0, writable=True)


def test_writing_is_refused_unless_the_page_itself_asks(serve: Serve, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    server, before = serve(path, token="s3cret", writable=True), path.read_bytes()
    body = {"source": _source(server), "budget_kg": 1.0}
    for headers, status in (
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"http://127.0.0.1:{server.port + 1}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
        ({"Content-Length": "70000"}, 400),
    ):
        assert _ask(server, "/api/save", body, headers=headers)[0] == status, headers
    assert _ask(server, "/api/save", body, own=False)[0] == 403
    assert _ask(server, "/api/save?token=s3cret", body, headers={"Authorization": ""})[0] == 401
    assert _ask(server, "/api/other", body)[0] == 404
    for text in ("", "{", "[1]", '"x"', "[" * 9_999):
        assert _ask(server, "/api/save", text)[0] == 400
    assert path.read_bytes() == before
    assert _ask(server, "/api/save", body)[0] == 200
    assert tomllib.loads(path.read_text())["budget_kg"] == 1.0


def test_what_is_saved_is_what_is_on_show_and_no_other_file(serve: Serve, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    path.write_text("# mine\n" + path.read_text())
    server = serve(path, token="t", writable=True)
    source = _source(server, _changes(path, clients={"1": {"name": HOSTILE[0]}}))
    best = _ask(server, f"/api/plan/best?source={quote(source)}&slack=9")[1]
    asked = {
        "source": source,
        "slack": 9,
        "budget_kg": 2.0,
        "alpha": 0.1,
        "path": "/tmp/x",
        "file": "../x",
        "page": "p",
        "end": "auto",
    }
    assert _ask(server, "/api/save", asked) == (200, {"saved": "scenario.toml"})
    assert os.listdir(tmp_path) == ["scenario.toml"]
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# mine\n")
    assert "fine_tune = 1\n" in text  # what is as in the scenario stays as it was written
    assert sw.plan(load_scenario(path).problem()).emissions_kg == pytest.approx(best["emissions_kg"])
    status, content = _ask(server, "/api/save", asked)  # the file is another one now
    assert status == 400
    assert "has changed since" in content["error"]
    again = _ask(server, f"/api/plan/best?source={_source(server)}")[1]  # no answer from before the file changed
    assert again["settings"]["slack"] == 9


def test_settings_that_no_plan_can_have_are_not_saved(serve: Serve, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    server, before = serve(path, token="t", writable=True), path.read_bytes()
    for wrong in (
        {"budget_kg": -1},
        {"slack": 10**9},
        {"alpha": "x"},
        {"fine_tune": 99},
        {"slack": [1]},
        {"budget_kg": {}},
    ):
        assert _ask(server, "/api/save", {"source": _source(server)} | wrong)[0] == 400, wrong
    assert path.read_bytes() == before


def test_a_started_run_has_a_new_folder_and_its_own_scenario(serve: Serve, tmp_path: Path) -> None:
    path = scenario(tmp_path)
    (tmp_path / "run").mkdir()
    server, before = serve(path, token="t", writable=True), path.read_bytes()
    assert _ask(server, "/api/start", {"source": _source(server), "kind": "rm -rf"})[0] == 400
    status, job = _ask(server, "/api/start", {"source": _source(server), "kind": "train", "budget_kg": 0.0001})
    assert status == 200
    assert job["folder"] == "run-2"
    assert _ask(server, "/api/start", {"source": _source(server), "kind": "train"})[0] == 422
    server.jobs.all()[0].done.wait(60)
    (found,) = _ask(server, "/api/jobs")[1]["jobs"]
    assert found["ended"]
    assert found["exit_code"] == 3  # infeasible, so that nothing trains
    assert "Raise budget_kg" in found["last_words"]
    assert found["run"] == server.library.run_id(tmp_path / "run-2")
    assert tomllib.loads((tmp_path / "run-2.toml").read_text())["budget_kg"] == 0.0001
    assert path.read_bytes() == before
    assert stat.S_IMODE((tmp_path / "run-2").stat().st_mode) == 0o700


def test_a_folder_in_which_no_run_can_be_started_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SlackwaterError, match="cannot be made"):
        Jobs().start("train", tmp_path / "missing", lambda folder: [])


def test_the_report_of_a_run_is_a_page_without_scripts(serve: Serve, tmp_path: Path) -> None:
    from report_runs import HOSTILE as NAMES
    from report_runs import plan, write

    write(tmp_path / "run", plan(names=(NAMES[0], NAMES[1])))
    server = serve(tmp_path)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/api/report?run={_source(server)}", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    text = gzip.decompress(answer.read()).decode()
    connection.close()
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in text
    assert "<img" not in text
    assert _ask(server, "/api/report?run=../../etc")[0] == 422
