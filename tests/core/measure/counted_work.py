"""The work of pods of one workload, counted between readings of their engines."""

import math
from dataclasses import replace

import numpy as np

from autoscaler.core.measure.interval import count_work, find_new_readings
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.pods import PodState, measure_pods
from autoscaler.core.readings.pod_deltas import COUNTERS, PodReadings
from autoscaler.core.table.groupby import GroupBy

NAN = math.nan


def read(time_s, pods=1, **columns):
    """Return the samples of pods at a time: every counter is reported, and 0 unless given."""
    values = {"running": 0.0, "waiting": 0.0, **dict.fromkeys(COUNTERS, 0.0), **columns}
    table = {name: np.broadcast_to(np.asarray(value, dtype=float), pods).copy() for name, value in values.items()}
    return replace(PodSamples.filled(pods), time_s=np.broadcast_to(np.asarray(time_s, dtype=float), pods), **table)


class Counting:
    """Counts the work of some pods with each tick: all pods, of one workload, unless stated."""

    def __init__(self, pods, rows=None, chosen=None, decode=None):
        self.chosen = np.arange(pods) if chosen is None else np.array(chosen)
        rows = np.zeros(len(self.chosen), dtype=np.int64) if rows is None else np.array(rows)
        self.by_workload = GroupBy(rows, max(rows.tolist(), default=0) + 1)
        self.decode = decode
        self.pods, self.counted = PodState.blank(pods), PodReadings.blank(len(self.chosen))

    def tick(self, samples, now_s=None):
        """Return the totals since the last tick."""
        now_s = float(np.nanmax(samples.time_s)) if now_s is None else now_s
        measured = measure_pods(samples, now_s, self.pods)
        self.pods = replace(self.pods, readings=measured.readings, progress=measured.progress)
        is_new = find_new_readings(measured, self.counted.time_s, self.chosen)
        totals, self.counted = count_work(measured, self.counted, self.chosen, is_new, self.by_workload, self.decode)
        return totals


def count(*samples, decode=None):
    """Return the totals of the last of these samples."""
    counting = Counting(len(samples[0].time_s), decode=decode)
    return [counting.tick(each) for each in samples][-1]
