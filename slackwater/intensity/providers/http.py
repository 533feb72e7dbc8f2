"""HTTP requests to providers, with time limits and retries, and errors that quote the provider in brackets."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import logging
import random
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal, TypeVar

from slackwater import time_source
from slackwater._version import __version__
from slackwater.intensity.providers.keys import variable
from slackwater.intensity.providers.provider_errors import (
    BadAnswerError,
    ForbiddenError,
    NotFoundError,
    ProviderError,
    RefusedError,
    RequestBudgetError,
    ThrottledError,
    UnauthorisedError,
    UnavailableError,
)


def failure(provider: str, status: int, said: str, detail: str) -> ProviderError:
    """Return the error for a 4xx, which no retry can fix."""
    if status == 401:
        return UnauthorisedError(
            f"{provider} rejected the key ({said}). Check {variable(provider)} or the keyring file."
        )
    if status == 403:
        return ForbiddenError(
            f"{provider} forbids this request ({said}). Does the key's plan include the zone, the range and this kind of "
            "values?"
        )
    if status == 404:
        return NotFoundError(f"{provider} has no such zone or page ({said}). Check the zone's name.")
    return RefusedError(f"{provider} rejected the request ({said}).", detail)


def said_by(body: bytes) -> str:
    """Return the full message in the body of an error: JSON's error or message, XML's text; empty for a web page."""
    text = body.decode("utf-8", errors="replace").strip()
    try:
        return _in_json(json.loads(text))
    except (ValueError, RecursionError):
        pass
    found = re.search(r"<(?:\w+:)?text>([^<]*)<", text)
    if found:
        return found[1].strip()
    return "" if text.startswith("<") else text.splitlines()[0] if text else ""


def _in_json(data: Any) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, dict):
        for name in ("message", "error", "detail", "title"):
            if data.get(name):
                return _in_json(data[name])
    return ""


logger = logging.getLogger(__name__)

T = TypeVar("T")
Format = Literal["json", "xml"]
MOST_BYTES = 20_000_000
"""Longest answer. The largest real ones, a month of ENTSO-E, have 6 MB; parsed they can be 20 times as large."""
SKEW = timedelta(minutes=2)
"""Smaller clock differences are ignored: answers take time, and `Date` has full seconds."""
CREDIBLE = timedelta(days=1)
"""A clock that is further ahead of ours is reported, but not used."""
BUDGET_PERIOD = timedelta(hours=1)
"""The budgets of requests and seconds are reset after this time, for live runs of days."""
_NONSENSE = timedelta(days=366)
"""A `Date` that is further from our clock is ignored."""
_MOST_WAIT_S = 86_400.0
_YEARS = range(1970, 2200)
_CHUNK = 1 << 16
_RETRIED = (429, 500, 502, 503, 504)
_LONGEST_SAID = 160


class OutOfTime(TimeoutError):
    """Raised by `within` when the time is over."""


class Connections:
    """Hold the sockets of one exchange, so that another thread can `cut` them."""

    def __init__(self) -> None:
        self._lock, self._is_cut = threading.Lock(), False
        self._handles: list[socket.socket] = []

    def connect(self, address: tuple[str, int], *settings: Any) -> socket.socket:
        """Connect as `socket.create_connection` does, and keep a handle."""
        made = socket.create_connection(address, *settings)
        with self._lock:
            if self._is_cut:
                made.close()
                raise OutOfTime
            self._handles.append(made.dup())  # a duplicate: TLS detaches the first one before the handshake
        return made

    def cut(self) -> None:
        """Shut down every connection and reject new ones; a waiting thread gets an error at once."""
        with self._lock:
            self._is_cut = True
            for handle in self._handles:
                with suppress(OSError):  # it is closed already
                    handle.shutdown(socket.SHUT_RDWR)
                handle.close()
            self._handles.clear()

    def opener(
        self, tls: ssl.SSLContext, proxies: Mapping[str, str], *handlers: urllib.request.BaseHandler
    ) -> urllib.request.OpenerDirector:
        """Return an opener that uses these connections."""
        return urllib.request.build_opener(urllib.request.ProxyHandler(dict(proxies)), _Cuttable(self, tls), *handlers)


def within(limit_s: float, work: Callable[[Connections], T]) -> T:
    """Return what `work` returns; raise OutOfTime if it takes longer, with name look-up, connection, TLS and headers.

    The work runs on a thread, since not all of it can be interrupted. At the end its connections are cut, which ends the
    thread; one that waits for a name ends when the system gives up.
    """
    connections, over = Connections(), threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def carry_out() -> None:
        try:
            results.append(work(connections))
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    threading.Thread(target=carry_out, name="slackwater-http", daemon=True).start()
    try:
        ended = over.wait(min(limit_s, threading.TIMEOUT_MAX))
    finally:
        connections.cut()
    if not ended:
        raise OutOfTime
    if errors:
        raise errors.pop()  # in the list it would form a cycle with its frames, and keep sockets open
    return results[0]


class _Cuttable(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Open http:// and https:// on connections that can be cut."""

    def __init__(self, connections: Connections, tls: ssl.SSLContext) -> None:
        super().__init__(context=tls)
        self._connections, self._tls = connections, tls

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_tied, http.client.HTTPConnection, self._connections), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_tied, http.client.HTTPSConnection, self._connections), req, context=self._tls)


def _tied(
    kind: type[http.client.HTTPConnection], connections: Connections, host: str, **settings: Any
) -> http.client.HTTPConnection:
    made = kind(host, **settings)
    made._create_connection = connections.connect  # type: ignore[attr-defined]  # the only hook before TLS
    return made


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect, which would send the key to another address; the status becomes an error."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> None:
        """Do nothing."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


@dataclass(slots=True, kw_only=True)
class _Answer:
    """Hold the part of an answer that has arrived."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


class Client:
    """Send requests to providers. A command has one client, so that its budget counts all requests."""

    def __init__(
        self, *, timeout_s: float = 20.0, total_s: float = 90.0, attempts: int = 4, max_requests: int = 300,
        max_seconds: float = 900.0, patience_s: float = 120.0, loopback_http: bool = False,
        tls: ssl.SSLContext | None = None, sleep: Callable[[float], None] = time_source.sleep,
        now: Callable[[], datetime] = lambda: time_source.now().replace(microsecond=0),
        jitter: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """Set the limits.

        Args:
            timeout_s: Longest silence of a server.
            total_s: Longest exchange, from looking up the name to the last byte.
            attempts: Most tries of a request.
            patience_s: Longest `get`, including retries and waits.
            max_requests: Requests in an hour.
            max_seconds: Time that one provider may take in an hour, over all requests.
            loopback_http: Whether plain http:// is allowed to this machine.
            tls: Which certificates are trusted. Default: the system's.
            sleep: Waits between retries.
            now: The wall clock.
            jitter: Random numbers in [0, 1).
        """
        self.timeout_s, self.total_s, self.attempts, self.patience_s = timeout_s, total_s, attempts, patience_s
        self.max_requests, self.max_seconds = max_requests, max_seconds
        self.requests = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """By provider."""
        self._counted_from: datetime | None = None
        self.now = now
        self.clock_gap = timedelta(0)
        """How far the last provider's clock is ahead of ours; 0 if it is less than `SKEW`."""
        self._loopback_http, self._sleep, self._jitter = loopback_http, sleep, jitter
        self._secrets: set[str] = set()
        self._tls = tls or ssl.create_default_context()
        self._proxies = urllib.request.getproxies()

    def latest_now(self) -> datetime:
        """Return the later of our time and the last provider's."""
        return self.now() + (self.clock_gap if timedelta(0) < self.clock_gap <= CREDIBLE else timedelta(0))

    def hide(self, secret: str) -> str:
        """Remove a secret from all texts of this client; return it."""
        forms = {secret, urllib.parse.quote(secret), urllib.parse.quote_plus(secret)}
        self._secrets |= forms | {base64.b64encode(secret.encode()).decode()}
        return secret

    def clean(self, text: str) -> str:
        """Return a provider's text without secrets and control characters."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())

    def quoted(self, value: object, most: int = 40) -> str:
        """Return a value of an answer for a sentence: cleaned, so that no half of a key is left, then cut."""
        return repr(self.clean(str(value))[:most])

    def get_json(
        self, provider: str, address: str, query: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # fmt: skip
        """Return the decoded body of a GET."""
        body = self.get(provider, address, query, headers, expects="json")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise BadAnswerError(
                f"{provider} returned {len(body):,} bytes that are not complete JSON. Try again later."
            ) from None

    def get(
        self, provider: str, address: str, query: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None, *, expects: Format = "json",
    ) -> bytes:  # fmt: skip
        """Return the body of a GET; retry on 429, 5xx and broken connections, with growing waits.

        Raises:
            ProviderError: The request failed, within `patience_s` seconds.
        """
        self._require_https(provider, address)
        full = f"{address}?{urllib.parse.urlencode(query)}" if query else address
        request = urllib.request.Request(
            full,
            headers={"User-Agent": f"slackwater/{__version__}", "Accept": f"application/{expects}", **(headers or {})},
        )
        self._renew_budgets(provider)
        spent_s = 0.0
        for attempt in range(self.attempts):
            if self.requests >= self.max_requests:
                raise RequestBudgetError(
                    f"The limit of {self.max_requests:,} requests was reached before {provider} was asked. Fetched values are "
                    "kept: run it again, ask for a shorter range or fewer zones, or raise the limit (--requests)."
                )
            self.requests += 1
            began = time.monotonic()
            try:
                return self._once(provider, request, expects, min(self.total_s, self.patience_s - spent_s))
            except _Repeatable as repeatable:
                trouble = repeatable
            finally:
                took_s = time.monotonic() - began
                self.seconds[provider] += took_s
            wait_s = self._wait(attempt, trouble.retry_after_s)
            spent_s += took_s + wait_s
            if attempt == self.attempts - 1 or spent_s >= self.patience_s:
                raise self._given_up(trouble, wait_s, attempt + 1) from None
            logger.info("%s; retrying in %.1f s.", trouble.error, wait_s)
            self.seconds[provider] += wait_s
            self._sleep(wait_s)
        raise AssertionError("unreachable: attempts is at least 1")

    def _given_up(self, trouble: _Repeatable, wait_s: float, attempts: int) -> ProviderError:
        if wait_s > self.patience_s:
            until = (self.now() + timedelta(seconds=wait_s)).strftime("%H:%M")
            wait = f"{wait_s:.0f} s; try again after {until} UTC" if wait_s < _MOST_WAIT_S else "a day or longer"
            return type(trouble.error)(f"{trouble.error}. It asks to wait {wait}.")
        times = f" ({attempts} attempts)" if attempts > 1 else ""
        return type(trouble.error)(f"{trouble.error}{times}. Try again later, or name another provider.")

    def _renew_budgets(self, provider: str) -> None:
        """Start a new hour if one is over; raise if the provider has used up its time of this hour."""
        now = self.now()
        if self._counted_from is None or not timedelta(0) <= now - self._counted_from < BUDGET_PERIOD:
            self._counted_from, self.requests = now, 0
            self.seconds.clear()
        if self.seconds[provider] >= self.max_seconds:
            again = (self._counted_from + BUDGET_PERIOD).strftime("%H:%M")
            raise UnavailableError(
                f"{provider} is too slow: it took {self.seconds[provider]:,.0f} s of this hour. It is paused until "
                f"{again} UTC; until then, name another provider."
            )

    def _wait(self, attempt: int, retry_after_s: float | None) -> float:
        """Return the seconds until the next try: with jitter, and at least what the provider asks for."""
        growing = min(30.0, float(1 << attempt))
        if retry_after_s is not None:
            return retry_after_s + self._jitter() * min(growing, 0.1 * retry_after_s + 0.5)
        return growing * (0.5 + 0.5 * self._jitter())

    def _once(self, provider: str, request: urllib.request.Request, expects: Format, limit_s: float) -> bytes:
        where = bare(request.full_url)
        answer = _Answer()
        try:
            within(limit_s, lambda connections: self._exchange(provider, request, connections, answer))
        except ProviderError:
            raise
        except OutOfTime:
            if answer.status is None or _is_good(answer.status):
                raise _down(f"{provider} did not answer in full within {limit_s:g} s") from None
        except TimeoutError:
            raise _down(f"{provider} gave no answer within {self.timeout_s:g} s") from None
        except urllib.error.URLError as error:
            raise self._unreachable(provider, error.reason) from None
        except (http.client.HTTPException, OSError) as error:
            # Only the type: some of these texts repeat the address, with the key.
            raise _down(f"The connection to {provider} broke ({type(error).__name__})") from None
        except Exception as error:
            raise UnavailableError(
                f"{provider} cannot be asked ({type(error).__name__}). Check its address, or name another provider."
            ) from None
        self._note_clock(answer.headers)
        assert answer.status is not None
        if not _is_good(answer.status):
            raise self._status(provider, answer, answer.status, where)
        logger.info("%s: GET %s, %d bytes.", provider, where, len(answer.body))
        return self._checked(provider, answer, expects)

    def _exchange(
        self, provider: str, request: urllib.request.Request, connections: Connections, answer: _Answer
    ) -> None:
        """Fill in the answer step by step, on another thread."""
        # A request to this machine bypasses any proxy, which would see the key.
        direct = is_loopback(urllib.parse.urlsplit(request.full_url).hostname or "")
        opener = connections.opener(self._tls, {} if direct else self._proxies, _NoRedirects())
        try:
            stream = opener.open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            stream = error
        with stream:
            answer.headers |= {name.lower(): value for name, value in (stream.headers or {}).items()}
            answer.status = status = stream.status
            try:
                # read1 returns what has arrived.
                while chunk := stream.read1(_CHUNK):
                    answer.body += chunk
                    if not _is_good(status) and len(answer.body) >= _CHUNK:
                        return
                    if len(answer.body) > MOST_BYTES:
                        more = f"more than {MOST_BYTES:,} bytes"
                        raise BadAnswerError(f"{provider} returned {more}. Ask for a shorter range.")
            except (OSError, http.client.HTTPException):
                if _is_good(status):  # otherwise the status is enough
                    raise

    def _checked(self, provider: str, answer: _Answer, expects: Format) -> bytes:
        headers, body = answer.headers, bytes(answer.body)
        # As text, since it may have a thousand digits.
        length = headers.get("content-length", "").strip()
        if length.isascii() and length.isdigit() and (length.lstrip("0") or "0") != str(len(body)):
            raise _down(f"The answer of {provider} was cut off after {len(body):,} of {length[:20]} bytes")
        kind, encoding = headers.get("content-type", ""), headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise BadAnswerError(
                f"{provider} answered in the encoding {self.quoted(encoding)}, which was not requested. Is there a proxy "
                "in between?"
            )
        if expects not in kind.lower():
            raise BadAnswerError(
                f"{provider} answered with {self.clean(kind)[:60] or 'no content type'} instead of {expects.upper()}. "
                "Is there a proxy or a log-in page in between?"
            )
        return body

    def _status(self, provider: str, answer: _Answer, status: int, where: str) -> Exception:
        packed = "content-encoding" in answer.headers
        detail = "" if packed else self.clean(said_by(bytes(answer.body)))[:_LONGEST_SAID]
        logger.info("%s: GET %s, %d.", provider, where, status)
        said = f"{status}: {detail}" if detail else str(status)
        if status == 429:
            return _Repeatable(ThrottledError(f"{provider} throttles us ({said})"), self._retry_after(answer.headers))
        if status in _RETRIED or status >= 500:
            return _down(f"{provider} is down ({said})", self._retry_after(answer.headers))
        if 300 <= status < 400:
            return RefusedError(
                f"{provider} redirected the request ({status}). Redirects are not followed, since they could leak the key."
            )
        return failure(provider, status, said, detail)

    def _unreachable(self, provider: str, reason: object) -> Exception:
        if isinstance(reason, TimeoutError):
            return _down(f"{provider} gave no answer within {self.timeout_s:g} s")
        if isinstance(reason, ssl.SSLCertVerificationError):
            return UnavailableError(
                f"The certificate of {provider} is not trusted ({self.clean(reason.verify_message)}). Is the clock "
                "wrong, or is there a proxy in between?"
            )
        text = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
        return _down(f"{provider} cannot be reached ({self.clean(str(text))})")

    def _note_clock(self, headers: Mapping[str, str]) -> None:
        sent = http_date(headers.get("date"))
        age = headers.get("age", "0").strip()  # a proxy's copy has the date of the original
        if sent is None or len(age) > 9 or not (age.isascii() and age.isdigit()):
            return
        gap = sent + timedelta(seconds=int(age)) - self.now()
        self.clock_gap = gap if SKEW < abs(gap) < _NONSENSE else timedelta(0)

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        """Return seconds, at most a day; a date is relative to the provider's own clock, since ours may be wrong."""
        text = headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return min(float(text), _MOST_WAIT_S)
        until = http_date(text)
        if until is None:
            return None
        wait_s = (until - (http_date(headers.get("date")) or self.now())).total_seconds()
        return min(max(wait_s, 0.0), _MOST_WAIT_S)

    def _require_https(self, provider: str, address: str) -> None:
        try:
            parts = urllib.parse.urlsplit(address)
        except ValueError:
            raise RefusedError(f"{provider}: its address does not start with https:// and a host.") from None
        if parts.scheme == "https" and parts.hostname:
            return
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            if self._loopback_http:
                return
            raise RefusedError(
                f"{provider}: {bare(address)} is plain http. For your own server on this machine, allow it with "
                "SLACKWATER_LOOPBACK_HTTP=1."
            )
        raise RefusedError(f"{provider}: {bare(address)} is not an https:// address. A key is never sent unencrypted.")


class _Repeatable(Exception):
    """An error to retry. If the last retry fails, the user sees `error`, which has no full stop."""

    def __init__(self, error: ProviderError, retry_after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.retry_after_s = error, retry_after_s


def _down(text: str, retry_after_s: float | None = None) -> _Repeatable:
    return _Repeatable(UnavailableError(text), retry_after_s)


def bare(address: str) -> str:
    """Return an address without its query, which may hold a key, and without a user's name."""
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http_date(text: str | None) -> datetime | None:
    """Return the time of a header, aware UTC; None if it is not a time, or is implausible."""
    try:
        moment = parsedate_to_datetime(text or "")
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return moment if moment.year in _YEARS else None


def _is_good(status: int) -> bool:
    return 200 <= status < 300
