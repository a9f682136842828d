"""RMS norms: plain, with unit offset, gated, and with int8 quantization of the result."""
