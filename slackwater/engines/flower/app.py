"""A Flower app's folder: its components and run config, and a template for new apps."""

from __future__ import annotations

import importlib
import keyword
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import tomlkit

from slackwater.errors import ScenarioError
from slackwater.scenario import load_scenario

RUN, SLOT_SECONDS = "slackwater-run", "slackwater-slot-seconds"
"""Keys of an app's run config: the run folder and, if it holds only a plan, the wall time of a slot."""
_CALLS = re.compile(
    r"CarbonAware|slackwater\.flower\.(run|server_app)\b|\bflower\.(run|server_app)\(|"
    r"from slackwater\.flower import ([^\n]*|\([^)]*)\b(run|server_app)\b"
)
"""How a ServerApp calls Slackwater."""
_MOST_FILES, _NO_CODE = 5_000, ("__pycache__", "node_modules", "venv", "site-packages")
_HINT = "Create one with: slackwater flower new myapp"


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """An app as described by its pyproject.toml."""

    folder: Path
    server: str  # module:attribute of its ServerApp
    client: str
    config: dict[str, Any]  # run config, nested keys joined by dots as Flower does

    @classmethod
    def read(cls, folder: str | Path) -> App:
        """Read the app from the folder that holds pyproject.toml."""
        where = Path(folder).expanduser().absolute()
        path = where / "pyproject.toml"
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ScenarioError(f"There is no Flower app in {where}: it has no pyproject.toml. {_HINT}") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise ScenarioError(f"{path} cannot be read: {error}.") from None
        section = _table(_table(_table(content, "tool"), "flwr"), "app")
        components = _table(section, "components")
        for part in ("serverapp", "clientapp"):
            if not isinstance(components.get(part), str) or ":" not in components[part]:
                raise ScenarioError(
                    f'{path}: [tool.flwr.app.components] must name {part}, like {part} = "myapp.server_app:app". {_HINT}'
                )
        return cls(
            folder=where,
            server=components["serverapp"],
            client=components["clientapp"],
            config=_flat(_table(section, "config")),
        )

    def check(self, *, on_superlink: bool) -> None:
        """Raise before anything is prepared if the app would train without Slackwater, or could not be told its run."""
        if not any(_CALLS.search(text) for text in self._sources()):
            raise ScenarioError(
                f"The ServerApp in {self.folder} never calls Slackwater, so its training would be neither planned nor charged. "
                "Wrap its strategy: CarbonAware(strategy, context=context).start(..). This shows the lines: slackwater flower "
                f"adopt {self.folder}"
            )
        if on_superlink and RUN not in self.config:
            raise ScenarioError(
                f'{self.folder / "pyproject.toml"} lacks {RUN} = "" under [tool.flwr.app.config], and Flower sets only '
                f"keys that are there. Add it, or: slackwater flower adopt {self.folder} --write"
            )

    def _sources(self) -> Iterator[str]:
        """Yield the Python files of the app."""
        for number, path in enumerate(sorted(self.folder.rglob("*.py"))):
            inside = path.relative_to(self.folder).parts
            if number > _MOST_FILES or any(part.startswith(".") or part in _NO_CODE for part in inside):
                continue
            with suppress(OSError, UnicodeDecodeError):
                yield path.read_text(encoding="utf-8")

    def load(self, reference: str) -> Any:
        """Import a component."""
        module_name, _, attribute = reference.partition(":")
        self._make_importable(module_name.split(".")[0])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name and not module_name.startswith(f"{error.name}."):
                missing = (error.name or "").split(".")[0]
                if not missing or missing == module_name.split(".")[0]:
                    raise
                raise ScenarioError(
                    f"The app in {self.folder} needs the package {missing!r}, which is not installed. Install it with: pip "
                    f"install {missing}"
                ) from None
            raise ScenarioError(
                f"The app in {self.folder} names {reference!r}, but there is no module {module_name!r}."
            ) from None
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise ScenarioError(
                    f"The app in {self.folder} names {reference!r}, but {module_name} has no {attribute!r}."
                )
            found = getattr(found, part)
        return found

    def _make_importable(self, package: str) -> None:
        """Put the app first on the path; unload a package of the same name from another app."""
        folder = str(self.folder)
        if sys.path[:1] != [folder]:
            sys.path.insert(0, folder)
        origin = getattr(sys.modules.get(package), "__file__", None)
        if origin is not None and not Path(origin).is_relative_to(self.folder):
            for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
                del sys.modules[name]
            importlib.invalidate_caches()


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_NAME = "myapp"  # name in the template, replaced by that of the new app
_VALID = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")  # names that Flower accepts for projects
_MODULES = ("__init__.py", "client_app.py", "server_app.py", "task.py")
_TEXTS = ("pyproject.toml", "README.md", "scenario.toml")


_WORK = {"local-steps": 30, "batch-size": 128, "lr": 0.1}
"""Local training of a task, with the defaults of `train`."""
_NODE = re.compile(r"    flower-supernode .*\n(?:    flower-supernode .*\n)*")
"""The lines of the README that start the nodes, one for each site of the template's scenario."""
_MAKES = "make_task"
_APP = '''"""The {part} of a task: the same that `slackwater train` and `rehearse` use."""

from __future__ import annotations

from slackwater.flower import {part}_app

from .task import make_task

app = {part}_app(make_task)
'''
_IMPORTED = '''"""The learning task, of an installed package."""

from {place} import {function} as make_task

__all__ = ["make_task"]
'''


def _of_task(task: str) -> dict[str, str]:
    """Return the modules of an app that trains the user's own task: a copy of its file, or an import from its module."""
    from slackwater.training import tasks

    tasks.option_names(task)  # raises if there is no such function
    place, _, function = task.rpartition(":")
    if place.endswith(".py"):
        text = Path(place).expanduser().read_text(encoding="utf-8").rstrip() + "\n"
        text += "" if function == _MAKES else f"\n\n{_MAKES} = {function}\n"
    else:
        text = _IMPORTED.format(place=place, function=function)
    return {"task.py": text} | {f"{part}_app.py": _APP.format(part=part) for part in ("client", "server")}


def new_app(
    folder: Path, *, task: str | None = None, scenario: Path | None = None, work: Mapping[str, float] | None = None
) -> list[Path]:
    """Write a new app into a folder of the same name; return the files.

    Args:
        folder: The new folder.
        task: "file.py:function" or "package.module:function" of a `sw.Task` to train. Default: a small example. A file is
            copied into the app; a module must be installed where the app runs.
        scenario: Scenario to copy into the app. Default: an example with three sites.
        work: Local training by the keys of the app's run config, such as `lr`. Default: as `train`.
    """
    name, project = folder.name.replace("-", "_"), folder.name.replace("_", "-")
    if not _VALID.fullmatch(project) or keyword.iskeyword(name) or name in ("slackwater", "flwr", "torch"):
        raise ScenarioError(
            f"An app cannot be called {folder.name!r}. Use at most 32 letters, digits and hyphens, starting with a letter, "
            "like myapp."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScenarioError(f"{folder} already exists and is not empty. Name another folder.")
    template = files("slackwater.engines.flower") / "template"
    own = {} if task is None else _of_task(task)
    if scenario is not None:
        own["scenario.toml"] = scenario.read_text(encoding="utf-8")
    with as_file(template / "scenario.toml") as example:
        sites = [(one.name, one.zone, one.power_w) for one in load_scenario(scenario or example).client]
    config = ({} if task is None else {**_WORK, "clients": len(sites)}) | dict(work or {})
    wanted = [(file, folder / name / file) for file in _MODULES] + [(file, folder / file) for file in _TEXTS]
    for file, path in wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        if file in own:
            path.write_text(own[file], encoding="utf-8")
            continue
        text = (template / file).read_text(encoding="utf-8")
        text = text.replace(f'name = "{_NAME}"', f'name = "{project}"').replace(_NAME, name)
        if file == "pyproject.toml":
            text = _with_config(text, config)
        if file == "README.md":
            text = _with_sites(text, sites)
        path.write_text(text, encoding="utf-8")
    return [path for _, path in wanted]


def _with_config(text: str, config: Mapping[str, float]) -> str:
    """Return a pyproject.toml with these values in the app's run config."""
    document: Any = tomlkit.parse(text)
    document["tool"]["flwr"]["app"]["config"].update(config)
    return tomlkit.dumps(document)


def _with_sites(text: str, sites: Sequence[Site]) -> str:
    """Return a README whose commands start a node for each site."""
    nodes = "".join(
        f"    flower-supernode --insecure --superlink 127.0.0.1:8000 --port {_FIRST_PORT + number} {config}\n"
        for number, config in enumerate(node_configs(sites))
    )
    text = re.sub(r"num-supernodes=\d+", f"num-supernodes={len(sites)}", text)
    return _NODE.sub(lambda _: nodes, text)


Site = tuple[str, str, float | None]
"""Name, zone and watts of a site."""
_FIRST_PORT = 8101


def node_configs(sites: Sequence[Site]) -> list[str]:
    """Return the option that each site starts its SuperNode with."""
    return [
        f'--node-config \'name="{name}" zone="{zone}"{"" if watts is None else f" power-w={watts:g}"} '
        f"partition-id={number} num-partitions={len(sites)}'"
        for number, (name, zone, watts) in enumerate(sites)
    ]
