"""CSV that a spreadsheet shows as it is: no cell of it is taken for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""A text that begins with one of these may be computed by a spreadsheet (OWASP, CSV injection)."""


def safe(value: object) -> object:
    """Return the cell with a ' before text that could be a formula; numbers stay numbers, and None is an empty cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        # What moves a terminal's cursor, turns the writing direction or ends the text for some readers is replaced.
        text = "".join(c if c.isprintable() or c in "\t\r\n" else "\N{REPLACEMENT CHARACTER}" for c in value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a CSV file as text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([safe(value) for value in row] for row in rows)
    return out.getvalue()
