"""List prices of GPUs. Providers differ fivefold, so `--price PRODUCT=USD` states the real ones."""

from __future__ import annotations

# As of 2026-07-20: on demand, AWS us-east-1, an instance's price over its GPUs; GB200: Azure, 2026-06-18.
LIST_PRICES: tuple[tuple[str, float, float], ...] = (
    # pattern in the product name, USD per GPU-hour, GB of memory; the first match counts
    ("GB200", 27.04, 186),
    ("B300", 17.80, 270),
    ("B200", 14.24, 180),
    ("H200", 7.91, 141),
    ("H100", 6.88, 80),
    ("A100.*80GB", 3.43, 80),
    ("A100", 2.74, 40),
    ("RTX.PRO.6000", 3.36, 96),
    ("L40S", 1.86, 48),
    ("L4", 0.80, 24),
    ("A10", 1.01, 24),
    ("V100", 3.06, 16),
    ("T4", 0.53, 16),
)
