"""int4 linear layers: matrix-vector and tensor-core products, and quantization of their int8 input."""
