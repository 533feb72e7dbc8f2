"""A Flower app's folder: its components and its run config, from its pyproject.toml."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.errors import ScenarioError

_HINT = "Make one to start from with: slackwater flower new myapp"


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What pyproject.toml says of an app."""

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

    def load(self, reference: str) -> Any:
        """Import a component."""
        module_name, _, attribute = reference.partition(":")
        self._make_importable(module_name.split(".")[0])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name and not module_name.startswith(f"{error.name}."):
                raise
            raise ScenarioError(
                f"The app in {self.folder} names {reference!r}, but has no module {module_name!r}."
            ) from None
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise ScenarioError(
                    f"The app in {self.folder} names {reference!r}, but {module_name} has no {attribute!r}."
                )
            found = getattr(found, part)
        return found

    def _make_importable(self, package: str) -> None:
        """Put the app first on the path; forget a package of the same name from another app."""
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
