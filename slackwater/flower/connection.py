"""Flower's connections: `$FLWR_HOME/config.toml`, read only to refuse plain text over a network."""

from __future__ import annotations

import ipaddress
import os
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slackwater.errors import ScenarioError

_LOCAL = (":local:", ":local-in-memory:")  # Flower's own words for a SuperLink that it starts on this machine
_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a SuperLink is reached."""

    name: str
    address: str
    insecure: bool

    @property
    def on_loopback(self) -> bool:
        """Return whether messages never leave this machine."""
        if self.address in _LOCAL or self._host_and_port[0] == "localhost":
            return True
        try:
            return ipaddress.ip_address(self._host_and_port[0]).is_loopback
        except ValueError:
            return False

    def answers(self, timeout_s: float = 5.0) -> bool:
        """Return whether anything listens there now."""
        if self.address in _LOCAL:
            return True
        try:
            with socket.create_connection(self._host_and_port, timeout=timeout_s):
                return True
        except OSError:
            return False

    @property
    def _host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(self.address if "//" in self.address else f"//{self.address}")
        return parts.hostname or "", parts.port or _PORT


def flower_home() -> Path:
    """Return the folder of Flower's configuration."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


def read_connection(name: str) -> Connection:
    """Return a connection by its name."""
    path = flower_home() / "config.toml"
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8")).get("superlink", {})
    except FileNotFoundError:
        sections = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"Flower's configuration {path} cannot be read: {error}.") from None
    known = {key: value for key, value in sections.items() if isinstance(value, dict)}
    if name not in known:
        names = f"It knows {', '.join(sorted(known))}." if known else "It knows none."
        raise ScenarioError(
            f"There is no SuperLink connection {name!r} in {path}. {names} Add one:\n\n[superlink.{name}]\n"
            'address = "superlink.example.org:8000"\nroot-certificates = "/path/to/ca.crt"'
        )
    section = known[name]
    address = section.get("address", "")
    if not isinstance(address, str) or not address:
        raise ScenarioError(f"{path}, [superlink.{name}]: address is missing.")
    return Connection(name=name, address=address, insecure=section.get("insecure") is True)


def check_secure(connection: Connection, *, allow_insecure: bool) -> None:
    """Refuse plain text to another machine, unless the user insists."""
    if connection.insecure and not connection.on_loopback and not allow_insecure:
        raise ScenarioError(
            f"The connection {connection.name!r} to {connection.address} is in plain text (insecure = true): models and names "
            "could be read and changed on the way. Give it root-certificates instead (docs/flower.md shows how), or "
            "insist with --allow-insecure."
        )
