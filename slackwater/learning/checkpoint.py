"""Tensors to the files of a run and back, and their size. Only tensors that changed since the last save are written."""

from __future__ import annotations

import logging
import math
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slackwater.learning.aggregators import Aggregator
from slackwater.learning.server import ServerOptimiser
from slackwater.ledger.run import Level, Run
from slackwater.ledger.state import BadPartError, Part, PartFile

log = logging.getLogger(__name__)
State = dict[str, Tensor]
Groups = dict[str, State]  # tensors of a checkpoint, by group and name
NOTABLE_BYTES = 100 * 10**6  # a run says before its first round that its state is this large
_COPIES = 5
"""Of the model, that a round needs beside the state: what is sent, the sum of updates, the new model, a workspace."""


class Checkpoint:
    """The state of a run in its files, as groups of named tensors; a run without a folder keeps none."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._saved: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        """Part -> the tensor that was written, and its version. Weak, or replaced tensors would stay in memory."""

    def save(self, slot: int | None, groups: Mapping[str, State], state: Any = None) -> None:
        """Write the tensors that are new or were changed in place since they were last written, one at a time.

        `slot` is that of the round, None before the first; `state` is kept as JSON beside them.
        """
        if self._run.folder is None:
            return
        now = {f"{group}/{name}": tensor for group, held in groups.items() for name, tensor in held.items()}
        changed = {name: tensor for name, tensor in now.items() if not self._is_saved(name, tensor)}
        with self._run.transaction():
            self._run.state.save(slot, now, ((name, _part(tensor)) for name, tensor in changed.items()), state)
        self._saved = {
            name: (weakref.ref(tensor), tensor._version) if name in changed else self._saved[name]
            for name, tensor in now.items()
        }

    def load(self, device: torch.device) -> Groups:
        """Return all groups, each file checked; empty where nothing was saved.

        Raises:
            SlackwaterError: The checkpoint is not that of the last round, or one of its files is damaged.
        """
        groups: Groups = {}
        for part in self._run.last_parts():
            group, _, key = part.name.partition("/")
            try:
                tensor = self._read(part).to(device)
            except BadPartError as error:
                raise self._run.unusable(str(error)) from None
            groups.setdefault(group, {})[key] = tensor
            self._saved[part.name] = (weakref.ref(tensor), tensor._version)
        return groups

    def _read(self, part: PartFile) -> Tensor:
        dtype = getattr(torch, part.dtype, None)
        if not isinstance(dtype, torch.dtype) or math.prod(part.shape) * dtype.itemsize != part.size:
            raise BadPartError(f"{part.name} is of {part.size:,} bytes, and no {part.dtype} of the shape {part.shape}")
        tensor = torch.empty(part.shape, dtype=dtype)
        self._run.state.read(part, _memory(tensor))
        return tensor

    def _is_saved(self, name: str, tensor: Tensor) -> bool:
        saved = self._saved.get(name)
        return saved is not None and saved[0]() is tensor and saved[1] == tensor._version


def _part(tensor: Tensor) -> Part:
    here = tensor.detach().cpu().contiguous()
    return Part(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), data=_memory(here))


def _memory(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, where they are."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much room a run takes, at most."""

    model_bytes: int
    models: float  # arrays of the model's size that the state holds; a stored update of half precision counts half
    changing: float  # the most of them that a round changes

    @property
    def disk_bytes(self) -> float:
        """Return the size of the files: the state, what the last round replaced, and what the next one writes."""
        return self.model_bytes * (self.models + 2 * self.changing)

    @property
    def memory_bytes(self) -> float:
        """Return the memory: the state, the updates of a round before they replace others, and the model's copies."""
        return self.model_bytes * (self.models + self.changing + _COPIES)

    def tell(self, run: Run) -> None:
        """Log what is notable, and note it in the run's events."""
        for level, sentence in self._sentences(run.folder):
            log.warning(sentence)
            run.log(sentence, level=level)

    def _sentences(self, folder: Path | None) -> list[tuple[Level, str]]:
        """Return what to tell before the first round, if it is notable: the room, and whether the disk has it."""
        disk = 0.0 if folder is None else self.disk_bytes
        if max(disk, self.memory_bytes) < NOTABLE_BYTES:
            return []
        on_disk = f"{_room(disk)} on disk and " if folder is not None else ""
        models = f"{self.models:,.0f} models of {_room(self.model_bytes)}"
        told: list[tuple[Level, str]] = [
            ("info", f"State: up to {on_disk}{_room(self.memory_bytes)} of memory ({models}).")
        ]
        if folder is not None and (free := shutil.disk_usage(folder).free) < disk:
            told.append((
                "warning",
                f"Only {_room(free)} are free on the disk of {folder}. If it becomes full the run stops, and can be resumed.",
            ))  # fmt: skip
        return told


def expected_size(
    model: Tensor, *, clients: int, participants: int, aggregator: Aggregator, server: ServerOptimiser, averages: bool
) -> Size:
    """Return the room of a run with this model; `participants` is the most that train in one slot before the window."""
    stored = getattr(aggregator, "memory_dtype", None) or model.dtype
    share = stored.itemsize / model.dtype.itemsize if getattr(aggregator, "remembers", False) else 0.0
    always = 1 + len(server.kept) + averages * torch.float64.itemsize / model.dtype.itemsize
    return Size(
        model_bytes=model.numel() * model.dtype.itemsize,
        models=always + clients * share,
        changing=always + participants * share,
    )


def _room(size: float) -> str:
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.5 or unit == "GB":
            break
    return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
