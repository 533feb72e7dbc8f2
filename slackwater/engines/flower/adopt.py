"""Make an existing Flower app carbon-aware: the lines that its pyproject, ClientApp and ServerApp lack, as a diff."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError

from slackwater.atomic import write_whole
from slackwater.engines.flower.app import RUN, SLOT_SECONDS, App
from slackwater.errors import ScenarioError

_NEEDS = "slackwater[flower]"
_KEYS = {RUN: "", SLOT_SECONDS: 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file of the app, before and after."""

    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """Return the difference as a unified diff."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), str(self.path), str(self.path)
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The changes that an app needs, and what must be done by hand."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def write(self) -> None:
        """Write all changed files."""
        for change in self.changes:
            write_whole(change.path, change.after)


def adopt(folder: str | Path) -> Adoption:
    """Return what makes an app carbon-aware: keys of its run config, `register` for clients, `CarbonAware` for the server."""
    app = App.read(folder)
    notes: list[str] = []
    edited: dict[Path, Callable[[str], str]] = {
        app.folder / "pyproject.toml": _with_keys,
        _module(app, app.client): lambda text: _registered(text, app.client, notes),
        _module(app, app.server): lambda text: _wrapped(text, notes),
    }
    changes = []
    for path, edit in edited.items():
        try:
            before = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(f"{path} cannot be read: {error}.") from None
        try:
            after = edit(before)
        except (SyntaxError, ParseError) as error:
            raise ScenarioError(f"{path} cannot be read: {error}.") from None
        if after != before:
            changes.append(Change(path=path, before=before, after=after))
    fraction = app.config.get("fraction-train")
    if isinstance(fraction, int | float) and fraction != 1.0:
        notes.append(f"Set fraction-train = 1.0 in pyproject.toml (it is {fraction:g}): the plan chooses the clients.")
    return Adoption(changes=tuple(changes), notes=tuple(notes))


def _module(app: App, reference: str) -> Path:
    path = app.folder / Path(*reference.partition(":")[0].split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _with_keys(text: str) -> str:
    document: Any = tomlkit.parse(text)
    config = document["tool"]["flwr"]["app"].setdefault("config", tomlkit.table())
    for key, value in _KEYS.items():
        if key not in config:
            config[key] = value
    needs = document.get("project", {}).get("dependencies")
    if needs is not None and not any(str(one).startswith("slackwater") for one in needs):
        needs.append(_NEEDS)
    return tomlkit.dumps(document)


def _registered(text: str, reference: str, notes: list[str]) -> str:
    """Add `register(app, measure=True)` after the app is made."""
    name = reference.partition(":")[2]
    tree = ast.parse(text)
    if any(isinstance(one, ast.Call) and _called(one) == "register" for one in ast.walk(tree)):
        return text
    made = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    if not made:
        notes.append(f"Call register({name}, measure=True) after the ClientApp is made; it was not found.")
        return text
    if isinstance(made[0].value, ast.Call) and any(one.arg == "client_fn" for one in made[0].value.keywords):
        notes.append(
            "The ClientApp has a client_fn. Rewrite it with @app.train(), or register nodes under their names."
        )
        return text
    lines = text.splitlines(keepends=True)
    lines.insert(made[0].end_lineno or made[0].lineno, f"register({name}, measure=True)\n")
    return _with_import(lines, tree, "register")


def _wrapped(text: str, notes: list[str]) -> str:
    """Add `strategy = CarbonAware(strategy, context=context)` before the strategy is started."""
    tree = ast.parse(text)
    names = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    if "CarbonAware" in names or "slackwater" in text:
        return text
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        context = next((one.arg for one in function.args.args[1:2]), "context")
        for statement in (one for one in ast.walk(function) if isinstance(one, ast.stmt) and _starts(one)):
            name = _starts(statement)
            lines = text.splitlines(keepends=True)
            line = lines[statement.lineno - 1]
            indent = line[: len(line) - len(line.lstrip())]
            lines.insert(statement.lineno - 1, f"{indent}{name} = CarbonAware({name}, context={context})\n")
            return _with_import(lines, tree, "CarbonAware")
    notes.append(
        "No strategy.start(grid, ..) was found in the ServerApp. Start its strategy with CarbonAware(strategy, "
        "context=context).start(..), or call slackwater.flower.run(grid, context, model)."
    )
    return text


def _starts(statement: ast.stmt) -> str:
    """Return the name of the strategy that a simple statement starts; empty if it starts none."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return ""
    for call in (one for one in ast.walk(statement) if isinstance(one, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "start" and isinstance(call.func.value, ast.Name):
            given = [ast.unparse(one) for one in (*call.args, *(word.value for word in call.keywords))]
            if "grid" in given or any(word.arg in ("grid", "initial_arrays") for word in call.keywords):
                return call.func.value.id
    return ""


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _with_import(lines: list[str], tree: ast.Module, name: str) -> str:
    """Add an import after the last one at the top of a module."""
    last = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    lines.insert((last[-1].end_lineno or 0) if last else 0, f"from slackwater.flower import {name}\n")
    return "".join(lines)
