"""Read a run, write its emissions report, and return the statement: `slackwater.report(folder, out="report.html")`.

    run.db -> account, comparison, standards -> statement -> content -> html, pdf, terminal; exports for other tools

The package itself can be called.

Args:
    run: The run folder, or its run.db.
    out: File to write; its suffix chooses the form: .html, .pdf or .csv.
    html: File for the report as one HTML page.
    pdf: File for the report as a PDF.
    csv: File for every line of the ledger.
    codecarbon: File for an emissions.csv in CodeCarbon's columns.
    model_card: File for co2_eq_emissions of a Hugging Face model card.
    settings: Fields of `slackwater.report.statement.ReportSettings`, such as `functional_unit` and `organisation`.
"""

import sys
from types import ModuleType
from typing import Any


class _Report(ModuleType):
    def __call__(self, run: Any, **options: Any) -> Any:
        from slackwater.report.write import report

        return report(run, **options)


sys.modules[__name__].__class__ = _Report
