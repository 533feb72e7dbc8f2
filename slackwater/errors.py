"""Every error a user can meet, each a sentence that says what to do.

SlackwaterError            exit code 1
├── DataError              intensity data that cannot be used as it is
├── ScenarioError          2: a setting that is missing, misspelt or out of range
├── InfeasibleError        3: no schedule fits; carries the least budget that would do
└── MissingExtraError      an optional package is not installed
"""


class SlackwaterError(Exception):
    """An error that the message explains; the command line prints it and exits."""

    exit_code = 1


class DataError(SlackwaterError):
    """Carbon-intensity data that is missing, malformed or implausible."""


class ScenarioError(SlackwaterError, ValueError):
    """A setting that is missing, misspelt or out of range."""

    exit_code = 2


class InfeasibleError(SlackwaterError):
    """No schedule meets the constraints.

    `least_budget_kg` is the smallest budget that would do and `end` the end time that needs it; both are None where no budget helps.
    """

    exit_code = 3

    def __init__(self, message: str, *, least_budget_kg: float | None = None, end: int | None = None) -> None:
        super().__init__(message)
        self.least_budget_kg = least_budget_kg
        self.end = end


class MissingExtraError(SlackwaterError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"This needs {package}, which is not installed. Install it with: pip install 'slackwater[{extra}]'"
        )
