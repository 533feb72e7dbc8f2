"""Write the tables of docs/reference/scenario.md from the scenario model: `python tools/write_scenario_docs.py`.

The tables are between two markers. The text before and after them is written by hand and stays.
"""

from __future__ import annotations

import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from click.testing import CliRunner
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slackwater import Scenario
from slackwater.cli.main import cli
from slackwater.scenario import value_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "scenario.md"
START, STOP = "<!-- keys: written by tools/write_scenario_docs.py -->", "<!-- end of keys -->"
HEAD = "| key | type | default | example | meaning |\n|---|---|---|---|---|"
COMMENTED_KEY = re.compile(r"^# (?=\[?\w+\]?\s*(=|\[|#|$))", re.MULTILINE)
"""A template comment that is a key or a section without its #."""


def filled(page: str) -> str:
    """Return the page with new tables."""
    before, start, rest = page.partition(START)
    _, stop, after = rest.partition(STOP)
    if not start or not stop:
        raise SystemExit(f"{PAGE} lacks the line {START!r} or {STOP!r}.")
    return f"{before}{START}\n\n{_tables()}\n\n{STOP}{after}"


def sections() -> Iterator[tuple[str, FieldInfo | None, type[BaseModel]]]:
    """Yield each section with its heading, the field that holds it, and its model; the top of the file first."""
    yield "Top of the file", None, Scenario
    for name, field in Scenario.model_fields.items():
        for model in _models(field.annotation):
            repeated = get_origin(field.annotation) is tuple
            yield f"`[[{name}]]`" if repeated else f"`[{name}]`", field, model


def _tables() -> str:
    examples = _examples()
    parts = []
    for heading, field, model in sections():
        rows = [
            _row(name, one, examples[name if field is None else heading.strip("`[]"), name])
            for name, one in model.model_fields.items()
            if field is not None or not any(_models(one.annotation))  # sections stand at the top of the file only
        ]
        told = field.description if field is not None else None
        parts.append("\n\n".join(filter(None, (f"## {heading}", told, "\n".join([HEAD, *rows])))))
    return "\n\n".join(parts)


def _row(name: str, field: FieldInfo, example: Any) -> str:
    cells = (f"`{name}`", _type(field.annotation), _default(field), _code(example), field.description or "")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, ()):
        return "" if "Default:" in (field.description or "") else "none"
    return _code(field.default)


def _code(value: Any) -> str:
    return f"`{value_text(value)}`"


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0])
    if origin in (Union, UnionType):
        return _either(*dict.fromkeys(_type(one) for one in inner if one is not NoneType))
    if origin is Literal:
        return _either(*(f'`"{one}"`' for one in inner))
    if origin is dict:  # providers, for all zones or by zone
        return "list, table"
    if origin is tuple:
        return "list"
    return {int: "whole number", float: "number", str: "text", bool: "true or false", datetime: "time"}[annotation]


def _either(*types: str) -> str:
    *first, last = ", ".join(types).split(", ")
    return f"{', '.join(first)} or {last}" if first else last


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the model of a section, if the key is one."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            yield one


def _examples() -> dict[tuple[str, str], Any]:
    """Return (section, key) -> value in the scenario that `slackwater init` writes; at the top the key is its section."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        CliRunner().invoke(cli, ["init", str(path)], catch_exceptions=False)
        written = tomllib.loads(COMMENTED_KEY.sub("", path.read_text(encoding="utf-8")))
    found: dict[tuple[str, str], Any] = {}
    for name, value in written.items():
        tables = value if isinstance(value, list) else [value]
        for table in tables:
            for key, example in table.items() if isinstance(table, dict) else [(name, table)]:
                found.setdefault((name, key), example)
    return found


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")
