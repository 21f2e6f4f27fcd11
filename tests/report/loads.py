"""Loads for tests of single parts."""

import numpy as np

from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.model.spec import Spec
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.history import Span
from autoscaler.report.load import FleetLoad, Profiles

START_S = 1_780_000_200.0  # not at the beginning of an hour
STEP_S = 60.0


def interactive(services: int = 1) -> Spec:
    book = load_policies(())
    return Spec(*(np.full(services, value) for value in spec_row(book.policies[book.default].spec)))


def load_of(
    demand: np.ndarray, counts: np.ndarray, work_s: float = 0.1, step_s: float = STEP_S, **changed: np.ndarray
) -> FleetLoad:
    """Return the load of services, [T, W]. counts: real replicas."""
    demand, counts = (np.asarray(each, np.float32) for each in (demand, counts))
    arrivals = demand * np.float32(step_s / work_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = np.where(counts > 0, np.minimum(demand / counts, 1), 0).astype(np.float32)
    columns = {
        "seen": np.ones(demand.shape, bool),
        "demand": demand,
        "arrivals": arrivals,
        "work_s": np.full_like(demand, work_s),
        "busy": busy,
        "pods": counts,
        "ordered": counts,
        "running": demand * 10,
        "waiting": np.zeros_like(demand),
        "kv_usage": busy / 2,
        "gap_s": 0.01 / np.maximum(1 - busy, 0.05),
        "prompt_tokens": arrivals * 100,
        "output_tokens": arrivals * 50,
        "missed_share": np.zeros_like(demand),
    }
    return FleetLoad(Span(START_S, step_s, len(demand)), **columns | changed)


def profiles_of(services: int = 1, **changed: float) -> Profiles:
    values = {
        "idle_gap_s": 0.01,
        "prompt_token_s": 1e-4,
        "output_token_s": 1e-4,
        "slots": np.nan,
        "work_s": 0.1,
        "steepness": 0.0,
        "unavoidable": 0.0,
        "batch_room_s": 0.0,
        "max_queue_s": 0.8,
        "cold_start_s": 120.0,
    } | changed
    no = np.zeros(services, bool)
    return Profiles(**{name: np.full(services, value) for name, value in values.items()}, **dict.fromkeys(ASSUMED, no))


ASSUMED = ("assumed_speed", "assumed_misses", "assumed_start")


def facts_of(gpus: float = 1.0, usd: float = 2.0, services: int = 1) -> ServiceFacts:
    no = np.zeros(services, bool)
    return ServiceFacts(("m",) * services, np.full(services, gpus), no, np.full(services, usd), ("",) * services)
