"""Every provider against the loopback server: good answers, and every way in which they can fail."""

from __future__ import annotations

import logging
import traceback
from datetime import datetime, timedelta

import pytest
from cases import CASES, END, SECRETS, START, Case, serving
from fakes import NOW
from loopback import Reply, as_json

from slackwater.intensity.providers import provider_errors as errors
from slackwater.intensity.providers.readings import Answer

every_provider = pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)


@pytest.fixture(autouse=True)
def nothing_leaks(caplog: pytest.LogCaptureFixture) -> object:
    """No key is in any log line, whatever happens."""
    caplog.set_level(logging.DEBUG)
    yield
    assert not any(secret in line for line in caplog.messages for secret in SECRETS)


def failed(answer: Answer) -> Exception:
    """The one failure, after a look at all that is said about it."""
    (error,) = answer.failures.values()
    shown = "".join(traceback.format_exception(error)) + " ".join(answer.notes)
    assert not any(secret in shown for secret in SECRETS), shown
    assert str(error).endswith((".", "?"))
    return error


@every_provider
def test_a_good_answer(case: Case) -> None:
    with serving(case) as (provider, _, sleeps):
        answer = provider.fetch([case.zone], START, END, "actual").expect()
    assert not sleeps
    assert len(answer.readings) == 6 * 60 // case.minutes
    for reading in answer.readings:
        grams = case.g_per_kwh if case.g_per_kwh is not None else 100 + reading.start.hour
        assert reading.kg_per_kwh == pytest.approx(grams / 1000)
        assert (reading.kind, reading.factor, reading.fetched_at) == ("actual", case.factor, NOW)
        assert reading.minutes == case.minutes
        assert reading.source.startswith(case.name)
    assert answer.readings[0].start == START
    assert answer.readings[-1].end == END


@every_provider
def test_forecasts(case: Case) -> None:
    with serving(case) as (provider, _, _):
        answer = provider.fetch([case.zone], NOW + timedelta(minutes=40), NOW + timedelta(hours=6), "forecast")
    if not case.forecasts:
        assert isinstance(failed(answer), errors.NotOfferedError)
        return
    answer.expect()
    assert {reading.kind for reading in answer.readings} == {"forecast"}
    assert answer.readings[0].start == datetime(2026, 11, 10, 13, tzinfo=NOW.tzinfo)
    assert sum(reading.minutes for reading in answer.readings) == 6 * 60


@every_provider
@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (400, errors.RefusedError, "rejected the request"),
        (401, errors.UnauthorisedError, "rejected the key"),
        (403, errors.ForbiddenError, "forbids this request"),
        (404, errors.NotFoundError, "no such zone"),
        (302, errors.RefusedError, "redirected the request"),
    ],
)
def test_refusals_are_not_repeated(case: Case, status: int, error: type[Exception], words: str) -> None:
    with serving(case) as (provider, server, sleeps):
        # A provider that repeats what it got: the key must not come back in our message.
        body = {"error": f"Invalid: {' '.join(case.secrets)}"}
        server.always = as_json(body, status=status, headers={"Location": f"{server.address}/?key=eia-key"})
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, error)
    assert words in str(trouble)
    assert len(server.asked) == 1
    assert not sleeps


@every_provider
def test_a_refused_key_is_not_tried_for_every_zone(case: Case) -> None:
    with serving(case) as (provider, server, _):
        server.always = as_json({"error": "Invalid auth-token"}, status=401)
        before = len(server.asked)
        answer = provider.fetch([case.zone, f"{case.zone}", case.zone], START, END, "actual")
        asked = len(server.asked) - before
    assert set(answer.failures) == {case.zone}
    assert asked <= 2


@every_provider
def test_429_with_retry_after_is_obeyed(case: Case) -> None:
    with serving(case) as (provider, server, sleeps):
        server.script.extend([Reply(status=429, headers={"Retry-After": "7"})] * 2)
        provider.fetch([case.zone], START, END, "actual").expect()
    assert len(sleeps) == 2
    assert all(7 <= seconds < 9 for seconds in sleeps)


@every_provider
def test_429_with_a_date_counts_by_the_providers_clock(case: Case) -> None:
    with serving(case) as (provider, server, sleeps):
        ahead = NOW + timedelta(hours=5)
        until = (ahead + timedelta(seconds=20)).strftime("%a, %d %b %Y %H:%M:%S GMT")
        server.script.append(Reply(status=429, headers={"Retry-After": until}, date=ahead))
        provider.fetch([case.zone], START, END, "actual").expect()
    assert 20 <= sleeps[0] < 23


@every_provider
def test_429_without_retry_after_backs_off(case: Case) -> None:
    with serving(case) as (provider, server, sleeps):
        server.script.extend([Reply(status=429)] * 3)
        provider.fetch([case.zone], START, END, "actual").expect()
    assert sleeps == [0.75, 1.5, 3.0]


@every_provider
def test_429_that_stays(case: Case) -> None:
    with serving(case) as (provider, server, sleeps):
        server.always = Reply(status=429)
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
        assert len(server.asked) == 4
    assert isinstance(trouble, errors.ThrottledError)
    assert len(sleeps) == 3


@every_provider
def test_a_long_ban_is_not_waited_for(case: Case) -> None:
    with serving(case) as (provider, server, sleeps):
        server.always = Reply(status=429, headers={"Retry-After": "600"})
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
        assert len(server.asked) == 1
    assert "try again after 12:30 UTC" in str(trouble)
    assert not sleeps


@every_provider
@pytest.mark.parametrize("status", [500, 502, 503])
def test_5xx_passes_or_stays(case: Case, status: int) -> None:
    with serving(case) as (provider, server, sleeps):
        server.script.extend([Reply(status=status, body=b"<html>oops</html>", kind="text/html")] * 3)
        provider.fetch([case.zone], START, END, "actual").expect()
        server.always = Reply(status=status)
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.UnavailableError)
    assert f"is down ({status})" in str(trouble)
    assert len(sleeps) == 6


@every_provider
def test_silence(case: Case) -> None:
    with serving(case, timeout_s=0.05, attempts=2) as (provider, server, sleeps):
        server.always = Reply(wait_s=0.4)
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.UnavailableError)
    assert "no answer within 0.05 s (2 attempts)" in str(trouble)
    assert len(sleeps) == 1


@every_provider
def test_a_body_that_trickles_in(case: Case) -> None:
    with serving(case, timeout_s=2.0, total_s=0.1, attempts=1) as (provider, server, _):
        server.always = Reply(body=b"x" * 100, drip_s=0.02)
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.UnavailableError)


@every_provider
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("sent", [0, 60])
def test_a_body_that_is_cut_off(case: Case, sent: int, chunked: bool) -> None:
    cut = Reply(body=b"{" + b" " * 500, kind=f"application/{case.format}", sent=sent, chunked=chunked)
    with serving(case) as (provider, server, sleeps):
        server.script.extend([cut] * 3)
        provider.fetch([case.zone], START, END, "actual").expect()
        assert len(sleeps) == 3
        server.always = cut
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.UnavailableError)


@every_provider
def test_a_body_that_ends_early_without_a_length(case: Case) -> None:
    with serving(case) as (provider, server, _):
        body = b'{"data": [{"from": "2026' if case.format == "json" else b"<GL_MarketDocument><TimeSeries>"
        server.always = Reply(body=body, kind=f"application/{case.format}")
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.BadAnswerError)
    assert "not complete" in str(trouble)


@every_provider
@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", ""])
def test_the_wrong_content_type(case: Case, kind: str) -> None:
    with serving(case) as (provider, server, _):
        server.always = Reply(body=b"<html>Please log in</html>", kind=kind)
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.BadAnswerError)
    assert "Is there a proxy or a log-in page in between?" in str(trouble)


@every_provider
@pytest.mark.parametrize("body", [b"[]", b"{}", b"null", b'"text"', b'{"data": 3, "meta": 4}', b"[" * 100_000])
def test_another_form_than_documented(case: Case, body: bytes) -> None:
    with serving(case) as (provider, server, _):
        server.always = Reply(body=body if case.format == "json" else b"<a/>", kind=f"application/{case.format}")
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
    assert isinstance(trouble, errors.BadAnswerError)


@every_provider
def test_nothing_but_nulls(case: Case) -> None:
    with serving(case, lambda _: None) as (provider, _, _):
        answer = provider.fetch([case.zone], START, END, "actual")
    assert isinstance(failed(answer), errors.NoValuesError)
    assert not answer.readings
    assert any("null" in note or "missing" in note for note in answer.notes)


@every_provider
def test_some_nulls(case: Case) -> None:
    gap = START + timedelta(hours=2)
    good = {"watttime": 200.0, "entsoe": 250.0, "eia": "500"}.get(case.name, 100.0)

    def value(when: datetime) -> object:
        # EIA's hours bear the time of their end.
        begin = when - timedelta(hours=1) if case.name == "eia" else when
        return None if gap <= begin < gap + timedelta(hours=1) else good

    with serving(case, value) as (provider, _, _):
        answer = provider.fetch([case.zone], START, END, "actual").expect()
    assert sum(reading.minutes for reading in answer.readings) == 5 * 60
    assert not any(gap <= reading.start < gap + timedelta(hours=1) for reading in answer.readings)
    assert answer.notes


def test_nulls_at_the_end_are_not_published_yet_and_nothing_odd() -> None:
    case, end = next(case for case in CASES if case.name == "energycharts"), START + timedelta(hours=4)
    with serving(case, lambda when: 100.0 if when < end else None) as (provider, _, _):
        answer = provider.fetch([case.zone], START, END, "actual").expect()
    assert max(reading.end for reading in answer.readings) == end
    assert answer.notes == ()


@pytest.mark.parametrize("case", [case for case in CASES if case.g_per_kwh is None], ids=lambda case: case.spec)
@pytest.mark.parametrize(
    ("odd", "words"),
    [(-1, "means missing"), (-20, "negative"), (99_999, "above 5000 g/kWh"), ("12", "not numbers")],
)
def test_values_that_are_none(case: Case, odd: object, words: str) -> None:
    with serving(case, lambda when: odd if when.hour == 1 else 100) as (provider, _, _):
        answer = provider.fetch([case.zone], START, END, "actual").expect()
    assert sum(reading.minutes for reading in answer.readings) == 5 * 60
    assert any(words in note for note in answer.notes)


@every_provider
def test_their_clock_ahead_of_ours(case: Case) -> None:
    """Our clock is five hours behind: what they call past is past, and the difference is said."""
    with serving(case, now=NOW - timedelta(hours=5)) as (provider, _, _):
        answer = provider.fetch([case.zone], NOW - timedelta(hours=4), NOW - timedelta(hours=2), "actual").expect()
    assert sum(reading.minutes for reading in answer.readings) == 3 * 60  # widened to full hours
    assert any("its clock is 5.0 h ahead of this machine's" in note for note in answer.notes)


@every_provider
def test_their_clock_behind_ours(case: Case) -> None:
    with serving(case, now=NOW + timedelta(hours=3)) as (provider, _, _):
        answer = provider.fetch([case.zone], START, END, "actual").expect()
    assert any("its clock is 3.0 h behind this machine's" in note for note in answer.notes)


@every_provider
def test_an_outage(case: Case) -> None:
    with serving(case) as (provider, server, _):
        server.server.shutdown()
        server.server.server_close()
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
        server.server.shutdown = lambda: None  # type: ignore[method-assign]
    assert isinstance(trouble, errors.UnavailableError)
    assert "cannot be reached" in str(trouble)


@every_provider
def test_a_failed_provider_is_left_alone_for_a_while(case: Case) -> None:
    with serving(case) as (provider, server, _):
        server.always = Reply(status=500)
        provider.fetch([case.zone], START, END, "actual")
        asked = len(server.asked)
        failed(provider.fetch([case.zone], START, END, "actual"))
        assert len(server.asked) == asked


@every_provider
def test_the_budget_of_requests(case: Case) -> None:
    with serving(case, max_requests=2) as (provider, server, _):
        server.always = Reply(status=500)
        trouble = failed(provider.fetch([case.zone], START, END, "actual"))
        assert len(server.asked) == 2
    assert isinstance(trouble, errors.RequestBudgetError)


@every_provider
def test_a_zone_it_does_not_have(case: Case) -> None:
    if case.name == "electricitymaps":
        pytest.skip("it may have any zone; what it does with an unknown one is in test_provider_forms")
    with serving(case) as (provider, server, _):
        trouble = failed(provider.fetch(["ZZ-NOWHERE"], START, END, "actual"))
    assert isinstance(trouble, errors.NotOfferedError)
    assert not server.asked
