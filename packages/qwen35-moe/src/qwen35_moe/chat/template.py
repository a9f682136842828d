"""Conversations to prompt text: a checkpoint's ``chat_template.jinja``, rendered in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qwen35_moe.errors import Qwen35MoeError

Message = Mapping[str, Any]
"""``role`` and ``content``, and where they apply ``reasoning_content`` and ``tool_calls``."""


class ChatTemplateError(Qwen35MoeError):
    """A chat template that cannot be read, or that refuses a conversation."""


def _raise(message: str) -> None:
    raise ChatTemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON as models were trained on it: not escaped for HTML, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """A compiled chat template.

    The template sees what templates of Hugging Face checkpoints expect: ``messages``, ``tools``,
    ``add_generation_prompt``, any further keyword, ``raise_exception``, ``strftime_now``, and ``tojson`` without HTML
    escapes.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template: line {error.lineno}: {error.message}") from error

    @classmethod
    def from_file(cls, path: Path) -> "ChatTemplate":
        """Read and compile a template file."""
        return cls(path.read_text(encoding="utf-8"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt text of a conversation.

        ``variables`` are passed on, such as ``enable_thinking=False``.

        Raises ChatTemplateError when the template refuses the conversation or fails on it.
        """
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables
            )
        except (jinja2.TemplateError, TypeError, AttributeError) as error:
            raise ChatTemplateError(f"chat template: {error}") from error
