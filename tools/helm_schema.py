"""Writes the policies' and quotas' part of charts/vllm-autoscaler/values.schema.json: `python -m tools.helm_schema`.

The rest of that file is written by hand. A bound that JSON Schema cannot state, such as a duration's, is the daemon's
to check.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoscaler.config.policy.dates import MAX_DATES, DatesKind
from autoscaler.config.policy.namespace_limits import NamespaceLimit
from autoscaler.config.policy.schema import PolicySpec, Section, kind_of, section_of
from autoscaler.config.quotas import MAX_NAMESPACES, Namespaces, StatedQuota
from autoscaler.config.values import (
    NAMESPACES,
    Duration,
    Integer,
    Number,
    Pattern,
    Share,
    StepKind,
    Switch,
    Text,
    ValueKind,
)

TARGET = Path(__file__).parents[1] / "charts" / "vllm-autoscaler" / "values.schema.json"
PERCENT = r"^[0-9]{1,6}(\.[0-9]{1,6})?%$"
DATES = r"([0-9]{4}-)?[0-9]{2}-[0-9]{2}(/([0-9]{4}-)?[0-9]{2}-[0-9]{2})?"
DURATION = r"([0-9]+(\.[0-9]+)?(h|m|s|ms))+"

Schema = dict[str, Any]


def render(text: str) -> str:
    """Return the text of the schema with the policies' and quotas' part as the models say it."""
    schema = json.loads(text)
    schema["$defs"]["policySpec"] = _section(PolicySpec)
    schema["$defs"]["namespaceLimit"] = _section(NamespaceLimit)
    schema["$defs"]["quota"] = _section(StatedQuota)
    return json.dumps(schema, indent=2) + "\n"


def _section(model: type[Section]) -> Schema:
    properties: dict[str, Schema] = {}
    for key, info in model.keys().items():
        kind, section = kind_of(info), section_of(info)
        if kind is not None:
            properties[key] = _value(kind)
        elif section is not None and info.annotation is section:
            properties[key] = _section(section)
        elif section is not None:
            most = next(item.max_length for item in info.metadata if hasattr(item, "max_length"))
            properties[key] = {"type": "array", "maxItems": most, "items": _section(section)}
    required = [key for key, info in model.keys().items() if info.is_required()]
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": required} if required else {})


def _value(kind: ValueKind) -> Schema:
    match kind:
        case Duration():
            return {"type": "string", "pattern": f"^({DURATION}{'|auto' if kind.auto else ''})$"}
        case Share():
            bounds = {"minimum": kind.least, "maximum": kind.most}
            return {"type": ["number", "string"], **bounds, "pattern": PERCENT}
        case StepKind():
            bounds = {"minimum": 1, "maximum": kind.most_replicas}
            return {"type": ["integer", "string"], **bounds, "pattern": PERCENT}
        case Integer():
            return {"type": "integer", "minimum": kind.least, "maximum": kind.most}
        case Number():
            return {"type": "number", "minimum": kind.least, "maximum": kind.most}
        case Switch():
            return {"type": "boolean"}
        case Text():
            return {"type": "string", "minLength": 1, "maxLength": kind.most_chars}
        case Namespaces():
            names = {"type": "string", "pattern": f"^{NAMESPACES.expression}$"}
            return {"type": "array", "minItems": 1, "maxItems": MAX_NAMESPACES, "items": names}
        case DatesKind():
            return {"type": "array", "maxItems": MAX_DATES, "items": {"type": "string", "pattern": f"^{DATES}$"}}
        case Pattern():
            return {"type": "string", "pattern": f"^{kind.expression}$"}
        case _:
            return {"type": "string", "minLength": 1}


if __name__ == "__main__":
    TARGET.write_text(render(TARGET.read_text()))
