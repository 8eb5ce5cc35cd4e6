"""From a schedule to one standalone Python file of Triton kernels and host code.

Must not decide what is fused, tiled or reused: it prints what scheduling decided.
"""
