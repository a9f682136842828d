"""The errors of this package: each message is one line that names the thing, what was expected and what was given."""


class Qwen35MoeError(Exception):
    """Base of every error that a user of this package can cause and mend."""


class ConfigError(Qwen35MoeError):
    """A `config.json` that lacks a key, contradicts itself, or describes another architecture."""


class CheckpointError(Qwen35MoeError):
    """A checkpoint with a missing, truncated, unknown or wrongly shaped part."""


class ExportError(Qwen35MoeError):
    """Export options that do not fit the model, such as a group size that does not divide a matrix."""


class EngineError(Qwen35MoeError):
    """A program folder that the engine cannot run: not a model, or placed on a device that is not here."""


class PromptError(Qwen35MoeError, ValueError):
    """A request that the engine refuses: empty, longer than the context, an unknown token, a slot that is not there."""


class SamplingError(Qwen35MoeError, ValueError):
    """A sampling parameter outside its range."""


class MemoryPlanError(Qwen35MoeError):
    """A program that does not fit into the memory that the device has free."""
