"""Conversations: from messages to prompt text."""

from qwen35_moe.chat.template import ChatTemplate, ChatTemplateError, Message

__all__ = ["ChatTemplate", "ChatTemplateError", "Message"]
