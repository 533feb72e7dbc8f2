"""Registries of factories by name, and hints for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from slackwater.errors import ScenarioError

T = TypeVar("T")


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `most` known names that resemble `name`, best first; upper and lower case are the same."""
    names = {one.upper(): one for one in known}
    return [names[near] for near in difflib.get_close_matches(name.upper(), names, n=most, cutoff=cutoff)]


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a sentence that proposes the nearest known name, with a space before it; empty if none is near."""
    return "".join(f" Did you mean {near!r}?" for near in nearest(name, known, cutoff=cutoff))


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown key: the nearest known key, or else all of them."""
    names = list(known)
    near = nearest(key, names, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."


class Registry(Generic[T]):
    """Factories by name: the package's own, those registered by the user, and those of installed packages.

    Args:
        kind: What is registered, as messages call it: `forecaster`.
        group: Entry-point group in which installed packages name theirs.
        own: The package's own factories.
        reserved: Further names that users may type. They cannot be registered, and messages list them first.
    """

    def __init__(self, kind: str, group: str, own: Mapping[str, T], reserved: Iterable[str] = ()) -> None:
        self.kind, self.group, self.own, self.reserved = kind, group, dict(own), tuple(reserved)

    def register(self, name: str, factory: T) -> None:
        """Register a factory; raise ScenarioError if another one has the name."""
        if name in self.reserved or self.own.get(name, factory) is not factory:
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise ScenarioError(f"There is already {article} {self.kind} {name!r}. Choose another name.")
        self.own[name] = factory

    def names(self) -> list[str]:
        """Return all names, sorted, with those of installed packages."""
        return sorted({*self.own, *(point.name for point in entry_points(group=self.group))})

    def get(self, name: str, shown: str | None = None) -> T:
        """Return the factory of a name; `shown` is the name as the user wrote it, for the message."""
        if name in self.own:
            return self.own[name]
        for point in entry_points(group=self.group):
            if name in (point.name, point.name.lower()):
                found: Any = point.load()
                return found  # type: ignore[no-any-return]
        known = [*self.reserved, *self.names()]
        raise ScenarioError(
            f"There is no {self.kind} {shown or name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
        )
