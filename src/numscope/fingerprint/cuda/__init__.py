"""The fingerprint of CUDA tensors, by Triton kernels."""
