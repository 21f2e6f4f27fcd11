"""Settings of the process: one frozen object, validated completely before anything starts.

The command line fills it; every option can also come from the environment (`VLLM_AUTOSCALER_<COMMAND>_<OPTION>`).
Values that differ between classes of workloads are policy, not settings.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, field_validator, model_validator

from autoscaler.config.matchers import read_matchers
from autoscaler.config.weights.allowed import DEFAULT_RULES, PrivateSources, SourceRules

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=0, le=65_535)]  # 0: any free port


class Mode(StrEnum):
    """How replica counts are applied."""

    DIRECT = "direct"
    KEDA = "keda"
    DRY_RUN = "dry-run"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TlsFiles(Frozen):
    """Certificate files; they are read again after a change."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> TlsFiles:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a certificate and its key go together: give both or neither")
        return self


# A prefix that a pipeline adds to the names of engine metrics.
MetricPrefix = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]{0,63}$")]


class PrometheusSettings(Frozen):
    """A server that speaks the Prometheus query API: Prometheus, VictoriaMetrics, Thanos, Mimir."""

    url: str = Field(pattern=r"^https?://")
    headers: tuple[tuple[str, str], ...] = ()  # X-Scope-OrgID and the like
    token_file: Path | None = None  # bearer token; read again when it changes
    username: str | None = None
    password_file: Path | None = None
    tls: TlsFiles = TlsFiles()
    timeout_s: Seconds = 10.0  # for one query
    selector: str = ""  # label matchers added to every query, for example to select a cluster
    metric_prefixes: tuple[MetricPrefix, ...] = ()
    rate_window_s: Seconds = 120.0  # range of histogram quantiles; at least four scrape intervals

    @field_validator("selector")
    @classmethod
    def _matchers(cls, written: str) -> str:
        return read_matchers(written)


class Verify(StrEnum):
    """How certificates of metrics servers are verified."""

    FULL = "full"  # signed by a trusted CA, for the requested host name or address
    CA = "ca"  # signed by a trusted CA, for any name: certificates of pods rarely contain their addresses
    NONE = "none"  # anything


class ScrapeSettings(Frozen):
    """Reading metrics directly from pods, exporters and gateways."""

    pods: bool = True  # the pods' own /metrics
    concurrency: int = Field(default=64, ge=1, le=1024)
    timeout_s: Seconds = 2.0  # for one pod
    max_body_bytes: int = Field(default=8 << 20, ge=1 << 10)
    window_s: Seconds = 60.0  # range of histogram quantiles
    dcgm: tuple[str, ...] = ()  # URLs of DCGM exporters to read directly
    gateways: tuple[str, ...] = ()  # URLs of gateway metrics to read directly
    tls: TlsFiles = TlsFiles()  # for https
    verify: Verify = Verify.FULL
    tokens: tuple[tuple[str, Path], ...] = ()  # file with the bearer token for pods, by namespace
    gateway_token_file: Path | None = None
    metric_prefixes: tuple[MetricPrefix, ...] = ()

    @model_validator(mode="after")
    def _verified(self) -> ScrapeSettings:
        if self.verify is Verify.NONE and (self.tokens or self.gateway_token_file):
            raise ValueError(
                "a token is sent only to servers whose certificate is verified: verify full or ca, not none"
            )
        if len(dict(self.tokens)) < len(self.tokens):
            raise ValueError("a namespace has two tokens; allowed: one for each namespace")
        return self


class KubeSettings(Frozen):
    """Access to the Kubernetes API."""

    context: str | None = None  # of the kubeconfig; None for in-cluster, else the current context
    timeout_s: Seconds = 10.0  # for one request


class LeaseSettings(Frozen):
    """Leader election; defaults and their order are those of client-go."""

    enabled: bool = True
    name: str = "vllm-autoscaler"
    namespace: str = "vllm-autoscaler"
    identity: str = ""  # "" for the host name and a random part
    duration_s: Seconds = 15.0
    renew_deadline_s: Seconds = 10.0
    retry_s: Seconds = 2.0

    @property
    def installation(self) -> str:
        """The identity of all replicas of the daemon that share a lease."""
        return f"{self.namespace}/{self.name}"

    @model_validator(mode="after")
    def _order(self) -> LeaseSettings:
        if not self.duration_s > self.renew_deadline_s > self.retry_s * 1.2:
            raise ValueError(
                "lease duration > renew deadline > 1.2 x retry must hold, "
                f"not {self.duration_s:g} s, {self.renew_deadline_s:g} s, {self.retry_s:g} s"
            )
        return self


class NodeRequestKind(StrEnum):
    """The objects that request nodes before a pre-warm window."""

    AUTO = "auto"  # CapacityBuffers where the cluster has them, else placeholders
    CAPACITY_BUFFER = "capacity-buffer"
    PLACEHOLDER = "placeholder"  # Deployments of pods with a low priority


class NodeRequests(Frozen):
    """Requests for nodes before the replicas of pre-warm windows."""

    by: NodeRequestKind = NodeRequestKind.AUTO
    image: str = Field(default="registry.k8s.io/pause:3.10.1", min_length=1, max_length=500)  # of placeholders
    pull_images: bool = False  # placeholders pull the image of the engine to their node

    @model_validator(mode="after")
    def _pods_pull(self) -> NodeRequests:
        if self.pull_images and self.by is NodeRequestKind.CAPACITY_BUFFER:
            raise ValueError("a CapacityBuffer has no pod that could pull an image: request nodes by placeholders")
        return self


class KedaSettings(Frozen):
    """The gRPC server for KEDA."""

    host: str = "0.0.0.0"
    port: Port = 6000
    tls: TlsFiles = TlsFiles()  # cert and key: TLS; with ca: clients need a certificate (mTLS)
    deadline_s: Seconds = 1.0  # per response; KEDA sets none


class HttpSettings(Frozen):
    """The HTTP server: health, metrics, API and web page."""

    host: str = "0.0.0.0"
    port: Port = 8080


class WebhookSettings(Frozen):
    """The mutating webhook: a process of its own."""

    host: str = "0.0.0.0"
    port: Port = 8443
    tls: TlsFiles
    host_path: str = ""  # folder of the nodes that is mounted; "": pods get the affinity alone
    image: str = ""  # of the container that waits for the weights
    compile_cache: bool = False  # keep what vLLM compiles below the folder
    private_sources: tuple[InstanceOf[PrivateSources], ...] = ()  # whose weights only some namespaces get
    secret: str = ""  # in which the certificate is made and renewed; "": another program does that
    namespace: str = "vllm-autoscaler"  # of the Secret and the Service
    service: str = "vllm-autoscaler-webhook"
    configuration: str = "vllm-autoscaler"  # MutatingWebhookConfiguration
    http: HttpSettings = HttpSettings()
    kube: KubeSettings = KubeSettings()

    @model_validator(mode="after")
    def _mounts(self) -> WebhookSettings:
        if bool(self.host_path) != bool(self.image):
            raise ValueError(
                "--host-path and --image go together: pods wait in a container until their node has weights"
            )
        if self.compile_cache and not self.host_path:
            raise ValueError("--compile-cache needs --host-path")
        return self


class RecordSettings(Frozen):
    """Where decisions are recorded."""

    folder: Path
    max_mb: int = Field(default=100, ge=10, le=1_000_000)  # megabytes of all files
    max_days: int = Field(default=7, ge=1, le=366)


class Settings(Frozen):
    """Settings of one process."""

    mode: Mode
    period_s: Seconds = 5.0  # from the start of one tick to the start of the next
    tick_deadline_s: Seconds = 30.0
    policies: tuple[Path, ...] = ()  # files or folders; () for the shipped ones
    default_policy: str = "interactive"
    gateway_namespaces: tuple[str, ...] = ()  # trusted about all workloads, in addition to the usual ones
    namespaces: tuple[str, ...] = ()  # the only ones that are read; () for all
    system_namespaces: tuple[str, ...] = ()  # whose workloads are scaled although they are Kubernetes' or the daemon's
    target_kinds: tuple[str, ...] = ()  # custom kinds that may be scaled ("rollouts.argoproj.io"); () for all known
    node_group_max: tuple[tuple[str, int], ...] = ()  # most nodes with a label, "key=value", that may be created
    team_label: str = "team"  # label of workloads, their pods or namespaces that names their team
    quotas: Path | None = None  # file with quotas of GPUs, for workloads that no quota of the cluster charges
    weights: bool = False  # plan and publish which nodes should hold which weights
    weights_hub: str = ""  # URL of the hub whose index states sizes of weights; "": none is asked
    weights_sources: InstanceOf[SourceRules] = DEFAULT_RULES  # which weights are planned, and for whom
    deletion_cost: bool = True  # tell ReplicaSets which pods to remove first
    node_requests: NodeRequests | None = None  # None: nodes are created only for pods that exist
    prometheus: PrometheusSettings | None = None
    scrape: ScrapeSettings | None = None
    kube: KubeSettings | None = None
    lease: LeaseSettings = LeaseSettings()
    keda: KedaSettings | None = None
    http: HttpSettings | None = HttpSettings()
    history: bool = True  # at the start, learn from the last hours and days in Prometheus
    state: Path | None = None  # file that keeps learned values across restarts; None for none
    record: RecordSettings | None = None  # None: decisions are not recorded
    prices: tuple[tuple[str, float], ...] = ()  # USD per GPU-hour by product; list prices for others
