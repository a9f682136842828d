"""moe_align_block_size: the kernels against the reference, and the reference against what it promises."""

import pytest
import torch
from cuda_kernels.moe import reference
from cuda_kernels.moe.routing_launch import moe_align_block_size
from cuda_kernels.testing import poisoned

CASES = {
    "T0": (0, 2, 16, 5),
    "T1-k3-b1": (1, 3, 1, 4),
    "T7-k2-b16": (7, 2, 16, 5),
    "T130-k3-b64": (130, 3, 64, 7),
    "T257-k1-b16": (257, 1, 16, 1),
    "T9-k9-b4-E300": (9, 9, 4, 300),
}


def ids(tokens: int, slots: int, experts: int, device: torch.device) -> torch.Tensor:
    """Return random ids, unknown ones among them."""
    return torch.randint(-2, experts + 2, (tokens, slots), dtype=torch.int32).to(device)


@pytest.mark.parametrize(("tokens", "slots", "block", "experts"), CASES.values(), ids=CASES.keys())
def test_kernels_equal_reference(tokens: int, slots: int, block: int, experts: int, device: torch.device) -> None:
    chosen = ids(tokens, slots, experts, device)
    expected = reference.moe_align_block_size(chosen, block, experts)
    outputs = [poisoned(t.shape, t.dtype, device) for t in expected]
    moe_align_block_size(chosen, block, experts, sorted_ids=outputs[0], expert_ids=outputs[1], num_padded=outputs[2])
    for output, want in zip(outputs, expected, strict=True):
        assert torch.equal(output, want)


def test_scales_follow_their_pairs(device: torch.device) -> None:
    chosen, scale = ids(40, 2, 3, device), torch.randn(40, 3, device=device)
    sorted_ids, expert_ids, num_padded = (torch.empty_like(t) for t in reference.moe_align_block_size(chosen, 8, 3))
    sorted_scale = poisoned((expert_ids.numel(), 3, 8), torch.float32, device)
    moe_align_block_size(
        chosen,
        8,
        3,
        sorted_ids=sorted_ids,
        expert_ids=expert_ids,
        num_padded=num_padded,
        scale=scale,
        sorted_scale=sorted_scale,
    )
    places = (sorted_ids < 80).nonzero().squeeze(1)
    rows = sorted_scale.transpose(1, 2).reshape(-1, 3)[places]
    assert torch.equal(rows, scale[sorted_ids[places].to(torch.int64) // 2])


@pytest.mark.parametrize("tokens", [1, 33, 200], ids="T{}".format)
def test_reference_keeps_its_promises(tokens: int) -> None:
    block, experts, slots = 16, 6, 3
    chosen = ids(tokens, slots, experts, torch.device("cpu"))
    sorted_ids, expert_ids, num_padded = reference.moe_align_block_size(chosen, block, experts)
    flat, pairs = chosen.flatten(), chosen.numel()
    used = int(num_padded)
    assert used % block == 0
    assert (sorted_ids[used:] == pairs).all()
    assert (expert_ids[used // block :] == -1).all()
    known = ((flat >= 0) & (flat < experts)).nonzero().squeeze(1)
    assert sorted(sorted_ids[sorted_ids < pairs].tolist()) == known.tolist()
    for b in range(used // block):
        run = sorted_ids[b * block : (b + 1) * block]
        run = run[run < pairs]
        assert len(run) > 0
        assert (flat[run] == expert_ids[b]).all()
    for expert in range(experts):
        run = sorted_ids[:used].reshape(-1, block)[expert_ids[: used // block] == expert].flatten()
        assert run[run < pairs].tolist() == sorted(run[run < pairs].tolist())
