"""Whatever a provider sends, it gets an answer or a ProviderError: in time, in a clean sentence, and without a key."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, END, SECRETS, START, Case, Sleeps, make_context, serving
from fakes import NOW, EnergyChartsFake, NesoFake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import Asked, Loopback, Reply, as_json, running

from slackwater.intensity.providers import http
from slackwater.intensity.providers import provider_errors as errors
from slackwater.intensity.providers.base import REST, Context, Provider
from slackwater.intensity.providers.cache import Cache
from slackwater.intensity.providers.chain import Chain, make_provider
from slackwater.intensity.providers.http import Client
from slackwater.intensity.providers.readings import Answer

every_provider = pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
NESO = next(case for case in CASES if case.spec == "neso")
MAPS = next(case for case in CASES if case.spec == "electricitymaps")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
MANY = settings(
    max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def judged(answer: Answer, sleeps: Sleeps | None = None, case: Case = NESO) -> Answer:
    """The answer, after a look at everything in it; no key that this provider was sent comes back."""
    for text in (*answer.notes, *map(str, answer.failures.values())):
        assert not any(secret in text for secret in case.secrets), text
        assert text.isprintable()
        assert len(text) < 2_000
        assert text.encode("utf-8")
    for error in answer.failures.values():
        assert isinstance(error, errors.ProviderError)
        assert str(error).endswith((".", "?")), str(error)
    for reading in answer.readings:
        assert 0 <= reading.kg_per_kwh <= 10
        assert START <= reading.start < END
        assert reading.issued_at is None or abs(reading.issued_at - NOW) < timedelta(days=31)
    assert sum(sleeps or []) <= Client().patience_s
    return answer


# -- time


def hosted(answer: bytes, drip_s: float) -> Reply:
    return Reply(raw=answer, drip_s=drip_s)


SLOW = {
    "status line": hosted(b"HTTP/1.1 200 " + b"O" * 200, 0.02),
    "headers": hosted(HEAD + b"X-Slow: " + b"x" * 200, 0.02),
    "interim answers": hosted(b"HTTP/1.1 100 Continue\r\n\r\n" * 10, 0.02),
    "body": hosted(HEAD + b"Content-Length: 200\r\n\r\n" + b" " * 200, 0.02),
    "chunks": hosted(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 40, 0.02),
    "trailers": hosted(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 40, 0.02),
}


@pytest.mark.parametrize("reply", SLOW.values(), ids=SLOW)
def test_the_total_time_out_covers_every_part_of_an_answer(reply: Reply) -> None:
    """Each piece comes within the time-out of silence; without a total one they would be waited for to the end."""
    with serving(NESO, timeout_s=30.0, total_s=0.15, attempts=1) as (provider, server, _):
        server.always = reply
        error = judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"]
    assert isinstance(error, errors.UnavailableError)
    assert str(error) == "neso did not answer in full within 0.15 s. Try again later, or name another provider."


@pytest.mark.parametrize(
    ("status", "kind"), [(401, errors.UnauthorisedError), (404, errors.NotFoundError), (503, errors.UnavailableError)]
)
def test_an_error_whose_body_trickles_is_that_error(status: int, kind: type[Exception]) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n" % status
    with serving(NESO, timeout_s=30.0, total_s=2.0, attempts=1) as (provider, server, _):
        server.always = Reply(raw=head + b" " * 500, drip_s=0.02)
        error = judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"]
    assert isinstance(error, kind)
    assert str(status) in str(error)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "slackwater-http"]


def test_an_exchange_that_is_out_of_time_leaves_nothing_behind() -> None:
    with serving(NESO, timeout_s=600.0, total_s=0.1, attempts=1) as (provider, server, _):
        server.always = Reply(raw=HEAD + b"X-Slow: " + b"x" * 500, drip_s=0.02)
        judged(provider.fetch(["GB"], START, END, "actual"))
        for thread in _threads():  # its socket was shut down, or it would wait for ten minutes
            thread.join(30.0)
            assert not thread.is_alive()


def test_a_handshake_that_never_ends_is_cut_off() -> None:
    """The server accepts the connection and says nothing, so the client waits in the middle of TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        context = make_context({"neso": address}, factor="direct", timeout_s=600.0, total_s=0.1, attempts=1)
        error = judged(make_provider("neso", context).fetch(["GB"], START, END, "actual")).failures["GB"]
        assert isinstance(error, errors.UnavailableError)
        for thread in _threads():
            thread.join(30.0)
            assert not thread.is_alive()


def test_a_name_that_is_looked_up_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = threading.Event()

    def looked_up(*_: Any) -> socket.socket:
        resolved.wait(600)
        raise OSError("too late")

    monkeypatch.setattr(http.socket, "create_connection", looked_up)
    context = make_context({"neso": "http://127.0.0.1:9"}, factor="direct", total_s=0.05, attempts=1)
    error = judged(make_provider("neso", context).fetch(["GB"], START, END, "actual")).failures["GB"]
    assert "did not answer in full within 0.05 s" in str(error)
    resolved.set()


def test_a_connection_that_comes_too_late_is_closed_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = http.Connections()
        connections.cut()
        with pytest.raises(http.OutOfTime):
            connections.connect(listener.getsockname())


def test_a_get_ends_within_its_patience() -> None:
    """Four attempts with three waits of 50 s would be 150 s."""
    with serving(NESO) as (provider, server, sleeps):
        server.always = Reply(status=503, headers={"Retry-After": "50"})
        error = judged(provider.fetch(["GB"], START, END, "actual"), sleeps).failures["GB"]
    assert len(server.asked) == 3
    assert "(3 attempts)" in str(error)
    assert 100 <= sum(sleeps) < 120


def test_patience_also_bounds_the_last_attempt() -> None:
    with serving(NESO, total_s=600.0, patience_s=3.0, timeout_s=600.0, attempts=2) as (provider, server, _):
        server.script.append(Reply(status=503, headers={"Retry-After": "2"}))
        server.script.append(Reply(raw=HEAD + b"X-Slow: " + b"x" * 500, drip_s=0.02))
        error = judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"]
    assert re.search(r"did not answer in full within 0\.\d+ s \(2 attempts\)", str(error))


def test_a_provider_that_was_waited_for_has_its_rest_afterwards() -> None:
    """Seven zones must not wait seven times for the same outage, also where one wait is longer than the rest."""
    with serving(NESO) as (provider, server, _):
        clock = [NOW]
        provider.client.now = lambda: clock[0]

        def passes(seconds: float) -> None:
            clock[0] += timedelta(seconds=2 * REST.total_seconds())

        provider.client._sleep = passes
        server.always = Reply(status=503)
        provider.fetch(["GB", "GB-1"], START, END, "actual")
        assert len(server.asked) == 4


def test_a_slow_provider_has_its_time_of_an_hour() -> None:
    with serving(NESO, max_seconds=100.0) as (provider, server, _):
        clock = [NOW]
        provider.client.now = lambda: clock[0]
        server.script.extend([Reply(status=429, headers={"Retry-After": "60"}), None] * 2)
        for _ in range(2):
            assert not provider.fetch(["GB"], START, END, "actual").failures
        error = judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"]
        assert "neso is too slow: it took 12" in str(error)
        assert "paused until 13:20 UTC" in str(error)
        assert len(server.asked) == 4
        clock[0] += timedelta(hours=1)
        assert not provider.fetch(["GB"], START, END, "actual").failures


def test_the_budget_of_requests_is_renewed_every_hour() -> None:
    """A live run of a week asks thousands of times with one client."""
    with serving(NESO, max_requests=2) as (provider, server, _):
        clock = [NOW]
        provider.client.now = lambda: clock[0]
        for hour in range(3):
            clock[0] = NOW + timedelta(hours=hour)
            for _ in range(2):
                assert not provider.fetch(["GB"], START, END, "actual").failures
            error = provider.fetch(["GB"], START, END, "actual").failures["GB"]
            assert isinstance(error, errors.RequestBudgetError)
            clock[0] += REST
    assert len(server.asked) == 6


# -- headers


ABSURD = (
    "9" * 400, "9" * 5000, "-1", "-" + "9" * 30, "1e400", "inf", "nan", "0x10", "", " ", "²", "½", "1_000", "+5", "12,13",
    "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Sat, 01 Jan 0001 00:00:00 +2359",
    f"Tue, 10 Nov {10**30} 12:20:00 GMT", "Tue, 10 Nov 2026 99:99:99 GMT", "Tue, 10 Nov 2026 12:20:00 +99999999",
    "Tue, 99 Nov 2026 12:20:00 GMT", "Tue", ",,,", "http://[", "//x:99999999", "em-key", "\x80\xff", "a" * 60_000,
)  # fmt: skip
HEADERS = (
    "Age", "Retry-After", "Date", "Content-Length", "Content-Type", "Content-Encoding", "Location", "Transfer-Encoding",
    "Connection", "WWW-Authenticate", "Set-Cookie",
)  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("status", [200, 302, 429, 503, 404])
def test_absurd_headers(name: str, status: int) -> None:
    with serving(NESO, attempts=2) as (provider, server, sleeps):
        for value in ABSURD:
            provider._down = None
            sleeps.clear()
            good = server.answers(Asked(path=f"/intensity/{START.isoformat()}/{END.isoformat()}", query={}, headers={}))
            server.always = Reply(status=status, body=good.body, headers={name: value})
            judged(provider.fetch(["GB"], START, END, "actual"), sleeps)
            assert abs(provider.client.latest_now() - NOW) <= http.CREDIBLE


def test_an_absurd_age_does_not_spoil_a_good_answer() -> None:
    with serving(NESO, attempts=1) as (provider, server, sleeps):
        good = server.answers(Asked(path=f"/intensity/{START.isoformat()}/{END.isoformat()}", query={}, headers={}))
        for value in ("9" * 12, "9" * 400, "9" * 5000):
            server.always = Reply(status=200, body=good.body, headers={"Age": value})
            answer = judged(provider.fetch(["GB"], START, END, "actual"), sleeps)
            assert answer.readings
            assert not answer.failures


@pytest.mark.parametrize(
    ("headers", "waited"),
    [
        ({"Retry-After": "9" * 400}, "a day or longer"),
        ({"Retry-After": "Fri, 31 Dec 2199 23:59:59 GMT"}, "a day or longer"),
        ({"Retry-After": "86399"}, "86399 s; try again after"),
    ],
)
def test_a_wait_of_centuries_is_a_sentence(headers: dict[str, str], waited: str) -> None:
    with serving(NESO, jitter=lambda: 0.0) as (provider, server, sleeps):
        server.always = Reply(status=429, headers=headers)
        error = judged(provider.fetch(["GB"], START, END, "actual"), sleeps).failures["GB"]
    assert f"It asks to wait {waited}" in str(error)
    assert not sleeps


def test_a_clock_of_another_century_does_not_move_ours() -> None:
    """One provider with a wrong clock must not make the hours that others forecast past ones."""
    with serving(NESO) as (provider, server, _):
        for days, said in ((0.5, True), (40, True), (4000, False)):
            server.clock = NOW + timedelta(days=days)
            answer = judged(provider.fetch(["GB"], START, END, "actual"))
            assert any("its clock is" in note for note in answer.notes) is said
            assert provider.client.latest_now() == NOW + timedelta(days=days if days < 1 else 0)


def test_an_encoding_that_was_not_asked_for_is_not_unpacked() -> None:
    with serving(NESO) as (provider, server, _):
        server.always = Reply(body=b"\x1f\x8b" + b"\0" * 50, headers={"Content-Encoding": "gzip"})
        error = judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"]
        assert isinstance(error, errors.BadAnswerError)
        assert "the encoding 'gzip', which was not requested" in str(error)
        assert server.asked[0].headers["accept-encoding"] == "identity"
        server.always = Reply(status=404, body=b"\x1f\x8b" + b"x" * 50, headers={"Content-Encoding": "gzip"})
        assert "(404)" in str(judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"])


RAW = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status above all": b"HTTP/1.1 999 X\r\n\r\n",
    "a status below all": b"HTTP/1.1 -5 X\r\n\r\n",
    "HTTP 0.9": b'{"data": []}',
    "a long status line": b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n",
    "a long header": HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": HEAD + b"X: y\r\n" * 500 + b"\r\n{}",
    "headers without an end": HEAD + b"X: y",
    "a header without a colon": HEAD + b"nonsense\r\n\r\n{}",
    "a null in a header": HEAD + b"X: \0\r\n\r\n{}",
    "no length": HEAD + b"\r\n{}",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 900\r\n\r\n{}",
    "chunks of no number": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n",
    "a chunk of 2^80": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n{}\r\n",
    "a negative chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n",
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a byte-order mark": HEAD + b"\r\n\xef\xbb\xbf{}",
    "UTF-16": HEAD + b"\r\n" + "{}".encode("utf-16"),
    "no UTF-8": HEAD + b'\r\n"\xff\xfe"',
    "an integer of 5000 digits": HEAD + b'\r\n{"data": ' + b"9" * 5000 + b"}",
    "deep lists": HEAD + b"\r\n" + b"[" * 200_000,
    "deep objects": HEAD + b"\r\n" + b'{"data":' * 100_000,
    "an informational answer": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    "a partial answer": b"HTTP/1.1 206 Partial\r\nContent-Type: application/json\r\n\r\n{}",
    "no content": b"HTTP/1.1 204 No Content\r\nContent-Type: application/json\r\n\r\n",
    "a redirect to nowhere": b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n",
    "a redirect to a file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
}


@every_provider
@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_nasty_answers(case: Case, raw: bytes) -> None:
    with serving(case, attempts=2) as (provider, server, sleeps):
        server.always = Reply(raw=raw.replace(b"application/json", f"application/{case.format}".encode()))
        assert judged(provider.fetch([case.zone], START, END, "actual"), sleeps, case).failures


def test_more_than_fits_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 1_000)
    with serving(NESO) as (provider, server, _):
        server.always = Reply(body=b" " * 2_000)
        error = judged(provider.fetch(["GB"], START, END, "actual")).failures["GB"]
    assert "returned more than 1,000 bytes" in str(error)


def test_no_half_of_a_key_is_shown() -> None:
    """A provider that repeats the key where our sentence is cut off."""
    key = "k" + "0123456789" * 4
    for length in range(120, 170):
        client = Client(loopback_http=True, attempts=1)
        client.hide(key)
        with running(lambda _, length=length: as_json({"error": "x" * length + key}, status=400), NOW) as server:
            with pytest.raises(errors.RefusedError) as caught:
                client.get("neso", server.address)
            assert "k0" not in str(caught.value)
    assert client.quoted(f"{'x' * 30}{key}") == repr("x" * 30 + "***")


# -- bodies


NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, -5, 10**400, -(10**400), 1e308, float("inf"), float("nan"), "", "x", "٣", "\ud800", "\x1b[2J",
    "9" * 5000, "1e400", [], {}, [[]], [None], {"a": 1}, "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
    "2026-11-07T00:00:00", "2026-11-07", *SECRETS, "x" * 38 + SECRETS[0], 2**63, "PT0M", 2.5,
)  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a JSON document; of a list only its first entries, since they are alike."""
    yield path
    inner = data.items() if isinstance(data, dict) else enumerate(data[:2]) if isinstance(data, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def spoilt(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = spoilt(copy[path[0]], path[1:], value)
    return copy


def in_json(spoil: Callable[[Any], Any], good: Callable[[Asked], Reply]) -> Callable[[Asked], Reply]:
    """The good answers, each spoilt; a log-in works, so that more than that is asked."""

    def answer(asked: Asked) -> Reply:
        reply = good(asked)
        return reply if asked.path == "/login" else as_json(spoil(json.loads(reply.body)))

    return answer


def in_xml(pick: int, value: str, good: Callable[[Asked], Reply]) -> Callable[[Asked], Reply]:
    def answer(asked: Asked) -> Reply:
        text = good(asked).body.decode()
        spans = [match.span(1) for match in re.finditer(r">([^<>]+)<", text)]
        start, end = spans[pick % min(len(spans), 12)]
        clean = value.encode("utf-8", "replace").decode().replace("\x1b", "?").replace("&", "").replace("<", "")
        return Reply(body=(text[:start] + clean + text[end:]).encode(), kind="text/xml")

    return answer


@pytest.fixture(scope="module", params=[c for c in CASES if c.spec != "electricitymaps:v4"], ids=lambda case: case.spec)
def hosting(request: pytest.FixtureRequest) -> Iterator[tuple[Case, Loopback]]:
    with running(request.param.fake(), NOW) as server:
        yield request.param, server


@contextmanager
def answering(server: Loopback, answers: Callable[[Asked], Reply]) -> Iterator[None]:
    good, server.answers = server.answers, answers
    try:
        yield
    finally:
        server.answers = good


@MANY
@given(data=st.data())
@pytest.mark.parametrize("kind", ["actual", "forecast"])
def test_any_value_in_any_place(hosting: tuple[Case, Loopback], kind: Any, tmp_path: Path, data: st.DataObject) -> None:
    case, server = hosting
    value = data.draw(st.sampled_from(NASTY) | st.recursive(st.none() | st.floats() | st.text(max_size=5), st.lists))
    pick = data.draw(st.integers(0, 10_000))

    def spoil(page: Any) -> Any:
        listed = list(places(page))
        return spoilt(page, listed[pick % len(listed)], value)

    answers = in_json(spoil, server.answers) if case.format == "json" else in_xml(pick, str(value), server.answers)
    with answering(server, answers):
        context = make_context({case.name: server.address}, factor=case.factor, attempts=1)
        chain = Chain([case.spec], context=context, cache=Cache(tmp_path / "intensity.sqlite"))
        for source in (make_provider(case.spec, context), chain, chain):
            if kind == "actual":
                judged(source.fetch([case.zone], START, END, kind), case=case)
            else:
                answer = source.fetch([case.zone], NOW, NOW + timedelta(hours=6), kind)
                judged(Answer(notes=answer.notes, failures=answer.failures), case=case)


@MANY
@given(
    status=st.sampled_from([200, 200, 200, 204, 301, 400, 401, 429, 500, 503]),
    headers=st.dictionaries(
        st.sampled_from(HEADERS),
        st.sampled_from(ABSURD) | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40),
        max_size=4,
    ),
    body=st.binary(max_size=40) | st.sampled_from([b"{}", b"[]", b'{"data": []}', b'{"error": "em-key"}']),
)
def test_any_status_headers_and_body(
    hosting: tuple[Case, Loopback], status: int, headers: dict[str, str], body: bytes
) -> None:
    case, server = hosting
    clean = {name: value.replace("\x7f", "") for name, value in headers.items()}
    with answering(server, lambda _: Reply(status=status, headers=clean, body=body)):
        sleeps = Sleeps()
        context = make_context({case.name: server.address}, factor=case.factor, attempts=2, sleeps=sleeps)
        judged(make_provider(case.spec, context).fetch([case.zone], START, END, "actual"), sleeps, case)


@pytest.mark.parametrize("raw", RAW.values(), ids=RAW)
def test_the_next_provider_is_asked_whatever_the_first_one_sends(raw: bytes, tmp_path: Path) -> None:
    with running(lambda _: Reply(raw=raw), NOW) as first, running(EnergyChartsFake(), NOW) as second:
        context = make_context({"electricitymaps": first.address, "energycharts": second.address}, attempts=1)
        chain = Chain(["electricitymaps", "energycharts"], context=context, cache=Cache(tmp_path / "c.sqlite"))
        answer = judged(chain.fetch(["FR"], START, END, "actual"), case=MAPS)
    assert {reading.source for reading in answer.readings} == {"energycharts"}
    assert not answer.failures
    assert any("electricitymaps" in note for note in answer.notes)


def test_a_provider_with_any_defect_fails_alone(tmp_path: Path) -> None:
    class Broken(Provider):
        name = "broken"

        def read(self, intake: Any) -> None:
            raise ZeroDivisionError("em-key")

    with serving(MAPS) as (provider, _, _):
        answer = judged(Broken(provider.context).fetch(["FR"], START, END, "actual"), case=MAPS)
    assert "ZeroDivisionError in test_provider_hostile.py" in str(answer.failures["FR"])


@pytest.mark.parametrize("token", ["", "e", 5, None, {}, "a\nb\nc\nd", "schlüssel"])
def test_a_log_in_that_gives_no_token(token: object) -> None:
    case = next(case for case in CASES if case.name == "watttime")
    with serving(case) as (provider, server, _):
        server.always = as_json({"token": token})
        error = judged(provider.fetch([case.zone], START, END, "actual"), case=case).failures[case.zone]
    assert str(error) == "watttime answered the log-in without a valid token."
    assert len(server.asked) == 1


PERIOD = re.compile(rb"<start>[^<]*</start><end>[^<]*</end>")
BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "ten thousand years": lambda body: PERIOD.sub(
        b"<start>0001-01-01T00:00Z</start><end>9999-01-01T00:00Z</end>", body
    ),
    "steps of no length": lambda body: body.replace(b"PT15M", b"PT0M"),
    "steps of a century": lambda body: body.replace(b"PT15M", b"PT876000H", 1),
    "a month a hundred times": lambda body: re.sub(
        rb"(<Period>.*?</Period>)",
        lambda match: PERIOD.sub(b"<start>2026-10-01T00:00Z</start><end>2026-11-01T00:00Z</end>", match[1]) * 200,
        body,
    ).replace(b"PT15M", b"PT5M"),
    "entities in UTF-16": lambda body: (
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY b "bb">]>' + body.decode().partition("?>")[2]
    ).encode("utf-16"),
    "entities": lambda body: body.replace(b"?>", b'?><!DOCTYPE a [<!ENTITY b "bb">]>', 1),
    "deep elements": lambda body: b"<a>" * 100_000 + b"</a>" * 100_000,
}


@pytest.mark.parametrize("spoil", BOMBS.values(), ids=BOMBS)
def test_xml_that_would_unfold(spoil: Callable[[bytes], bytes]) -> None:
    case = next(case for case in CASES if case.name == "entsoe")
    with serving(case) as (provider, server, _):
        good = server.answers
        server.answers = lambda asked: Reply(body=spoil(good(asked).body), kind="text/xml")
        error = judged(provider.fetch([case.zone], START, END, "actual"), case=case).failures[case.zone]
    assert isinstance(error, errors.BadAnswerError)


def test_an_address_that_is_none() -> None:
    for address in ("https://[", "https://", "https://host:99999999", "https://a..b", f"https://{'x' * 80}.example"):
        provider = make_provider("neso", make_context({"neso": address}, factor="direct", attempts=1))
        judged(provider.fetch(["GB"], START, END, "actual"))


def test_the_cache_keeps_its_hours_when_a_provider_turns_hostile(tmp_path: Path) -> None:
    clock: list[datetime] = [NOW]
    with running(NesoFake(), NOW) as server:
        context: Context = make_context({"neso": server.address}, factor="direct", attempts=1)
        context.client.now = lambda: clock[0]
        chain = Chain(["neso"], context=context, cache=Cache(tmp_path / "c.sqlite"))
        known = chain.fetch(["GB"], NOW - timedelta(hours=9), NOW - timedelta(hours=3), "actual").expect()
        for raw in RAW.values():
            clock[0] += timedelta(hours=1)
            server.always, server.clock = Reply(raw=raw), clock[0]
            answer = chain.fetch(["GB"], NOW - timedelta(hours=9), NOW - timedelta(hours=3), "actual")
            assert [r.kg_per_kwh for r in answer.readings] == [r.kg_per_kwh for r in known.readings]
            assert all(reading.stale for reading in answer.readings)


def test_waiting_can_be_interrupted() -> None:
    """Ctrl-C while a provider is waited for ends the exchange."""
    started = threading.Event()

    def work(connections: http.Connections) -> None:
        started.set()
        time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        http.within(60.0, work)
    assert started.is_set()
