"""Which runs this user started: resuming a live run imports the app that its folder names.

`slackwater run` records the run's id and its app's path and hash in the user's state folder. Without this record, or with
another app, `slackwater resume` asks before it imports anything.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from slackwater._version import __version__
from slackwater.atomic import write_whole
from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.folder import SETTINGS

log = logging.getLogger(__name__)

STATE_VARIABLE = "SLACKWATER_STATE"
RUN_KEY = "run"  # in the engine's settings: the run's id, set when it is prepared
_ID = re.compile(r"[0-9a-f]{32}")
_CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
"""Files that Python imports; __pycache__ is compiled from these."""
_CONFIGS = ("pyproject.toml", "meta.json", "config_fed_server.json", "config_fed_client.json")
"""Files that name what is imported, in a Flower app and in a FLARE job."""
_SKIPPED = ("__pycache__", "node_modules")
_MOST_FILES, _MOST_BYTES = 5_000, 500_000_000
_LONGEST_RECORD = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Facts about a live run before its app is imported."""

    folder: Path
    run: str  # the run's id
    app: Path
    sha256: str  # of the app's code; empty if the app cannot be hashed
    doubt: str  # why the run may not be this user's, as a sentence; empty if it is


def state_folder() -> Path:
    """Return the folder of Slackwater's state: $SLACKWATER_STATE, else slackwater/ of the user's state."""
    if named := os.environ.get(STATE_VARIABLE):
        return Path(named).expanduser().absolute()
    return user_state_path("slackwater", appauthor=False)


def app_hash(app: Path) -> str:
    """Return the SHA-256 of an app's code: names and contents of all files that Python could import or that name them.

    Raises:
        SlackwaterError: The folder holds more code than an app has, or cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    try:
        for name, path in sorted(_code(app)):
            content = hashlib.sha256()
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    size += len(piece)
                    content.update(piece)
                    if size > _MOST_BYTES:
                        raise SlackwaterError(_too_much(app, f"{_MOST_BYTES // 1_000_000:,} MB"))
            digest.update(len(name).to_bytes(8, "big") + name + content.digest())
    except OSError as error:
        raise SlackwaterError(f"The app in {app} cannot be read: {error.strerror or error}.") from None
    return digest.hexdigest()


def examine(folder: Path, engine: Mapping[str, Any]) -> Begun:
    """Return the facts about the live run in a folder, with any doubt about its origin."""
    run, app = run_id(folder, engine), Path(str(engine["app"])).absolute()
    if run is None:  # prepared without an id, and not started
        run = hashlib.sha256((folder / SETTINGS).read_bytes()).hexdigest()[:32]
    if not app.is_dir():
        raise SlackwaterError(
            f"The app of the run in {folder} is not at {app}: it was moved or deleted. Put it back, or write its new path "
            f"into {SETTINGS} (engine, app)."
        )
    try:
        found = app_hash(app)
    except SlackwaterError as error:
        return Begun(folder=folder, run=run, app=app, sha256="", doubt=str(error))
    known, doubt = _record(run), ""
    if known is None:
        doubt = "You did not start this run on this machine."
    elif known.get("app") != str(app):
        doubt = f"This run was started with another app, {str(known.get('app'))[:200]!r}."
    elif known.get("sha256") != found:
        doubt = f"The app has changed since this run was started (SHA-256 {str(known.get('sha256'))[:64]})."
    return Begun(folder=folder, run=run, app=app, sha256=found, doubt=doubt)


def remember(begun: Begun) -> None:
    """Record that the user started or trusts this run. If the state folder cannot be written, only warn."""
    record = {
        "run": begun.run, "folder": str(begun.folder.absolute()), "app": str(begun.app), "sha256": begun.sha256,
        "slackwater": __version__,
    }  # fmt: skip
    path = _record_file(begun.run)
    try:
        if not begun.sha256:
            raise SlackwaterError(begun.doubt)
        if not path.is_absolute():
            raise SlackwaterError(f"There is no home folder. Name a folder in {STATE_VARIABLE}.")
        if _record(begun.run) == record:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(record, indent=1) + "\n")  # readable only by its owner
    except (SlackwaterError, OSError) as error:
        log.warning("Could not record that this run is yours, so `slackwater resume` will ask. %s", error)


def _code(app: Path) -> Iterator[tuple[bytes, Path]]:
    """Yield name within the app and path of everything that could be imported; raise if there is too much."""

    def fail(error: OSError) -> None:
        raise error

    count, seen = 0, set[str]()
    for parent, folders, files in os.walk(app, followlinks=True, onerror=fail):
        real = os.path.realpath(parent)
        if real in seen or (parent != str(app) and "pyvenv.cfg" in files):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in files:
            if name in _CONFIGS or name.endswith(_CODE):
                count += 1
                if count > _MOST_FILES:
                    raise SlackwaterError(_too_much(app, f"{_MOST_FILES:,} files"))
                path = Path(parent, name)
                yield os.fsencode(path.relative_to(app).as_posix()), path


def _too_much(app: Path, what: str) -> str:
    return f"The app in {app} has more than {what} of code, so it cannot be hashed. Give it its own folder."


def run_id(folder: Path, engine: Mapping[str, Any]) -> str | None:
    """Return the id of a run: from its settings, else from its file; None if it has neither."""
    given = engine.get(RUN_KEY)
    if isinstance(given, str) and _ID.fullmatch(given):
        return given
    if Run.begun(folder):
        with Run.open(folder, read_only=True) as run:
            if _ID.fullmatch(run.id):
                return run.id
    return None


def _record_file(run: str) -> Path:
    return state_folder() / "runs" / f"{run}.json"


def _record(run: str) -> dict[str, Any] | None:
    """Return the record of a run; None if there is none that this user wrote."""
    try:
        with _record_file(run).open("rb") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
                return None
            found = json.loads(file.read(_LONGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
