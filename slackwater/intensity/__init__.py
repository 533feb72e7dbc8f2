"""Carbon intensity of the grid: traces from files, providers and typical profiles, and forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.intensity.feed import ProviderFeed, actuals_of, archive_of, traces_of
    from slackwater.intensity.load import ZoneInfo, available_zones, load_traces
    from slackwater.intensity.traces import Factor, Provenance, Traces

__all__ = [
    "Factor", "Provenance", "ProviderFeed", "Traces", "ZoneInfo", "actuals_of", "archive_of", "available_zones",
    "load_traces", "traces_of",
]  # fmt: skip
_HOME = {
    "feed": ("ProviderFeed", "actuals_of", "archive_of", "traces_of"),
    "load": ("ZoneInfo", "available_zones", "load_traces"),
    "traces": ("Factor", "Provenance", "Traces"),
}
__getattr__ = lazily(__name__, {name: module for module, names in _HOME.items() for name in names})
