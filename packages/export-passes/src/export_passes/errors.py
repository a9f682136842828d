"""The errors of the package; all derive from `ExportError`."""


class ExportError(Exception):
    """Base of every error that this package raises on its own account."""


class ConfigError(ExportError, ValueError):
    """A configuration that cannot work, or that speaks of methods which do not exist."""


class UnsupportedError(ExportError):
    """Something in an exported graph that cannot become part of a program."""


class ConstantConflictError(ExportError, ValueError):
    """Two methods that disagree about the constant or state of one name."""


class PlanError(ExportError):
    """A memory plan in which two tensors that are alive together share bytes, or one lies outside its buffer."""


class PassError(ExportError):
    """A pass that failed; its message names the pass, the method and, where there is one, the node."""

    def __init__(self, pass_name: str, method: str, node: str | None, message: str) -> None:
        where = f"pass {pass_name}, method {method!r}" + (f", node {node!r}" if node else "")
        super().__init__(f"{where}: {message}")
        self.pass_name = pass_name
        self.method = method
        self.node = node
