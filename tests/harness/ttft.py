"""Two pods of one workload whose requests together have another 95th percentile of TTFT than the mean of their own."""

BOUNDS = ("1.0", "2.5", "5.0", "10.0", "40.0", "80.0", "+Inf")
POOLED_S = 76.0  # of 50 quick requests in one pod and 50 slow ones in the other: 45 of those in (40, 80] are below it
MEAN_S = (2.425 + 78.0) / 2  # of the pods' own 95th percentiles


def ttft_text(quick: int, slow: int) -> str:
    """Exposition of an engine: this many first tokens after 1 to 2.5 s, and this many after 40 to 80 s."""
    counts = [0, quick, quick, quick, quick, quick + slow, quick + slow]
    buckets = (
        f'vllm:time_to_first_token_seconds_bucket{{engine="0",model_name="m",le="{bound}"}} {count}\n'
        for bound, count in zip(BOUNDS, counts, strict=True)
    )
    of_engine = '{engine="0",model_name="m"}'
    return (
        "".join(buckets)
        + f"vllm:time_to_first_token_seconds_count{of_engine} {quick + slow}\n"
        + f"vllm:num_requests_running{of_engine} 3\nvllm:num_requests_waiting{of_engine} 0\n"
    )
