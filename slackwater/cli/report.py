"""The command that hands in: what a run emitted, as a page, a PDF, CSV, JSON, and for CodeCarbon's readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slackwater.accounting import ReportSettings, Statement, make_statement
from slackwater.accounting.codecarbon import emissions_csv
from slackwater.accounting.lines import lines_csv
from slackwater.accounting.model_card import model_card as card_text
from slackwater.cli.options import console, data_option, filled, json_option, print_json, say
from slackwater.errors import ScenarioError
from slackwater.planning.storage import write_whole
from slackwater.report.emissions.content import document
from slackwater.report.emissions.html import page
from slackwater.report.emissions.pdf import write_pdf
from slackwater.report.emissions.terminal import summary

F = TypeVar("F", bound=Callable[..., Any])


def _file_option(name: str, what: str) -> Callable[[F], F]:
    return click.option(
        name,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        callback=filled,
        help=what,
    )


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@_file_option("--html", "Write the report as one HTML file that needs nothing else.")
@_file_option("--pdf", "Write the report as a PDF.")
@_file_option("--csv", "Write every line of the ledger as CSV.")
@_file_option("--codecarbon", "Write an emissions.csv in CodeCarbon's columns, a row for each client.")
@_file_option("--model-card", "Write co2_eq_emissions for a Hugging Face model card.")
@click.option(
    "--functional-unit",
    default="training run",
    show_default=True,
    callback=filled,
    metavar="TEXT",
    help="What SCI is per: training run, round, client-round, accuracy point, or your own with --units.",
)
@click.option("--units", type=float, metavar="R", help="How many functional units the run made.")
@click.option("--embodied-kg", type=float, metavar="KG", help="Embodied emissions of one client's device, for SCI.")
@click.option("--embodied-total-kg", type=float, metavar="KG", help="Embodied emissions in all (M), instead.")
@click.option("--lifetime", type=float, default=4.0, show_default=True, metavar="YEARS", help="Of a client's device.")
@click.option("--pue", type=float, metavar="X", help="For SCI: PUE of the sites for which the scenario gives none.")
@click.option(
    "--intensity-uncertainty", type=float, metavar="PERCENT", help="Range of the intensity, 10 for plus or minus 10 %."
)
@click.option("--energy-uncertainty", type=float, metavar="PERCENT", help="Range of the energy.")
@data_option
@json_option
def report(
    run: Path,
    html: Path | None,
    pdf: Path | None,
    csv: Path | None,
    codecarbon: Path | None,
    model_card: Path | None,
    functional_unit: str,
    units: float | None,
    embodied_kg: float | None,
    embodied_total_kg: float | None,
    lifetime: float,
    pue: float | None,
    intensity_uncertainty: float | None,
    energy_uncertainty: float | None,
    data: str | None,
    as_json: bool,
) -> None:
    """What a RUN emitted, to hand in: every figure is the ledger's.

    Without options it is shown and nothing is written. --data gives a year of intensity for annual averages and direct
    factors; a run on typical intensity takes them from the embedded year.
    """
    settings = ReportSettings(
        functional_unit=functional_unit,
        units=units,
        embodied_kg=embodied_kg,
        embodied_total_kg=embodied_total_kg,
        lifetime_years=lifetime,
        pue=pue,
        data=data,
        intensity_uncertainty=None if intensity_uncertainty is None else intensity_uncertainty / 100,
        energy_uncertainty=None if energy_uncertainty is None else energy_uncertainty / 100,
    )
    files = [path for path in (html, pdf, csv, codecarbon, model_card) if path is not None]
    if len({path.absolute() for path in files}) < len(files):
        raise ScenarioError("Two of the files have the same name; give each its own.")
    _keep_the_run(run, files)
    statement = make_statement(run, settings)
    _write(statement, html=html, pdf=pdf, csv=csv, codecarbon=codecarbon, card=model_card)
    if as_json:
        print_json(statement.to_dict() | {"model_card": card_text(statement)})
    elif not files:
        console().print(summary(statement))


COMMANDS = (report,)


def _write(
    statement: Statement,
    *,
    html: Path | None,
    pdf: Path | None,
    csv: Path | None,
    codecarbon: Path | None,
    card: Path | None,
) -> None:
    if html is not None:
        write_whole(html, page(document(statement)))
    if pdf is not None:
        write_pdf(document(statement), pdf)
    if csv is not None:
        write_whole(csv, lines_csv(statement))
    if codecarbon is not None:
        write_whole(codecarbon, emissions_csv(statement))
    if card is not None:
        write_whole(card, card_text(statement))
    for path in (html, pdf, csv, codecarbon, card):
        if path is not None:
            say(f"wrote {path}")


def _keep_the_run(run: Path, files: list[Path]) -> None:
    """Refuse to write over the evidence."""
    folder = run.parent if run.name == "run.db" else run
    for path in files:
        if (
            path.name.startswith("run.")
            and path.suffix in (".db", ".db-wal", ".db-shm", ".lock")
            and (path.absolute().parent == folder.absolute())
        ):
            raise ScenarioError(f"{path} is part of the run itself; name another file.")
