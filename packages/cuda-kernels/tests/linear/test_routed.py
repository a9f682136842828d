"""A product and the logits of the router behind it, against the reference, for one row and for more."""

import pytest
import torch
from cuda_kernels import int4
from cuda_kernels.linear import routed_launch, routed_op
from cuda_kernels.testing import assert_close, check_operator, poisoned, random_int4, random_tensor

# outputs, columns, group, columns of a run
MATRICES = [(64, 64, 32, 16), (40, 128, 64, 64), (16, 96, 32, 32)]


def problem(
    tokens: int, matrix: tuple[int, int, int, int], device: torch.device
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the arguments of the operator, and the two more that a gated norm takes."""
    outputs, columns, group, run = matrix
    weight, scales = random_int4(outputs, columns, group_size=group, device=device)

    def tensor(*sizes: int) -> torch.Tensor:
        return random_tensor(*sizes, dtype=torch.float32, device=device)

    router = tensor(9, outputs)
    folded = torch.cat((router, router @ int4.dequantize(weight, scales, dtype=torch.float32)), 1)
    plain = {"x": tensor(tokens, columns), "weight": weight, "scales": scales, "residual": tensor(tokens, outputs)}
    return {**plain, "router": folded}, {"gate": tensor(tokens, columns), "norm_weight": tensor(run)}


@pytest.mark.parametrize("eps", [1e-6, 0.0], ids="eps{}".format)
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "plain"])
@pytest.mark.parametrize("tokens", [1, 3], ids="T{}".format)
@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: "N{}-K{}-g{}-run{}".format(*m))
def test_equals_reference(
    matrix: tuple[int, int, int, int], tokens: int, is_gated: bool, eps: float, device: torch.device
) -> None:
    plain, gated = problem(tokens, matrix, device)
    arguments = {**plain, **(gated if is_gated else dict.fromkeys(gated)), "eps": eps, "out_dtype": torch.float32}
    out, logits = (poisoned((tokens, n), torch.float32, device) for n in (matrix[0], 9))
    routed_launch.int4_linear_router_int8(**arguments, out=out, logits=logits)
    expected_out, expected_logits = routed_op._reference(**arguments)
    assert_close(out, expected_out, "int8")
    assert_close(logits, expected_logits, "float32")


def test_logits_are_those_of_the_sum(device: torch.device) -> None:
    plain, _ = problem(1, MATRICES[0], device)
    out, logits = routed_op.int4_linear_router_int8(**plain, out_dtype=torch.float32)
    router = plain["router"][:, : out.shape[1]]
    assert_close(logits, out @ router.T, "int8")


def test_operator(device: torch.device) -> None:
    plain, gated = problem(2, MATRICES[0], device)
    x, weight, scales, residual, router = plain.values()
    check_operator("int4_linear_router_int8", x, *gated.values(), 1e-6, weight, scales, residual, router, torch.float32)
