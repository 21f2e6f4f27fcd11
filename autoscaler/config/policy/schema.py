"""The policy document: every field with its default, what it allows and what it means. Nothing is computed here.

The reference in docs/reference/policy.md is built from these lines. Keys are written in camelCase, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from autoscaler.config.policy.dates import Calendar, Dates, DatesKind
from autoscaler.config.policy.recurrence import Recurrence, begins_ever
from autoscaler.config.values import (
    DAY_S,
    HOUR_S,
    NAME,
    Cron,
    Duration,
    FieldKind,
    Integer,
    Number,
    OneOf,
    Share,
    StepKind,
    StepLimit,
    Switch,
    Text,
    TimeZone,
    ValueKind,
)
from autoscaler.core.model.spec import DEFAULT_WINDOW_S

API_VERSION = "vllm-autoscaler.io/v1"
KIND = "Policy"
MAX_PREWARM = 16
MAX_REPLICAS = 10_000
SHARED, GUARANTEED = "shared", "guaranteed"
PRIORITY, WEIGHT = Integer(-1_000_000, 1_000_000), Number(0.001, 1_000_000)


class Section(BaseModel):
    """A mapping of a policy. Unknown keys are errors; a value once read does not change."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    @classmethod
    def keys(cls) -> dict[str, FieldInfo]:
        """Return the fields by the keys that people write."""
        return {info.alias or name: info for name, info in cls.model_fields.items()}


class ObjectiveSection(Section):
    """Latency objectives of requests."""

    ttft: Annotated[float | None, Duration(0.001, HOUR_S)] = Field(
        default=None, description="Longest time to first token of a request. Left out: no objective."
    )
    itl: Annotated[float | None, Duration(0.0001, 60.0)] = Field(
        default=None, description="Longest inter-token latency of a request. Left out: no objective."
    )
    attainment: Annotated[float, Share(0.01, 1.0)] = Field(
        default=0.99, description="Share of requests that must meet the objectives; the rest is the error budget."
    )
    window: Annotated[float, Duration(HOUR_S, DAY_S * 30)] = Field(
        default=DEFAULT_WINDOW_S,
        description="Time over which that share is kept. A miss counts 37 % after it; more misses than allowed are "
        "made up for within it.",
    )


class ReplicasSection(Section):
    """Floor and ceiling. Only a pool with too few GPUs gives less than the floor."""

    min: Annotated[int, Integer(0, MAX_REPLICAS)] = Field(
        default=1,
        description="Floor while the workload is awake; a workload at zero wakes to at least this many. Whether it "
        "goes to zero is decided by `scaleToZero` alone.",
    )
    max: Annotated[int, Integer(1, MAX_REPLICAS)] = Field(default=16, description="Ceiling, not below `min`.")
    on_demand_floor: Annotated[int | None, Integer(0, MAX_REPLICAS)] = Field(
        default=None,
        description="Spot nodes first, among the variants of a service: this many of the replicas that its load needs "
        "are on variants without spot nodes, and the others on spot variants while these get nodes. The largest number "
        "of its variants holds. Left out by all of them: prices alone decide.",
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.min > self.max:
            raise fault("min", "above max", f"at most replicas.max, which is {self.max}")
        return self


class Queue(Section):
    """How long requests may queue by design.

    This is no promise: it says which queues end too soon for a new replica to help. So it may be longer than
    `objective.ttft`. A request that waits longer than TTFT allows still counts against the error budget, and the
    planner requests replicas to keep TTFT whatever stands here.
    """

    max_wait: Annotated[float, Duration(0.0)] = Field(
        default=2.0,
        description="How long a request may wait. A burst that is over sooner, or before a new replica could serve, "
        "orders no replica.",
    )


class ScaleUp(Section):
    """Limits on growth of the count."""

    max_step: Annotated[StepLimit, StepKind()] = Field(
        default=StepLimit(fraction=1.0),
        description="Growth per period: a share of the count at its start, or replicas.",
    )
    step_floor: Annotated[int, Integer(1, 10_000)] = Field(
        default=4, description="Replicas that a period may always add, where `maxStep` is a share."
    )
    per: Annotated[float, Duration(1.0, HOUR_S)] = Field(default=15.0, description="Length of that period.")
    stabilization: Annotated[float, Duration(0.0, HOUR_S)] = Field(
        default=0.0, description="Grow only to the smallest recommendation within this window; `0s`: at once."
    )


class ScaleDown(Section):
    """Limits on shrinkage of the count."""

    max_step: Annotated[StepLimit, StepKind(most_fraction=1.0)] = Field(
        default=StepLimit(fraction=0.25),
        description="Shrinkage per period: a share of the count at its start, or replicas.",
    )
    per: Annotated[float, Duration(1.0, HOUR_S)] = Field(default=60.0, description="Length of that period.")
    stabilization: Annotated[float, Duration(0.0, HOUR_S * 6)] = Field(
        default=300.0,
        description="Shrink only to the largest recommendation within this window. It does not apply to the planner, "
        "which holds its own peaks.",
    )


class ScaleToZero(Section):
    """Scaling of an idle workload to zero replicas."""

    enabled: Annotated[bool, Switch()] = Field(
        default=False, description="Go to zero when idle, whatever `replicas.min` is."
    )
    idle_after: Annotated[float | None, Duration(1.0, HOUR_S * 168, auto=True)] = Field(
        default=None,
        description="Time without work after which the workload goes to zero, if `enabled`. `auto`: as soon as the "
        "error budget covers the requests that would wait for the wake-up, and only where a gateway holds them.",
    )


class Sleep(Section):
    """Replicas whose engine sleeps beside those that serve: vLLM 0.17 or later, with `--enable-sleep-mode`.

    They hold their GPUs, and are woken before a new replica is requested. Sides of a pair keep none.
    """

    replicas: Annotated[int, Integer(0, MAX_REPLICAS)] = Field(
        default=0,
        description="How many to keep asleep. `replicas.max` counts them, `replicas.min` does not. Headroom of a short "
        "pool comes after the replicas that the load of others needs.",
    )
    level: Annotated[int, Integer(1, 2)] = Field(
        default=1,
        description="`1`: the weights move to the memory of the host. `2`: they are dropped, and read again by the "
        "wake-up.",
    )


class CapacitySection(Section):
    """Capacity of one replica. If `concurrency`, `prefillTokensPerSecond` or `decodeTokensPerSecond` is stated, the
    planner is off. Fields that are left out are learned from the engine."""

    concurrency: Annotated[float | None, Number(0.01, 100_000)] = Field(
        default=None,
        description="Requests a replica runs at once within the objectives.",
    )
    prefill_tokens_per_second: Annotated[float | None, Number(0.01, 100_000_000)] = Field(
        default=None,
        description="Prompt tokens a replica computes per second. Not learned: without it signal `prefill` is silent.",
    )
    decode_tokens_per_second: Annotated[float | None, Number(0.01, 100_000_000)] = Field(
        default=None, description="Tokens a replica generates per second."
    )
    target_usage: Annotated[float, Share(0.05, 1.0)] = Field(
        default=0.8, description="Share of that capacity to plan for; the rest is headroom."
    )
    kv_cache_usage: Annotated[float, Share(0.05, 1.0)] = Field(
        default=0.8, description="KV-cache usage to plan for. vLLM preempts requests when the cache is full."
    )
    weights_gb: Annotated[float | None, Number(0.001, 100_000)] = Field(
        default=None,
        description="10^9 bytes of weights as loaded. A model that fits on no device that its workload may get is "
        "reported, and refused by `check --fit`.",
    )


class PairSection(Section):
    """Ratio of the two workloads of a prefill and decode pair. If their policies differ, the stricter limit holds.

    Each side is sized by its own work. The side that is then too small for the ratio gets more replicas.
    """

    min_decode_per_prefill: Annotated[float | None, Number(0.01, 100)] = Field(
        default=None, description="Fewest decode replicas per prefill replica, rounded up. Left out: no limit."
    )
    max_decode_per_prefill: Annotated[float | None, Number(0.01, 100)] = Field(
        default=None,
        description="Most decode replicas per prefill replica, not below `minDecodePerPrefill`. Left out: no limit.",
    )

    @model_validator(mode="after")
    def _order(self) -> Self:
        least, most = self.min_decode_per_prefill, self.max_decode_per_prefill
        if least is not None and most is not None and least > most:
            raise fault(
                "minDecodePerPrefill", "above the maximum", f"at most pair.maxDecodePerPrefill, which is {most:g}"
            )
        return self


class Inputs(Section):
    """Requirements for readings to be used."""

    max_age: Annotated[float, Duration(1.0, HOUR_S)] = Field(
        default=60.0,
        description="Readings older than this are not trusted: the count holds or grows, and if there is no younger "
        "reading KEDA gets UNAVAILABLE. At least two scrape intervals.",
    )


class Prewarm(Section):
    """A recurring window with replicas ready from its start. If windows overlap, the largest count holds."""

    name: Annotated[str | None, NAME] = Field(default=None, description="Name of the window in explanations.")
    from_: Annotated[str, Cron()] = Field(alias="from", description="Start of the window.")
    until: Annotated[str, Cron()] = Field(
        description="End of the window: the first time after its start at which this occurs."
    )
    timezone: Annotated[str, TimeZone()] = Field(
        default="UTC",
        description="Time zone of both. A time that daylight saving skips occurs when the clock jumps; a time that "
        "occurs twice counts the first time.",
    )
    only: Annotated[Dates, DatesKind()] = Field(
        default=Dates(), description="The window begins on these dates only, by the clock of its time zone."
    )
    never: Annotated[Dates, DatesKind()] = Field(
        default=Dates(), alias="except", description="The window does not begin on these dates, such as holidays."
    )
    replicas: Annotated[int, Integer(1, MAX_REPLICAS)] = Field(description="Replicas that must be ready in the window.")
    lead: Annotated[float | None, Duration(0.0, auto=True)] = Field(
        default=None,
        description="How long before the start to request them; `auto`: one learned cold start, without what is "
        "requested before it.",
    )

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.from_.upper() == self.until.upper():
            raise fault("until", "the same as from", "another time than from")
        if not begins_ever(self.recurrence):
            key = "only" if self.only else "except"
            raise fault(key, "dates that leave no begin of the window", "dates of which one leaves a begin of from")
        return self

    @property
    def recurrence(self) -> Recurrence:
        """When the window begins and ends."""
        return Recurrence(self.from_, self.until, self.timezone, Calendar(self.only, self.never))


class WakeUp(Section):
    """A wake-up signal for a workload at zero, in addition to the known gateways."""

    query: Annotated[str | None, Text(4096, lines=True)] = Field(
        default=None,
        description="PromQL expression; a workload for which it is above 0 is woken. Only Prometheus can check whether "
        "it is valid.",
    )


class PolicySpec(Section):
    """The policy itself."""

    objective: ObjectiveSection = ObjectiveSection()
    priority: Annotated[int, PRIORITY] = Field(
        default=100,
        description="Higher is served first when GPUs are short. "
        "No workload gets headroom before all have the replicas that their load needs, unless it is guaranteed.",
    )
    weight: Annotated[float, WEIGHT] = Field(
        default=1.0, description="Share of short GPUs among workloads of one priority."
    )
    headroom: Annotated[str, OneOf((SHARED, GUARANTEED))] = Field(
        default=SHARED,
        description="Headroom when GPUs are short. `shared`: after the replicas that the load of any workload needs. "
        "`guaranteed`: before those of lower priorities in the pool that can wait for a new replica. They pay for it.",
    )
    headroom_share: Annotated[float, Share(0.01, 1.0)] = Field(
        default=0.2,
        description="Most of the GPUs of a pool that guaranteed headroom takes from workloads that can wait, together "
        "with that of other workloads.",
    )
    replicas: ReplicasSection = ReplicasSection()
    queue: Queue = Queue()
    scale_up: ScaleUp = ScaleUp()
    scale_down: ScaleDown = ScaleDown()
    tolerance: Annotated[float, Share(0.0, 0.9)] = Field(
        default=0.1,
        description="Relative change of the count that is too small to act on. Not applied to the planner.",
    )
    scale_to_zero: ScaleToZero = ScaleToZero()
    sleep: Sleep = Sleep()
    capacity: CapacitySection = CapacitySection()
    pair: PairSection = PairSection()
    cold_start: Annotated[float, Duration(0.1, HOUR_S * 2)] = Field(
        default=180.0, description="Time from requesting a replica until it serves. Used until it has been learned."
    )
    inputs: Inputs = Inputs()
    prewarm: Annotated[tuple[Prewarm, ...], Field(max_length=MAX_PREWARM)] = Field(
        default=(), description=f"Recurring windows, at most {MAX_PREWARM}."
    )
    wake_up: WakeUp = WakeUp()

    @property
    def guaranteed_share(self) -> float:
        """Share of a pool that is guaranteed to headroom; 0: none."""
        return self.headroom_share if self.headroom == GUARANTEED else 0.0


class PolicyMetadata(Section):
    """Name of the policy."""

    name: Annotated[str, NAME] = Field(description="Name by which workloads select the policy.")


class Policy(Section):
    """One document: objectives, limits and schedules for a class of workloads."""

    api_version: Annotated[str, OneOf((API_VERSION,))] = Field(description="Version of this format.")
    kind: Annotated[str, OneOf((KIND,))] = Field(description="Kind of the document.")
    metadata: PolicyMetadata
    spec: PolicySpec = PolicySpec()

    @property
    def name(self) -> str:
        return self.metadata.name


@dataclass(frozen=True)
class Leaf:
    """One field that holds a value."""

    path: str  # "scaleDown.stabilization", below spec; "prewarm[].from" inside a list
    kind: ValueKind
    info: FieldInfo


def fault(key: str, problem: str, allowed: str) -> PydanticCustomError:
    """Make the error of a check that concerns two fields; `key` is the one to point at."""
    return PydanticCustomError("policy_rule", "{problem}", {"key": key, "problem": problem, "allowed": allowed})


def kind_of(info: FieldInfo) -> ValueKind | None:
    """Return how a field's value is written; None: it is a mapping or a list."""
    for item in info.metadata:
        if isinstance(item, FieldKind):
            return cast(ValueKind, item)
    return None


def section_of(info: FieldInfo) -> type[Section] | None:
    """Return the model inside a field that is a mapping or a list of mappings."""
    for candidate in (info.annotation, *get_args(info.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def leaves(model: type[Section] = PolicySpec, prefix: str = "") -> Iterator[Leaf]:
    """List the fields that hold values, in the order of the document."""
    for key, info in model.keys().items():
        path = f"{prefix}{key}"
        kind, section = kind_of(info), section_of(info)
        if kind is not None:
            yield Leaf(path, kind, info)
        elif section is not None:
            yield from leaves(section, f"{path}[]." if info.annotation is not section else f"{path}.")


def to_document(section: Section) -> dict[str, Any]:
    """Write a policy back as the mapping it could have been read from; fields without a value are left out."""
    document: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        value, kind = getattr(section, name), kind_of(info)
        key = info.alias or name
        if isinstance(value, Section):
            document[key] = to_document(value)
        elif isinstance(value, tuple):
            document[key] = [to_document(item) for item in value]
        elif kind is not None and (value is not None or (isinstance(kind, Duration) and kind.auto)):
            document[key] = kind.show(value)
    return document


# Fields that a workload may override. A list has no single value, and a wake-up query runs once per policy.
OVERRIDES: Mapping[str, Leaf] = MappingProxyType(
    {leaf.path: leaf for leaf in leaves() if "[]" not in leaf.path and leaf.path != "wakeUp.query"}
)
