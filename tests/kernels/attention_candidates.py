"""Tiles of the attention kernels that `gpu_kernels.py` times, by pass, numerics and head dim."""

from __future__ import annotations

ATTENTION_CANDIDATES: dict[tuple[str, str, int], tuple[str, ...]] = {
    ("forward", "half", 64): (
        "128x128 w8 s3 tma", "128x64 w4 s3 tma", "64x64 w4 s3 tma", "64x128 w4 s3 tma", "128x64 w8 s3 tma",
        "128x128 w8 s2", "128x64 w4 s3", "128x128 w4 s3"),
    ("forward", "half", 128): (
        "128x128 w8 s2 tma", "128x64 w8 s3 tma", "64x64 w4 s3 tma", "64x64 w4 s2 tma", "64x128 w4 s2 tma",
        "128x128 w8 s2", "128x64 w8 s3", "64x64 w4 s3"),
    ("forward", "half", 256): ("128x64 w8 s2 tma", "64x64 w4 s2 tma", "64x32 w4 s3 tma", "128x32 w8 s2 tma"),
    ("query gradient", "half", 64): (
        "128x64 w8 s3 tma", "64x64 w4 s3 tma", "128x128 w8 s2 tma", "64x128 w4 s2 tma", "128x64 w8 s3"),
    ("query gradient", "half", 128): (
        "128x64 w8 s2 tma", "128x64 w8 s3 tma", "64x64 w4 s2 tma", "128x64 w8 s2", "64x128 w8 s2 tma"),
    ("key gradient", "half", 64): (
        "64x128 w8 s2 tma", "64x64 w4 s2 tma", "64x64 w4 s3 tma", "64x128 w8 s2", "64x64 w4 s2"),
    ("key gradient", "half", 128): (
        "64x128 w8 s2 tma", "64x128 w8 s1 tma", "64x64 w4 s1 tma", "32x128 w8 s2 tma", "64x64 w8 s2 tma",
        "64x128 w8 s2"),
    ("forward", "split", 64): ("128x32 w8 s2", "64x32 w4 s2", "128x64 w8 s2", "64x64 w4 s2"),
    ("forward", "split", 128): ("128x32 w8 s1", "64x32 w4 s2", "64x32 w8 s2"),
    ("query gradient", "split", 64): ("128x32 w8 s1", "64x32 w4 s1", "64x64 w4 s1"),
    ("query gradient", "split", 128): (
        "64x32 w4 s1 one", "64x16 w4 s1 one", "128x32 w8 s1 one", "64x32 w8 s1", "64x64 w4 s1 one"),
    ("key gradient", "split", 64): ("32x128 w8 s1", "32x64 w4 s1", "32x64 w8 s1"),
    ("key gradient", "split", 128): (
        "32x64 w4 s1 one", "16x64 w4 s1 one", "32x128 w8 s1 one", "32x64 w8 s1", "32x32 w8 s1",
        "16x128 w8 s1 one"),
    ("forward", "halves", 64): ("128x128 w8 s2", "64x64 w4 s2", "64x128 w4 s1 tma", "64x64 w4 s2 tma", "128x64 w8 s2 tma"),
    ("forward", "halves", 128): ("128x64 w8 s2", "128x64 w8 s2 tma", "64x64 w4 s1", "64x32 w4 s2", "128x32 w8 s3"),
    ("forward", "high", 64): ("128x64 w8 s2", "64x64 w4 s4 tma", "64x128 w4 s3 tma", "128x64 w8 s3 tma"),
    ("forward", "high", 128): ("128x64 w8 s3 tma", "64x64 w4 s3 tma", "128x64 w8 s2"),
    ("query gradient", "high", 64): ("128x64 w8 s3 tma", "64x64 w4 s3 tma"),
    ("query gradient", "high", 128): ("128x64 w8 s3 tma", "128x64 w8 s2"),
    ("key gradient", "high", 64): ("64x64 w4 s3 tma", "64x64 w4 s2", "64x128 w8 s2 tma"),
    ("key gradient", "high", 128): ("32x128 w8 s3 tma one", "32x128 w8 s2 tma one", "32x64 w4 s3 tma one", "32x128 w8 s2"),
    ("query gradient", "halves", 64): ("128x32 w8 s2", "64x64 w4 s2", "64x64 w4 s2 tma", "128x32 w8 s3 tma"),
    ("query gradient", "halves", 128): ("128x64 w8 s1", "128x32 w8 s3 tma", "128x32 w8 s2", "64x64 w4 s1"),
    ("key gradient", "halves", 64): ("64x64 w4 s2 tma", "64x64 w4 s2", "64x128 w8 s2 tma", "32x64 w4 s3"),
    ("key gradient", "halves", 128): (
        "32x128 w8 s3 tma", "64x128 w8 s1", "32x64 w4 s3 tma", "16x128 w8 s3 tma", "64x128 w8 s1 tma"),
    ("forward", "tf32", 64): ("128x64 w8 s2", "64x64 w4 s2", "128x32 w8 s2", "64x32 w4 s2"),
    ("forward", "tf32", 128): ("128x32 w8 s2", "128x64 w8 s2", "64x64 w4 s2", "64x32 w4 s2"),
    ("query gradient", "tf32", 64): ("64x64 w4 s1", "128x32 w8 s1", "64x32 w4 s1"),
    ("query gradient", "tf32", 128): ("128x32 w8 s1", "64x32 w8 s1"),
    ("key gradient", "tf32", 64): ("32x128 w8 s1", "32x64 w4 s1", "64x64 w4 s1"),
    ("key gradient", "tf32", 128): ("32x128 w8 s1", "32x64 w8 s1"),
}  # fmt: skip
