"""A small Qwen3.5-MoE checkpoint, as a package."""
