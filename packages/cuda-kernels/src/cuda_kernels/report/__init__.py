"""The compile report: kernel configurations, compiled for several targets on a machine without a GPU."""

from cuda_kernels.report.case import KernelCase

__all__ = ["KernelCase"]
