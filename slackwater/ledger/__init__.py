"""Every gram: one schema and one verb, used by training, live runs and reports. Needs no PyTorch."""

from slackwater.ledger.ledger import Charge, ChargedTwiceError, Ledger, OverBudgetError
from slackwater.ledger.modelled import ModelledCharges
from slackwater.ledger.run import EvaluationRecord, Part, RoundRecord, Run

__all__ = [
    "Charge",
    "ChargedTwiceError",
    "EvaluationRecord",
    "Ledger",
    "ModelledCharges",
    "OverBudgetError",
    "Part",
    "RoundRecord",
    "Run",
]
