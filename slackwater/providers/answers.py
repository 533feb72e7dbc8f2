"""Say what a provider's error status means, with its own words in brackets."""

from __future__ import annotations

import json
import re
from typing import Any

from slackwater.providers.errors import ForbiddenError, NotFoundError, ProviderError, RefusedError, UnauthorisedError
from slackwater.providers.keys import variable


def failure(provider: str, status: int, said: str, detail: str) -> ProviderError:
    """Return the error of a 4xx that no retry would cure."""
    if status == 401:
        return UnauthorisedError(
            f"{provider} does not accept the key ({said}). Check {variable(provider)} or the keyring file."
        )
    if status == 403:
        return ForbiddenError(
            f"{provider} does not let us have this ({said}). Does the plan of the key include the zone, the range and "
            "this kind of values?"
        )
    if status == 404:
        return NotFoundError(f"{provider} has no such zone or page ({said}). Check the zone's name.")
    return RefusedError(f"{provider} refuses the request ({said}).", detail)


def said_by(body: bytes) -> str:
    """Return the message in the body of an error, uncut: JSON's error or message, XML's text; nothing of a web page."""
    text = body.decode("utf-8", errors="replace").strip()
    try:
        return _in_json(json.loads(text))
    except (ValueError, RecursionError):
        pass
    found = re.search(r"<(?:\w+:)?text>([^<]*)<", text)
    if found:
        return found[1].strip()
    return "" if text.startswith("<") else text.splitlines()[0] if text else ""


def _in_json(data: Any) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, dict):
        for name in ("message", "error", "detail", "title"):
            if data.get(name):
                return _in_json(data[name])
    return ""
