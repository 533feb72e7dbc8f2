"""The server as a client meets it, good or bad."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made import HOSTILE, do_rounds, hostile_plan, scenario, small_plan, start_run

from slackwater.dashboard import runs as events
from slackwater.dashboard.server import Dashboard

Serve = Callable[..., Dashboard]


def _get(
    server: Dashboard, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.headers)
    connection.close()
    return found


def _json(server: Dashboard, path: str) -> Any:
    status, content, headers = _get(server, path)
    assert headers["Content-Type"] == "application/json"
    return status, json.loads(content)


def _id(server: Dashboard, kind: str) -> str:
    return next(one["id"] for one in _json(server, "/api/sources")[1]["sources"] if one["kind"] == kind)


def test_the_page_and_its_files_are_served_with_strict_headers(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    for path in ("/", "/app.js", "/style.css", "/palette.css", "/icon.svg", "/api/sources", "/nothing"):
        status, content, headers = _get(server, path)
        assert status == (404 if path == "/nothing" else 200)
        assert content
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
    page = _get(server, "/")[1].decode()
    assert "http://" not in page
    assert "https://" not in page
    assert _get(server, "/", method="HEAD")[1] == b""


def test_nothing_is_fetched_from_elsewhere() -> None:
    static = Path(events.__file__).parent / "static"
    for file in (one for one in static.rglob("*") if one.is_file() and one.suffix != ".md"):  # .md is not served
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        if file.parent.name == "vendor":  # the first line names the library's home in a comment
            text = text.partition("\n")[2] if text.startswith(("//", "/*")) else text
        assert "http:" not in text, file.name
        assert "https:" not in text, file.name
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert forbidden not in text, f"{file.name}: {forbidden}"


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/..%2f..%2fetc/passwd", "/static/../server.py", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
     "/app.js/../server.py", "/api/../server.py", "/.", "/server.py", "/static/app.js", "/index.html%00", "/\\..\\x"],
)  # fmt: skip
def test_paths_that_climb_are_refused(serve: Serve, tmp_path: Path, path: str) -> None:
    status, content, _ = _get(serve(scenario(tmp_path)), path)
    assert status == 404
    assert json.loads(content)["error"]


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "run/training", ".", "", "s' OR 1=1", "%00", "x" * 5000]
)
def test_ids_are_looked_up_never_opened(serve: Serve, tmp_path: Path, name: str) -> None:
    server = serve(scenario(tmp_path))
    from urllib.parse import quote

    for path in ("/api/problem?source=", "/api/plan?source=", "/api/run?run=", "/api/map?source=", "/api/events?run="):
        status, content, _ = _get(server, path + quote(name))
        assert status == 404
        assert "no such" in json.loads(content)["error"]
    if name:
        assert _get(server, "/api/compare?ids=" + quote(name))[0] == 404


def test_other_hosts_origins_and_methods_are_refused(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    assert _get(server, "/api/sources", {"Host": "evil.example"})[0] == 421
    assert _get(server, "/api/sources", {"Host": f"evil.example:{server.port}"})[0] == 421
    assert _get(server, "/api/sources", {"Origin": "http://evil.example"})[0] == 403
    assert _get(server, "/app.js", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})[0] == 403
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        status, content, _ = _get(server, "/api/sources", method=method)
        assert status == 405
        assert "only reads" in json.loads(content)["error"]


def test_the_token(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path), token="s3cret")
    for path in ("/", "/app.js", "/api/sources", "/api/events?run=x", "/?token=wrong", "/?token="):
        status, content, _ = _get(server, path)
        assert status == 401
        assert "token" in json.loads(content)["error"]
        assert b"s3cret" not in content
    status, _, headers = _get(server, "/?token=s3cret")
    assert status == 303
    assert headers["Location"] == "./"  # relative: behind a proxy the page may have a prefix
    assert "HttpOnly" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].split(";")[0]
    assert _get(server, "/", {"Cookie": cookie})[0] == 200
    assert _get(server, "/api/sources", {"Authorization": "Bearer s3cret"})[0] == 200


def test_hostile_names_are_text_in_the_json(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "<b onclick='x'>&"
    plan = hostile_plan()
    plan.save(folder / "plan.json")
    with start_run(folder / "'\"run", plan) as run:
        do_rounds(run, plan, 0, 2)
    server = serve(tmp_path)
    _, listed = _json(server, "/api/sources")
    assert {one["label"] for one in listed["sources"]} == {"<b onclick='x'>&/plan.json", "<b onclick='x'>&/'\"run"}
    for one in listed["sources"]:
        problem = _json(server, f"/api/problem?source={one['id']}")[1]
        assert problem["clients"]["name"] == list(HOSTILE)
    status, content, headers = _get(server, f"/api/run?run={_id(server, 'run')}")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(content)["fixed"]["clients"] == list(HOSTILE)


def test_every_view_is_json(serve: Serve, tmp_path: Path) -> None:
    scenario(tmp_path)
    plan = small_plan()
    plan.save(tmp_path / "plan.json")
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 1000)
        run.set_status("done")
    server = serve(tmp_path / "scenario.toml")
    source, run_id, plan_id = _id(server, "scenario"), _id(server, "run"), _id(server, "plan")
    for path in (
        f"/api/problem?source={source}",
        f"/api/plan?source={source}&budget_kg=1.5",
        f"/api/plan/best?source={source}",
        f"/api/front?source={source}&end=3",
        f"/api/scenario?source={source}&slack=3",
        f"/api/scenario?source={run_id}",
        f"/api/map?source={plan_id}",
        f"/api/run?run={run_id}",
        f"/api/compare?ids={run_id},{plan_id},{source}",
    ):
        status, content = _json(server, path)
        assert status == 200, (path, content)
    columns = content["columns"]
    assert [column["kind"] for column in columns] == ["run", "plan", "scenario"]
    assert columns[0]["run"]["status"] == "done"
    assert columns[0]["plan"]["emissions_kg"] == pytest.approx(columns[1]["plan"]["emissions_kg"])
    assert "no plan yet" in columns[2]["error"]
    assert _json(server, f"/api/front?source={source}")[0] == 400
    assert _json(server, f"/api/run?run={plan_id}")[0] == 400
    assert _json(server, f"/api/plan?source={source}&alpha=<b>")[0] == 400


def test_the_run_that_was_written_last_is_the_first_and_its_baseline_follows(serve: Serve, tmp_path: Path) -> None:
    for place, moment in (("a", 100), ("b", 300), ("b/baseline", 900), ("c", 200)):
        start_run(tmp_path / place, small_plan()).close()
        for file in (tmp_path / place).glob("run.db*"):
            os.utime(file, (moment, moment))
    listed = json.loads(_get(serve(scenario(tmp_path)), "/api/sources")[1])["sources"]
    assert [one["label"] for one in listed] == ["scenario.toml", "b", "b/baseline", "c", "a"]


def test_a_corrupt_run_is_a_sentence_and_does_not_hide_the_others(serve: Serve, tmp_path: Path) -> None:
    plan = small_plan()
    plan.save(tmp_path / "plan.json")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.db").write_bytes(os.urandom(9999))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "plan.json").write_text('{"format": 1, "clients": [')
    server = serve(tmp_path)
    status, content = _json(server, f"/api/run?run={_id(server, 'run')}")
    assert status == 422
    assert "cannot be used" in content["error"]
    ids = [one["id"] for one in _json(server, "/api/sources")[1]["sources"]]
    columns = _json(server, f"/api/compare?ids={','.join(ids)}")[1]["columns"]
    assert sorted("error" in column for column in columns) == [False, True, True]


def _events(server: Dashboard, run: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", f"/api/events?run={run}")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    seen: list[dict[str, Any]] = []
    while not enough(seen):
        line = answer.readline().decode()
        if line.startswith("data: "):
            seen.append(json.loads(line[6:]))
    answer.close()
    connection.close()
    return seen


def test_a_page_is_told_of_every_round(serve: Serve, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        server = serve(tmp_path)

        def write() -> None:
            total = 1000
            number = 0
            while number < total:
                total = do_rounds(run, plan, number, 2)
                number += 2
                time.sleep(0.3)
            run.set_status("done")

        writer = threading.Thread(target=write)
        writer.start()
        seen = _events(server, _id(server, "run"), lambda seen: bool(seen) and seen[-1]["status"] == "done")
        writer.join()
    numbers = [one["number"] for state in seen for one in state["rounds"]]
    assert numbers == list(range(seen[-1]["rounds_planned"]))
    assert len(seen) > 2


def test_a_run_that_breaks_while_it_is_watched_is_a_sentence(serve: Serve, tmp_path: Path) -> None:
    with start_run(tmp_path / "run", small_plan()):
        server = serve(tmp_path)
        run = _id(server, "run")
        threading.Timer(0.7, lambda: (tmp_path / "run" / "run.db").rename(tmp_path / "elsewhere.db")).start()
        seen = _events(server, run, lambda seen: bool(seen) and "error" in seen[-1])
    assert "gone" in seen[-1]["error"]


def test_slow_and_dropped_browsers_disturb_neither_run_nor_others(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.2)
    plan = small_plan(clients=20, slots=60)
    with start_run(tmp_path / "run", plan) as run:
        server = serve(tmp_path)
        run_id = _id(server, "run")
        lazy = []
        for _ in range(6):  # they ask and never read
            one = socket.create_connection(("127.0.0.1", server.port))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            one.sendall(f"GET /api/events?run={run_id} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            lazy.append(one)
        for _ in range(4):  # they ask and vanish
            with socket.create_connection(("127.0.0.1", server.port)) as one:
                one.sendall(f"GET /api/events?run={run_id} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        half = socket.create_connection(("127.0.0.1", server.port))  # never ends its request
        half.sendall(b"GET / HT")
        do_rounds(run, plan, 0, 1000)
        run.set_status("done")
        assert _json(server, f"/api/run?run={run_id}")[1]["state"]["status"] == "done"
        for one in (*lazy, half):
            one.close()


def test_too_many_watchers_are_told(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 0)
    with start_run(tmp_path / "run", small_plan()):
        server = serve(tmp_path)
        seen = _events(server, _id(server, "run"), lambda seen: bool(seen))
    assert "already following runs" in seen[0]["error"]


def test_a_defect_is_a_sentence(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(scenario(tmp_path))
    server.answers["/api/sources"] = lambda query: {"x": 1 / 0}
    status, content = _json(server, "/api/sources")
    assert status == 500
    assert "defect" in content["error"]
    assert "ZeroDivisionError" in caplog.text


def test_files_and_answers_are_packed_and_not_sent_twice(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    for path in ("/", "/app.js", "/vendor/uplot.js", f"/api/problem?source={_id(server, 'scenario')}"):
        status, plain, headers = _get(server, path)
        assert status == 200
        assert "Content-Encoding" not in headers
        assert (headers["Cache-Control"], headers["Vary"]) == ("private, no-cache", "Accept-Encoding")
        status, packed, again = _get(server, path, {"Accept-Encoding": "br, gzip;q=0.8"})
        assert again["Content-Encoding"] == "gzip"
        assert len(packed) < 0.6 * len(plain)
        assert gzip.decompress(packed) == plain
        assert again["ETag"] == headers["ETag"]
        for tag in (headers["ETag"], f'"other", {headers["ETag"]}'):
            status, content, same = _get(server, path, {"If-None-Match": tag, "Accept-Encoding": "gzip"})
            assert (status, content) == (304, b"")
            assert same["ETag"] == headers["ETag"]
            assert "Content-Length" not in same
        assert _get(server, path, {"If-None-Match": 'W/"0"'})[0] == 200
        assert "Content-Encoding" not in _get(server, path, {"Accept-Encoding": "gzip;q=0, br"})[2]
    tags = {_get(server, path)[2]["ETag"] for path in server.files}
    assert len(tags) == len(server.files)
    for path in ("/nothing", "/api/problem?source=x"):
        assert _get(server, path)[2]["Cache-Control"] == "no-store"


def test_the_whole_page_is_small(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path))
    assert sum(len(one.packed or one.plain) for one in server.files.values()) < 130_000


def test_a_browser_without_the_token_gets_a_form(serve: Serve, tmp_path: Path) -> None:
    server = serve(scenario(tmp_path), token="s3cret")
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, tells in (
        ("/", b"asks for its token"),
        ("/?token=", b"asks for its token"),
        ("/?token=<b>", b"not the token"),
    ):
        status, content, headers = _get(server, path, browser)
        assert status == 401
        assert headers["Content-Type"].startswith("text/html")
        assert tells in content
        assert b'action="./"' in content
        assert b"<b>" not in content
        assert b"s3cret" not in content
        assert b"<script" not in content
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["Cache-Control"] == "no-store"
    for path in ("/app.js", "/api/sources", "/api/run?run=x", "/style.css"):
        status, content, headers = _get(server, path, browser)
        assert status == 401
        assert "token" in json.loads(content)["error"]
    cookie = _get(server, "/?token=s3cret", browser)[2]["Set-Cookie"]
    assert "Path" not in cookie  # the browser takes the folder of the page's own address, below a prefix too


def test_a_finished_run_ends_its_stream(serve: Serve, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 1000)
        run.set_status("done")
    server = serve(tmp_path)
    status, content, headers = _get(server, f"/api/events?run={_id(server, 'run')}")
    assert status == 200
    assert headers["X-Accel-Buffering"] == "no"
    assert content.count(b"event: state") == 1
    assert server.streams.open_count() == 0


def test_a_browser_with_many_pages_keeps_few_streams_and_misses_no_round(serve: Serve, tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        do_rounds(run, plan, 0, 2)
        server = serve(tmp_path)
        path = f"/api/events?run={_id(server, 'run')}"
        held = []
        for _ in range(events.STREAMS_EACH):
            one = socket.create_connection(("127.0.0.1", server.port))
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            assert one.recv(1)
            held.append(one)

        def ask(last: str = "") -> tuple[str, dict[str, Any]]:
            """A page too many: its stream ends by itself."""
            content = _get(server, path, {"Last-Event-ID": last})[1].decode()
            assert f"retry: {events.AGAIN_MS}" in content
            lines = dict(line.split(": ", 1) for line in content.splitlines() if ": " in line)
            return lines["id"], json.loads(lines["data"])

        number, state = ask()
        assert (state["since"], len(state["rounds"])) == (0, 2)
        do_rounds(run, plan, 2, 1)
        later, state = ask(number)
        assert (state["since"], [one["number"] for one in state["rounds"]]) == (2, [2])
        for other in ("elsewhere-2", "-", "x", later.partition("-")[0]):  # after a restart of the server all are sent
            _, state = ask(other)
            assert (state["since"], len(state["rounds"])) == (0, 3)
        for one in held:
            one.close()
        deadline = time.monotonic() + 20
        while server.streams.open_count() and time.monotonic() < deadline:  # a closed page is noticed without a write
            time.sleep(0.05)
        assert server.streams.open_count() == 0
