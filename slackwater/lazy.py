"""Import names on first use, and check optional packages. PyTorch and Flower take seconds to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from slackwater.errors import MissingExtraError

_EXTRAS = {
    "torch": ("PyTorch", "torch"),
    "flwr": ("Flower", "flower"),
    "nvflare": ("NVIDIA FLARE", "nvflare"),
    "matplotlib": ("matplotlib", "charts"),
    "fpdf": ("fpdf", "report"),
    "anywidget": ("anywidget", "notebook"),
}


def require(*modules: str) -> None:
    """Raise MissingExtraError, with the command that installs it, for the first optional module that is missing."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(*_EXTRAS[module])


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`.

    Args:
        package: Name of the package.
        home: Public name -> the module that defines it or has the same name; "module:other" if it is called other there.
    """

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path, _, attribute = home[name].partition(":")
        try:
            module = import_module(f"{package}.{path}")
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            if missing in _EXTRAS:
                raise MissingExtraError(*_EXTRAS[missing]) from None
            raise
        return module if path == name else getattr(module, attribute or name)

    return get


class Viewed:
    """What a notebook shows of an object: HTML, a figure and a data frame.

    The views are above the objects in the tree of the package, so they are imported when they are asked for.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = _views().html(self)
        return html

    def plot(self) -> Any:
        """Return a matplotlib figure, which a notebook displays."""
        return _views().figure(self)

    def to_frame(self) -> Any:
        """Return the rows as a data frame of pandas, else of polars; raise SlackwaterError if neither is installed."""
        return _views().frame(self)


def widget(plan: Any) -> Any:
    """Return the notebook widget of a plan; raise MissingExtraError if anywidget is not installed."""
    return import_module(f"{__package__}.dashboard.notebook_widget").explore(plan)


def _views() -> Any:
    return import_module(f"{__package__}.charts.notebook")
