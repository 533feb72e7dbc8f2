"""Carbon intensity from providers, through a cache on disk; every value records its origin."""

from slackwater.intensity.providers.base import Context, Provider, Source
from slackwater.intensity.providers.cache import Cache
from slackwater.intensity.providers.chain import Cached, Chain, make_provider, provider_names, register_provider
from slackwater.intensity.providers.http import Client
from slackwater.intensity.providers.keys import Keys
from slackwater.intensity.providers.provider_errors import ProviderError
from slackwater.intensity.providers.readings import Answer, Intake, Reading
from slackwater.intensity.providers.to_traces import forecast, to_traces, traces

__all__ = [
    "Answer", "Cache", "Cached", "Chain", "Client", "Context", "Intake", "Keys", "Provider", "ProviderError",
    "Reading", "Source", "forecast", "make_provider", "provider_names", "register_provider", "to_traces", "traces",
]  # fmt: skip
