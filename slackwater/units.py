"""Unit conversions on input. Inside the package there are only kg, kWh, W and aware UTC datetimes."""

from datetime import UTC, datetime, timedelta

from slackwater.errors import ScenarioError

G_PER_KG = 1000.0
W_PER_KW = 1000.0


def kg_per_kwh(g_per_kwh: float) -> float:
    """Return an intensity in kg CO2e/kWh, from g CO2e/kWh."""
    return g_per_kwh / G_PER_KG


def energy_kwh(power_w: float, hours: float) -> float:
    """Return the energy drawn by a constant power, kWh."""
    return power_w * hours / W_PER_KW


def utc(moment: str | datetime, what: str = "time") -> datetime:
    """Return an aware UTC datetime from ISO 8601 text or a datetime; raise ScenarioError without a time zone."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ScenarioError(
                f"{what} {moment!r} is not a time. Write it as ISO 8601 with a zone, like 2022-01-01T00:00Z."
            ) from None
    if moment.tzinfo is None:
        raise ScenarioError(
            f"{what} {moment.isoformat()!r} has no time zone. Add one: {moment.isoformat(timespec='minutes')}Z for UTC."
        )
    return moment.astimezone(UTC)


def iso(moment: datetime) -> str:
    """Return a time as UTC text, `2022-01-01T00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")


def floor_hour(moment: datetime) -> datetime:
    """Return the full hour at or before a time."""
    return moment.replace(minute=0, second=0, microsecond=0)


def ceil_hour(moment: datetime) -> datetime:
    """Return the full hour at or after a time."""
    floor = floor_hour(moment)
    return floor if floor == moment else floor + timedelta(hours=1)
