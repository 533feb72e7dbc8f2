from __future__ import annotations

import pytest

from slackwater.dashboard.server import Access, is_loopback

LOCAL = Access.of("127.0.0.1", 8765, token=None)
OPEN = Access.of("0.0.0.0", 8765, token="secret", names=("grid.example",))
SAME = {"Host": "127.0.0.1:8765"}


def _status(
    guard: Access, headers: dict[str, str], path: str = "/api/sources", offered: str | None = None
) -> int | None:
    refusal = guard.check(headers, path, offered)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765", "127.0.0.1", "localhost:9000"]
)
def test_its_own_names_are_answered_also_through_a_tunnel_with_a_port_of_its_own(host: str) -> None:
    assert _status(LOCAL, {"Host": host}) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8765", "0.0.0.0:8765", "127.0.0.1:8765@evil.example", "127.0.0.1:x", "a b", "[::1",
     "127.0.0.1.evil.example:8765", "10.0.0.1:8765", "user@127.0.0.1:8765", "127.0.0.1:8765/x"],
)  # fmt: skip
def test_other_names_are_refused(host: str) -> None:
    assert _status(LOCAL, {"Host": host}) == 421


def test_a_missing_host_is_refused() -> None:
    assert _status(LOCAL, {}) == 421


@pytest.mark.parametrize(
    "more",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
def test_other_pages_are_refused(more: dict[str, str]) -> None:
    assert _status(LOCAL, SAME | more) == 403


def test_a_link_may_lead_to_the_first_page_but_not_into_a_frame() -> None:
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert _status(LOCAL, SAME | followed, "/") is None
    assert _status(LOCAL, SAME | followed | {"Sec-Fetch-Dest": "iframe"}, "/") == 403


def test_the_page_itself_may_ask() -> None:
    assert _status(LOCAL, SAME | {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}) is None


def test_off_the_loopback_the_token_is_needed() -> None:
    host = {"Host": "192.0.2.7:8765"}
    assert _status(OPEN, host) == 401
    assert _status(OPEN, host, offered="wrong") == 401
    assert _status(OPEN, host, offered="secret") is None
    assert _status(OPEN, host | {"Authorization": "Bearer secret"}) is None
    assert _status(OPEN, host | {"Cookie": "slackwater_8765=secret"}) is None
    assert _status(OPEN, host | {"Cookie": "slackwater_1=secret"}) == 401
    assert _status(OPEN, host | {"Cookie": "\x00;;=,"}) == 401
    assert _status(OPEN, {"Host": "grid.example:8765"}, offered="secret") is None
    assert _status(OPEN, {"Host": "evil.example:8765"}, offered="secret") == 421


def test_an_open_address_without_a_token_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="token"):
        Access.of("0.0.0.0", 1, token=None)


def test_no_token_is_no_token() -> None:
    assert not LOCAL.is_token("")
    assert not LOCAL.is_token(None)
    assert not OPEN.is_token("secr\udce9t")


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.1", "example.com", "")))


def test_only_the_page_itself_may_write_and_only_with_a_token() -> None:
    bearer = SAME | {"Authorization": "Bearer secret"}
    own = [{"Origin": "http://127.0.0.1:8765"}, {"Sec-Fetch-Site": "same-origin"}]
    for more in own:
        assert OPEN.check_write(bearer | more) is None
        assert LOCAL.check_write(SAME | more).status == 403  # type: ignore[union-attr]
        assert OPEN.check_write(SAME | more).status == 401  # type: ignore[union-attr]
    for more in ({}, {"Origin": "http://127.0.0.1:9000"}, {"Origin": "null"}, {"Sec-Fetch-Site": "none"}):
        assert OPEN.check_write(bearer | more).status == 403  # type: ignore[union-attr]
    assert OPEN.check_write({"Host": "evil.example"} | own[0]).status == 421  # type: ignore[union-attr]
