"""The configuration of an export: who places operators, and per method who owns inputs and outputs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from export_passes.errors import ConfigError
from export_passes.placement import Partitioner


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodConfig:
    """Settings of one method.

    skip_h2d_for_method_inputs: the caller passes tensors that are already on the device which reads them.
    skip_d2h_for_method_outputs: outputs stay on the device that computes them.
    plan_inputs: inputs have memory of the method's own, into which the caller's are copied.
    plan_outputs: outputs lie in memory of the method's own; otherwise the caller supplies it.
    """

    skip_h2d_for_method_inputs: bool = False
    skip_d2h_for_method_outputs: bool = False
    plan_inputs: bool = False
    plan_outputs: bool = True

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not isinstance(value, bool):
                raise TypeError(f"MethodConfig.{entry.name}: expected a bool, got {value!r}")
        if self.skip_h2d_for_method_inputs and self.plan_inputs:
            raise ConfigError(
                "MethodConfig: skip_h2d_for_method_inputs says that the caller owns device tensors, plan_inputs that "
                "the method owns them: set one of the two"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Settings of an export.

    partitioner: gives each operator its place; None leaves all on the host.
    default: settings of the methods that `methods` does not name. methods: settings by method name.
    """

    partitioner: Partitioner | None = None
    default: MethodConfig = field(default_factory=MethodConfig)
    methods: Mapping[str, MethodConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.partitioner is not None and not callable(self.partitioner):
            raise TypeError(f"BackendConfig.partitioner: expected a partitioner or None, got {self.partitioner!r}")
        for name, config in (("default", self.default), *self.methods.items()):
            if not isinstance(config, MethodConfig):
                raise TypeError(f"BackendConfig, {name}: expected a MethodConfig, got {config!r}")
        object.__setattr__(self, "methods", MappingProxyType(dict(self.methods)))

    def of(self, method: str) -> MethodConfig:
        """Return the settings of `method`."""
        return self.methods.get(method, self.default)

    def check_methods(self, names: Collection[str]) -> None:
        """Raise ConfigError where settings are given for methods that are not among `names`."""
        known = set(names)
        if unknown := sorted(self.methods.keys() - known):
            raise ConfigError(
                f"BackendConfig.methods: no method is called {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
