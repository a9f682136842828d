"""Large copies from pageable host memory to a CUDA device, through two pinned buffers that take turns."""

import threading

import torch

STAGE_NBYTES = 32 * 1024**2
"""Size of each pinned buffer."""


class StagedUpload:
    """Copy in pieces: while one piece is on its way to the device, the next is copied into the other buffer.

    A direct copy from pageable memory goes through a small buffer of the driver, piece by piece and with one thread.
    The pinned buffers are allocated by the first copy and kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: list[torch.Tensor] = []
        self._taken: list[torch.cuda.Event | None] = [None, None]

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy contiguous tensors of equal size on the device's current stream; `source` may be changed afterwards."""
        target, bytes_ = destination.view(-1).view(torch.uint8), source.reshape(-1).view(torch.uint8)
        with self._lock, torch.cuda.device(destination.device):
            if not self._stages:
                self._stages = [torch.empty(STAGE_NBYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            for i, start in enumerate(range(0, bytes_.numel(), STAGE_NBYTES)):
                piece = bytes_[start : start + STAGE_NBYTES]
                stage = self._stages[i % 2][: piece.numel()]
                if (taken := self._taken[i % 2]) is not None:
                    taken.synchronize()
                stage.copy_(piece)
                target[start : start + STAGE_NBYTES].copy_(stage, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
                self._taken[i % 2] = event
