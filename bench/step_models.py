# SPDX-License-Identifier: Apache-2.0
"""Shapes of the step benchmark's models; step_rank.cc has the same ones. batch: sequences."""

MODELS = {
    "gpt2-6x384": dict(kind="gpt2", layers=6, d=384, heads=6, kv=6, ffn=1536, vocab=8192,
                       seq=256, batch=8, tied=True),
    "gpt2-124m": dict(kind="gpt2", layers=12, d=768, heads=12, kv=12, ffn=3072, vocab=50257,
                      seq=256, batch=4, tied=True),
    "llama-8x512": dict(kind="llama", layers=8, d=512, heads=8, kv=2, ffn=1408, vocab=16384,
                        seq=512, batch=4, tied=False),
    "mixtral-4x512": dict(kind="mixtral", layers=4, d=512, heads=8, kv=2, ffn=704, vocab=16384,
                          seq=512, batch=4, tied=False, experts=8, top_k=2),
}
