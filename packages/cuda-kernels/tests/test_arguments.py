"""Wrong arguments: every operator refuses them with one message, which its CPU, fake and CUDA forms share."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cuda_kernels import library
from cuda_kernels.registration import OPERATORS

Arguments = dict[str, Any]

BY_NAME = {operator.name: operator for operator in OPERATORS}


def floats(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def integers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def int8_rows(tokens: int, columns: int) -> Arguments:
    values = integers(tokens, 2, columns // 2, dtype=torch.int8)
    return {"values": values, "scale": floats(tokens, columns // 32), "group_sum": floats(tokens, columns // 32)}


def int4_weight(name: str, scales: str, *shape: int) -> Arguments:
    *rows, columns = shape
    packed = integers(*rows, columns // 2, dtype=torch.uint8)
    return {name: packed, scales: floats(*rows, columns // 32)}


def routing(tokens: int) -> Arguments:
    return {"weights": floats(tokens, 2), "ids": integers(tokens, 2, dtype=torch.int32)}


def attention(rows: int) -> Arguments:
    cache = {"k_cache": floats(2, 1, 9, 16), "v_cache": floats(2, 1, 9, 16)}
    norms = {"q_norm": floats(16), "k_norm": floats(16), "rope": floats(9, 8)}
    return {"qkv": floats(rows, 6 * 16), **norms, **cache}


def delta_net(rows: int) -> Arguments:
    weights = {"conv_weight": floats(128, 4), "a_log": floats(2), "dt_bias": floats(2)}
    return {"projection": floats(rows, 128 + 64 + 4), **weights}


def delta_state() -> Arguments:
    return {"conv_state": floats(2, 2, 4, 96), "recurrent_state": floats(2, 2, 32, 32)}


def rule() -> Arguments:
    keys = {"q": floats(3, 1, 16), "k": floats(3, 1, 16)}
    return {**keys, "v": floats(3, 2, 8), "g": floats(3, 2), "beta": floats(3, 2), "initial_state": floats(1, 2, 16, 8)}


EXPERTS = {**int4_weight("gate_up", "gate_up_scales", 3, 64, 64), **int4_weight("down", "down_scales", 3, 64, 32)}
WEIGHT = int4_weight("weight", "scales", 5, 64)
ROUTER = {"weight": floats(4, 64), "top_k": 2, "shared_experts": 1}
BATCH = {"positions": integers(2), "slots": integers(2), "eps": 1e-6}
PARAMETERS = {
    "temperature": floats(2),
    "top_k": integers(2),
    **dict.fromkeys(("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"), floats(2)),
}

# Arguments that each operator takes, in the order of its schema.
VALID: dict[str, Arguments] = {
    "rms_norm": {"x": floats(2, 64), "weight": floats(64), "eps": 1e-6, "unit_offset": True},
    "rms_norm_gated": {"x": floats(2, 64), "gate": floats(2, 64), "weight": floats(32), "eps": 1e-6},
    "rms_norm_int8": {"x": floats(2, 64), "weight": floats(64), "eps": 1e-6, "unit_offset": True, "group_size": 32},
    "quantize_int8": {"x": floats(2, 64), "group_size": 32},
    "int4_linear": {"x": floats(2, 64), **WEIGHT, "residual": floats(2, 5), "out_dtype": None},
    "int4_linear_int8": {**int8_rows(2, 64), **WEIGHT, "residual": floats(2, 5), "out_dtype": torch.float32},
    "rms_norm_int4_linear_int8": {
        "x": floats(2, 64),
        "norm_weight": floats(64),
        "eps": 1e-6,
        **WEIGHT,
        "out_dtype": torch.float32,
    },
    "rms_norm_gated_int4_linear_int8": {
        "x": floats(2, 64),
        "gate": floats(2, 64),
        "norm_weight": floats(32),
        "eps": 1e-6,
        **WEIGHT,
        "residual": floats(2, 5),
        "out_dtype": torch.float32,
    },
    "int4_linear_router_int8": {
        "x": floats(2, 64),
        "gate": floats(2, 64),
        "norm_weight": floats(32),
        "eps": 1e-6,
        **WEIGHT,
        "residual": floats(2, 5),
        "router": floats(4, 69),
        "out_dtype": torch.float32,
    },
    "routed_moe_int4_int8": {
        "x": floats(2, 64),
        "norm_weight": floats(64),
        "eps": 1e-6,
        "logits": floats(2, 3),
        **EXPERTS,
        "top_k": 2,
        "shared_experts": 1,
    },
    "moe_router": {"x": floats(2, 64), **ROUTER},
    "rms_norm_router_int8": {"x": floats(2, 64), "norm_weight": floats(64), "eps": 1e-6, **ROUTER, "group_size": 32},
    "fused_moe": {
        "x": floats(2, 64),
        **routing(2),
        "gate_up": floats(3, 64, 64),
        "down": floats(3, 64, 32),
        "residual": floats(2, 64),
    },
    "fused_moe_int4": {"x": floats(2, 64), **routing(2), **EXPERTS, "residual": floats(2, 64)},
    "fused_moe_int4_int8": {
        **int8_rows(2, 64),
        **routing(2),
        **EXPERTS,
        "residual": floats(2, 64),
        "out_dtype": torch.float32,
    },
    "moe_align_block_size": {"ids": integers(2, 2, dtype=torch.int32), "block_size": 16, "num_experts": 3},
    "sort_stable": {"keys": floats(2, 9), "dim": 1, "descending": False},
    "attention_decode": {**attention(2), **BATCH},
    "attention_decode_int8": {**attention(2), **BATCH, "group_size": 32},
    "attention_prefill": {**attention(3), "start": integers(1), "slot": integers(1), "eps": 1e-6},
    "gated_delta_net_decode": {
        **delta_net(2),
        **delta_state(),
        "positions": integers(2),
        "slots": torch.tensor([0, -1]),
        "key_heads": 1,
    },
    "gated_delta_net_prefill": {
        **delta_net(3),
        "norm_weight": floats(32),
        **delta_state(),
        "start": integers(1),
        "slot": integers(1),
        "eps": 1e-6,
        "key_heads": 1,
    },
    "recurrent_gated_delta_rule": rule(),
    "chunk_gated_delta_rule": {**rule(), "cu_seqlens": torch.tensor([0, 3], dtype=torch.int32)},
    "sample_tokens": {
        "logits": floats(2, 9),
        **PARAMETERS,
        **{name: integers(2) for name in ("seeds", "positions")},
        "slots": torch.tensor([0, -1]),
        "history": integers(2, 9, dtype=torch.int32),
        "vocab_size": 9,
    },
    "mark_prompt": {
        "tokens": integers(3),
        "start": integers(1),
        "slot": integers(1),
        "history": integers(2, 9, dtype=torch.int32),
    },
}


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return an equal tensor that is not contiguous."""
    return torch.stack((tensor, tensor), -1)[..., 0]


CHANGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "dtype": (lambda t: t.to(torch.complex64), "expected dtype torch.* got torch.complex64"),
    "rank": (lambda t: t.unsqueeze(0), r"expected shape \(.*\), got shape \(1, "),
    "strides": (strided, r"expected a contiguous tensor, got strides \("),
    "device": (lambda t: t.to("meta"), "expected device cpu, got meta"),
}


def wrong_tensors() -> Iterator[tuple[str, str, str]]:
    """Yield operator, argument and change, where the change makes the argument wrong."""
    for name, valid in VALID.items():
        first, *_ = valid
        for argument, value in valid.items():
            if isinstance(value, torch.Tensor):
                yield name, argument, "dtype"
                if name != "sort_stable":  # takes any shape
                    yield name, argument, "rank"
                if value.numel() > 1:  # one element has no strides to get wrong
                    yield name, argument, "strides"
                if argument != first:  # all others must be where the first one is
                    yield name, argument, "device"


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a kernel was launched with wrong arguments")


def messages(name: str, arguments: Arguments) -> set[str]:
    """Return what the forms of an operator say of wrong arguments; each must raise ValueError."""
    operator = BY_NAME[name]
    on_cuda = library._functional_cuda(
        library.Operator(schema=operator.schema, reference=refuse, fake=operator.fake, cuda=refuse)
    )
    said = set()
    for form in (operator.reference, operator.fake, on_cuda):
        with pytest.raises(ValueError, match=f"^{name}: ") as caught:
            form(*arguments.values())
        said.add(str(caught.value))
    return said


def test_every_operator_has_a_row() -> None:
    assert VALID.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", VALID)
def test_the_arguments_of_the_table_are_accepted(name: str) -> None:
    copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in VALID[name].values()]
    getattr(torch.ops.cuda_kernels, name)(*copies)


@pytest.mark.parametrize(("name", "argument", "change"), list(wrong_tensors()), ids=lambda value: value)
def test_wrong_tensor(name: str, argument: str, change: str) -> None:
    alter, expected = CHANGES[change]
    (message,) = messages(name, VALID[name] | {argument: alter(VALID[name][argument])})
    assert re.match(f"{name}: {argument}: {expected}", message), message


NUMBERS = [
    ("rms_norm_int8", "group_size", -32, "expected one of (32, 64, 128), got -32"),
    ("rms_norm_int8", "group_size", 128, "expected a divisor of 64 columns, got 128"),
    ("quantize_int8", "group_size", 0, "expected one of (32, 64, 128), got 0"),
    ("int4_linear", "out_dtype", torch.int32, "expected one of"),
    ("int4_linear_int8", "out_dtype", torch.float64, "expected one of"),
    ("rms_norm_int4_linear_int8", "out_dtype", torch.float64, "expected one of"),
    ("rms_norm_gated_int4_linear_int8", "out_dtype", torch.int8, "expected one of"),
    ("int4_linear_router_int8", "out_dtype", torch.int8, "expected one of"),
    ("int4_linear_router_int8", "gate", None, "expected it and norm_weight, or neither, got one of them"),
    ("routed_moe_int4_int8", "top_k", 3, "expected a number of experts in [1, 2], got 3"),
    ("routed_moe_int4_int8", "shared_experts", -1, "expected at least 0, got -1"),
    ("moe_router", "top_k", 0, "expected a number of experts in [1, 3], got 0"),
    ("moe_router", "top_k", 4, "expected a number of experts in [1, 3], got 4"),
    ("moe_router", "shared_experts", -1, "expected at least 0, got -1"),
    ("rms_norm_router_int8", "group_size", 48, "expected one of (32, 64, 128), got 48"),
    ("fused_moe_int4_int8", "out_dtype", torch.int8, "expected one of"),
    ("moe_align_block_size", "block_size", -16, "expected at least 1, got -16"),
    ("moe_align_block_size", "num_experts", 0, "expected at least 1, got 0"),
    ("sort_stable", "dim", -3, "expected an index in [-2, 2), got -3"),
    ("attention_decode_int8", "group_size", 128, "expected a divisor of 32 columns, got 128"),
    ("gated_delta_net_decode", "key_heads", -1, "expected a divisor of 2 value heads, got -1"),
    ("sample_tokens", "vocab_size", -1, "expected 1 … 9, got -1"),
]


@pytest.mark.parametrize(
    ("name", "argument", "value", "expected"), NUMBERS, ids=["-".join(map(str, row[:3])) for row in NUMBERS]
)
def test_wrong_number(name: str, argument: str, value: object, expected: str) -> None:
    (message,) = messages(name, VALID[name] | {argument: value})
    assert message.startswith(f"{name}: {argument}: {expected}")


# Only a host can read these: the CPU raises, CUDA takes them for padding.
PLACES = [
    ("attention_decode", "slots", torch.tensor([0, 2]), "expected -1 or 0 … 1, got 2"),
    ("attention_decode", "positions", torch.tensor([0, -1]), "expected 0 … 8, got -1"),
    ("attention_prefill", "slot", torch.tensor([-2]), "expected -1 or 0 … 1, got -2"),
    ("attention_prefill", "start", torch.tensor([7]), "expected 0 … 6, to fit the cache, got 7"),
    ("gated_delta_net_decode", "positions", torch.tensor([-1, -1]), "expected at least 0, got -1"),
    ("gated_delta_net_decode", "slots", torch.tensor([0, 2]), "expected -1 or 0 … 1, got 2"),
    ("gated_delta_net_prefill", "slot", torch.tensor([2]), "expected -1 or 0 … 1, got 2"),
    ("gated_delta_net_prefill", "start", torch.tensor([-1]), "expected at least 0, got -1"),
    ("chunk_gated_delta_rule", "cu_seqlens", torch.tensor([0, 2], dtype=torch.int32), "expected rising offsets"),
    ("sample_tokens", "slots", torch.tensor([-2, 0]), "expected -1 or 0 … 1, got -2"),
    ("mark_prompt", "slot", torch.tensor([2]), "expected -1 or 0 … 1, got 2"),
    ("mark_prompt", "tokens", torch.tensor([1, 9, 2]), "expected 0 … 8, got [9]"),
]


@pytest.mark.parametrize(
    ("name", "argument", "value", "expected"), PLACES, ids=[f"{row[0]}-{row[1]}" for row in PLACES]
)
def test_place_out_of_range(name: str, argument: str, value: torch.Tensor, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: {argument}: ") as caught:
        getattr(torch.ops.cuda_kernels, name)(*(VALID[name] | {argument: value}).values())
    assert expected in str(caught.value)
