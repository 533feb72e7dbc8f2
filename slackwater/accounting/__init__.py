"""What a run emitted, to be handed in: the ledger's figures, the standards they are asked by, and files for other tools.

    run.db -> reading -> account, planned, comparison, standards, uncertainty -> statement -> codecarbon, model_card, lines

Everything is read once, in one snapshot of the run's file; `slackwater.report.emissions` lays the statement out.
"""

from slackwater.accounting.settings import ReportSettings
from slackwater.accounting.statement import Statement, make_statement

__all__ = ["ReportSettings", "Statement", "make_statement"]
