# SPDX-License-Identifier: Apache-2.0
"""The five shapes that benchmarks of the forward are made on."""
SHAPES = {  # T, H, I, E, K, S
    "kimi_k2": (2048, 7168, 2048, 48, 8, 2048),
    "kimi_ep64_rank": (16384, 7168, 2048, 6, 1, 0),
    "qwen3_30b": (8192, 2048, 768, 128, 8, 0),
    "deepseek_v2_lite": (8192, 2048, 1408, 64, 6, 2816),
    "mixtral_8x7b": (4096, 4096, 14336, 8, 2, 0),
}
