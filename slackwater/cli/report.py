"""The command that hands in: what a run emitted, as a page, a PDF, CSV, JSON, and for CodeCarbon's readers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from slackwater.accounting.model_card import model_card as card_text
from slackwater.cli.options import console, data_option, json_option, option, print_json, say
from slackwater.report.emissions import report as write_report
from slackwater.report.emissions.terminal import summary

F = TypeVar("F", bound=Callable[..., Any])
_FORMS = ("html", "pdf", "csv", "codecarbon", "model_card")


def _file_option(name: str, what: str) -> Callable[[F], F]:
    return option(name, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=what)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@_file_option("--html", "Write the report as one HTML file that needs nothing else.")
@_file_option("--pdf", "Write the report as a PDF.")
@_file_option("--csv", "Write every line of the ledger as CSV.")
@_file_option("--codecarbon", "Write an emissions.csv in CodeCarbon's columns, a row for each client.")
@_file_option("--model-card", "Write co2_eq_emissions for a Hugging Face model card.")
@option(
    "--functional-unit",
    default="training run",
    metavar="TEXT",
    help="What SCI is per: training run, round, client-round, accuracy point, token, FLOP, or your own with --units.",
)
@option("--units", type=float, metavar="R", help="How many functional units the run made.")
@option("--embodied-kg", type=float, metavar="KG", help="Embodied emissions of one client's device, for SCI.")
@option("--embodied-total-kg", type=float, metavar="KG", help="Embodied emissions in all (M), instead.")
@option("--lifetime", type=float, default=4.0, metavar="YEARS", help="Of a client's device.")
@option("--pue", type=float, metavar="X", help="For SCI: PUE of the sites for which the scenario gives none.")
@option(
    "--intensity-uncertainty", type=float, metavar="PERCENT", help="Range of the intensity, 10 for plus or minus 10 %."
)
@option("--energy-uncertainty", type=float, metavar="PERCENT", help="Range of the energy.")
@option("--tokens", type=float, metavar="N", help="Tokens the run was trained on; adds SCI per training token.")
@option("--flops", type=float, metavar="N", help="Floating-point operations of the run; adds SCI per FLOP.")
@option("--organisation", metavar="TEXT", help="Whose report it is. Default: [report] in the scenario.")
@option("--preparer", metavar="TEXT", help="Who prepared it. Default: [report] in the scenario.")
@option(
    "--date",
    "prepared_on",
    type=click.DateTime(formats=["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Date of the report. Default: today, UTC.",
)
@data_option
@json_option
def report(
    run: Path,
    lifetime: float,
    intensity_uncertainty: float | None,
    energy_uncertainty: float | None,
    prepared_on: datetime | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Report what a RUN emitted, or would have emitted, to hand in: every figure is the ledger's.

    The first line says whether the run was simulated, rehearsed or live. Without options the report is shown and nothing
    is written. --data gives a year of intensity for annual averages and direct factors; a run on typical intensity takes
    them from the embedded year.
    """
    statement = write_report(
        run,
        lifetime_years=lifetime,
        intensity_uncertainty=None if intensity_uncertainty is None else intensity_uncertainty / 100,
        energy_uncertainty=None if energy_uncertainty is None else energy_uncertainty / 100,
        prepared_on=None if prepared_on is None else prepared_on.date(),
        **options,
    )
    written = [options[form] for form in _FORMS if options[form] is not None]
    for path in written:
        say(f"wrote {path}")
    if as_json:
        print_json(statement.to_dict() | {"model_card": card_text(statement)})
    elif not written:
        console().print(summary(statement))
