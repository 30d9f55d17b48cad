"""Tensors on their way from the device to the host. Knows nothing of what is in them."""

from __future__ import annotations

import torch
from torch import Tensor


class DeviceToHostCopy:
    """A device tensor on its way to the host; on the CPU the tensor itself."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._event: torch.Event | None = None
        if tensor.device.type != "cpu":
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._event = torch.Event(tensor.device)
            self._event.record()

    def wait(self) -> Tensor:
        """The values, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor
