"""What a GPU costs: list prices as a default, and how a slice shares the price of its card.

Used to choose among the variants of a service, where only ratios matter. Prices of one GPU differ fivefold between
providers, so `--price PRODUCT=USD` states real ones.
"""

from __future__ import annotations

# Of 2026-07-20: on demand, AWS us-east-1, an instance's price over its GPUs; GB200: Azure, 2026-06-18.
LIST_PRICES: tuple[tuple[str, float, float], ...] = (
    # what the product's name holds, USD per GPU-hour, GB; the first that fits counts
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
