"""The intensity for a plan: what is known at a moment, and what is expected after it."""

from slackwater.intensity.feed import ProviderFeed, actuals_of, archive_of, traces_of

__all__ = ["ProviderFeed", "actuals_of", "archive_of", "traces_of"]
