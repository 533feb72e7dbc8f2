"""One small HTTPS client over the standard library: time-outs, retries, a budget of requests, and no key in any text.

The standard library, because a GET of some kilobytes needs no more, and planning should not need another package.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import logging
import random
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import IO, Any, Literal

from slackwater._version import __version__
from slackwater.providers.answers import failure, said_by
from slackwater.providers.errors import (
    BadAnswerError,
    ProviderError,
    RefusedError,
    RequestBudgetError,
    ThrottledError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

Format = Literal["json", "xml"]
MOST_BYTES = 50_000_000
SKEW = timedelta(minutes=2)
"""Clocks that differ by less are the same: answers take time, and `Date` has full seconds."""
_CHUNK = 1 << 16
_RETRIED = (429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A good answer, complete and of the right type."""

    body: bytes
    headers: Mapping[str, str]
    received_at: datetime


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


class Client:
    """Asks providers, politely. One for a whole command, so that its budget counts all requests."""

    def __init__(
        self,
        *,
        timeout_s: float = 20.0,
        total_s: float = 90.0,
        attempts: int = 4,
        max_requests: int = 300,
        patience_s: float = 120.0,
        loopback_http: bool = False,
        tls: ssl.SSLContext | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC).replace(microsecond=0),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.timeout_s, self.total_s, self.attempts, self.patience_s = timeout_s, total_s, attempts, patience_s
        self.max_requests, self.requests = max_requests, 0
        self.now = now
        self.clock_gap = timedelta(0)
        """How far the last provider's clock is ahead of ours; 0 if it is less than `SKEW`."""
        self._loopback_http, self._sleep, self._jitter = loopback_http, sleep, jitter
        self._secrets: set[str] = set()
        handlers = (_NoRedirects(), urllib.request.HTTPSHandler(context=tls or ssl.create_default_context()))
        self._opener = urllib.request.build_opener(*handlers)
        # What goes to this machine goes past any proxy, which would see the key.
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)

    def latest_now(self) -> datetime:
        """The later of our clock and the last provider's: what is past by either of them has happened."""
        return self.now() + max(self.clock_gap, timedelta(0))

    def hide(self, secret: str) -> str:
        """Make sure that a secret is in no text of ours; gives it back."""
        forms = {secret, urllib.parse.quote(secret), urllib.parse.quote_plus(secret)}
        self._secrets |= forms | {base64.b64encode(secret.encode()).decode()}
        return secret

    def clean(self, text: str) -> str:
        """A text without secrets and without what could move a cursor; providers' own words go through here."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())

    def get_json(
        self,
        provider: str,
        address: str,
        query: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded body of a GET."""
        response = self.get(provider, address, query, headers, expects="json")
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            raise BadAnswerError(
                f"{provider} answers with {len(response.body):,} bytes that are not whole JSON; was it cut off? Try "
                "again later."
            ) from None

    def get(
        self,
        provider: str,
        address: str,
        query: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        *,
        expects: Format = "json",
    ) -> Response:
        """A GET that is repeated on 429, 5xx and broken connections, at growing distances."""
        self._require_https(provider, address)
        full = f"{address}?{urllib.parse.urlencode(query)}" if query else address
        request = urllib.request.Request(
            full,
            headers={"User-Agent": f"slackwater/{__version__}", "Accept": f"application/{expects}", **(headers or {})},
        )
        for attempt in range(self.attempts):
            self._count(provider)
            try:
                return self._once(provider, request, expects)
            except _Repeatable as trouble:
                wait = self._wait(attempt, trouble.retry_after_s)
                last = attempt == self.attempts - 1
                if last or wait > self.patience_s:
                    raise self._given_up(trouble, wait, attempt + 1) from None
                logger.info("%s; trying again in %.1f s.", trouble.error, wait)
            self._sleep(wait)
        raise AssertionError("unreachable: attempts is at least 1")

    def _given_up(self, trouble: _Repeatable, wait: float, attempts: int) -> ProviderError:
        if wait > self.patience_s:
            until = (self.now() + timedelta(seconds=wait)).strftime("%H:%M")
            return type(trouble.error)(f"{trouble.error}. It asks to wait {wait:.0f} s; try again after {until} UTC.")
        times = f" ({attempts} attempts)" if attempts > 1 else ""
        return type(trouble.error)(f"{trouble.error}{times}. Try again later, or name another provider.")

    def _count(self, provider: str) -> None:
        if self.requests >= self.max_requests:
            raise RequestBudgetError(
                f"The budget of {self.max_requests:,} requests is used up before {provider} was asked. What was fetched "
                "is kept: ask for a shorter range or fewer zones, run it again, or allow more (--requests)."
            )
        self.requests += 1

    def _wait(self, attempt: int, retry_after_s: float | None) -> float:
        """Seconds until the next try: with jitter, and never less than the provider asks for."""
        growing = min(30.0, float(1 << attempt))
        if retry_after_s is not None:
            return retry_after_s + self._jitter() * min(growing, 0.1 * retry_after_s + 0.5)
        return growing * (0.5 + 0.5 * self._jitter())

    def _once(self, provider: str, request: urllib.request.Request, expects: Format) -> Response:
        where = bare(request.full_url)
        deadline = time.monotonic() + self.total_s
        try:
            opener = (
                self._direct if is_loopback(urllib.parse.urlsplit(request.full_url).hostname or "") else self._opener
            )
            with opener.open(request, timeout=self.timeout_s) as answer:
                headers = {name.lower(): value for name, value in answer.headers.items()}
                self._note_clock(headers)
                body = self._body(provider, answer, deadline)
        except urllib.error.HTTPError as error:
            with error:
                headers = {name.lower(): value for name, value in (error.headers or {}).items()}
                self._note_clock(headers)
                raise self._status(provider, error, headers, where) from None
        except TimeoutError:
            raise _Repeatable(UnavailableError(f"{provider} gave no answer within {self.timeout_s:g} s")) from None
        except urllib.error.URLError as error:
            raise self._unreachable(provider, error.reason) from None
        except (http.client.HTTPException, OSError) as error:
            # By its type only: the text of some of these repeats the address, with the key.
            raise _Repeatable(
                UnavailableError(f"The connection to {provider} broke ({type(error).__name__})")
            ) from None
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) != len(body):
            raise _Repeatable(
                UnavailableError(f"The answer of {provider} was cut off after {len(body):,} of {int(length):,} bytes")
            )
        logger.info("%s: GET %s, %d bytes.", provider, where, len(body))
        kind = headers.get("content-type", "")
        if expects not in kind.lower():
            raise BadAnswerError(
                f"{provider} answers with {self.clean(kind)[:60] or 'no content type'} where {expects.upper()} was "
                "expected. Is a proxy or a log-in page in between?"
            )
        return Response(body=body, headers=headers, received_at=self.now())

    def _body(self, provider: str, answer: Any, deadline: float) -> bytes:
        body = bytearray()
        # read1: whatever has arrived, so that the deadline is looked at even if bytes trickle in.
        while chunk := answer.read1(_CHUNK):
            body += chunk
            if len(body) > MOST_BYTES:
                raise BadAnswerError(f"{provider} sends more than {MOST_BYTES:,} bytes. Ask for a shorter range.")
            if time.monotonic() > deadline:
                raise TimeoutError
        return bytes(body)

    def _status(
        self, provider: str, error: urllib.error.HTTPError, headers: Mapping[str, str], where: str
    ) -> Exception:
        try:
            detail = self.clean(said_by(error.read(_CHUNK)))
        except (OSError, http.client.HTTPException):
            detail = ""
        logger.info("%s: GET %s, %d.", provider, where, error.code)
        said = f"{error.code}: {detail}" if detail else str(error.code)
        if error.code == 429:
            return _Repeatable(ThrottledError(f"{provider} throttles us ({said})"), self._retry_after(headers))
        if error.code in _RETRIED or error.code >= 500:
            return _Repeatable(UnavailableError(f"{provider} is down ({said})"), self._retry_after(headers))
        if 300 <= error.code < 400:
            return RefusedError(f"{provider} redirects us ({error.code}); a key is not carried on to other addresses.")
        return failure(provider, error.code, said, detail)

    def _unreachable(self, provider: str, reason: object) -> Exception:
        if isinstance(reason, TimeoutError):
            return _Repeatable(UnavailableError(f"{provider} gave no answer within {self.timeout_s:g} s"))
        if isinstance(reason, ssl.SSLCertVerificationError):
            return UnavailableError(
                f"The certificate of {provider} is not trusted ({self.clean(reason.verify_message)}). Is the clock "
                "right, or a proxy in between?"
            )
        text = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
        return _Repeatable(UnavailableError(f"{provider} cannot be reached ({self.clean(str(text))})"))

    def _note_clock(self, headers: Mapping[str, str]) -> None:
        sent = http_date(headers.get("date"))
        if sent is None:
            return
        age = headers.get("age", "")  # a proxy's copy bears the date of its original
        gap = sent + timedelta(seconds=int(age) if age.isdecimal() else 0) - self.now()
        self.clock_gap = gap if abs(gap) > SKEW else timedelta(0)

    def _retry_after(self, headers: Mapping[str, str]) -> float | None:
        """Seconds; a date is taken relative to the provider's own clock, since ours may be wrong."""
        text = headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text)
        until = http_date(text)
        if until is None:
            return None
        return max((until - (http_date(headers.get("date")) or self.now())).total_seconds(), 0.0)

    def _require_https(self, provider: str, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme == "https" and parts.hostname:
            return
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            if self._loopback_http:
                return
            raise RefusedError(
                f"{provider}: {bare(address)} is plain http. For a server of your own on this machine, allow it with "
                "SLACKWATER_LOOPBACK_HTTP=1."
            )
        raise RefusedError(f"{provider}: {bare(address)} is not an https:// address; a key is never sent in the clear.")


class _Repeatable(Exception):
    """Trouble that may pass; `error` is what the user is told if it does not, without the full stop."""

    def __init__(self, error: ProviderError, retry_after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.retry_after_s = error, retry_after_s


def bare(address: str) -> str:
    """An address without its query, in which some providers want the key, and without a user's name."""
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http_date(text: str | None) -> datetime | None:
    """The time of a header, aware UTC, or None."""
    try:
        moment = parsedate_to_datetime(text or "")
    except (TypeError, ValueError, IndexError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
