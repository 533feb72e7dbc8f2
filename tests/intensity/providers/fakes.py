"""What each provider answers, in its documented form, for whatever range is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from loopback import Asked, Reply, as_json

NOW = datetime(2026, 11, 10, 12, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
Value = Callable[[datetime], Any]


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def times(start: datetime, end: datetime, minutes: int) -> Iterator[datetime]:
    while start < end:
        yield start
        start += timedelta(minutes=minutes)


def parsed(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def usual(moment: datetime) -> float:
    return 100 + moment.hour


def floor(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


class Fake:
    """What the fakes below say of a zone; a world with its own truth and its own time has its own."""

    def __init__(self, value: Value = usual) -> None:
        self.value = value

    def now(self) -> datetime:
        return NOW

    def actual(self, zone: str, when: datetime) -> Any:
        """The actual value over the step from `when`, g/kWh; None where it is not known."""
        return self.value(when)

    def expected(self, zone: str, when: datetime) -> Any:
        """What is forecast now."""
        return self.value(when)


class ElectricityMapsFake(Fake):
    def __init__(self, value: Value = usual, *, zone: str | None = None, estimated: bool = False) -> None:
        super().__init__(value)
        self.zone, self.estimated = zone, estimated

    def row(self, zone: str, when: datetime, factor: str) -> dict[str, Any]:
        return {
            "zone": zone,
            "carbonIntensity": self.actual(zone, when),
            "datetime": stamp(when),
            "updatedAt": stamp(self.now()),
            "createdAt": stamp(self.now()),
            "emissionFactorType": factor,
            "isEstimated": self.estimated,
            "estimationMethod": "TIME_SLICER_AVERAGE" if self.estimated else None,
        }

    def __call__(self, asked: Asked) -> Reply:
        if asked.headers.get("auth-token") != "em-key":
            return as_json({"error": "Invalid auth-token"}, status=401)
        zone, factor = self.zone or asked.query["zone"], asked.query["emissionFactorType"]
        what, current = asked.path.rpartition("/")[2], floor(self.now())
        if what == "latest":
            return as_json(self.row(zone, current, factor))
        if what == "history":
            hours = times(current - 24 * HOUR, current, 60)
            return as_json({"zone": zone, "history": [self.row(zone, when, factor) for when in hours]})
        if what == "past-range":
            start, end = parsed(asked.query["start"]), parsed(asked.query["end"])
            if end - start > timedelta(days=10):
                return as_json({"error": "Range too long"}, status=400)
            return as_json({"zone": zone, "data": [self.row(zone, when, factor) for when in times(start, end, 60)]})
        hours = times(current, current + int(asked.query["horizonHours"]) * HOUR, 60)
        rows = [{"carbonIntensity": self.expected(zone, when), "datetime": stamp(when)} for when in hours]
        return as_json({"zone": zone, "forecast": rows, "updatedAt": stamp(self.now() - HOUR)})


class NesoFake(Fake):
    def __call__(self, asked: Asked) -> Reply:
        parts = asked.path.strip("/").split("/")
        at = parts.index("intensity") + 1
        start = parsed(parts[at])
        start -= timedelta(minutes=start.minute % 30 + 30)  # the API begins with the half-hour that ends there
        if parts[0] == "regional":
            region = int(parts[-1])
            rows = self.rows(start, start + 48 * HOUR, zone=f"GB-{region}")
            return as_json({"data": {"regionid": region, "shortname": "somewhere", "data": rows}})
        end = start + 48 * HOUR if parts[at + 1] == "fw48h" else parsed(parts[at + 1])
        if end - start > timedelta(days=14):
            return as_json({"error": {"code": "400 Bad Request", "message": "at most 14 days"}}, status=400)
        return as_json({"data": self.rows(start, end, zone="GB")})

    def rows(self, start: datetime, end: datetime, *, zone: str) -> list[dict[str, Any]]:
        rows = []
        for when in times(start, end, 30):
            intensity = {"forecast": self.expected(zone, when), "index": "low"}
            if zone == "GB":
                intensity["actual"] = self.actual(zone, when) if when < self.now() else None
            short = "%Y-%m-%dT%H:%MZ"
            after = when + timedelta(minutes=30)
            rows.append({"from": when.strftime(short), "to": after.strftime(short), "intensity": intensity})
        return rows


class EnergyChartsFake(Fake):
    def __call__(self, asked: Asked) -> Reply:
        zone = asked.query["country"].upper()
        listed = list(times(parsed(asked.query["start"]), parsed(asked.query["end"]), 15))
        return as_json(
            {
                "unix_seconds": [int(when.timestamp()) for when in listed],
                "co2eq": [self.actual(zone, when) if when < self.now() else None for when in listed],
                "co2eq_forecast": [self.expected(zone, when) for when in listed],
                "deprecated": False,
            }
        )


class WattTimeFake:
    def __init__(self, value: Value = lambda moment: usual(moment) / 0.453592) -> None:
        self.value, self.log_ins, self.token = value, 0, "token-1"

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/login":
            self.log_ins += 1
            right = asked.headers.get("authorization") == "Basic bWU6c2VjcmV0"  # me:secret
            return as_json({"token": self.token}) if right else as_json({"error": "Login failed"}, status=401)
        if asked.headers.get("authorization") != f"Bearer {self.token}":
            return as_json({"error": "Token expired"}, status=401)
        if asked.path == "/v3/forecast":
            start = NOW.replace(minute=20)
            end = start + int(asked.query["horizon_hours"]) * HOUR
        else:
            start, end = parsed(asked.query["start"]), parsed(asked.query["end"])
        rows = [{"point_time": when.isoformat(), "value": self.value(when)} for when in times(start, end, 5)]
        meta = {
            "region": asked.query["region"],
            "signal_type": asked.query["signal_type"],
            "model": {"date": "2023-03-01"},
            "units": "lbs_co2_per_mwh",
            "generated_at": NOW.isoformat(),
            "data_point_period_seconds": 300,
        }
        return as_json({"data": rows, "meta": meta})


class EntsoeFake:
    """A quarter coal, the rest wind, so 213.25 g/kWh over the life cycle; wind in a curve that leaves out repeats."""

    def __init__(self, value: Value = lambda _: 250) -> None:
        self.value = value

    def __call__(self, asked: Asked) -> Reply:
        if asked.query.get("securityToken") != "entsoe-key":
            return xml(acknowledgement("Unauthorized. Missing or invalid security token"), status=401)
        start, end = (
            datetime.strptime(asked.query[name], "%Y%m%d%H%M").replace(tzinfo=UTC)
            for name in ("periodStart", "periodEnd")
        )
        listed = list(times(start, end, 15))
        coal = "".join(point(i + 1, self.value(when)) for i, when in enumerate(listed) if self.value(when) is not None)
        series = time_series("B05", "A01", start, end, coal) + time_series("B19", "A03", start, end, point(1, 750))
        series += time_series("B10", "A01", start, end, point(1, 500), domain="outBiddingZone_Domain.mRID")
        return xml(
            f'<GL_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-6:generationload:3:0">{series}</GL_MarketDocument>'
        )


def point(position: int, quantity: float) -> str:
    return f"<Point><position>{position}</position><quantity>{quantity}</quantity></Point>"


def time_series(
    fuel: str, curve: str, start: datetime, end: datetime, points: str, domain: str = "inBiddingZone_Domain.mRID"
) -> str:
    short = "%Y-%m-%dT%H:%MZ"
    interval = f"<start>{start.strftime(short)}</start><end>{end.strftime(short)}</end>"
    period = f"<timeInterval>{interval}</timeInterval><resolution>PT15M</resolution>{points}"
    return (
        f"<TimeSeries><mRID>1</mRID><{domain} codingScheme='A01'>x</{domain}><curveType>{curve}</curveType>"
        f"<MktPSRType><psrType>{fuel}</psrType></MktPSRType><Period>{period}</Period></TimeSeries>"
    )


def acknowledgement(text: str) -> str:
    reason = f"<Reason><code>999</code><text>{text}</text></Reason>"
    return f'<Acknowledgement_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-1:ack:7:0">{reason}</Acknowledgement_MarketDocument>'


def xml(text: str, **more: Any) -> Reply:
    return Reply(body=f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), kind="text/xml", **more)


class EiaFake:
    """Half gas, half nuclear: 251 g/kWh over the life cycle. Values are text, and pages are short."""

    def __init__(self, value: Value = lambda _: "500", page: int = 5000) -> None:
        self.value, self.page = value, page

    def __call__(self, asked: Asked) -> Reply:
        if asked.query.get("api_key") != "eia-key":
            error = {"code": "API_KEY_INVALID", "message": "An invalid api_key was supplied."}
            return as_json({"error": error}, status=403)
        hour = "%Y-%m-%dT%H"
        start, end = (datetime.strptime(asked.query[name], hour).replace(tzinfo=UTC) for name in ("start", "end"))
        rows = [
            {
                "period": when.strftime(hour),
                "respondent": asked.query["facets[respondent][]"],
                "fueltype": fuel,
                "value": value,
                "value-units": "megawatthours",
            }
            for when in times(start, end + HOUR, 60)
            for fuel, value in (("NG", self.value(when)), ("NUC", "500"), ("SUN", "-2"))
        ]
        first = int(asked.query["offset"])
        data = rows[first : first + min(int(asked.query["length"]), self.page)]
        return as_json({"response": {"total": str(len(rows)), "dateFormat": "x", "frequency": "hourly", "data": data}})
