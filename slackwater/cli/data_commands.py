"""Commands for intensity from providers: fetch, show and clear."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from slackwater.charts import style
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.cli.options import ListOf, Time, chart_option, console, draw, json_option, option, print_json, say
from slackwater.errors import DataError
from slackwater.intensity.traces import Factor
from slackwater.units import G_PER_KG, iso

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slackwater.intensity.providers.cache import Cover

_LONGEST = 24
_COLOURS = {"actual": "#0072B2", "estimated": "#E69F00", "forecast": "#9AD0F0"}
"""Colour of each kind: Okabe and Ito's hues, which also differ in lightness."""
_HATCH = {"estimated": "////", "forecast": ""}


def cache_option(command: Any) -> Any:
    """Add --cache, the file of the cache."""
    return option(
        "--cache",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File of the cache. Default: intensity.sqlite in $SLACKWATER_CACHE, else in the user's cache folder.",
    )(command)


@click.group()
def data() -> None:
    """Fetch carbon intensity from providers, and manage the cache."""


@data.command()
@click.argument("zones", type=ListOf(str, "zone"))
@option("--start", type=Time(), required=True, metavar="TIME", help="First hour, such as 2026-11-01T00:00Z.")
@option("--end", type=Time(), required=True, metavar="TIME", help="End of the last hour.")
@option("--kind", type=click.Choice(("actual", "forecast")), default="actual", help="Actual values, or a forecast.")
@option(
    "--factor",
    type=click.Choice(("direct", "lifecycle", "marginal")),
    default="lifecycle",
    help="Emission factor to ask for.",
)
@option(
    "--provider",
    "providers",
    type=ListOf(str, "provider"),
    metavar="P,..",
    help="Providers to ask, in this order. Default: those that need no key, and those with a key.",
)
@option(
    "--mix-factors",
    is_flag=True,
    help="Accept another emission factor where a provider does not offer the one asked for.",
)
@option("--requests", type=click.IntRange(1), default=300, help="Maximum number of requests per hour.")
@cache_option
@json_option
def fetch(
    zones: list[str],
    start: datetime,
    end: datetime,
    kind: Any,
    factor: Factor,
    providers: list[str] | None,
    mix_factors: bool,
    requests: int,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Fetch the intensity of ZONES into the cache.

    ZONES is a list such as GB,FR,US-CAL-CISO. Final values in the cache are not fetched again. Keys come from
    SLACKWATER_KEY_<PROVIDER> or the keyring file.
    """
    from slackwater.intensity.providers.base import Context
    from slackwater.intensity.providers.cache import Cache, coverage
    from slackwater.intensity.providers.chain import Chain

    chain = Chain(
        providers,
        context=Context.usual(factor=factor, max_requests=requests),
        cache=Cache(cache),
        mix_factors=mix_factors,
    )
    answer = chain.fetch(list(dict.fromkeys(zones)), start, end, kind)
    for note in answer.notes:
        say(f"note: {note}")
    covers = coverage(answer.readings)
    if as_json:
        failures = {zone: str(error) for zone, error in answer.failures.items()}
        print_json({"fetched": [_plain(cover) for cover in covers], "notes": answer.notes, "failures": failures})
    elif covers:
        console().print(_table(covers))
    if answer.failures:
        raise DataError("\n".join(dict.fromkeys(str(error) for error in answer.failures.values())))


@data.command()
@option("--zone", metavar="ZONE", help="Only this zone. Default: all.")
@chart_option("the covered periods by zone")
@cache_option
@json_option
def show(zone: str | None, chart: Path | None, cache: Path | None, as_json: bool) -> None:
    """Show the content of the cache by zone, source and kind."""
    from slackwater.intensity.providers.cache import Cache, coverage

    store = Cache(cache)
    covers = coverage(store.everything(zone))
    if chart is not None and not covers:
        raise DataError(
            f"The cache {store.path} is empty, so there is nothing to draw. First run: slackwater data fetch"
        )
    draw(chart, lambda: coverage_chart(covers))
    if as_json:
        print_json({"cache": str(store.path), "covered": [_plain(cover) for cover in covers]})
    elif covers:
        console().print(_table(covers))
    else:
        say(f"The cache {store.path} is empty. Fill it with: slackwater data fetch ZONES --start TIME --end TIME")


@data.command()
@option("--zone", metavar="ZONE", help="Only this zone. Default: all.")
@option("--before", type=Time(), metavar="TIME", help="Only values of periods that ended by this time. Default: all.")
@cache_option
def clear(zone: str | None, before: datetime | None, cache: Path | None) -> None:
    """Remove values from the cache, and a damaged cache file."""
    from slackwater.intensity.providers.cache import Cache

    store = Cache(cache)
    gone = store.clear(zone=zone, before=before)
    say(f"removed {gone:,} values from {store.path}")


def coverage_chart(covers: Sequence[Cover]) -> Figure:
    """Draw the covered periods, one line per zone, source and factor, coloured by kind."""
    lines = list(dict.fromkeys((cover.zone, cover.source, cover.factor) for cover in covers))
    figure = new_figure(style.TEXT_IN, 0.24 * len(lines) + 1.15)
    from matplotlib.patches import Patch

    axes = figure.subplots()
    for cover in covers:
        row = lines.index((cover.zone, cover.source, cover.factor))
        # A forecast has its own lane, so that it stays visible beside later actual values.
        bottom, height = (row + 0.12, 0.24) if cover.kind == "forecast" else (row - 0.36, 0.46)
        bars = [(run.start, run.end - run.start) for run in cover.runs]
        axes.broken_barh(
            bars,  # type: ignore[arg-type]  # times work too
            (bottom, height),
            facecolors=_COLOURS[cover.kind],
            edgecolor="white" if cover.kind == "estimated" else "none",
            hatch=_HATCH.get(cover.kind),
            linewidth=0,
        )
    labels = [style.shortened(f"{zone}  {source}, {factor}", 44) for zone, source, factor in lines]
    axes.set_yticks(range(len(lines)), labels, parse_math=False)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.xaxis_date(tz="UTC")
    style.time_axis(axes)
    tidy(axes, frame=("bottom",), grid="x", xlabel="time, UTC")
    axes.tick_params(axis="y", length=0)
    kinds = [kind for kind in _COLOURS if any(cover.kind == kind for cover in covers)]
    handles = [
        Patch(facecolor=_COLOURS[kind], hatch=_HATCH.get(kind), edgecolor="white", linewidth=0, label=kind)
        for kind in kinds
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=style.FONT_PT)
    headline(figure, _extent(covers))
    return figure


def _extent(covers: Sequence[Cover]) -> str:
    """Return what the cache covers, and how many gaps it has."""
    zones, gaps = len({cover.zone for cover in covers}), sum(len(cover.runs) - 1 for cover in covers)
    start, end = min(cover.runs[0].start for cover in covers), max(cover.runs[-1].end for cover in covers)
    return (
        f"{zones} zone{'s' * (zones != 1)} from {iso(start)} to {iso(end)}, with {gaps or 'no'} gap{'s' * (gaps != 1)}"
    )


def _table(covers: Sequence[Cover]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    numbers = ("hours", "gaps", "g/kWh")
    for name in ("zone", "source", "factor", "kind", "from (UTC)", "to", *numbers):
        table.add_column(
            name, justify="right" if name in numbers else "left", no_wrap=name != "source", overflow="fold"
        )
    for cover in covers:
        names = (cover.zone, cover.source, cover.factor, cover.kind)
        table.add_row(
            *(Text(style.shortened(name, _LONGEST)) for name in names),
            f"{cover.runs[0].start:%Y-%m-%d %H:%M}",
            f"{cover.runs[-1].end:%Y-%m-%d %H:%M}",
            f"{cover.hours:g}",
            str(len(cover.runs) - 1),
            f"{cover.mean_kg_per_kwh * G_PER_KG:.0f}",
        )
    return table


def _plain(cover: Cover) -> dict[str, Any]:
    return {
        "zone": cover.zone,
        "source": cover.source,
        "factor": cover.factor,
        "kind": cover.kind,
        "runs": [[iso(run.start), iso(run.end)] for run in cover.runs],
        "hours": cover.hours,
        "mean_kg_per_kwh": cover.mean_kg_per_kwh,
        "fetched_at": iso(cover.fetched_at),
    }
