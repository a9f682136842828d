"""The decode loop: one step chooses the next token of every active row, with all of its inputs already on the device.

Row i of every tensor belongs to slot i; B rows. A step reads nothing from the host and gives it 8 bytes a row.
"""

from collections.abc import Callable

import torch
from device_core import Device, Session

from qwen35_moe.sampling import COLUMNS, SamplingParameters


class PendingToken:
    """A token that a launched step is choosing."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read: Callable[[], int] | None = read
        self._token = -1

    def wait(self) -> int:
        """Return the token; the first call waits for its step."""
        if self._read is not None:
            self._token, self._read = self._read(), None
        return self._token


class DecodeLoop:
    """Rows of one session: their last tokens, positions, and sampling parameters, kept on the device.

    position: of the row's last token, which the next step runs through the model.
    """

    def __init__(self, session: Session, device: Device, *, slots: int, vocab_size: int) -> None:
        self._session = session
        self._device = device.torch
        self._count = slots

        def rows(dtype: torch.dtype = torch.int64, fill: int = 0) -> torch.Tensor:
            return torch.full((slots,), fill, dtype=dtype, device=self._device)

        self._tokens, self._positions, self._slots = rows(), rows(), rows(fill=-1)
        self._columns = tuple(rows(dtype) for _, dtype in COLUMNS)
        self._logits = torch.zeros(slots, vocab_size, device=self._device)
        self._active: int | None = None

    @property
    def runs_ahead(self) -> bool:
        """Return whether a step should be launched before the token of the last is read."""
        return self._device.type == "cuda"

    def begin(self, slot: int, logits: torch.Tensor, position: int, sampling: SamplingParameters) -> PendingToken:
        """Choose the first token of `slot`, at `position`, from the logits (1, V) of its prompt."""
        self._select(slot)
        for column, (name, _) in zip(self._columns, COLUMNS, strict=True):
            column[slot] = getattr(sampling, name)
        self._positions[slot] = position
        if self._count == 1:
            self._sample(logits)
        else:
            self._logits[slot].copy_(logits[0])
            self._sample(self._logits)
        return self._pending(slot)

    def step(self, slot: int) -> PendingToken:
        """Run the last token of `slot` through the model and choose the next."""
        self._select(slot)
        self._advance()
        return self._pending(slot)

    def _advance(self) -> None:
        (logits,) = self._session.execute("decode", (self._tokens, self._positions, self._slots))
        assert isinstance(logits, torch.Tensor)
        self._positions.add_(self._slots >= 0)
        self._sample(logits)

    def _sample(self, logits: torch.Tensor) -> None:
        (sampled,) = self._session.execute("sample", (logits, *self._columns, self._positions, self._slots))
        assert isinstance(sampled, torch.Tensor)
        torch.where(self._slots >= 0, sampled, self._tokens, out=self._tokens)

    def _select(self, slot: int) -> None:
        """Make `slot` the only active row; the others keep their tokens and positions."""
        if self._active != slot:
            self._slots.fill_(-1)
            self._slots[slot] = slot
            self._active = slot

    def _pending(self, slot: int) -> PendingToken:
        token = int(self._tokens[slot])
        return PendingToken(lambda: token)
