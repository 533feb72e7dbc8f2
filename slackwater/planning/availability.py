"""When a client cannot train: intervals and weekly hours, as text, on the slots of a problem."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError
from slackwater.units import utc

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"^(?P<days>[a-z,\-]+)(?:\s+(?P<from>\d{1,2}:\d{2})-(?P<to>\d{1,2}:\d{2}))?$")
_HELP = (
    "Write an interval like '2022-01-03T08:00Z/2022-01-03T18:00Z', or weekly hours in UTC like "
    "'daily 08:00-18:00', 'mon-fri 22:00-06:00' or 'sat,sun'."
)


def available_slots(unavailable: Sequence[str], start: datetime, slots: int, slot_minutes: int) -> NDArray[np.bool_]:
    """[slot], False where any of the periods touches the slot."""
    free = np.ones(slots, dtype=bool)
    for period in unavailable:
        if not isinstance(period, str):
            raise ScenarioError(f"unavailable period {period!r} is not text. {_HELP}")
        free &= ~_touched(period.strip(), start, slots, slot_minutes)
    return free


def _touched(period: str, start: datetime, slots: int, slot_minutes: int) -> NDArray[np.bool_]:
    begins = np.arange(slots) * float(slot_minutes)
    ends = begins + slot_minutes
    if "/" in period:
        ends_of_it = [part.strip() for part in period.split("/")]
        if len(ends_of_it) != 2:
            raise ScenarioError(f"unavailable period {period!r} has more than a start and an end. {_HELP}")
        try:
            first, last = (utc(part, f"unavailable period {period!r}:") for part in ends_of_it)
        except OverflowError:
            raise ScenarioError(f"unavailable period {period!r} has a year that no calendar holds. {_HELP}") from None
        if last <= first:
            raise ScenarioError(f"unavailable period {period!r} does not end after it starts. {_HELP}")
        low, high = ((moment - start) / timedelta(minutes=1) for moment in (first, last))
        return (begins < high) & (ends > low)
    match = _HOURS.match(period.lower())
    if match is None:
        raise ScenarioError(f"unavailable period {period!r} is not understood. {_HELP}")
    days = _days(match["days"], period)
    low, high = (_minutes(match["from"], period), _minutes(match["to"], period)) if match["from"] else (0, 24 * 60)
    if high == low:
        raise ScenarioError(
            f"unavailable period {period!r} ends when it starts. For whole days leave the hours out: {match['days']!r}."
        )
    if high < low:  # over midnight: the part after midnight belongs to the day on which it began
        high += 24 * 60
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    offset = (start - midnight) / timedelta(minutes=1)
    touched = np.zeros(slots, dtype=bool)
    for day in range(-1, int((offset + slots * slot_minutes) // (24 * 60)) + 1):
        if (midnight + timedelta(days=day)).weekday() in days:
            shift = day * 24 * 60 - offset
            touched |= (begins < high + shift) & (ends > low + shift)
    return touched


def _days(text: str, period: str) -> set[int]:
    if text in ("daily", "every-day"):
        return set(range(7))
    found: set[int] = set()
    for part in text.split(","):
        names = part.split("-")
        if len(names) > 2 or any(name not in DAYS for name in names):
            raise ScenarioError(f"unavailable period {period!r}: {part!r} is not a day or a range of days. {_HELP}")
        first, last = DAYS.index(names[0]), DAYS.index(names[-1])
        found.update((first + i) % 7 for i in range((last - first) % 7 + 1))
    return found


def _minutes(clock: str, period: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    if hours * 60 + minutes > 24 * 60 or minutes > 59:
        raise ScenarioError(f"unavailable period {period!r}: {clock} is not a time of day. {_HELP}")
    return hours * 60 + minutes
