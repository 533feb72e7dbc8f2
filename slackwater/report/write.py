"""Write the emissions report as an HTML page, a PDF and terminal text, all from the same blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slackwater.atomic import write_whole
from slackwater.errors import ScenarioError
from slackwater.lazy import require
from slackwater.report.account import ReportSettings
from slackwater.report.content import document
from slackwater.report.exports import emissions_csv, lines_csv
from slackwater.report.exports import model_card as card_text
from slackwater.report.html import page
from slackwater.report.pdf import write_pdf
from slackwater.report.statement import Statement, make_statement


def report(
    run: str | Path,
    *,
    out: str | Path | None = None,
    html: Path | None = None,
    pdf: Path | None = None,
    csv: Path | None = None,
    codecarbon: Path | None = None,
    model_card: Path | None = None,
    **settings: Any,
) -> Statement:
    """Read a run, write the requested report files, and return the statement.

    Args:
        run: The run folder, or its run.db.
        out: File to write; its suffix chooses the form: .html, .pdf or .csv.
        html: File for the report as one HTML page.
        pdf: File for the report as a PDF.
        csv: File for every line of the ledger.
        codecarbon: File for an emissions.csv in CodeCarbon's columns.
        model_card: File for co2_eq_emissions of a Hugging Face model card.
        settings: Fields of `ReportSettings`, such as `functional_unit` and `organisation`.
    """
    chosen = ReportSettings(**settings)
    wanted = [("html", html), ("pdf", pdf), ("csv", csv), ("codecarbon", codecarbon), ("model_card", model_card)]
    if out is not None:
        if Path(out).suffix not in (".html", ".pdf", ".csv"):
            raise ScenarioError(f"{out} must end in .html, .pdf or .csv.")
        wanted.append((Path(out).suffix[1:], Path(out)))
    files = [(form, Path(path)) for form, path in wanted if path is not None]
    if len({path.absolute() for _, path in files}) < len(files):
        raise ScenarioError("Two of the files have the same name. Give each its own.")
    _keep_the_run(Path(run), [path for _, path in files])
    if any(form == "pdf" for form, _ in files):
        require("fpdf", "matplotlib")
    statement = make_statement(run, chosen)
    for form, path in files:
        if form == "pdf":
            write_pdf(document(statement), path)
        else:
            write_whole(path, page(document(statement)) if form == "html" else _TEXTS[form](statement))
    return statement


_TEXTS = {"csv": lines_csv, "codecarbon": emissions_csv, "model_card": card_text}


def _keep_the_run(run: Path, files: list[Path]) -> None:
    """Raise ScenarioError instead of overwriting the run."""
    folder = run.parent if run.name == "run.db" else run
    for path in files:
        own = path.name.startswith("run.") and path.suffix in (".db", ".db-wal", ".db-shm", ".lock")
        if own and path.absolute().parent == folder.absolute():
            raise ScenarioError(f"{path} is part of the run. Name another file.")
