"""Launches of the sampling kernels: a scan with many programs a row, one that chooses, and marks for a prompt."""

import torch
import triton

from cuda_kernels.primitives import has_dependent_launch
from cuda_kernels.sampling.choose import sample_choose_kernel
from cuda_kernels.sampling.configs import BLOCK_TOKENS, BLOCK_VOCABULARY, CONFIG, SampleConfig
from cuda_kernels.sampling.history import mark_prompt_kernel
from cuda_kernels.sampling.layout import SamplingRows
from cuda_kernels.sampling.scan import sample_scan_kernel


def sample_tokens(
    logits: torch.Tensor,
    rows: SamplingRows,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    history: torch.Tensor,
    vocab_size: int,
    *,
    out: torch.Tensor,
    config: SampleConfig = CONFIG,
) -> None:
    """Fill `out` (B,) with the tokens and count them."""
    batch, vocabulary = logits.shape
    if batch == 0:
        return
    blocks = triton.cdiv(vocabulary, config.block)
    peaks = config.block // config.group
    padded = triton.next_power_of_2(blocks)
    pdl = has_dependent_launch(logits.device)

    def floats(columns: int) -> torch.Tensor:
        return logits.new_empty((batch, columns), dtype=torch.float32)

    scanned = {
        "p_best": positions.new_empty((batch, blocks)),
        "p_x": floats(blocks * config.block),
        "p_score": floats(blocks * config.block),
        "p_peaks": floats(blocks * peaks),
        "p_top": floats(blocks),
        "p_mass": floats(blocks),
    }
    parameters = {
        "p_temperature": rows.temperature,
        "p_top_k": rows.top_k,
        "p_top_p": rows.top_p,
        "p_min_p": rows.min_p,
        "p_slots": slots,
        "p_history": history,
    }
    sizes = {"slots": history.shape[0], "vocabulary": vocabulary, "vocab_size": vocab_size}
    sample_scan_kernel[(blocks, batch)](
        p_logits=logits,
        p_presence=rows.presence_penalty,
        p_frequency=rows.frequency_penalty,
        p_repetition=rows.repetition_penalty,
        p_seeds=seeds,
        p_positions=positions,
        BLOCK=config.block,
        GROUP=config.group,
        PDL=pdl,
        num_warps=config.scan_warps,
        launch_pdl=pdl,
        **parameters,
        **scanned,
        **sizes,
    )
    sample_choose_kernel[(batch,)](
        p_group=history.new_empty((batch, padded * peaks)),
        p_value=floats(config.list_size),
        p_token=history.new_empty((batch, config.list_size)),
        p_out=out,
        blocks=blocks,
        BLOCK=config.block,
        GROUP=config.group,
        BLOCKS=padded,
        MOST=config.most,
        LIST=config.list_size,
        ROW_BLOCK=config.row_block,
        PDL=pdl,
        num_warps=config.choose_warps,
        launch_pdl=pdl,
        **parameters,
        **scanned,
        **sizes,
    )


def mark_prompt(tokens: torch.Tensor, start: torch.Tensor, slot: torch.Tensor, history: torch.Tensor) -> None:
    """Mark the tokens of a prompt; one outside the vocabulary is not marked."""
    slots, vocabulary = history.shape
    mark_prompt_kernel[(triton.cdiv(vocabulary, BLOCK_VOCABULARY),)](
        p_tokens=tokens,
        p_start=start,
        p_slot=slot,
        p_history=history,
        tokens=tokens.shape[0],
        slots=slots,
        vocabulary=vocabulary,
        BLOCK_V=BLOCK_VOCABULARY,
        BLOCK_T=BLOCK_TOKENS,
        num_warps=4,
    )
