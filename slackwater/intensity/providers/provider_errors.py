"""Errors of providers. No message contains a key.

ProviderError               a DataError, so the command line exits with 1
├── MissingKeyError         no key in the environment nor in the keyring file
├── UnauthorisedError       401: the key is wrong
├── ForbiddenError          403: the key does not include this
├── NotFoundError           404: no such zone or page
├── RefusedError            any other 4xx
├── ThrottledError          429, even after waiting
├── UnavailableError        5xx, time-out, broken connection, cut-off answer
├── BadAnswerError          an answer that is not in the documented form
├── NoValuesError           a valid answer without a usable value
├── NotOfferedError         this provider does not have that zone, kind or factor
└── RequestBudgetError      our own limit on requests
"""

from __future__ import annotations

from slackwater.errors import DataError


class ProviderError(DataError):
    """A provider did not return what was requested."""

    whole = False
    """Whether other zones would fail in the same way, so that they need not be requested."""


class MissingKeyError(ProviderError):
    """There is no key for a provider that needs one."""

    whole = True


class UnauthorisedError(ProviderError):
    """The provider rejected the key."""

    whole = True


class ForbiddenError(ProviderError):
    """The key does not include this zone or endpoint."""


class NotFoundError(ProviderError):
    """The provider has no such zone."""


class RefusedError(ProviderError):
    """The provider rejected the request; `detail` is its own message."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ThrottledError(ProviderError):
    """Too many requests, and the wait it asks for is too long."""

    whole = True


class UnavailableError(ProviderError):
    """The provider is down, slow or unreachable."""

    whole = True


class BadAnswerError(ProviderError):
    """The answer is not in the documented form."""


class NoValuesError(ProviderError):
    """There is no usable value in the answer."""


class NotOfferedError(ProviderError):
    """The provider does not have this zone, kind or factor."""


class RequestBudgetError(ProviderError):
    """The limit on requests is reached."""

    whole = True
