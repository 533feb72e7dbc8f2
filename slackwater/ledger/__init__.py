"""The run file: ledger, rounds and checkpoints. Needs no PyTorch."""

from slackwater.ledger.journal import Attempt, Journal, Replan
from slackwater.ledger.ledger import Charge, ChargedTwiceError, Ledger, OverBudgetError
from slackwater.ledger.modelled import ModelledCharges
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run, RunKind
from slackwater.ledger.state import Part, PartFile

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
    "PartFile",
    "Replan",
    "RoundRecord",
    "Run",
    "RunKind",
]
