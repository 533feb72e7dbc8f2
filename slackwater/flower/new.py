"""A complete small Flower app to start from: `slackwater flower new myapp`."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path

from slackwater.errors import ScenarioError

_NAME = "myapp"  # what the template is called; it becomes the name of the new app
_VALID = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")  # what Flower takes as a project's name
_MODULES = ("__init__.py", "client_app.py", "server_app.py", "task.py")
_TEXTS = ("pyproject.toml", "README.md", "scenario.toml")


def new_app(folder: Path) -> list[Path]:
    """Write the app into a new folder, named like it; the files that were made."""
    name, project = folder.name.replace("-", "_"), folder.name.replace("_", "-")
    if not _VALID.fullmatch(project) or keyword.iskeyword(name) or name in ("slackwater", "flwr", "torch"):
        raise ScenarioError(
            f"An app cannot be called {folder.name!r}: Flower and Python want letters, digits and hyphens, a letter first, "
            "and at most 32 of them, like myapp."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScenarioError(f"{folder} is there already, and not empty. Name another folder.")
    template = files("slackwater.flower") / "template"
    wanted = [(file, folder / name / file) for file in _MODULES] + [(file, folder / file) for file in _TEXTS]
    for file, path in wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (template / file).read_text(encoding="utf-8").replace(f'name = "{_NAME}"', f'name = "{project}"')
        path.write_text(text.replace(_NAME, name), encoding="utf-8")
    return [path for _, path in wanted]
