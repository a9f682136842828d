"""Passes from torch.export graphs to device-aware programs."""
