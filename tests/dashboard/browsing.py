"""What the tests of the page do in it: move a slider, wait for the plan or the address, save a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

QUIETLY = 50
PATIENCE = 200


def settled(page: Any) -> None:
    """Wait for the plan with its metrics and front."""
    page.wait_for_selector("#metrics:not(.stale) dt", state="attached")
    page.wait_for_selector("#front:not(.stale)[aria-label]", state="attached")


def slide(page: Any, slider: str, value: int) -> None:
    """Move a slider as a pointer does."""
    page.evaluate(
        "([id, value]) => { const s = document.getElementById(id); s.value = value; s.dispatchEvent(new Event('input')); }",
        [slider, value],
    )


def noted(page: Any, *parts: str) -> str:
    """Wait until the address has these parts, and return it."""
    for _ in range(PATIENCE):
        if all(part in page.url for part in parts):
            return str(page.url)
        page.wait_for_timeout(QUIETLY)
    raise AssertionError(f"{page.url} has not {parts}")


def download(page: Any, label: str, folder: Path) -> Path:
    """Press a button that saves a file, and return the file."""
    with page.expect_download() as started:
        page.click(f'button[aria-label="{label}"]')
    path = folder / str(started.value.suggested_filename)
    started.value.save_as(path)
    return path


def tile(page: Any, name: str) -> str:
    """Return both texts of a tile, with plain spaces."""
    return str(page.text_content(f"#tile-{name}") + " " + page.text_content(f"#tile-{name}-note")).replace("\xa0", " ")
