"""Mixture of experts: the router, tokens sorted by expert, and the fused expert products for decode and prefill."""
