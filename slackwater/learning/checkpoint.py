"""Tensors to the run's file and back.

Only what changed since the last time is written: a client's stored update, not all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from slackwater.ledger.run import Part, Run

State = dict[str, Tensor]


class Checkpoint:
    """The state of a training run in its file, as groups of named tensors."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._saved: dict[str, tuple[Tensor, int]] = {}

    def save(self, slot: int, groups: Mapping[str, State]) -> None:
        """Write the tensors that are new or were changed in place since they were last written."""
        now = {f"{group}/{name}": tensor for group, state in groups.items() for name, tensor in state.items()}
        changed = {name: tensor for name, tensor in now.items() if not self._is_saved(name, tensor)}
        self._run.save_parts(slot, {name: _part(tensor) for name, tensor in changed.items()})
        self._saved |= {name: (tensor, tensor._version) for name, tensor in changed.items()}

    def load(self, device: torch.device) -> dict[str, State]:
        """All groups; empty where nothing was saved."""
        groups: dict[str, State] = {}
        for name, part in self._run.load_parts().items():
            group, _, key = name.partition("/")
            tensor = _tensor(part).to(device)
            groups.setdefault(group, {})[key] = tensor
            self._saved[name] = (tensor, tensor._version)
        return groups

    def _is_saved(self, name: str, tensor: Tensor) -> bool:
        saved = self._saved.get(name)
        return saved is not None and saved[0] is tensor and saved[1] == tensor._version


def _part(tensor: Tensor) -> Part:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return Part(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        data=flat.view(torch.uint8).numpy().tobytes(),
    )


def _tensor(part: Part) -> Tensor:
    dtype: torch.dtype = getattr(torch, part.dtype)
    if not part.data:
        return torch.empty(part.shape, dtype=dtype)
    return torch.frombuffer(bytearray(part.data), dtype=dtype).reshape(part.shape)
