"""The decode loop: a step chooses the next token of a slot with all of its inputs already on the device.

Row i of every tensor belongs to slot i; B rows. A step reads nothing from the host and gives it 8 bytes a row. On a GPU
a step is one CUDA graph, and two are in flight: the next is launched before the token of the last is read.
"""

from functools import partial

import torch
from device_core import Device, Session

from qwen35_moe.sampling import COLUMNS, SamplingParameters


class PendingToken:
    """A token that a launched step is choosing for one row."""

    def __init__(self, tokens: torch.Tensor, row: int, done: torch.cuda.Event | None) -> None:
        self._tokens, self._row, self._done = tokens, row, done
        self._value: int | None = None

    def wait(self) -> int:
        """Return the token; the first call waits for its step and for nothing else."""
        if self._value is None:
            if self._done is not None:
                self._done.synchronize()
            self._value = int(self._tokens[self._row])
        return self._value


class _Cell:
    """Host memory for the tokens of one step in flight, and what launches that step."""

    def __init__(self, count: int, *, on_gpu: bool) -> None:
        self.tokens = torch.zeros(count, dtype=torch.int64, pin_memory=on_gpu)
        self.done = torch.cuda.Event() if on_gpu else None
        self._pending: PendingToken | None = None

    def claim(self) -> None:
        """Read the token of the last step that used this memory, before the next one does."""
        if self._pending is not None:
            self._pending.wait()

    def launched(self, row: int) -> PendingToken:
        """Return the token of `row` of the step that was just put on the current stream."""
        if self.done is not None:
            self.done.record()
        self._pending = PendingToken(self.tokens, row, self.done)
        return self._pending


class DecodeLoop:
    """Rows of one session: their last tokens, positions and sampling parameters, kept on the device.

    A row's position is that of its last token, which the next step runs through the model.
    """

    def __init__(self, session: Session, device: Device, *, slots: int, vocab_size: int) -> None:
        self._session = session
        self._count = slots
        self.runs_ahead = not device.is_host

        def rows(dtype: torch.dtype = torch.int64, fill: int = 0) -> torch.Tensor:
            return torch.full((slots,), fill, dtype=dtype, device=device.torch)

        self._positions, self._slots = rows(), rows(fill=-1)
        self._active, self._increments = rows(torch.bool), rows()
        self._columns = tuple(rows(dtype) for _, dtype in COLUMNS)
        self._logits = torch.zeros(slots, vocab_size, device=device.torch)
        self._selected: int | None = None
        # The only row's token stays where `sample` puts it, which `decode` reads.
        self._tokens = self._choose(session, self._logits) if slots == 1 else rows()
        self._cells = [_Cell(slots, on_gpu=self.runs_ahead) for _ in range(2 if self.runs_ahead else 1)]
        self._turn = 0
        rows_in_place = (self._tokens, self._positions)
        self._graphs = [
            session.capture_function(partial(self._advance, cell=cell), preserved=rows_in_place)
            for cell in self._cells
            if self.runs_ahead
        ]

    def begin(self, slot: int, logits: torch.Tensor, position: int, sampling: SamplingParameters) -> PendingToken:
        """Choose the first token of `slot`, at `position`, from the logits (1, V) of its prompt."""
        self._select(slot)
        for column, (name, _) in zip(self._columns, COLUMNS, strict=True):
            column[slot] = getattr(sampling, name)
        self._positions[slot] = position
        if self._count > 1:
            self._logits[slot].copy_(logits[0])
            logits = self._logits
        cell = self._next_cell()
        self._sample(self._session, logits, cell)
        return cell.launched(slot)

    def step(self, slot: int) -> PendingToken:
        """Run the last token of `slot` through the model and choose the next."""
        self._select(slot)
        cell = self._next_cell()
        if self._graphs:
            self._graphs[self._turn].replay()
        else:
            self._advance(self._session, cell)
        return cell.launched(slot)

    def close(self) -> None:
        """Free the graphs; a second call does nothing."""
        for graph in self._graphs:
            graph.close()

    def _advance(self, session: Session, cell: _Cell) -> None:
        (logits,) = session.execute("decode", (self._tokens, self._positions, self._slots))
        assert isinstance(logits, torch.Tensor)
        self._positions.add_(self._increments)
        self._sample(session, logits, cell)

    def _sample(self, session: Session, logits: torch.Tensor, cell: _Cell) -> None:
        sampled = self._choose(session, logits)
        if self._count > 1:
            torch.where(self._active, sampled, self._tokens, out=self._tokens)
        cell.tokens.copy_(self._tokens, non_blocking=True)

    def _choose(self, session: Session, logits: torch.Tensor) -> torch.Tensor:
        (sampled,) = session.execute("sample", (logits, *self._columns, self._positions, self._slots))
        assert isinstance(sampled, torch.Tensor)
        return sampled

    def _select(self, slot: int) -> None:
        """Make `slot` the only active row; the others keep their tokens and positions."""
        if self._selected != slot:
            for rows, inactive, active in (
                (self._slots, -1, slot),
                (self._active, False, True),
                (self._increments, 0, 1),
            ):
                rows.fill_(inactive)
                rows[slot] = active
            self._selected = slot

    def _next_cell(self) -> _Cell:
        self._turn = (self._turn + 1) % len(self._cells)
        self._cells[self._turn].claim()
        return self._cells[self._turn]
