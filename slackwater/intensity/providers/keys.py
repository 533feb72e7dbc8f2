"""API keys of providers, from the environment or from a keyring file that only its owner can read."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from slackwater.errors import ScenarioError
from slackwater.intensity.providers.provider_errors import MissingKeyError

FILE_VARIABLE = "SLACKWATER_KEYS"


class Keys:
    """Look keys up by the name of their provider; the repr shows none."""

    def __init__(self, environment: Mapping[str, str] | None = None, file: Path | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._file = file if file is not None else keyring_file(self._environment)
        self._kept: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"Keys({str(self._file)!r})"

    def get(self, provider: str) -> str:
        """Return the key of a provider."""
        found = self.find(provider)
        if found is None:
            raise MissingKeyError(
                f"{provider} needs a key. Set the environment variable {variable(provider)}, or write "
                f'{provider} = "..." into {self._file} and make it private (chmod 600).'
            )
        return found

    def find(self, provider: str) -> str | None:
        """Return the key of a provider, or None."""
        key = (self._environment.get(variable(provider)) or self._from_file().get(provider) or "").strip()
        if not key:
            return None
        if not key.isprintable() or not key.isascii():
            # It would break the header or the address. The message must not show it.
            raise ScenarioError(f"The key of {provider} has invalid characters, such as a line break.")
        return key

    def _from_file(self) -> dict[str, str]:
        if self._kept is None:
            self._kept = _read(self._file)
        return self._kept


def variable(provider: str) -> str:
    """Return the environment variable of a provider's key."""
    return f"SLACKWATER_KEY_{re.sub('[^A-Z0-9]', '_', provider.upper())}"


def keyring_file(environment: Mapping[str, str]) -> Path:
    """Return $SLACKWATER_KEYS, else slackwater/keys.toml in the user's configuration."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named).expanduser()
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "slackwater" / "keys.toml"


def _read(file: Path) -> dict[str, str]:
    try:
        with file.open("rb") as stream:
            if os.name == "posix" and os.fstat(stream.fileno()).st_mode & 0o077:
                raise ScenarioError(f"The keyring {file} can be read by others. Run: chmod 600 {file}")
            content = tomllib.loads(stream.read().decode("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ScenarioError(f"The keyring {file} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        # Only the position: the parser's message may repeat the line, with a key in it.
        where = re.search(r"at line \d+", str(error))
        raise ScenarioError(
            f"The keyring {file} is not valid TOML{f' ({where[0]})' if where else ''}. Write lines like "
            'electricitymaps = "..."'
        ) from None
    wrong = [name for name, key in content.items() if not isinstance(key, str)]
    if wrong:
        raise ScenarioError(f"In the keyring {file}, {', '.join(wrong)} must be text in quotes.")
    return content
