"""Configurations that are refused when they are made, or when they meet the methods."""

from typing import Any

import pytest
import torch
from device_core import Device
from device_core.schema.types import Program
from export_passes import BackendConfig, ConfigError, DevicePartitioner, MethodConfig, PassError, lower
from export_passes.testing import Apply
from torch.export import export

FIELDS = ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs", "plan_inputs", "plan_outputs")
NOT_FLAGS = [
    *(pytest.param(value, id=repr(value)) for value in (1, 0, None, "yes", [True])),
    pytest.param({"nope": True}, id="G21-true-for-one-method"),
    pytest.param({"forward": False}, id="G21-false-for-one-method"),
]


@pytest.mark.parametrize("value", NOT_FLAGS)
@pytest.mark.parametrize("name", FIELDS)
def test_flags_are_bools(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"MethodConfig.{name}: expected a bool"):
        MethodConfig(**{name: value})


def test_g3_skipped_copy_into_planned_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="set one of the two"):
        MethodConfig(skip_h2d_for_method_inputs=True, plan_inputs=True)


@pytest.mark.parametrize("config", [True, {"plan_inputs": True}, None], ids=repr)
def test_settings_are_method_configs(config: Any) -> None:
    with pytest.raises(TypeError, match="expected a MethodConfig"):
        BackendConfig(methods={"forward": config})
    with pytest.raises(TypeError, match="expected a MethodConfig"):
        BackendConfig(default=config)


def test_partitioner_is_callable() -> None:
    with pytest.raises(TypeError, match="expected a partitioner or None, got 'cuda:0'"):
        BackendConfig(partitioner="cuda:0")  # type: ignore[arg-type]


def test_methods_that_do_not_exist_are_named() -> None:
    exported = export(Apply(torch.sin), (torch.ones(2),))
    with pytest.raises(ConfigError, match="no method is called decode, prefil; there are prefill"):
        lower({"prefill": exported}, BackendConfig(methods={"prefil": MethodConfig(), "decode": MethodConfig()}))


def test_answer_of_a_partitioner_is_checked() -> None:
    exported = export(Apply(torch.sin), (torch.ones(2),))
    with pytest.raises(PassError, match=r"pass partition, method 'f', node 'sin': .*expected a Placement or None"):
        lower({"f": exported}, BackendConfig(partitioner=lambda method, node: "cuda:0"))  # type: ignore[arg-type,return-value]


def test_configurations_do_not_change_with_what_they_were_made_of() -> None:
    methods = {"f": MethodConfig()}
    config = BackendConfig(methods=methods)
    methods["g"] = MethodConfig(plan_inputs=True)
    assert set(config.methods) == {"f"}
    with pytest.raises(TypeError):
        config.methods["g"] = MethodConfig()  # type: ignore[index]


def test_one_configuration_serves_two_programs() -> None:
    config = BackendConfig(partitioner=DevicePartitioner(Device.parse("cuda:0")))

    def lowered() -> Program:
        return lower({"forward": export(Apply(lambda x: x.exp() + 1), (torch.ones(3),))}, config).program

    first, second = lowered(), lowered()
    assert first == second
    assert {buffer.device for buffer in first.methods[0].buffers} == {"cpu", "cuda:0"}
