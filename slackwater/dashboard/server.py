"""The dashboard's server. It checks the Host, origin and token of a request before anything else.

Any web page can make a browser send requests to this machine. The Host check stops names re-bound to the loopback address,
the origin check stops other pages, and off the loopback address a token is required as well. A server that may write
always requires the token, and answers POST only if the request says that it comes from the page itself.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import html
import ipaddress
import json
import logging
import math
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from slackwater._version import __version__
from slackwater.atomic import write_whole
from slackwater.charts.style import palette_css
from slackwater.dashboard.catalogue import Catalogue, NotFound, compare_answer
from slackwater.dashboard.edits import edit_answer, names_data, scenario_file
from slackwater.dashboard.jobs import Job, Jobs, job_answer
from slackwater.dashboard.plans import Outdated, PlanRequest, Plans, map_answer
from slackwater.dashboard.runs import Page, RunReader, Streams, message
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.report.account import ReportSettings
from slackwater.report.content import document
from slackwater.report.html import page
from slackwater.report.statement import make_statement

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is refused."""

    status: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access rules of one server."""

    port: int
    hosts: frozenset[str]
    """Accepted host names, lower case, without the port."""
    further: frozenset[str] = frozenset()
    """Names added by the owner, lower case, accepted with any port: a proxy has its own."""
    any_address: bool = False
    """Whether any IP address is accepted as a name: for a server that listens on all of them."""
    token: str | None = None

    @classmethod
    def of(cls, host: str, port: int, *, token: str | None, names: tuple[str, ...] = ()) -> Access:
        """Return the rules of a server that listens on `host`; `names` are further accepted names."""
        loopback = is_loopback(host)
        if not loopback and not token:
            raise ValueError("off the loopback address a token is required")
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
        """Return the name of the token's cookie; it includes the port, because cookies are shared between ports."""
        return f"slackwater_{self.port}"

    def check(self, headers: Mapping[str, str], path: str, offered: str | None = None) -> Refusal | None:
        """Return why the request is refused, or None. `offered` is the token from the address."""
        return self._host(headers) or self._origin(headers, path) or self._token(headers, offered)

    def check_write(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request that changes something is refused, or None; only the page itself may send one."""
        refusal = self.check(headers, "")
        own = headers.get("Origin") is not None or headers.get("Sec-Fetch-Site") == "same-origin"
        if refusal is not None or (self.token is not None and own):
            return refusal
        return Refusal(
            status=403, sentence="Only the dashboard's own page may change something. Open it, and use its buttons."
        )

    def is_token(self, offered: str | None) -> bool:
        """Return whether this is the token, in constant time."""
        if self.token is None or offered is None:
            return False
        return hmac.compare_digest(offered.encode("utf-8", "replace"), self.token.encode())

    def _host(self, headers: Mapping[str, str]) -> Refusal | None:
        name, port = _split(headers.get("Host", ""))
        ours = name in self.hosts or (self.any_address and _is_address(name))
        # Names of the loopback address cannot be re-bound, and an SSH tunnel calls them with a port of its own.
        if name and (
            name in self.further or is_loopback(name) or (ours and (80 if port is None else port) == self.port)
        ):
            return None
        return Refusal(
            status=421,
            sentence="The dashboard does not accept this host name. Use the address that `slackwater serve` printed, or start it "
            "with --allow-host NAME.",
        )

    def _origin(self, headers: Mapping[str, str], path: str) -> Refusal | None:
        origin = headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower()
        site = headers.get("Sec-Fetch-Site", "none")
        # Other pages may link to the first page only.
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
            sentence="This is not the token of this dashboard. `slackwater serve` printed the token when it started."
            if offered
            else "A token is required. Open the address with ?token=.. that `slackwater serve` printed when it started.",
        )

    def _cookie(self, headers: Mapping[str, str]) -> str | None:
        try:
            found = SimpleCookie(headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return None
        return None if found is None else found.value


def is_bare_name(name: str) -> bool:
    """Return whether a name is a bare host: without scheme, port or path."""
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
    """Return name and port of a Host header; the name is empty if the header is malformed."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content that a browser may keep, and asks about again before it uses it."""

    kind: str
    plain: bytes
    packed: bytes | None = None
    """The same by gzip; None if that would not be shorter."""
    tag: str
    """ETag; weak, as both forms have the same."""

    @classmethod
    def of(cls, kind: str, plain: bytes, *, pack: int = 0) -> Content:
        """Return content with its tag, packed by gzip at the level `pack`; 0: not packed."""
        packed = gzip.compress(plain, pack, mtime=0) if pack and len(plain) >= _LEAST_PACKED else plain
        tag = f'W/"{hashlib.blake2b(plain, digest_size=12).hexdigest()}"'
        return cls(kind=kind, plain=plain, packed=packed if len(packed) < len(plain) else None, tag=tag)


log = logging.getLogger(__name__)
Answer = Callable[[Mapping[str, str]], dict[str, Any]]
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LEAST_PACKED = 1_000
"""Bytes from which content is sent by gzip."""
_MOST_QUERY, _MOST_FIELDS = 24_000, 40
_MOST_BODY = 64 * 1024
_MOST_CONNECTIONS = 128
_PATIENCE_S = 20.0
"""Timeout for a slow browser, which then reconnects."""
_DEFECT = "Something went wrong inside the dashboard. This is a defect; please report it with what `slackwater serve` printed."


_FORM_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:30rem;margin:15vh auto;padding:0 1rem;color:#1b1b1b;background:#fff}"
    "input,button{font:inherit;padding:.4rem .7rem}input{width:100%;box-sizing:border-box;margin:.3rem 0 .8rem}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}}"
)
_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Slackwater: token</title><style>{style}</style></head>
<body><h1>Slackwater</h1><p role="status">{sentence}</p>
<form method="get" action="./"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Open the dashboard</button></form>
<p>The token is the part after <code>?token=</code> of the address that <code>slackwater serve</code> printed.</p></body></html>
"""
_FORM_HASH = base64.b64encode(hashlib.sha256(_FORM_STYLE.encode()).digest()).decode()
_FORM_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_FORM_HASH}'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FORM_SENTENCE = "This dashboard asks for its token."


class Dashboard(ThreadingHTTPServer):
    """The server. Create it, call `serve_forever`, then `close`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        library: Catalogue,
        *,
        host: str,
        port: int,
        token: str | None = None,
        names: tuple[str, ...] = (),
        writable: bool = False,
    ) -> None:
        if writable and not token:
            raise ValueError("a server that may write needs a token")
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.guard = Access.of(host, self.port, token=token, names=names)
        self.library, self.plans, self.streams, self.jobs = library, Plans(library), Streams(), Jobs()
        self.writable = writable
        self.files = _files()
        self._readers: dict[str, RunReader] = {}
        self._lock = threading.Lock()
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self.answers: dict[str, Answer] = {
            "/api/sources": self._sources,
            "/api/problem": lambda query: self.plans.problem(query.get("source", "")),
            "/api/plan": lambda query: self.plans.quick(PlanRequest.of(query)),
            "/api/plan/joint": lambda query: self.plans.joint(PlanRequest.of(query)),
            "/api/plan/best": lambda query: self.plans.best(PlanRequest.of(query)),
            "/api/front": lambda query: self.plans.front(PlanRequest.of(query)),
            "/api/scenario": lambda query: self.plans.scenario(PlanRequest.of(query)),
            "/api/map": lambda query: map_answer(self.library, query.get("source", "")),
            "/api/edit": self._edit,
            "/api/run": self._run,
            "/api/run/brief": lambda query: self.reader(query.get("run", "")).brief(),
            "/api/compare": self._compare,
        }
        self.actions: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {}
        """What POST does: nothing, unless the owner lets the page write."""
        if writable:
            self.answers["/api/jobs"] = lambda query: {"jobs": [self._job(one) for one in self.jobs.all()]}
            self.actions = {"/api/save": self._save, "/api/start": self._start}

    @property
    def port(self) -> int:
        """Return the port it listens on, also if port 0 was requested."""
        return int(self.server_address[1])

    def close(self) -> None:
        """End streams and planning, and release the port."""
        self.streams.close()
        self.plans.close()
        self.server_close()

    def reader(self, run: str) -> RunReader:
        """Return the reader of a run, kept between requests."""
        entry = self.library.entry(run)
        if entry.kind != "run":
            raise ScenarioError(f"{entry.label} is a {entry.kind}, not a run.")
        with self._lock:
            if run not in self._readers:
                self._readers[run] = RunReader(path=entry.path, label=entry.label)
            return self._readers[run]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the request, unless there are too many."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the request, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write errors to the log, not to the terminal; a closed browser is not an error."""
        log.debug("a connection ended early", exc_info=True)

    def _sources(self, query: Mapping[str, str]) -> dict[str, Any]:
        listed = [{"id": one.id, "kind": one.kind, "label": one.label} for one in self.library.entries()]
        return {"version": __version__, "sources": listed}

    def _run(self, query: Mapping[str, str]) -> dict[str, Any]:
        reader = self.reader(query.get("run", ""))
        return {"state": reader.look(), "fixed": reader.fixed()}

    def report(self, run: str) -> str:
        """Return the emissions report of a run as HTML."""
        return page(document(make_statement(self.reader(run).path.parent, ReportSettings())))

    def _edit(self, query: Mapping[str, str]) -> dict[str, Any]:
        entry = self.library.entry(query.get("source", ""))
        if entry.kind != "scenario":
            return {
                "file": None,
                "sentence": f"A {entry.kind} cannot be edited. Copy it as a scenario file, and serve that file.",
            }
        return edit_answer(entry.path, given_data=self.library.data, writable=self.writable)

    def _save(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Write the displayed scenario to its own file; no request names another."""
        path, text = self.plans.file(_plan_request(asked))
        with self._lock:
            write_whole(path.resolve(), text, private=False)
        return {"saved": path.name}

    def _start(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Start a rehearsal or a training run of the displayed scenario, in a new folder beside it."""
        kind, request = asked.get("kind"), _plan_request(asked)
        if kind not in ("rehearse", "train"):
            raise ScenarioError("kind must be rehearse or train.")
        path, text = self.plans.file(request)
        given = (
            []
            if self.library.data is None or names_data(self.library.entry(request.source).changes)
            else ["--data", str(Path(self.library.data).absolute())]
        )
        given += [] if self.library.fill_hours is None else ["--fill-hours", str(self.library.fill_hours)]

        def commands(folder: Path) -> list[list[str]]:
            own = path.absolute()
            if text != scenario_file(path):  # the run uses what is on show, and the scenario stays as it is
                own = own.with_name(f"{folder.name}.toml")
                write_whole(own, text, private=False)
            out = str(folder.absolute())
            if kind == "rehearse":
                return [["rehearse", str(own), "--out", out, *given]]
            end = [] if request.end is None else ["--end", str(request.end)]
            return [["plan", str(own), "--out", out, *end, *given], ["train", out, "--out", out]]

        return self._job(self.jobs.start(kind, path.parent, commands))

    def _job(self, job: Job) -> dict[str, Any]:
        return job_answer(job, self.library.run_id(job.folder))

    def _compare(self, query: Mapping[str, str]) -> dict[str, Any]:
        entries = [self.library.entry(one) for one in query.get("ids", "").split(",") if one]
        return compare_answer([(entry, self.reader(entry.id) if entry.kind == "run" else None) for entry in entries])


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Dashboard
    protocol_version = "HTTP/1.1"
    server_version = "Slackwater"
    sys_version = ""
    timeout = _PATIENCE_S
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Check the request, then answer it."""
        address = urlsplit(self.path)
        query = _query(address.query)
        refusal = self.server.guard.check(self.headers, address.path, query.get("token"))  # type: ignore[arg-type]
        if refusal is not None:
            if refusal.status == HTTPStatus.UNAUTHORIZED and address.path == "/" and self._is_browser():
                self._ask_for_token(refusal.sentence if query.get("token") else _FORM_SENTENCE)
            else:
                self._refuse(refusal)
        elif "token" in query and address.path == "/":
            self._keep_token(query["token"])
        elif address.path in self.server.files:
            self._send_content(self.server.files[address.path])
        elif address.path == "/api/events":
            self._stream(query)
        elif address.path == "/api/report":
            self._report(query.get("run", ""))
        elif address.path in self.server.answers:
            self._answer(self.server.answers[address.path], query)
        else:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "There is nothing at this address."})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Do what the page asks for, if the owner lets it write."""
        self.close_connection = True  # a refused request's body is not read
        refusal = self.server.guard.check_write(self.headers)  # type: ignore[arg-type]
        if not self.server.actions:
            self._only_get()
        elif refusal is not None:
            self._refuse(refusal)
        elif self.path not in self.server.actions:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "There is nothing at this address."})
        elif (asked := self._body()) is None:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": "The request must be a JSON object of at most 64 KiB."})
        else:
            self._answer(self.server.actions[self.path], asked)

    def _body(self) -> dict[str, Any] | None:
        """Return the body of a request; None if it is not a small JSON object."""
        length = self.headers.get("Content-Length", "")
        kind = self.headers.get_content_type()
        if kind != "application/json" or not length.isdecimal() or int(length) > _MOST_BODY:
            return None
        try:
            found = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _only_get(self) -> None:
        self.close_connection = True  # the request's body is not read
        self._send_json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "The dashboard only reads: use GET."})

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _only_get

    def log_message(self, format: str, *args: Any) -> None:
        """Log only the method, below the level of --verbose: the address may contain a token."""
        log.debug("request: %s", self.command)

    def _answer(self, answer: Callable[[Any], dict[str, Any]], asked: Any) -> None:
        status, content = HTTPStatus.OK, dict[str, Any]()
        try:
            content = answer(asked)
        except Outdated:
            status, content = (
                HTTPStatus.CONFLICT,
                {"error": "The page has sent a newer request.", "outdated": True},
            )
        except NotFound as error:
            status, content = HTTPStatus.NOT_FOUND, {"error": str(error)}
        except ScenarioError as error:
            status, content = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except (SlackwaterError, OSError) as error:
            status, content = HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)}
        except MemoryError:
            status, content = HTTPStatus.UNPROCESSABLE_ENTITY, {"error": "There is not enough memory to show this."}
        except Exception:
            log.exception("a request failed")
            status, content = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": _DEFECT}
        self._send_json(status, content)

    def _report(self, run: str) -> None:
        """Send the emissions report of a run: a page of its own, without scripts."""
        try:
            text = self.server.report(run)
        except (SlackwaterError, OSError) as error:
            self._send_json(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)})
            return
        self._send_content(
            Content.of(_TYPES[".html"], text.encode(), pack=1), {"Content-Security-Policy": _REPORT_POLICY}
        )

    def _stream(self, query: Mapping[str, str]) -> None:
        try:
            reader = self.server.reader(query.get("run", ""))
        except SlackwaterError as error:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": str(error)})
            return
        self.close_connection = True
        fields = {"Content-Type": "text/event-stream", "Connection": "close", "X-Accel-Buffering": "no", **_HEADERS}
        self.wfile.write(f"HTTP/1.1 200 OK\r\n{_lines(fields)}\r\n".encode())
        page = Page(
            address=str(self.client_address[0]),
            send=self._write,
            is_closed=self._is_closed,
            last_id=self.headers.get("Last-Event-ID", ""),
        )
        try:
            self.server.streams.follow(query.get("run", ""), reader, page)
        except SlackwaterError as error:
            self.wfile.write(message("trouble", {"error": str(error)}))
        except OSError:  # the page was closed, or was too slow to read
            log.debug("a page stopped watching")

    def _write(self, content: bytes) -> None:
        self.wfile.write(content)

    def _is_closed(self) -> bool:
        """Return whether the browser has closed the connection of a stream, on which it sends nothing more."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _is_browser(self) -> bool:
        """Return whether a person waits for a page; a program asks for JSON."""
        return "text/html" in self.headers.get("Accept", "")

    def _keep_token(self, token: str) -> None:
        """Move the token from the address, where others may see it, into a cookie.

        The place and the cookie's path are relative, so that they also hold behind a proxy with a path prefix.
        """
        cookie = f"{self.server.guard.cookie}={token}; HttpOnly; SameSite=Lax"
        self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "./", "Set-Cookie": cookie})

    def _ask_for_token(self, sentence: str) -> None:
        """Send a page with a field for the token; only `sentence` is not the same for everybody."""
        self.close_connection = True
        text = _FORM.format(style=_FORM_STYLE, sentence=html.escape(sentence))
        more = {"Content-Security-Policy": _FORM_POLICY}
        self._send(HTTPStatus.UNAUTHORIZED, text.encode(), _TYPES[".html"], more)

    def _refuse(self, refusal: Refusal) -> None:
        self.close_connection = True
        self._send_json(HTTPStatus(refusal.status), {"error": refusal.sentence})

    def _send_json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        try:
            text = json.dumps(content, allow_nan=False)
        except ValueError:
            text = json.dumps(_finite(content), allow_nan=False)
        if status is HTTPStatus.OK and self.command != "POST":
            # The lowest level: a slider waits for the answer.
            self._send_content(Content.of(_TYPES[".json"], text.encode(), pack=1 if self._takes_gzip() else 0))
        else:
            self._send(status, text.encode(), _TYPES[".json"])

    def _takes_gzip(self) -> bool:
        offered = (part.strip().lower() for part in self.headers.get("Accept-Encoding", "").split(","))
        return any(part == "gzip" or (part.startswith("gzip;") and not part.endswith("q=0")) for part in offered)

    def _send_content(self, content: Content, policy: Mapping[str, str] | None = None) -> None:
        """Send content, or say that the browser has it already."""
        more = {"Cache-Control": "private, no-cache", "ETag": content.tag, "Vary": "Accept-Encoding", **(policy or {})}
        if content.tag in (one.strip() for one in self.headers.get("If-None-Match", "").split(",")):
            self._send(HTTPStatus.NOT_MODIFIED, b"", content.kind, more)
        elif content.packed is not None and self._takes_gzip():
            self._send(HTTPStatus.OK, content.packed, content.kind, more | {"Content-Encoding": "gzip"})
        else:
            self._send(HTTPStatus.OK, content.plain, content.kind, more)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
        """Send head and body in one piece: two writes would delay each other."""
        fields = {"Content-Type": kind, "Content-Length": str(len(content)), **_HEADERS, **(more or {})}
        if status is HTTPStatus.NOT_MODIFIED:
            del fields["Content-Length"]
        if self.close_connection:
            fields["Connection"] = "close"
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\n{_lines(fields)}\r\n"
        self.wfile.write(head.encode("latin-1") + (b"" if self.command == "HEAD" else content))


def _lines(fields: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


def _plan_request(asked: Mapping[str, Any]) -> PlanRequest:
    """Return the plan on show that a page names; its values are checked like those of an address."""
    return PlanRequest.of({key: str(value) for key, value in asked.items() if value is not None})


def _query(text: str) -> dict[str, str]:
    """Return the fields of an address; none if there are too many."""
    if len(text) > _MOST_QUERY:
        return {}
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}


def _files() -> dict[str, Content]:
    """Return all served files by address; no request opens anything else."""
    found = {"/palette.css": Content.of(_TYPES[".css"], palette_css().encode(), pack=9)}
    static = resources.files("slackwater.dashboard") / "static"
    for place, folder in (("/", static), ("/vendor/", static / "vendor")):
        for file in folder.iterdir():
            suffix = f".{file.name.rpartition('.')[2]}"
            if suffix in _TYPES:
                address = "/" if file.name == "index.html" else f"{place}{file.name}"
                found[address] = Content.of(_TYPES[suffix], file.read_bytes(), pack=9)
    return found


def _finite(content: Any) -> Any:
    """Return the content with infinity as text and NaN as null, because JSON lacks them."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None if math.isnan(content) else "inf" if content > 0 else "-inf"
    return content
