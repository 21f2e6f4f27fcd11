"""One workload alone: tolerance, stabilization windows, idle timeout, rate limits, bounds."""
