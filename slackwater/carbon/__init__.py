"""Carbon intensity of the grid: from files or typical profiles into `Traces`."""

from slackwater.carbon.load import ZoneInfo, available_zones, load_traces
from slackwater.carbon.traces import Factor, Provenance, Traces

__all__ = ["Factor", "Provenance", "Traces", "ZoneInfo", "available_zones", "load_traces"]
