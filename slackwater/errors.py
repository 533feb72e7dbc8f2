"""All errors that users can meet. Each message says what to do.

SlackwaterError            exit code 1
├── DataError              intensity data that is missing, malformed or implausible
├── ScenarioError          2: a setting that is missing, misspelt or out of range
├── InfeasibleError        3: no schedule fits; holds the smallest budget that would suffice
└── MissingExtraError      an optional package is not installed
"""


class SlackwaterError(Exception):
    """Base of all errors. The command line prints the message and exits."""

    exit_code = 1


class DataError(SlackwaterError):
    """Carbon-intensity data that is missing, malformed or implausible."""


class ScenarioError(SlackwaterError, ValueError):
    """A setting that is missing, misspelt or out of range."""

    exit_code = 2


class InfeasibleError(SlackwaterError):
    """No schedule meets the constraints.

    `least_budget_kg` is the smallest budget that would suffice, and `end` its end time. Both are None if no budget helps.
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
