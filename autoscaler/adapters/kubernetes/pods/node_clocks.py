"""Node clocks that are behind, which would teach starts that are too short."""

from __future__ import annotations

import math

import numpy as np

from autoscaler.core.model.phases import SKEW_S


def clock_behind_s(line: np.void, now_s: float, started_s: float, ready_s: float) -> float:
    """Return how far the clock of a pod's node is ahead: negative if it is certainly behind, as before if not.

    The kubelet's time of an event is certainly wrong if it is before the pod was last seen without it. It is almost
    certainly wrong if the events of start and readiness both come late, and equally. The shorter delay has least of
    the way of the event in it. line: the row of the pod, whose times of what was seen are updated. All are Unix times,
    which a step of the clock of this process does not move.
    """
    before_s, lags_s = -math.inf, []
    for stamp_s, name in ((started_s, "waited_s"), (ready_s, "unready_s")):
        if math.isnan(stamp_s):
            line[name] = now_s
        elif not math.isnan(line[name]):
            before_s = max(before_s, float(line[name]) - stamp_s)
            lags_s.append(now_s - stamp_s)
            line[name] = math.nan
            if name == "waited_s":
                line["start_lag_s"] = now_s - stamp_s
    if not lags_s:
        return float(line["clock_s"])
    start_lag_s, lag_s = float(line["start_lag_s"]), min(lags_s)
    agrees = len(lags_s) == 1 and not math.isnan(ready_s) and abs(start_lag_s - lag_s) <= SKEW_S  # False for NaN
    least_s = min(lag_s, start_lag_s) if agrees else lag_s
    is_behind = before_s > SKEW_S or (agrees and least_s > SKEW_S)
    return -least_s if is_behind else float(line["clock_s"])
