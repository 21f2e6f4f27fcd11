"""All quotas of GPUs that hold for the managed workloads, laid out again only when something about them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoscaler.adapters.kubernetes.pods.rows import PodRows
from autoscaler.adapters.kubernetes.quotas.columns import Applicant, Count, QuotaLayout
from autoscaler.adapters.kubernetes.quotas.kueue import KueueStore
from autoscaler.adapters.kubernetes.quotas.resource_quotas import MAX_LAYERS, ResourceQuotaStore
from autoscaler.adapters.kubernetes.quotas.stated import lay_out_stated
from autoscaler.config.quotas import StatedQuota
from autoscaler.core.model.fleet import QUEUED
from autoscaler.core.model.quotas import Allowance, Quotas
from autoscaler.core.table.columns import FloatColumn, IntColumn

Stated = Callable[[], Sequence[StatedQuota]]


class QuotaView:
    """The quotas of the cluster, and those of a file for the workloads that no quota of the cluster charges."""

    def __init__(self, stated: Stated = tuple) -> None:
        """stated: returns the quotas of the file as they are now."""
        self.resource_quotas = ResourceQuotaStore()
        self.kueue = KueueStore()
        self._stated = stated
        self._inputs: object = None
        self._of_namespaces: list[QuotaLayout] = []
        self._of_queues: QuotaLayout | None = None
        self._of_file: QuotaLayout | None = None
        self._namespaces: set[str] = set()
        self._counts = [Count() for _ in range(MAX_LAYERS)]
        self._queue_count, self._file_count = Count(), Count()

    def update(self, workloads: Sequence[Applicant]) -> None:
        """Lay out the quotas that charge the managed workloads, unless nothing has changed."""
        stated = self._stated()
        inputs = self.resource_quotas.version, self.kueue.version, stated, workloads
        if inputs == self._inputs:
            return
        self._inputs = inputs
        self._namespaces = {each.namespace for each in workloads}
        self._of_namespaces = self.resource_quotas.lay_out(workloads)
        self._of_queues = self.kueue.lay_out(workloads)
        charged = [layout.tenant >= 0 for layout in (*self._of_namespaces, self._of_queues) if layout is not None]
        free = ~np.logical_or.reduce(charged) if charged else np.ones(len(workloads), dtype=bool)
        self._of_file = lay_out_stated(stated, workloads, free.tolist())

    def count(
        self, pods: PodRows, pod_workload: IntColumn, gpus_per_replica: FloatColumn, now_s: float
    ) -> tuple[Quotas, ...]:
        """Return the quotas with what other pods use. pod_workload: int64[P]. gpus_per_replica: float64[W].

        A ResourceQuota charges every pod. Kueue charges those that it has admitted.
        """
        if not self._of_namespaces and self._of_queues is None and self._of_file is None:
            return ()
        gpus = np.nan_to_num(gpus_per_replica)
        held = np.bincount(pod_workload, minlength=len(gpus)) * gpus
        found = [
            count.quotas(layout, held, self.resource_quotas.used, now_s)
            for count, layout in zip(self._counts, self._of_namespaces, strict=False)
        ]
        if self._of_queues is not None:
            admitted = ~np.isin(pods.blocked, QUEUED)
            in_queues = np.bincount(pod_workload[admitted], minlength=len(gpus)) * gpus
            found.append(self._queue_count.quotas(self._of_queues, in_queues, self.kueue.used, now_s))
        if self._of_file is not None:
            found.append(self._file_count.quotas(self._of_file, held, {}, now_s))
        return tuple(found)

    def allowances(self, workloads: Sequence[Applicant]) -> tuple[Allowance, ...]:
        """Return what quotas of the cluster leave of pods, CPU and memory for the managed workloads."""
        return (*self.resource_quotas.allowances(workloads), *self.kueue.allowances(workloads))

    def problems(self) -> list[str]:
        """Return what is not believed, or not read, of the quotas of the cluster, one line each."""
        return [*self.resource_quotas.problems(self._namespaces), *self.kueue.problems]
