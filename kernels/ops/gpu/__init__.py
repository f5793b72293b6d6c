"""The ops as Triton kernels. Imported only when a CUDA tensor (or the interpreter) needs it."""
