"""The forward pass for training: the modules of transformers' model, whole rows at once, shapes that never change.

It computes what ``Qwen3_5MoeForCausalLM`` computes for rows without padding. Two things are done another way, because
rows are short and experts small: the delta rule is computed chunk by chunk with products alone, and every expert
is applied to every token as one wide product in which the activations of experts that were not chosen are zero.

Shape suffixes: B rows, T tokens, H hidden, E experts, I expert width, N heads, D head size, C chunks, L tokens a chunk.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

CHUNK = 64
EPS = 1e-6
FORGOTTEN = -60.0
"""Logarithm of a decay that leaves nothing, yet small enough for sums of it to stay exact in float32."""


def rms_norm(x: Tensor, norm: nn.Module) -> Tensor:
    """Norm the last dimension in float32 with weight 1 + w."""
    x32 = x.float()
    return x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + EPS) * (1.0 + norm.weight.float())


def inverse(system: Tensor) -> Tensor:
    """Invert unit lower triangular matrices whose diagonal and upper part are not looked at, with products alone.

    Blocks of 16 by a finite series, larger ones out of the two blocks on their diagonal.
    """
    size = system.shape[-1]
    lower = system.tril(-1)
    blocks = _on_diagonal(lower, 16)
    identity = torch.eye(16, device=system.device)
    # (I + N)⁻¹ for nilpotent N: (I - N)(I + N²)(I + N⁴)(I + N⁸)
    power, result = blocks @ blocks, identity - blocks
    for _ in range(2):
        result = result + result @ power
        power = power @ power
    result = result + result @ power
    width = 16
    while width < size:
        first, second = result[..., 0::2, :, :], result[..., 1::2, :, :]
        below = -second @ _on_diagonal(lower, 2 * width)[..., width:, :width] @ first
        top = torch.cat([first, torch.zeros_like(first)], dim=-1)
        result = torch.cat([top, torch.cat([below, second], dim=-1)], dim=-2)
        width *= 2
    return result.squeeze(-3)


def _on_diagonal(matrices: Tensor, width: int) -> Tensor:
    """Return the blocks on the diagonal: (..., L, L) to (..., L / width, width, width)."""
    count = matrices.shape[-1] // width
    parts = matrices.unflatten(-1, (count, width)).unflatten(-3, (count, width))
    return parts.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def delta_rule(q_BTND: Tensor, k_BTND: Tensor, v_BTND: Tensor, g_BTN: Tensor, beta_BTN: Tensor) -> Tensor:
    """Gated delta rule from a zero state, in float32; T is a multiple of the chunk length.

    S_t = exp(g_t) S_{t-1} + k_t ⊗ beta_t (v_t - exp(g_t) S_{t-1}ᵀ k_t), o_t = S_tᵀ q_t (https://arxiv.org/abs/2412.06464).
    """
    batch, length, heads, size = v_BTND.shape
    chunks = length // CHUNK

    def split(x: Tensor) -> Tensor:
        return x.float().reshape(batch, chunks, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)

    q, k, v = split(q_BTND), split(k_BTND), split(v_BTND)
    beta = split(beta_BTN.unsqueeze(-1))
    decay = split(g_BTN.unsqueeze(-1)).squeeze(-1).cumsum(-1)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).triu(1)
    pair = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(future, float("-inf")).exp()
    k_beta = k * beta
    system = (k_beta @ k.transpose(-1, -2)) * pair
    grown = decay.exp().unsqueeze(-1)
    solved = inverse(system) @ torch.cat([v * beta, k_beta * grown], dim=-1)
    written, read = solved[..., :size], solved[..., size:]
    inside = (q @ k.transpose(-1, -2)) * pair
    q_grown, k_left = q * grown, k * (decay[..., -1:] - decay).exp().unsqueeze(-1)
    kept = decay[..., -1].exp()[..., None, None]
    state = torch.zeros(batch, heads, k.shape[-1], size, device=v.device)
    outputs = []
    for c in range(chunks):
        update = written[:, :, c] - read[:, :, c] @ state
        outputs.append(q_grown[:, :, c] @ state + inside[:, :, c] @ update)
        state = state * kept[:, :, c] + k_left[:, :, c].transpose(-1, -2) @ update
    return torch.stack(outputs, dim=2).permute(0, 2, 3, 1, 4).reshape(batch, length, heads, size)


def convolve(x_BTC: Tensor, weight_C1W: Tensor, segments_BT: Tensor) -> Tensor:
    """Causal convolution of each channel by itself; tokens of another document count as zero."""
    width, length = weight_C1W.shape[-1], x_BTC.shape[1]
    padded = F.pad(x_BTC, (0, 0, width - 1, 0))
    owners = F.pad(segments_BT, (width - 1, 0), value=-1)
    terms = (
        padded[:, i : i + length] * (owners[:, i : i + length] == segments_BT).unsqueeze(-1) * weight_C1W[:, 0, i]
        for i in range(width)
    )
    return sum(terms, torch.zeros((), device=x_BTC.device))


def delta_net(x_BTH: Tensor, layer: nn.Module, segments_BT: Tensor) -> Tensor:
    """Gated delta net: projections, causal convolution, delta rule, gated norm, output projection."""
    batch, length, _ = x_BTH.shape
    mixed = F.silu(convolve(layer.in_proj_qkv(x_BTH), layer.conv1d.weight, segments_BT))
    q, k, v = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    group = layer.num_v_heads // layer.num_k_heads
    q, k = (
        F.normalize(part.float().reshape(batch, length, layer.num_k_heads, -1), dim=-1).repeat_interleave(group, dim=2)
        for part in (q, k)
    )
    v = v.reshape(batch, length, layer.num_v_heads, -1)
    beta = layer.in_proj_b(x_BTH).float().sigmoid()
    g = -layer.A_log.float().exp() * F.softplus(layer.in_proj_a(x_BTH).float() + layer.dt_bias)
    first = F.pad(segments_BT[:, 1:] != segments_BT[:, :-1], (1, 0))
    g = g.masked_fill(first.unsqueeze(-1), FORGOTTEN)
    with torch.autocast("cuda", enabled=False):
        out = delta_rule(q * q.shape[-1] ** -0.5, k, v, g, beta)
    normed = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + EPS) * layer.norm.weight
    gate = F.silu(layer.in_proj_z(x_BTH).float().reshape(normed.shape))
    return layer.out_proj((normed * gate).reshape(batch, length, -1))


def attention(x_BTH: Tensor, layer: nn.Module, cos_TR: Tensor, sin_TR: Tensor, mask_B1TT: Tensor) -> Tensor:
    """Attention with normed and partly rotated queries and keys, and an output gate."""
    batch, length, _ = x_BTH.shape
    size = layer.head_dim
    q, gate = layer.q_proj(x_BTH).reshape(batch, length, -1, 2 * size).chunk(2, dim=-1)
    k = layer.k_proj(x_BTH).reshape(batch, length, -1, size)
    v = layer.v_proj(x_BTH).reshape(batch, length, -1, size)

    def rotate(x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        turned, rest = x[..., : 2 * cos_TR.shape[-1]], x[..., 2 * cos_TR.shape[-1] :]
        first, second = turned.chunk(2, dim=-1)
        return torch.cat([first * cos_TR - second * sin_TR, second * cos_TR + first * sin_TR, rest], dim=-1).to(v.dtype)

    q, k = rotate(rms_norm(q, layer.q_norm)), rotate(rms_norm(k, layer.k_norm))
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v.transpose(1, 2)))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B1TT)
    return layer.o_proj((out.transpose(1, 2) * gate.sigmoid()).reshape(batch, length, -1))


def experts(x_BTH: Tensor, block: nn.Module) -> tuple[Tensor, Tensor]:
    """Mixture of experts with a gated shared expert, and the load-balancing loss of its router."""
    batch, length, hidden = x_BTH.shape
    x_TH = x_BTH.reshape(-1, hidden)
    probabilities = F.linear(x_TH, block.gate.weight).softmax(dim=-1, dtype=torch.float32)
    chosen, ids = probabilities.topk(block.gate.top_k, dim=-1)
    weights_TE = torch.zeros_like(probabilities).scatter(1, ids, chosen / chosen.sum(-1, keepdim=True))
    gate_up_E2IH, down_EHI = block.experts.gate_up_proj, block.experts.down_proj
    count, width = gate_up_E2IH.shape[0], down_EHI.shape[-1]
    gate, up = F.linear(x_TH, gate_up_E2IH.reshape(-1, hidden)).reshape(-1, count, 2 * width).chunk(2, dim=-1)
    active = F.silu(gate) * up * weights_TE.unsqueeze(-1).to(gate.dtype)
    out = F.linear(active.reshape(-1, count * width), down_EHI.permute(1, 0, 2).reshape(hidden, -1))
    shared = block.shared_expert
    activation = F.silu(shared.gate_proj(x_TH)) * shared.up_proj(x_TH)
    out = out + block.shared_expert_gate(x_TH).sigmoid() * shared.down_proj(activation)
    load = (weights_TE > 0).float().mean(0)
    return out.reshape(batch, length, hidden), count * (load * probabilities.mean(0)).sum()


def forward(model: nn.Module, tokens_BT: Tensor, segments_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the logits of rows of tokens (T a multiple of the chunk), and the layers' mean load-balancing loss.

    The weights are float32; on a GPU products are computed in bfloat16.
    segments_BT: the document of each token, ascending; a document sees nothing of another. None: one a row.
    """
    segments_BT = torch.zeros_like(tokens_BT) if segments_BT is None else segments_BT
    with torch.autocast("cuda", torch.bfloat16, enabled=tokens_BT.is_cuda):
        return _forward(model, tokens_BT, segments_BT)


def _forward(model: nn.Module, tokens_BT: Tensor, segments_BT: Tensor) -> tuple[Tensor, Tensor]:
    config = model.config
    rotated = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
    exponents = torch.arange(0, rotated, 2, device=tokens_BT.device, dtype=torch.float32) / rotated
    positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device, dtype=torch.float32)
    angles = torch.outer(positions, config.rope_parameters["rope_theta"] ** -exponents)
    cos, sin = angles.cos(), angles.sin()
    mask = (segments_BT.unsqueeze(1) == segments_BT.unsqueeze(2)).tril().unsqueeze(1)
    x = model.model.embed_tokens(tokens_BT)
    balance = torch.zeros((), device=tokens_BT.device)
    for kind, layer in zip(config.layer_types, model.model.layers, strict=True):
        normed = rms_norm(x, layer.input_layernorm).to(x.dtype)
        if kind == "linear_attention":
            x = x + delta_net(normed, layer.linear_attn, segments_BT)
        else:
            x = x + attention(normed, layer.self_attn, cos, sin, mask)
        out, loss = experts(rms_norm(x, layer.post_attention_layernorm).to(x.dtype), layer.mlp)
        x = x + out
        balance = balance + loss / len(config.layer_types)
    return F.linear(rms_norm(x, model.model.norm), model.lm_head.weight), balance
