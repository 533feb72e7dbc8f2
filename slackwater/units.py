"""Unit conversions on input. Inside the package there are only kg, kWh, W and aware UTC datetimes."""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from slackwater.errors import ScenarioError

G_PER_KG = 1000.0
W_PER_KW = 1000.0


def kg_per_kwh(g_per_kwh: float) -> float:
    """Return an intensity in kg CO2e/kWh, from g CO2e/kWh."""
    return g_per_kwh / G_PER_KG


def energy_kwh(power_w: float, hours: float) -> float:
    """Return the energy drawn by a constant power, kWh."""
    return power_w * hours / W_PER_KW


def time_zone(name: str) -> tzinfo:
    """Return a time zone of the IANA database, such as Europe/Paris."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScenarioError(
            f"There is no time zone {name!r}. Write a name of the IANA database, like Europe/Paris, America/New_York or UTC."
        ) from None


def utc(moment: str | datetime, what: str = "time", local: tzinfo | None = None) -> datetime:
    """Return an aware UTC datetime from ISO 8601 text or a datetime.

    Args:
        moment: The time.
        what: Its name in messages.
        local: Time zone of a time that has none. Default: such a time is an error.
    """
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ScenarioError(
                f"{what} {moment!r} is not a time. Write it as ISO 8601 with a zone, like 2022-01-01T00:00Z."
            ) from None
    if moment.tzinfo is None and local is not None:
        moment = moment.replace(tzinfo=local)
    if moment.tzinfo is None:
        raise ScenarioError(
            f"{what} {moment.isoformat()!r} has no time zone. Add one: {moment.isoformat(timespec='minutes')}Z for UTC."
        )
    return moment.astimezone(UTC)


def iso(moment: datetime) -> str:
    """Return a time as UTC text, `2022-01-01T00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def local_text(moment: datetime, zone: str) -> str:
    """Return a time on the clock of a time zone, `Mon 03 Jan 2022, 09:00 Europe/Paris`."""
    return f"{moment.astimezone(time_zone(zone)):%a %d %b %Y, %H:%M} {zone}"


def floor_hour(moment: datetime) -> datetime:
    """Return the full hour at or before a time."""
    return moment.replace(minute=0, second=0, microsecond=0)


def ceil_hour(moment: datetime) -> datetime:
    """Return the full hour at or after a time."""
    floor = floor_hour(moment)
    return floor if floor == moment else floor + timedelta(hours=1)
