"""The colours of charts and terminal as CSS variables, with their counterparts for a dark page."""

from __future__ import annotations

from slackwater.report import style

_LIGHT = {
    "paper": "#FFFFFF",
    "panel": "#F6F7F7",
    "ink": style.INK,
    "muted": style.MUTED,
    "rule": style.RULE,
    "accent": style.WINDOW,
    "warning": style.WARNING,
    "trains": style.TRAINS,
    "window": style.WINDOW,
    "cannot": "#D9DDE3",
    "over": style.OVER,
    "clean": "#FFF8F4",
    "dirty": "#E89A72",
    "land": "#E9ECEC",
    "map-low": "#FFF3E8",
    "map-middle": "#E07B39",
    "map-high": "#5A1E00",
    "skyline": style.INTENSITY,
    "missed": "#D55E00",
    "pending": "#A9D3C2",
}
"""Whatever the grid, a cell that trains is darker than one that does not: the two differ without their hues."""
_DARK = {
    "paper": "#14181A",
    "panel": "#1D2326",
    "ink": "#ECEFF0",
    "muted": "#A3ADB1",
    "rule": "#3A4347",
    "accent": "#56B4E9",
    "warning": "#F0A35E",
    "trains": "#4FD8AE",
    "window": "#56B4E9",
    "cannot": "#39424D",
    "over": "#23292C",
    "clean": "#1E2224",
    "dirty": "#7E4A2F",
    "land": "#252C2F",
    "map-low": "#2A2F31",
    "map-middle": "#C8642B",
    "map-high": "#FFE3C4",
    "skyline": "#B9C2C6",
    "missed": "#F28C3A",
    "pending": "#2C6B57",
}
_DARK_SERIES = ("#56B4E9", "#F28C3A", "#2FC79B", "#E39BC4", "#8FD0F5", "#E6B84A", "#ECEFF0")


def palette_css() -> str:
    """Return variables for both colour schemes; a class on the root element overrides the system's choice."""
    light = _block(_LIGHT, style.SERIES)
    dark = _block(_DARK, _DARK_SERIES)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f":root.light {{ color-scheme: light; {light} }}\n"
        f":root.dark {{ color-scheme: dark; {dark} }}\n"
    )


def _block(colours: dict[str, str], series: tuple[str, ...]) -> str:
    named = {f"--{name}": colour for name, colour in colours.items()}
    numbered = {f"--series-{number}": colour for number, colour in enumerate(series)}
    return " ".join(f"{name}: {colour};" for name, colour in (named | numbered).items())
