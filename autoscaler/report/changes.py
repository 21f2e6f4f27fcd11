"""Changes to consider for a service: other work, other devices, or another policy.

A change says what replicas would be: how much longer or shorter a request keeps one busy, which part of the devices
it holds, and when it rests. What history does not show is a reason, and no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from autoscaler.catalog.devices import MigProfile, Product, device_share, find_device, is_mig, mig_profiles
from autoscaler.catalog.model_shapes import bytes_per_parameter, is_quantized
from autoscaler.config.values import show_duration
from autoscaler.core.explain.diagnosis import MAY_WAIT_S
from autoscaler.core.measure.step_time import StepTime, compute_running_at
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.core.model.spec import Spec
from autoscaler.core.starts.wake_ups import FIRST_WAKE_S
from autoscaler.core.table.columns import or_zero
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.idle import find_rest, say_why_not
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.size_prior import parameters_of

READING = 2 / 3
"""Part of the time between two tokens in which weights are read; with 8 bits it takes half as long."""

USABLE, OVERHEAD_GB = 0.9, 2.0
"""Part of the GPU memory that an engine takes, and what of it is neither weights nor KV cache."""

FULLEST = 0.9
"""Use of the KV cache up to which a change may bring a replica at its highest hours."""

SHARERS = (2, 4)
LARGER_BATCH = 2.0

TO_ZERO, SLEEP, SLICE, SHARE, BATCH, QUANTIZE, PAIR = NAMES = (
    *("to_zero", "sleep", "slice", "share", "batch", "quantize", "pair"),
)


class ReplicaKind(NamedTuple):
    """A replica under a change, against one of today."""

    work: float = 1.0  # times the time for which a request keeps it busy
    slowdown: float = 1.0  # times the time that a request takes alone
    devices: float = 1.0  # times the devices that it holds


class ServiceChange(NamedTuple):
    """One change to a service."""

    name: str  # of NAMES
    words: str  # without a full stop
    why: str = ""  # nothing replays it, for this reason; "": it is replayed
    kinds: tuple[ReplicaKind, ...] = (ReplicaKind(),)  # each request passes one of each: of prefill, and of decode
    idle_after_s: float = math.nan  # without a request, until zero serve; NaN: as the policy states
    asleep: float = 0.0  # replicas that are kept asleep


class Service(NamedTuple):
    """A service and its facts, by which changes are chosen. Unknown is NaN."""

    load: FleetLoad
    profiles: Profiles
    facts: ServiceFacts
    spec: Spec
    row: int

    def profile(self, column: str) -> float:
        return float(getattr(self.profiles, column)[self.row])

    @property
    def alive(self) -> np.ndarray:
        return np.asarray(self.load.pods[:, self.row] > 0)

    @property
    def prompt_share(self) -> float:
        """Return the part of the work of a request that its prompt takes; NaN: not known."""
        load, row = self.load, self.row
        seen = load.seen[:, row]
        asked, tokens = (float(each[seen, row].sum(dtype=np.float64)) for each in (load.arrivals, load.prompt_tokens))
        work_s = self.profile("work_s")
        if not (asked > 0 and tokens > 0 and work_s > 0):
            return math.nan
        return float(np.clip(self.profile("prompt_token_s") * tokens / asked / work_s, 0.0, 1.0))

    @property
    def kv_peak(self) -> float:
        """Return the use of the KV cache that is reached in one of a hundred steps; NaN: not reported."""
        used = self.load.kv_usage[self.alive, self.row]
        used = used[~np.isnan(used)]
        return float(np.quantile(used, 0.99)) if len(used) else math.nan

    @property
    def device(self) -> Product | None:
        return find_device(self.product) if self.product else None

    @property
    def product(self) -> str:
        return self.facts.products[self.row] if self.facts.products else ""

    @property
    def weights_gb(self) -> float:
        """Return the weights of a replica; NaN: the name of the model does not tell."""
        model = self.facts.model[self.row]
        size = bytes_per_parameter(model)
        return parameters_of(model) * (2.0 if size is None else size[1]) / 1e9 if model else math.nan


def find_changes(diagnosis: Diagnosis, service: Service) -> tuple[ServiceChange, ...]:
    """Return the changes to try for a diagnosis; (): there is none that a replay could know."""
    may_wait = float(service.spec.max_wait_s[service.row]) >= MAY_WAIT_S
    makers: Mapping[Diagnosis, tuple[Callable[[Service], Iterator[ServiceChange]], ...]] = {
        Diagnosis.IDLE_AND_LOADED: (_to_zero, _sleep, _share if may_wait else _slices),
        Diagnosis.FEW_REQUESTS: (_share if may_wait else _slices,),
        Diagnosis.MEMORY_BOUND_DECODE: (_batch, _quantize),
        Diagnosis.COMPUTE_BOUND_PREFILL: (_pair, _quantize),
        Diagnosis.COMMUNICATION_BOUND: (_fewer_gpus,),
    }
    return tuple(change for make in makers.get(diagnosis, ()) for change in make(service))


def _to_zero(service: Service, asleep: float = 0.0) -> Iterator[ServiceChange]:
    row, spec = service.row, service.spec
    if math.isfinite(spec.idle_after_s[row]):
        return
    wake_s = float(FIRST_WAKE_S[0]) if asleep else service.profile("cold_start_s")
    rest = find_rest(service.load, row, wake_s, float(spec.error_budget[row]))
    name = SLEEP if asleep else TO_ZERO
    words = "sleep of the last replica" if asleep else "scale to zero"
    if rest is None:
        yield ServiceChange(name, words, say_why_not(service.load, row, wake_s))
        return
    after = f"after {show_duration(rest.idle_s)} without a request"
    field = "sleep.replicas: 1 and scaleToZero.idleAfter" if asleep else "scaleToZero.idleAfter"
    yield ServiceChange(
        name, f"{words} {after} ({field}; a gateway must hold requests)", "", idle_after_s=rest.idle_s, asleep=asleep
    )


def _sleep(service: Service) -> Iterator[ServiceChange]:
    return _to_zero(service, asleep=1.0)


def _slices(service: Service) -> Iterator[ServiceChange]:
    """Yield smaller MIG instances in which weights and KV cache have room."""
    words = "a smaller MIG instance"
    gpus, device = float(service.facts.gpus[service.row]), service.device
    if device is None:
        yield ServiceChange(SLICE, words, "its GPU is not known by name")
    elif service.facts.assumed_gpus[service.row]:
        yield ServiceChange(SLICE, words, "how many GPUs a replica holds is not known")
    elif not (profiles := mig_profiles(device)):
        yield ServiceChange(SLICE, words, f"{device.name} is not cut into instances")
    elif gpus > 1:
        yield ServiceChange(SLICE, words, "instances have no links between them, and a replica spans GPUs")
    else:
        now = _present_slice(service, device)
        smaller = [each for each in profiles if now is not None and each[1].memory < now.memory]
        found = [
            ServiceChange(SLICE, f"a MIG instance {name} of {device.name}", kinds=(kind,))
            for name, each in smaller
            if now is not None and (kind := _part(service, each.memory / now.memory, each.compute / now.compute))
        ]
        yield from found or [ServiceChange(SLICE, words, _no_room(service))]


def _present_slice(service: Service, device: Product) -> MigProfile | None:
    """Return what a replica has of its device; None: a part that is not known."""
    if not is_mig("", service.product):
        return MigProfile(1.0, 1.0, device.memory_gb) if device_share("", service.product) == 1 else None
    named = dict(mig_profiles(device))
    return next((profile for name, profile in named.items() if name in service.product.lower()), None)


def _share(service: Service) -> Iterator[ServiceChange]:
    """Yield GPUs that replicas share in turns or by MPS. Neighbours are taken to compute all of the time."""
    words = "MPS or time-slicing"
    if service.device is None or service.facts.assumed_gpus[service.row]:
        yield ServiceChange(SHARE, words, "its GPU is not known by name, or how many a replica holds")
        return
    if is_mig("", service.product):
        yield ServiceChange(SHARE, words, "the device plugin shares no MIG instances by MPS")
        return
    found = [
        ServiceChange(SHARE, f"MPS or time-slicing, {sharers} on a GPU that all compute", kinds=(kind,))
        for sharers in SHARERS
        if (kind := _part(service, 1 / sharers, 1 / sharers))
    ]
    yield from found or [ServiceChange(SHARE, words, _no_room(service))]


def _part(service: Service, memory: float, compute: float) -> ReplicaKind | None:
    """Return a replica on a part of its GPU; None: it has no room, or whether it has is not known.

    Tokens come by the bandwidth of the memory, prompts by the compute. The same requests fill more of a smaller KV
    cache, and a fuller replica is busier (`compute_busy_share`).
    """
    device, kv = service.device, service.kv_peak
    assert device is not None
    whole_gb = USABLE * device.memory_gb * float(service.facts.gpus[service.row]) * device_share("", service.product)
    cache_gb, left_gb = (part * whole_gb - OVERHEAD_GB - service.weights_gb for part in (1.0, memory))
    if not (left_gb > 0 and kv * cache_gb <= FULLEST * left_gb):
        return None
    prompt = or_zero(np.array([service.prompt_share])).item()
    slower = prompt / compute + (1 - prompt) / memory
    used = float(np.nanmean(service.load.kv_usage[service.alive, service.row]))
    fuller = min(used * cache_gb / left_gb, FULLEST)
    busy = float(np.nanmean(service.load.busy[service.alive, service.row]))
    computing = np.clip((busy - used) / (1 - used), 0.0, 1.0) if used < 1 else 1.0
    before, after = (computing + (1 - computing) * each for each in (used, fuller))
    return ReplicaKind(slower * (after / before if before > 0 else 1.0), slower, max(memory, compute))


def _no_room(service: Service) -> str:
    if math.isnan(service.weights_gb):
        return "the name of its model does not tell its size"
    if math.isnan(service.kv_peak):
        return "the use of its KV cache is not reported"
    return f"weights of {service.weights_gb:.0f} GB and the KV cache of its requests have no room in less"


def _batch(service: Service) -> Iterator[ServiceChange]:
    """Yield more slots, up to the KV cache and the objective for token gaps, at the step time that was learned."""
    slots, row = service.profile("slots"), service.row
    gaps = StepTime(*(getattr(service.profiles, each)[row : row + 1] for each in StepTime._fields))
    idle_s, token_s = float(gaps.idle_gap_s[0]), float(gaps.output_token_s[0])
    words = "a larger batch (--max-num-seqs)"
    if math.isnan(slots):
        yield ServiceChange(BATCH, words, "its batch was never seen full, so slots do not limit it")
        return
    if service.profiles.assumed_speed[row] or not (token_s > 0 and idle_s >= 0):
        yield ServiceChange(BATCH, words, "how its step time grows with the batch is not known")
        return
    limits = [LARGER_BATCH * slots, slots * FULLEST / service.kv_peak if service.kv_peak > 0 else math.nan]
    most = float(np.fmin(limits[0], np.fmin(limits[1], compute_running_at(service.spec.itl_objective_s[row], gaps)[0])))
    most = math.floor(most)
    if most <= slots:
        yield ServiceChange(BATCH, words, "its KV cache is full, or tokens would come too late")
        return
    now_s, then_s = (idle_s + each * token_s for each in (slots, most))
    kind = ReplicaKind((then_s / most) / (now_s / slots), then_s / now_s)
    yield ServiceChange(BATCH, f"a larger batch (--max-num-seqs {most} in place of {slots:.0f})", kinds=(kind,))


def _quantize(service: Service) -> Iterator[ServiceChange]:
    factor = eight_bit_work(service)
    words = "weights of 8 bits (whether answers stay as good is not replayed)"
    if factor < 1:
        yield ServiceChange(QUANTIZE, words, kinds=(ReplicaKind(factor),))
    elif service.facts.model[service.row]:
        yield ServiceChange(QUANTIZE, words, "its weights have 8 bits or fewer, or prompts take all of its time")
    else:
        yield ServiceChange(QUANTIZE, words, "its model is not known by name")


def eight_bit_work(service: Service) -> float:
    """Return the part of the work that weights of 8 bits leave; 1: they have as few, or the model is not known."""
    model = service.facts.model[service.row]
    prompt = or_zero(np.array([service.prompt_share])).item()
    return 1 - (1 - prompt) * READING / 2 if model and not is_quantized(model) else 1.0


def _fewer_gpus(service: Service) -> Iterator[ServiceChange]:
    """Yield half as many GPUs with weights of 8 bits: reading takes as long, all else twice. Links are not counted."""
    row, gpus, device = service.row, float(service.facts.gpus[service.row]), service.device
    words = (
        "weights of 8 bits on half as many GPUs (whether answers stay as good, and what links gain, is not replayed)"
    )
    if eight_bit_work(service) >= 1:
        yield ServiceChange(QUANTIZE, words, "its model is not known by name, or its weights have 8 bits or fewer")
    elif device is None or service.facts.assumed_gpus[row] or gpus < 2 or gpus % 2:
        yield ServiceChange(QUANTIZE, words, "its GPU is not known by name, or a replica spans an odd number")
    else:
        whole_gb = USABLE * device.memory_gb * gpus
        cache_gb = whole_gb - OVERHEAD_GB * gpus - service.weights_gb
        left_gb = whole_gb / 2 - OVERHEAD_GB * gpus / 2 - service.weights_gb / 2
        if not (left_gb > 0 and service.kv_peak * cache_gb <= FULLEST * left_gb):
            yield ServiceChange(QUANTIZE, words, _no_room(service))
            return
        prompt = or_zero(np.array([service.prompt_share])).item()
        slower = 2 * prompt + (1 - prompt) * (READING + 2 * (1 - READING))
        yield ServiceChange(QUANTIZE, words, kinds=(ReplicaKind(slower, slower, 0.5),))


def _pair(service: Service) -> Iterator[ServiceChange]:
    words = "a pair of prefill and decode (what tokens gain, and moving the KV cache, is not replayed)"
    prompt = service.prompt_share
    if math.isnan(prompt) or service.profiles.assumed_speed[service.row]:
        yield ServiceChange(PAIR, words, "how long its prompts take is not known")
        return
    yield ServiceChange(PAIR, words, kinds=(ReplicaKind(max(prompt, 1e-6)), ReplicaKind(max(1 - prompt, 1e-6))))
