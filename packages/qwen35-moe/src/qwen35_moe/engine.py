"""The engine: prompts of token ids in, token ids out; it knows nothing of text."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import cuda_kernels
import torch
from device_core import CaptureCache, Device, Module
from device_core.schema.codec import read_program
from device_core.schema.types import Program

from qwen35_moe.decode_loop import DecodeLoop
from qwen35_moe.errors import EngineError, PromptError
from qwen35_moe.memory import MemoryPlan, check_memory, nbytes_free, plan_memory
from qwen35_moe.sampling import SamplingParameters

# bfloat16 in tensor cores begins here.
_OLDEST_CAPABILITY = (8, 0)
# Lengths of prompts that keep a CUDA graph.
_CAPTURED_LENGTHS = 8

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInfo:
    """What the exporter wrote into a program's metadata."""

    context: int
    chunk: int
    slots: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: Device
    quant: str

    @classmethod
    def of(cls, program: Program, where: object) -> Self:
        """Read the metadata. Raises EngineError where it is not that of a model."""
        data = program.metadata
        if data.get("model") != "qwen3_5_moe":
            raise EngineError(f"{where}: not a Qwen3.5-MoE program: metadata names model {data.get('model')!r}")
        try:
            return cls(
                context=int(data["context"]),
                chunk=int(data["chunk"]),
                slots=int(data["slots"]),
                vocab_size=int(data["vocab_size"]),
                eos_token_ids=tuple(map(int, str(data["eos_token_ids"]).split())),
                device=Device.parse(str(data["device"])),
                quant=str(data["quant"]),
            )
        except (KeyError, ValueError) as error:
            raise EngineError(f"{where}: metadata of the program is damaged: {error!r}") from error


class Generation(Iterator[int]):
    """The tokens of one output, chosen as they are asked for.

    finish_reason: None while there may be more; `stop` after an end-of-sequence id, which is not yielded; `length`
    where `max_new_tokens` or the context was reached.
    """

    def __init__(self, tokens: Iterator[int | FinishReason]) -> None:
        self._tokens = tokens
        self.finish_reason: FinishReason | None = None

    def __next__(self) -> int:
        token = next(self._tokens)
        if isinstance(token, int):
            return token
        self.finish_reason = token
        raise StopIteration


class Engine:
    """A loaded program with one session of state, whose slots hold one sequence each. A context manager."""

    def __init__(self, module: Module, info: ProgramInfo, device: Device) -> None:
        self.info = info
        self.device = device
        self.module = module
        self.session = module.new_session()
        self._owners: dict[int, object] = {}
        self._prefills = CaptureCache(self.session, "prefill", capacity=_CAPTURED_LENGTHS)
        self._seen_lengths: set[int] = set()
        self._length_symbol = module.method_meta("prefill").symbols[0].name
        self._loop = DecodeLoop(self.session, device, slots=info.slots, vocab_size=info.vocab_size)

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto", on_plan: Callable[[MemoryPlan], None] | None = None) -> Self:
        """Load a program folder onto the device it was exported for (`auto`), or onto `device`.

        A program for a GPU also runs on the CPU; one for the CPU has not the form that a GPU wants. `on_plan` is told
        what will be occupied, before anything is. Raises EngineError and MemoryPlanError before a byte goes to a
        device, and what `Module.load` raises.
        """
        cuda_kernels.register()
        program = read_program(folder)
        info = ProgramInfo.of(program, folder)
        target = info.device if device == "auto" else Device.parse(device)
        if info.device.is_host and not target.is_host:
            raise EngineError(f"{folder}: exported for {info.device}, cannot run on {target}; export for {target}")
        if not target.is_host:
            check_gpu(target)
        if target.type == info.device.type:
            plan = plan_memory(program, info.device, nbytes_free=nbytes_free(target))
            if on_plan is not None:
                on_plan(plan)
            check_memory(plan)
        module = Module.load(folder, device=target)
        try:
            return cls(module, info, target)
        except BaseException:
            module.close()
            raise

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParameters | None = None,
        *,
        max_new_tokens: int,
        slot: int = 0,
        stop_ids: Collection[int] | None = None,
    ) -> Generation:
        """Return the tokens that follow a prompt, in a slot whose earlier sequence is forgotten.

        stop_ids: ids that end the output; None: the model's own.

        Generations of different slots may be interleaved in any order; each gives what it gives alone. Work begins
        with the first token that is asked for. Raises PromptError where the prompt is empty, does not fit the
        context, or holds an id that is not in the vocabulary; the output ends with the context at the latest.
        """
        self._check(prompt_ids, max_new_tokens, slot)
        stops = frozenset(self.info.eos_token_ids if stop_ids is None else stop_ids)
        # The last token is chosen but never run through the model, so one more than the context's rest fits.
        limit = min(max_new_tokens, self.info.context - len(prompt_ids) + 1)
        return Generation(self._run(list(prompt_ids), sampling or SamplingParameters(), slot, limit, stops))

    def prefill(self, tokens: Sequence[int], *, slot: int = 0, start: int = 0) -> torch.Tensor:
        """Run tokens at `start` of a slot, in chunks; return the logits (1, V) of the last until the next call."""
        ids = torch.tensor(tokens, device=self.device.torch)
        for begin in range(0, len(tokens), self.info.chunk):
            logits = self._prefill_chunk(ids[begin : begin + self.info.chunk], start + begin, slot)
        return logits

    def close(self) -> None:
        """Free all memory; a second call does nothing."""
        self._prefills.close()
        self._loop.close()
        self.module.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self, prompt: list[int], sampling: SamplingParameters, slot: int, limit: int, stops: frozenset[int]
    ) -> Iterator[int | FinishReason]:
        self._owners[slot] = owner = object()
        pending = [self._loop.begin(slot, self.prefill(prompt, slot=slot), len(prompt), sampling)]
        for chosen in range(1, limit + 1):
            if self._loop.runs_ahead and chosen < limit:
                pending.append(self._loop.step(slot))
            token = pending.pop(0).wait()
            if token in stops:
                yield "stop"
                return
            yield token
            if self._owners[slot] is not owner:
                raise EngineError(f"slot {slot}: a later generation has taken it; this one cannot go on")
            if not pending and chosen < limit:
                pending.append(self._loop.step(slot))
        yield "length"

    def _prefill_chunk(self, ids: torch.Tensor, start: int, slot: int) -> torch.Tensor:
        """Run one piece; on a GPU as a graph from the second time that its length occurs."""
        count = len(ids)
        inputs = (ids, *(torch.full((1,), value, device=ids.device) for value in (start, slot)))
        if self.device.is_host or count not in self._seen_lengths:
            self._seen_lengths.add(count)
            (logits,) = self.session.execute("prefill", inputs)
        else:
            capture = self._prefills.get({self._length_symbol: count})
            for static, value in zip(capture.inputs, inputs, strict=True):
                assert isinstance(static, torch.Tensor)
                static.copy_(value)
            capture.replay()
            (logits,) = capture.outputs
        assert isinstance(logits, torch.Tensor)
        return logits

    def _check(self, prompt: Sequence[int], max_new_tokens: int, slot: int) -> None:
        info = self.info
        if not prompt:
            raise PromptError("prompt: expected at least one token, got an empty prompt")
        if len(prompt) > info.context:
            raise PromptError(f"prompt: {len(prompt)} tokens do not fit the context of {info.context}")
        if wrong := [token for token in prompt if not 0 <= token < info.vocab_size]:
            raise PromptError(f"prompt: expected token ids from 0 to {info.vocab_size - 1}, got {wrong[0]}")
        if max_new_tokens < 1:
            raise PromptError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
        if not 0 <= slot < info.slots:
            raise PromptError(f"slot: expected 0 to {info.slots - 1}, got {slot}")


def check_gpu(device: Device) -> None:
    """Raise EngineError where the machine has no such GPU, or one that the kernels are not written for."""
    count = torch.cuda.device_count()
    if device.index >= count:
        raise EngineError(f"{device}: this machine has {count} CUDA devices that its driver and torch can use")
    capability = torch.cuda.get_device_capability(device.index)
    if capability < _OLDEST_CAPABILITY:
        raise EngineError(
            f"{device}: {torch.cuda.get_device_name(device.index)} has compute capability {_dotted(capability)}; "
            f"expected {_dotted(_OLDEST_CAPABILITY)} or newer"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
