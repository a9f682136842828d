"""The rule in plain torch: chunked against token by token, splits, packed sequences, extreme gates."""

from collections.abc import Callable

import pytest
import torch
from cuda_kernels.gated_delta_rule import reference
from cuda_kernels.testing import relative_error

HEADS, DIMS = (2, 4), (16, 8)


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply S ← exp(g) (I - beta k kᵀ) S + beta k vᵀ, o = Sᵀ q, head by head, in float64."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    state, out = state.double().clone(), torch.empty(v.shape, dtype=torch.float64)
    for t in range(v.shape[0]):
        for h in range(v.shape[1]):
            key, query = (x[t, h // (v.shape[1] // k.shape[1])] for x in (k, q))
            keep = torch.eye(len(key), dtype=torch.float64) - beta[t, h] * torch.outer(key, key)
            state[h] = g[t, h].exp() * keep @ state[h] + beta[t, h] * torch.outer(key, v[t, h])
            out[t, h] = query @ state[h]
    return out, state


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 130])
def test_both_forms_follow_the_definition(rule: Callable, tokens: int) -> None:
    inputs, initial = rule(tokens, HEADS, DIMS), torch.randn(1, HEADS[1], *DIMS)
    expected, expected_state = by_definition(*inputs, initial[0])
    for form in (reference.recurrent_gated_delta_rule, reference.chunk_gated_delta_rule):
        out, final = form(*inputs, initial)
        assert relative_error(out, expected) < 1e-5
        assert relative_error(final[0], expected_state) < 1e-5


def test_every_length_and_every_split_agree(rule: Callable) -> None:
    inputs, initial = rule(130, (1, 1), (8, 8)), torch.randn(1, 1, 8, 8)
    whole, final = reference.recurrent_gated_delta_rule(*inputs, initial)
    for length in range(131):
        head = tuple(x[:length] for x in inputs)
        tail = tuple(x[length:] for x in inputs)
        first, state = reference.chunk_gated_delta_rule(*head, initial)
        second, last = reference.chunk_gated_delta_rule(*tail, state)
        assert relative_error(torch.cat((first, second)), whole) < 1e-5, length
        assert relative_error(last, final) < 1e-5, length


def test_packed_sequences_equal_each_alone(rule: Callable) -> None:
    lengths = [5, 0, 70, 1, 64, 0]
    inputs, initial = rule(sum(lengths), HEADS, DIMS), torch.randn(len(lengths), HEADS[1], *DIMS)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    out, final = reference.chunk_gated_delta_rule(*inputs, initial, offsets)
    for n, (first, last) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:], strict=False)):
        alone = tuple(x[first:last] for x in inputs)
        out_alone, final_alone = reference.chunk_gated_delta_rule(*alone, initial[n : n + 1])
        assert torch.equal(out[first:last], out_alone)
        assert torch.equal(final[n : n + 1], final_alone)


@pytest.mark.parametrize("gate", [0.0, -50.0, -1e4])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_extreme_gates(rule: Callable, gate: float, beta: float) -> None:
    q, k, v, g, b = rule(100, HEADS, DIMS)
    inputs = (q, k, v, torch.full_like(g, gate), torch.full_like(b, beta))
    initial = torch.randn(1, HEADS[1], *DIMS)
    expected, expected_state = by_definition(*inputs, initial[0])
    out, final = reference.chunk_gated_delta_rule(*inputs, initial)
    assert torch.isfinite(out).all()
    # Where nothing is written and all is forgotten, the true values are below the smallest float32.
    assert relative_error(out, expected) < 1e-5 or expected[1:].abs().max() < 1e-20
    assert relative_error(final[0], expected_state) < 1e-5 or expected_state.abs().max() < 1e-20


def test_equal_keys_with_full_writing_are_solved_exactly(rule: Callable) -> None:
    q, k, v, g, _ = rule(64, (1, 1), (8, 8))
    inputs = (q, k[:1].expand_as(k).contiguous(), v, torch.zeros_like(g), torch.ones_like(g))
    out, _ = reference.chunk_gated_delta_rule(*inputs)
    # Each token replaces what the key held: the output is the token's own value.
    assert relative_error(out, v * (q * k[:1]).sum(-1, keepdim=True)) < 1e-5


def test_ten_thousand_tokens_do_not_drift(rule: Callable) -> None:
    inputs = rule(10_000, (1, 1), (8, 8))
    out, final = reference.recurrent_gated_delta_rule(*inputs)
    expected, expected_final = reference.recurrent_gated_delta_rule(*(x.double() for x in inputs))
    assert relative_error(out[-100:], expected[-100:]) < 1e-5
    assert relative_error(final, expected_final) < 1e-5
