"""The router: product with its rows, choice of experts and softmax in one kernel, with or without a norm before.

For a few tokens each program computes a few logits of one token, and one more program waits for them and chooses; for
many tokens a program computes all logits of a block of tokens on the tensor cores and chooses.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from cuda_kernels.moe.choice import (
    LOWEST,
    are_unique,
    experts_of,
    largest_of_equals,
    largest_values,
    ordered,
    value_of,
)
from cuda_kernels.primitives import quantize_words, store_quantized, wait_for_previous


@triton.jit
def _message(x):
    """Return the key of x as an int32 that is never 0, which stands for a logit that is not there yet."""
    key = ordered(x)
    return tl.where(key >= 0, key + 1, key)


@triton.jit
def _receive(p_messages, o_expert, EXPERTS: tl.constexpr, SHARED: tl.constexpr):
    """Wait for the messages of a token; return the experts' keys and the shared experts' logit, and leave zeros behind.

    A message is its own flag: neither a fence nor a counter stands between a logit and its reader.
    """
    o_gate = EXPERTS + tl.arange(0, 1)
    m_expert, m_gate = o_expert < EXPERTS, o_gate < EXPERTS + SHARED
    messages = tl.load(p_messages + o_expert, mask=m_expert, other=1, volatile=True)
    gate = tl.load(p_messages + o_gate, mask=m_gate, other=1, volatile=True)
    while tl.sum((messages == 0).to(tl.int32), 0) + tl.sum((gate == 0).to(tl.int32), 0) > 0:
        messages = tl.load(p_messages + o_expert, mask=m_expert, other=1, volatile=True)
        gate = tl.load(p_messages + o_gate, mask=m_gate, other=1, volatile=True)
    tl.store(p_messages + o_expert, tl.zeros_like(messages), mask=m_expert)
    tl.store(p_messages + o_gate, tl.zeros_like(gate), mask=m_gate)
    return messages - (messages > 0).to(tl.int32), value_of(gate - (gate > 0).to(tl.int32))


@triton.jit
def _store_choice(
    keys,
    experts,
    gate,
    p_weights,
    p_ids,
    token,
    tokens,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    PADDED_SLOTS: tl.constexpr,
):
    """Store the routing of tokens (B,); `keys` and `experts` hold (B,) for each slot, the largest key first."""
    B: tl.constexpr = gate.shape[0]
    o_slot = tl.arange(0, PADDED_SLOTS)[None, :]
    ids = tl.zeros((B, PADDED_SLOTS), tl.int32)
    weights = tl.zeros((B, PADDED_SLOTS), tl.float32)
    total = tl.zeros((B,), tl.float32)
    for slot in tl.static_range(TOP_K):
        weight = tl.exp(value_of(keys[slot]) - value_of(keys[0]))
        total += weight
        ids = tl.where(o_slot == slot, experts[slot][:, None], ids)
        weights = tl.where(o_slot == slot, weight[:, None], weights)
    weights = weights / total[:, None]
    if SHARED > 0:
        ids = tl.where(o_slot >= TOP_K, EXPERTS + o_slot - TOP_K, ids)
        weights = tl.where(o_slot >= TOP_K, tl.sigmoid(gate)[:, None], weights)
    SLOTS: tl.constexpr = TOP_K + SHARED
    o_pair = token.to(tl.int64)[:, None] * SLOTS + o_slot
    m_pair = (token < tokens)[:, None] & (o_slot < SLOTS)
    tl.store(p_weights + o_pair, weights, mask=m_pair)
    tl.store(p_ids + o_pair, ids, mask=m_pair)


@triton.jit
def _choose(
    keys,
    gate,
    p_weights,
    p_ids,
    token,
    tokens,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    PADDED_SLOTS: tl.constexpr,
):
    """Store the routing of tokens (B,) by keys (B, ≥ EXPERTS) of the logits and the shared experts' gate (B,)."""
    keys = tl.where(tl.arange(0, keys.shape[1])[None, :] < EXPERTS, keys, LOWEST)
    largest = largest_values(keys, TOP_K)
    if are_unique(keys, largest[TOP_K - 1], TOP_K):
        chosen = experts_of(keys, largest, TOP_K)
        _store_choice(largest, chosen, gate, p_weights, p_ids, token, tokens, EXPERTS, TOP_K, SHARED, PADDED_SLOTS)
    else:
        values, experts = largest_of_equals(keys, TOP_K)
        _store_choice(values, experts, gate, p_weights, p_ids, token, tokens, EXPERTS, TOP_K, SHARED, PADDED_SLOTS)


@triton.jit
def route_rows(
    p_x,
    p_norm,
    eps,
    p_weight,
    p_messages,
    p_weights,
    p_ids,
    p_values,
    p_scale,
    p_group_sum,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    HIDDEN: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED_HIDDEN: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    PADDED_SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute BLOCK logits of the token of axis 1, and with a norm its share of the quantized row; the last chooses.

    p_messages: a zero for each logit of each token, which is also what stays behind.
    grid: (programs of the logits and one that chooses, tokens)
    """
    ROWS: tl.constexpr = EXPERTS + (1 if SHARED > 0 else 0)
    token = tl.program_id(1)
    producers = tl.num_programs(0) - 1
    p_token = p_messages + token * ROWS
    # It comes last in its token, so those that it waits for are running when it starts.
    if tl.program_id(0) == producers:
        wait_for_previous(PDL)
        keys, gate = _receive(p_token, tl.arange(0, PADDED_EXPERTS), EXPERTS, ROWS - EXPERTS)
        chosen = token + tl.zeros((1,), tl.int32)
        tokens = tl.num_programs(1)
        _choose(keys[None, :], gate, p_weights, p_ids, chosen, tokens, EXPERTS, TOP_K, SHARED, PADDED_SLOTS)
        return
    o_row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o_column = tl.arange(0, PADDED_HIDDEN)
    m_column = o_column < HIDDEN
    m_weight = (o_row < ROWS)[:, None] & m_column[None, :]
    weight = tl.load(p_weight + o_row[:, None] * HIDDEN + o_column[None, :], mask=m_weight, other=0.0)
    if p_norm is not None:
        gain = tl.load(p_norm + o_column, mask=m_column, other=0.0).to(tl.float32) + 1.0
    wait_for_previous(PDL)

    p_row = p_x + token.to(tl.int64) * HIDDEN
    x = tl.load(p_row + o_column, mask=m_column, other=0.0).to(tl.float32)
    if p_norm is None:
        logits = tl.sum(weight.to(tl.float32) * x[None, :], 1)
    else:
        # The norm only scales: its sum and those of the products do not wait for each other.
        inverse = tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps)
        logits = tl.sum(weight.to(tl.float32) * (x * gain)[None, :], 1) * inverse
    tl.store(p_token + o_row, _message(logits), mask=o_row < ROWS)
    if p_norm is not None:
        for group in range(tl.program_id(0), HIDDEN // GROUP, producers):
            o_group = group * GROUP + tl.arange(0, GROUP // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
            group_gain = tl.load(p_norm + o_group).to(tl.float32) + 1.0
            normed = tl.load(p_row + o_group).to(tl.float32) * inverse * group_gain
            first = group * (GROUP // 8)
            store_quantized(normed, p_values, p_scale, p_group_sum, token, first, HIDDEN // 8, GROUP // 8, GROUP // 8)


@triton.jit
def _add_logits(acc, x, weight, SPLIT: tl.constexpr):
    """Return acc + weight (E, K) · xᵀ for x (B, K) float32, the weights being the left operand.

    With SPLIT the weights are bfloat16 and x goes as two bfloat16 parts of 16 bits together: columns of acc (E, 2 · B)
    alternate between them. Otherwise acc is (E, B).
    """
    if SPLIT:
        high = x.to(tl.bfloat16)
        low = (x - high.to(tl.float32)).to(tl.bfloat16)
        parts = tl.reshape(tl.permute(tl.join(high, low), (0, 2, 1)), (2 * x.shape[0], x.shape[1]))
        acc = tl.dot(weight, tl.trans(parts), acc)
    else:
        acc = tl.dot(weight.to(tl.float32), tl.trans(x), acc, input_precision="tf32x3")
    return acc


@triton.jit
def _store_rows(
    x,
    p_values,
    p_scale,
    p_group_sum,
    token,
    m_token,
    group,
    HIDDEN: tl.constexpr,
):
    """Quantize x (B, GROUP), one group of B tokens, and store it as group `group` of their rows."""
    B: tl.constexpr = x.shape[0]
    WORDS: tl.constexpr = x.shape[1] // 8
    even, odd, scale, group_sum = quantize_words(tl.reshape(x, (B * WORDS, 8)), WORDS)
    row = token.to(tl.int64)
    p_even = p_values + (row * (HIDDEN // 4) + group * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    tl.store(p_even, tl.reshape(even, (B, WORDS)), mask=m_token[:, None])
    tl.store(p_even + HIDDEN // 8, tl.reshape(odd, (B, WORDS)), mask=m_token[:, None])
    o_group = row * (HIDDEN // x.shape[1]) + group
    tl.store(p_scale + o_group, scale, mask=m_token)
    tl.store(p_group_sum + o_group, group_sum, mask=m_token)


@triton.jit(do_not_specialize=["tokens"])
def route_blocks(
    p_x,
    p_norm,
    eps,
    p_weight,
    p_weights,
    p_ids,
    p_values,
    p_scale,
    p_group_sum,
    tokens,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    SHARED: tl.constexpr,
    HIDDEN: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    PADDED_SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Route BLOCK tokens; columns are taken GROUP at a time, and with a norm each group is quantized and stored."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m_token = token < tokens
    o_expert = tl.arange(0, PADDED_EXPERTS)
    o_column = tl.arange(0, GROUP)
    wait_for_previous(PDL)
    p_row = p_x + token.to(tl.int64)[:, None] * HIDDEN + o_column[None, :]
    if p_norm is not None:
        squares = tl.zeros((BLOCK, GROUP), tl.float32)
        for column in range(0, HIDDEN, GROUP):
            x = tl.load(p_row + column, mask=m_token[:, None], other=0.0).to(tl.float32)
            squares += x * x
        inverse = tl.rsqrt(tl.sum(squares, 1) / HIDDEN + eps)
    SPLIT: tl.constexpr = p_weight.dtype.element_ty == tl.bfloat16
    acc = tl.zeros((PADDED_EXPERTS, BLOCK * 2 if SPLIT else BLOCK), tl.float32)
    gate = tl.zeros((BLOCK,), tl.float32)
    p_tile = p_weight + o_expert[:, None] * HIDDEN + o_column[None, :]
    for column in range(0, HIDDEN, GROUP):
        weight = tl.load(p_tile + column, mask=(o_expert < EXPERTS)[:, None], other=0.0)
        x = tl.load(p_row + column, mask=m_token[:, None], other=0.0).to(tl.float32)
        if p_norm is not None:
            x = x * inverse[:, None] * (tl.load(p_norm + column + o_column).to(tl.float32) + 1.0)[None, :]
            _store_rows(x, p_values, p_scale, p_group_sum, token, m_token, column // GROUP, HIDDEN)
        acc = _add_logits(acc, x, weight, SPLIT)
        if SHARED > 0:
            shared = tl.load(p_weight + EXPERTS * HIDDEN + column + o_column).to(tl.float32)
            gate += tl.sum(x * shared[None, :], 1)
    if SPLIT:
        acc = tl.sum(tl.reshape(acc, (PADDED_EXPERTS, BLOCK, 2)), 2)
    _choose(ordered(tl.trans(acc)), gate, p_weights, p_ids, token, tokens, EXPERTS, TOP_K, SHARED, PADDED_SLOTS)
