"""The run file: ledger, rounds and checkpoints. Needs no PyTorch."""

from slackwater.ledger.journal import Attempt, Journal, Replan
from slackwater.ledger.ledger import Charge, ChargedTwiceError, Ledger, ModelledCharges, OverBudgetError
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.ledger.schema import RunKind
from slackwater.ledger.state_files import Part, PartFile

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
