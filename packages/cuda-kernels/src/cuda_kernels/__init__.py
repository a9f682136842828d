"""int4 and recurrent-attention operators for PyTorch, in Triton."""

from cuda_kernels.registration import register

__all__ = ["register"]
