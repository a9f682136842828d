"""Run Qwen3.5-MoE models as device-aware programs."""
