"""Writes docs/reference/policy.md from the models of the policy document: `python -m tools.policy_reference`."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any

from autoscaler.config.annotations import ANNOTATIONS, PREFIX, SHORT_OVERRIDES
from autoscaler.config.policy.namespace_limits import LIMITS_KIND, MAX_NAMESPACES, NamespaceLimit
from autoscaler.config.policy.parse import DEFAULT_POLICY, MAX_FILES, load
from autoscaler.config.policy.schema import (
    API_VERSION,
    KIND,
    OVERRIDES,
    Leaf,
    PolicySpec,
    leaves,
    section_of,
    to_document,
)
from autoscaler.config.values import Duration
from autoscaler.config.yaml import MAX_BYTES, MAX_DOCUMENTS

TARGET = Path(__file__).parents[1] / "docs" / "reference" / "policy.md"

HEAD = f"""\
<!-- Built from autoscaler/config by tools/policy_reference.py; change the code, not this page. -->
# Policies

A policy is one YAML document: what a class of workloads is promised, and how far and how fast its replicas may move.
Four are shipped (`policies/`). `--policies` names other files or folders instead, such as a mounted ConfigMap.

```yaml
apiVersion: {API_VERSION}
kind: {KIND}
metadata:
  name: chat
spec:
  objective: {{ttft: 500ms, attainment: 99%}}
  replicas: {{min: 2, max: 12}}
  prewarm:
    - {{from: "30 8 * * mon-fri", until: "0 19 * * mon-fri", timezone: Europe/Berlin, replicas: 4}}
```

Durations have a unit (`150ms`, `30s`, `5m`, `1h30m`). Every field has a default unless it is `required`; `-` means not
set. Numbers are plain decimals: `010`, `0x10`, `1_000` and `1e3` are errors, because readers of YAML disagree on them.
Unknown keys, duplicate keys, YAML merge keys and values out of bounds are errors too. Each names file, line, key, value
and what is allowed. `vllm-autoscaler check FILE...` finds them before anything is applied.

## Fields of `spec`
"""

TAIL = f"""\
## Which policy a workload is under

A workload is under the policy that its annotation `{PREFIX}policy`, or its KEDA trigger's `policy`, names.

* Without the annotation, direct mode leaves a workload alone. A trigger without `policy` is refused.
* An empty annotation, or a workload that dry-run finds by its metrics, means the default policy: the only one there is,
  or the one that `--default-policy` names (`{DEFAULT_POLICY}` if left out).
* A workload that names a policy which does not exist is not scaled at all, because another policy would be a guess. The
  log and the explanation say so.

Single fields can be overridden for one workload. The name is the path of the field, the value is that of a policy:

* in direct mode by an annotation, `{PREFIX}override.objective.ttft: 200ms`;
* in KEDA mode by the metadata of the trigger, `objective.ttft: 200ms`.

In direct mode an invalid override is ignored and reported. But if it is a bound (`replicas.min`, `replicas.max`), or if
the other overrides contradict the policy or each other (`replicas.min` above `replicas.max`), the workload is not
scaled: its count stays as it is, because the policy's own bounds might cut a count that is right. The log and the
explanation say why. In KEDA mode a trigger with any invalid override is answered `INVALID_ARGUMENT`. So run `check` on
manifests.

Can be overridden: {", ".join(f"`{path}`" for path in OVERRIDES)}.

## Limits by namespace

Whoever may edit a workload or a ScaledObject can choose its policy and override fields. Where tenants do not trust each
other, one document beside the policies says how much the workloads of a namespace may claim from others:

```yaml
apiVersion: {API_VERSION}
kind: {LIMITS_KIND}
metadata:
  name: tenants
spec:
  namespaces:
    - {{name: prod-*, maxPriority: 1000, maxMinReplicas: 4}}
    - {{name: team-*, maxPriority: 500, maxWeight: 1, maxMinReplicas: 2}}
```

{{limits}}

* The limits hold for the result, whether an override or the chosen policy states it. So a workload of `team-a` under
  `realtime` has its objectives, the priority 500, and its guaranteed headroom.
* A namespace without an entry may raise nothing: neither above the policy that it chose, nor above the default policy.
* A value above its limit is capped, and the workload is scaled with all its other values. The explanation, the page,
  the log and an Event `ProblemDetected` name the value and the limit. `check` reports it as an error, in manifests that
  state their namespace.
* KEDA keeps the `minReplicaCount` of a ScaledObject all the same. Replicas beyond the limit rank as others do, and not
  as a floor.
* Replicas of pre-warm windows are no floor, and the platform alone writes policies. Windows that a workload states
  itself are capped at `maxMinReplicas`.
* There is one such document, with at most {MAX_NAMESPACES:,} entries, and it is reloaded with the policies. A file that
  holds nothing else leaves the shipped policies in force. The chart writes it from `namespaceLimits`.
* Without such a document nothing is limited.

## Annotations of a workload

{{annotations}}

## Zero

`scaleToZero.enabled` alone decides whether a workload goes to zero. `replicas.min` is the floor while it is awake:
with `min: 2` and `scaleToZero.enabled: true` an idle workload goes from 2 to 0 after `idleAfter`, and wakes to 2. With
`min: 0` and `scaleToZero.enabled: false` the floor is 1, and `check` warns.

The time without work alone puts zero off, not `scaleDown.stabilization`; several replicas leave in the steps of
`scaleDown.maxStep`. Work is a request that runs or waits, and one that arrives at a gateway: with `--gateway` until
the next reading, from Prometheus for a minute. The sides of a pair rest together. In KEDA mode the `cooldownPeriod`
of the ScaledObject comes on top ([keda.md](keda.md#errors-and-zero)).

With `idleAfter: auto` the error budget decides. For each of twelve idle times from 2 minutes to 8 hours, the daemon
counts the requests that would have waited for a wake-up within about a week. It uses the shortest idle time whose
waits, plus those of one more wake-up, stay within 60% of what may miss. So the workload never goes to zero in the first
hour, nor where so few requests arrive that none may miss, nor where no gateway is known to hold requests meanwhile
([inputs.md](inputs.md) lists the gateways that do).

If a gateway that reported on a workload is silent for longer than `inputs.maxAge`, the workload does not go to zero,
whatever `idleAfter` says, because nothing could wake it. After a day of silence the gateway counts as removed.

## Pre-warm windows

A window starts when `from` occurs and ends when `until` occurs next, so it may cross midnight. Inside it at least
`replicas` are ready, up to `replicas.max`; they are requested `lead` before the start. Cron expressions have five
fields. If day-of-month or day-of-week begins with `*`, both must match; otherwise either may. An expression whose
minute or hour begins with `*` counts real time: in a repeated hour it occurs again.

`except` and `only` choose the days on which a window begins, by the date in its time zone. A window that began the day
before goes on until its end, as with EXDATE of RFC 5545. A range has both ends. February 29 exists in leap years only.
If `only` and `except` name a date, the window does not begin on it.

A workload states windows of its own in the annotation `vllm-autoscaler.io/windows`, in any mode. They replace those of
its policy; an invalid list is reported, and those of the policy stay.

## Change without restart

The daemon checks the files with every tick, at most once a second, and takes over a change whole or not at all: while
one document is wrong, all policies stay as they were, and the log and `/readyz` say what is wrong.
Of a folder, the files `*.yaml` and `*.yml` are read (at most {MAX_FILES}), except those that begin with a dot and
`kustomization.yaml`. A file holds at most {MAX_DOCUMENTS} documents and {MAX_BYTES >> 20} MiB, and a name occurs once.
"""


def render() -> str:
    """Return the whole page."""
    sections = "\n".join([*_fields(), *_shipped()])
    limits = "\n".join(_table(list(leaves(NamespaceLimit, "namespaces[]."))))
    tail = TAIL.replace("{annotations}", "\n".join(_annotations())).replace("{limits}", limits.rstrip("\n"))
    return HEAD + "\n" + sections + "\n" + tail


def _fields() -> Iterator[str]:
    """One table for each mapping, in the order of the document."""
    yield from _table([leaf for leaf in leaves() if "." not in leaf.path])
    for key, info in PolicySpec.keys().items():
        section = section_of(info)
        if section is None:
            continue
        many = info.annotation is not section
        yield f"### `{key}`{', a list' if many else ''}\n"
        yield f"{getdoc(section)}\n"
        yield from _table([leaf for leaf in leaves() if leaf.path.startswith((f"{key}.", f"{key}[]."))])


def _table(rows: list[Leaf]) -> Iterator[str]:
    yield "| field | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for leaf in rows:
        default = "required" if leaf.info.is_required() else _default(leaf)
        yield f"| `{leaf.path}` | {default} | {_cell(leaf.kind.allowed)} | {_cell(leaf.info.description or '')} |"
    yield ""


def _default(leaf: Leaf) -> str:
    """Return the default as one would write it; a field without one is not set."""
    value, auto = leaf.info.default, isinstance(leaf.kind, Duration) and leaf.kind.auto
    if value is None and not auto:
        return "-"
    shown = leaf.kind.show(value)
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _shipped() -> Iterator[str]:
    """The shipped policies side by side; fields in which all have the default are left out."""
    policies = load().policies
    yield "## Shipped policies\n"
    yield f"| field | {' | '.join(f'`{name}`' for name in policies)} |"
    yield "|---" * (len(policies) + 1) + "|"
    for path, leaf in OVERRIDES.items():
        cells = [_written(to_document(policy.spec), path) for policy in policies.values()]
        if any(cell != _default(leaf) for cell in cells):
            yield f"| `{path}` | {' | '.join(cells)} |"
    yield ""


def _written(document: Any, path: str) -> str:
    """Return what a policy says in one field, as written there."""
    for key in path.split("."):
        document = document.get(key)
        if document is None:
            return "-"
    return f"`{str(document).lower() if isinstance(document, bool) else document}`"


def _annotations() -> Iterator[str]:
    yield "| annotation | allowed |"
    yield "|---|---|"
    for name, kind in ANNOTATIONS.items():
        note = {
            "weights": " (of its model; default: as the engine's arguments and environment name it)",
            "weights-pinned": " (true: nodes hold them before the weights of others)",
            "zero-until": " (ends a zero that somebody has set; [how](../how-to/roll-back.md))",
            "role": " (of a [prefill and decode pair](../how-to/prefill-and-decode.md))",
        }.get(name, "")
        yield f"| `{PREFIX}{name}` | {_cell(kind.allowed)}{note} |"
    for name, path in SHORT_OVERRIDES.items():
        yield f"| `{PREFIX}{name}` | short for `override.{path}` |"
    yield f"| `{PREFIX}override.<field>` | a value of that field |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
