"""A small reverse proxy that serves a dashboard below a path prefix, as Jupyter and nginx do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def proxied(port: int, prefix: str) -> Iterator[str]:
    """Serve the dashboard on `port` at another port, below the prefix; what is outside it is not found."""

    class Handler(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            length = int(self.headers.get("Content-Length") or 0)
            behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                self._answer(behind, self.rfile.read(length))
            finally:
                behind.close()

        def _answer(self, behind: http.client.HTTPConnection, body: bytes) -> None:
            # The proxy passes on the name that the browser used, as the guide asks for.
            behind.request(self.command, "/" + self.path.removeprefix(prefix), body, dict(self.headers))
            with behind.getresponse() as answer:
                kept = [
                    (name, value)
                    for name, value in answer.getheaders()
                    if name not in ("Connection", "Transfer-Encoding")
                ]
                head = "".join(f"{name}: {value}\r\n" for name, value in kept)
                self.wfile.write(
                    f"HTTP/1.1 {answer.status} {answer.reason}\r\nConnection: close\r\n{head}\r\n".encode()
                )
                while part := answer.read1(65536):
                    self.wfile.write(part)

        do_GET = do_POST = _pass

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # the browser closed a stream
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
