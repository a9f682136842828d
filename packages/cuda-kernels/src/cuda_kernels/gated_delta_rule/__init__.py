"""Gated delta rule: the bare rule, token by token and in chunks, and the whole delta-net step around it."""
