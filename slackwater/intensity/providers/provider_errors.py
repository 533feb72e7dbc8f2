"""What can go wrong between us and a provider, each a sentence without a key in it.

ProviderError               a DataError, so the command line exits with 1
├── MissingKeyError         no key in the environment nor in the keyring file
├── UnauthorisedError       401: the key is wrong
├── ForbiddenError          403: the key is right, but not for this
├── NotFoundError           404: no such zone or page
├── RefusedError            any other 4xx
├── ThrottledError          429, still after waiting
├── UnavailableError        5xx, time-out, broken connection, cut-off answer
├── BadAnswerError          an answer that is not what the provider documents
├── NoValuesError           a good answer without a single usable value
├── NotOfferedError         this provider does not have that zone, kind or factor
└── RequestBudgetError      our own limit on requests
"""

from __future__ import annotations

from slackwater.errors import DataError


class ProviderError(DataError):
    """A provider did not give what was asked."""

    whole = False
    """Whether other zones would fail in the same way, so that asking for them is a waste."""


class MissingKeyError(ProviderError):
    """There is no key for a provider that needs one."""

    whole = True


class UnauthorisedError(ProviderError):
    """The provider does not know the key."""

    whole = True


class ForbiddenError(ProviderError):
    """The key does not include this zone or endpoint."""


class NotFoundError(ProviderError):
    """The provider has no such zone."""


class RefusedError(ProviderError):
    """The provider does not accept the request; `detail` is its own word."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ThrottledError(ProviderError):
    """Too many requests, and the wait it asks for is too long."""

    whole = True


class UnavailableError(ProviderError):
    """The provider is down, slow or out of reach."""

    whole = True


class BadAnswerError(ProviderError):
    """The answer is not of the documented form."""


class NoValuesError(ProviderError):
    """There is no usable value in the answer."""


class NotOfferedError(ProviderError):
    """The provider does not have this."""


class RequestBudgetError(ProviderError):
    """The limit on requests is reached."""

    whole = True
