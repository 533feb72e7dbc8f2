"""TensorBoard event files, written without TensorBoard: records of scalars in TensorFlow's format are simple enough."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from slackwater.learning.result import Progress

_POLYNOMIAL = 0x82F63B78


class EventFile:
    """A progress callback that writes loss, accuracy, kg and participants of each round, by slot."""

    def __init__(self, folder: Path, then: Callable[[Progress], None] | None = None) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        # A resumed run adds a file; TensorBoard reads all of a folder's as one.
        now = time.time()
        self._file = (folder / f"events.out.tfevents.{now:.6f}.slackwater").open("wb")
        self._then = then
        self._write(_double(1, now) + _bytes(3, b"brain.Event:2"))

    def __call__(self, progress: Progress) -> None:
        """Write one round."""
        done = progress.done
        values = {
            "loss": done.loss,
            "kg": done.spent_kg,
            "participants": len(done.participants),
            "update_norm": done.update_norm,
        }
        if done.accuracy is not None and done.test_loss is not None:
            values |= {"test/accuracy": done.accuracy, "test/loss": done.test_loss}
        values |= {f"client_loss/{name}": loss for name, loss in done.losses.items()}
        summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
        self._write(_double(1, time.time()) + _varint(2 << 3) + _varint(done.slot) + _bytes(5, summary))
        if self._then is not None:
            self._then(progress)

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        """Length, its checksum, the event, its checksum: TensorFlow's record format."""
        length = struct.pack("<Q", len(event))
        self._file.write(length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event)))
        self._file.flush()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as the record format wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = [_table_entry(value) for value in range(256)]


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
