"""A FLARE job's folder: how it is recognised, a copy of it for a run, and a template for new jobs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from slackwater.errors import ScenarioError

WORKFLOW = "CarbonAware"
LOG, STOP = "nvflare.log", "nvflare.stop"
"""In the run folder: the simulator's output and the errors of the server's job; a file that stops the run after its round."""
_META, _SERVER = "meta.json", "config/config_fed_server.json"
_ALL, _SERVER_NAME = "@ALL", "server"
_HINT = "Create one with: slackwater nvflare new myapp"
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "run.db*")


def is_job(folder: str | Path) -> bool:
    """Return whether a folder is a FLARE job: it has a meta.json with a deploy_map, or a meta file of another format."""
    where = Path(folder).expanduser()
    if (where / _META).is_file():
        try:
            return "deploy_map" in json.loads((where / _META).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, TypeError):
            return True
    return any((where / f"meta.{kind}").is_file() for kind in ("conf", "yml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job whose server carries out a plan."""

    folder: Path
    meta: dict[str, Any]
    server_config: Path  # of the app with our workflow, relative to the folder

    @classmethod
    def read(cls, folder: str | Path) -> Job:
        """Read the job in a folder; raise if its server does not carry out a plan."""
        where = Path(folder).expanduser().absolute()
        if not (where / _META).is_file():
            raise ScenarioError(f"{where} has no {_META}. Write the job's meta and configurations as JSON. {_HINT}")
        meta = _read(where / _META)
        deploy_map = meta.get("deploy_map")
        if not isinstance(deploy_map, dict) or not deploy_map:
            raise ScenarioError(f'{where / _META} has no deploy_map, like {{"app": ["{_ALL}"]}}. {_HINT}')
        configs = [Path(str(app)) / _SERVER for app in deploy_map if (where / str(app) / _SERVER).is_file()]
        for path in configs:
            if any(_is_ours(one) for one in _workflows(_read(where / path))):
                return cls(folder=where, meta=meta, server_config=path)
        seen = configs[0] if configs else Path("app") / _SERVER
        raise ScenarioError(
            f'{where / seen} has no workflow of Slackwater. Add {{"id": "slackwater", "path": "slackwater.nvflare.{WORKFLOW}"}} '
            f"to its workflows. {_HINT}"
        )

    def copy_for(self, run: Path, names: Sequence[str], into: Path) -> Path:
        """Copy the job to a folder in `into`, set its run folder, and deploy to the plan's clients only; return its path.

        A job that names its sites itself keeps them.
        """
        target = into / re.sub(r"[^A-Za-z0-9._-]", "-", self.folder.name)
        shutil.copytree(self.folder, target, ignore=_ignored_in(self.folder, run))
        server = _read(target / self.server_config)
        for workflow in _workflows(server):
            if _is_ours(workflow):
                workflow["args"] = {**workflow.get("args", {}), "run": str(run)}
        (target / self.server_config).write_text(json.dumps(server, indent=2) + "\n", encoding="utf-8")
        apps = {
            app: [_SERVER_NAME, *names] if sites == [_ALL] else sites for app, sites in self.meta["deploy_map"].items()
        }
        meta = {**self.meta, "deploy_map": apps}
        (target / _META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        return target


def new_job(folder: Path) -> list[Path]:
    """Write a new job into a folder; return the files."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,31}", folder.name):
        raise ScenarioError(
            f"A job cannot be called {folder.name!r}. Use at most 32 letters, digits and hyphens, starting with a letter, "
            "like myapp."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScenarioError(f"{folder} already exists and is not empty. Name another folder.")
    template = files("slackwater.engines.nvflare") / "template"
    written = []
    for name in _FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((template / name).read_text(encoding="utf-8").replace("myapp", folder.name), encoding="utf-8")
        written.append(path)
    return written


_FILES = (
    "meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json", "app/custom/client.py",
    "app/custom/task.py", "scenario.toml", "README.md",
)  # fmt: skip


def _ignored_in(job: Path, run: Path) -> Any:
    """Return what a copy of the job leaves out: caches, hidden files, and run folders inside the job."""

    def ignored(parent: str, names: list[str]) -> set[str]:
        runs = {name for name in names if (Path(parent, name) / "plan.json").is_file() or Path(parent, name) == run}
        return {*_SKIPPED(parent, names), *(runs if Path(parent) == job else ())}

    return ignored


def _workflows(config: dict[str, Any]) -> list[dict[str, Any]]:
    found = config.get("workflows")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _is_ours(workflow: dict[str, Any]) -> bool:
    path = str(workflow.get("path", workflow.get("class_path", "")))
    return path.startswith("slackwater.") and path.endswith(f".{WORKFLOW}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise ScenarioError(f"{path} cannot be read: it is not a JSON object.")
    return found
