"""A server on this machine that plays the providers: good answers, errors, slowness, cut-off bodies and outages."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(kw_only=True)
class Asked:
    """A request as it came in."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass(kw_only=True)
class Reply:
    """What the server does with a request."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    date: datetime | None = None
    """The server's clock, if not the usual one."""
    wait_s: float = 0.0
    """Before the answer."""
    sent: int | None = None
    """Bytes of the body that are sent before the connection is cut; all by default."""
    drip_s: float = 0.0
    """Between one byte of the body and the next."""
    chunked: bool = False
    """Without a length, in pieces."""
    raw: bytes | None = None
    """Sent as it is, instead of a status, headers and a body; the connection is closed after it."""


def as_json(data: Any, **more: Any) -> Reply:
    return Reply(body=json.dumps(data).encode(), **more)


class Loopback:
    """`answers` gives the good answer to a request; `script` holds what comes before that."""

    def __init__(
        self, answers: Callable[[Asked], Reply], clock: datetime, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.answers, self.clock = answers, clock
        self.script: deque[Reply | None] = deque()
        """None lets a good answer through."""
        self.always: Reply | None = None
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:  # clients go away on purpose here
                pass

        self.server = Quiet(("127.0.0.1", port), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_address[1]}"

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        asked = Asked(
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in handler.headers.items()},
        )
        self.asked.append(asked)
        reply = self.always or (self.script.popleft() if self.script else None) or self.answers(asked)
        time.sleep(reply.wait_s)
        if reply.raw is not None:
            handler.close_connection = True
            _send(handler, reply.raw, reply.drip_s)
            return
        handler.send_response_only(reply.status)
        handler.send_header("Date", format_datetime((reply.date or self.clock).astimezone(UTC), usegmt=True))
        if reply.kind:
            handler.send_header("Content-Type", reply.kind)
        if reply.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if reply.drip_s:
            _send(handler, reply.body, reply.drip_s)
        elif reply.chunked:
            handler.wfile.write(b"%x\r\n" % len(reply.body) + reply.body[: reply.sent])
            handler.wfile.write(b"\r\n0\r\n\r\n" if reply.sent is None else b"")
        else:
            handler.wfile.write(reply.body[: reply.sent])
        if reply.sent is not None:
            handler.wfile.flush()
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)


def _send(handler: BaseHTTPRequestHandler, content: bytes, drip_s: float) -> None:
    """Byte by byte where they drip."""
    for piece in [content[i : i + 1] for i in range(len(content))] if drip_s else [content]:
        handler.wfile.write(piece)
        handler.wfile.flush()
        time.sleep(drip_s)


@contextmanager
def running(
    answers: Callable[[Asked], Reply], clock: datetime, tls: ssl.SSLContext | None = None
) -> Iterator[Loopback]:
    loopback = Loopback(answers, clock, tls)
    thread = threading.Thread(target=loopback.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield loopback
    finally:
        loopback.server.shutdown()
        loopback.server.server_close()
        thread.join()
