"""Every gram: one schema and one verb, used by training, live runs and reports. Needs no PyTorch."""

from slackwater.ledger.journal import Attempt, Journal, Replan
from slackwater.ledger.ledger import Charge, ChargedTwiceError, Ledger, OverBudgetError
from slackwater.ledger.modelled import ModelledCharges
from slackwater.ledger.run import EvaluationRecord, Part, RoundRecord, Run

__all__ = [
    "Attempt",
    "Charge",
    "ChargedTwiceError",
    "EvaluationRecord",
    "Journal",
    "Ledger",
    "ModelledCharges",
    "OverBudgetError",
    "Part",
    "Replan",
    "RoundRecord",
    "Run",
]
