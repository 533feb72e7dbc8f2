"""Who may ask: the Host, the origin and the token of a request are checked before anything of it is looked at.

A page on the web can make a browser send requests to this machine. A Host that is not ours stops names that were re-bound to the
loopback address, the origin stops other pages, and off the loopback a token is asked for as well.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The checks of one server."""

    port: int
    hosts: frozenset[str]
    """Names by which it may be called, lower case, without the port."""
    further: frozenset[str] = frozenset()
    """Names that the owner added, lower case. Any port will do for these: a proxy in front has its own."""
    any_address: bool = False
    """Whether any IP address will do as a name: for a server that listens on all of them."""
    token: str | None = None

    @classmethod
    def of(cls, host: str, port: int, *, token: str | None, names: tuple[str, ...] = ()) -> Guard:
        """Return the checks of a server that listens on `host`; `names` are further names by which it may be called."""
        loopback = is_loopback(host)
        if not loopback and not token:
            raise ValueError("off the loopback address a token is needed")
        own = LOOPBACK_NAMES if loopback else (*LOOPBACK_NAMES, host, socket.gethostname())
        return cls(
            port=port,
            hosts=frozenset(name.lower() for name in own),
            further=frozenset(name.lower() for name in names),
            any_address=host in ("0.0.0.0", "::", ""),
            token=token,
        )

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds the token; cookies do not tell ports apart, so the name does."""
        return f"slackwater_{self.port}"

    def check(self, headers: Mapping[str, str], path: str, offered: str | None = None) -> Refusal | None:
        """Return why the request is refused, or None. `offered` is a token from the address."""
        return self._host(headers) or self._origin(headers, path) or self._token(headers, offered)

    def is_token(self, offered: str | None) -> bool:
        """Return whether this is the token, in a time that does not depend on how close it is."""
        if self.token is None or offered is None:
            return False
        return hmac.compare_digest(offered.encode("utf-8", "replace"), self.token.encode())

    def _host(self, headers: Mapping[str, str]) -> Refusal | None:
        name, port = _split(headers.get("Host", ""))
        ours = name in self.hosts or (self.any_address and _is_address(name))
        if name and (name in self.further or (ours and (80 if port is None else port) == self.port)):
            return None
        return Refusal(
            status=421,
            sentence="This dashboard is not known by that name. Use the address that `slackwater serve` printed, or start it "
            "with --allow-host NAME.",
        )

    def _origin(self, headers: Mapping[str, str], path: str) -> Refusal | None:
        origin = headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower()
        site = headers.get("Sec-Fetch-Site", "none")
        # A link on another page may lead to the first page, and to nothing else.
        followed = (
            path == "/" and headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        )
        if foreign or (site not in ("same-origin", "none") and not followed):
            return Refusal(status=403, sentence="Requests from other pages are refused. Open the dashboard itself.")
        return None

    def _token(self, headers: Mapping[str, str], offered: str | None) -> Refusal | None:
        if self.token is None:
            return None
        bearer = headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if any(self.is_token(one) for one in (offered, bearer, self._cookie(headers))):
            return None
        return Refusal(
            status=401,
            sentence="A token is needed. Open the address with ?token=.. that `slackwater serve` printed when it started.",
        )

    def _cookie(self, headers: Mapping[str, str]) -> str | None:
        try:
            found = SimpleCookie(headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return None
        return None if found is None else found.value


def is_bare_name(name: str) -> bool:
    """Return whether a name is that of a host alone: without scheme, port or path."""
    return bool(name) and not any(map(str.isspace, name)) and _split(name) == (name.lower(), None)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server on this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(host: str) -> tuple[str, int | None]:
    """Name and port of a Host header; an empty name where it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        name, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return "", None
    if parts.netloc != host or parts.username is not None or parts.path or parts.query or parts.fragment:
        return "", None
    return name, port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
