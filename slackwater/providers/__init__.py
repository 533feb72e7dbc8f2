"""Carbon intensity from its providers, through a cache on disk; every value has its origin."""

from slackwater.providers.base import Context, Provider, Source
from slackwater.providers.cache import Cache
from slackwater.providers.cached import Cached
from slackwater.providers.chain import Chain
from slackwater.providers.errors import ProviderError
from slackwater.providers.http import Client
from slackwater.providers.intake import Intake
from slackwater.providers.keys import Keys
from slackwater.providers.planning import forecast, to_traces, traces
from slackwater.providers.registry import make_provider, provider_names
from slackwater.providers.values import Answer, Reading

__all__ = [
    "Answer", "Cache", "Cached", "Chain", "Client", "Context", "Intake", "Keys", "Provider", "ProviderError",
    "Reading", "Source", "forecast", "make_provider", "provider_names", "to_traces", "traces",
]  # fmt: skip
