"""Write docs/concepts/glossary.md from slackwater/glossary.py: `python tools/write_glossary_docs.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from slackwater.glossary import GLOSSARY, Entry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "glossary.md"
WIDTH = 98
INTRO = """\
# Glossary

<!-- Written by tools/write_glossary_docs.py from slackwater/glossary.py. Edit that file. -->

`slackwater explain TERM` prints an entry in the terminal. `slackwater explain` lists all terms.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([INTRO, *(_section(entry) for entry in GLOSSARY.values())])


def _section(entry: Entry) -> str:
    parts = [f"## {entry.term}", _wrapped(entry.text)]
    if entry.unit:
        parts.append(f"Unit: {entry.unit}.")
    if entry.aliases:
        parts.append(_wrapped(f"Also: {', '.join(entry.aliases)}."))
    if entry.see:
        parts.append(_wrapped(f"See: {', '.join(f'[{term}](#{_anchor(term)})' for term in entry.see)}."))
    return "\n\n".join(parts) + "\n"


def _anchor(term: str) -> str:
    """Return the anchor that MkDocs gives a heading of letters, hyphens, underscores and spaces."""
    return term.lower().replace(" ", "-")


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")
