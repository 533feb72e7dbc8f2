"""The words for each kind of run, on every screen, file and chart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slackwater.ledger.run import RunKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KindWords:
    """The words of one kind of run."""

    label: str  # one word, as it stands in tables, titles and file columns
    emitted: str  # what its kg are called: a run that was not live has emitted nothing by its clock
    sentence: str  # what a reader must know about its kg; every report begins with it

    @property
    def title(self) -> str:
        """Return the label with a capital letter, and 'run'."""
        return f"{self.label.capitalize()} run"


KINDS: Mapping[RunKind, KindWords] = {
    "simulated": KindWords(
        label="simulated",
        emitted="Would have emitted",
        sentence="Simulated run: it was trained without waiting for its hours, and the intensity of its plan counts as what "
        "came. The kg are what it would have emitted; they are not measured emissions.",
    ),
    "rehearsed": KindWords(
        label="rehearsed",
        emitted="Would have emitted",
        sentence="Rehearsed run: the live path on a past period, with the forecasts of that time. The kg are what it would "
        "have emitted; they are not measured emissions.",
    ),
    "live": KindWords(label="live", emitted="Emitted", sentence="Live run: it was carried out in real time."),
}
