"""One generation as text: the engine's tokens through the detokenizer, with what it took."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from qwen35_moe.engine import Engine
from qwen35_moe.sampling import SamplingParameters
from qwen35_moe.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds of one generation, and the speeds that follow.

    load_s: until the model was ready. first_token_s: from there to the first token, the prompt included.
    output_s: from the first token to the last.
    """

    prompt_tokens: int
    output_tokens: int
    load_s: float
    first_token_s: float
    output_s: float

    @property
    def prompt_tokens_per_s(self) -> float:
        """Return prompt tokens over the time to the first token."""
        return self.prompt_tokens / self.first_token_s if self.first_token_s else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Return the rate of the tokens after the first; 0 where there is one at most."""
        return (self.output_tokens - 1) / self.output_s if self.output_tokens > 1 and self.output_s else 0.0

    def document(self) -> dict[str, float]:
        """Return the figures for JSON."""
        return {
            "load_s": self.load_s,
            "first_token_s": self.first_token_s,
            "output_s": self.output_s,
            "prompt_tokens_per_s": self.prompt_tokens_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
        }

    def describe(self) -> str:
        """Return the figures in one line."""
        return (
            f"loaded in {self.load_s:.2f} s; first token after {self.first_token_s * 1e3:.0f} ms "
            f"({self.prompt_tokens} prompt tokens, {self.prompt_tokens_per_s:.0f}/s); "
            f"{self.output_tokens} tokens at {self.output_tokens_per_s:.1f}/s"
        )


@dataclass(slots=True, kw_only=True)
class Completion:
    """A text that is being generated, and in the end the whole of it."""

    prompt_ids: list[int]
    load_s: float
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    first_token_s: float = 0.0
    output_s: float = 0.0

    @property
    def timings(self) -> Timings:
        """Return what it took so far."""
        return Timings(
            prompt_tokens=len(self.prompt_ids),
            output_tokens=len(self.token_ids),
            load_s=self.load_s,
            first_token_s=self.first_token_s,
            output_s=self.output_s,
        )

    def document(self) -> dict[str, Any]:
        """Return the whole for JSON."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "counts": {"prompt_tokens": len(self.prompt_ids), "output_tokens": len(self.token_ids)},
            "timings": self.timings.document(),
        }


def stream_text(
    engine: Engine, tokenizer: Tokenizer, completion: Completion, sampling: SamplingParameters, *, max_new_tokens: int
) -> Iterator[str]:
    """Yield the text piece by piece, whole characters only, while ``completion`` is filled in.

    Raises PromptError as `Engine.generate` does.
    """
    stream = Detokenizer(tokenizer)
    begin = time.perf_counter()
    generation = engine.generate(completion.prompt_ids, sampling, max_new_tokens=max_new_tokens)
    for token in generation:
        now = time.perf_counter() - begin
        if not completion.token_ids:
            completion.first_token_s = now
        completion.token_ids.append(token)
        completion.output_s = now - completion.first_token_s
        if piece := stream.push(token):
            completion.text += piece
            yield piece
    completion.finish_reason = generation.finish_reason
    if rest := stream.flush():
        completion.text += rest
        yield rest
