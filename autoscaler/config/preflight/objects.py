"""Objects as they were given or listed, their places, and what is said about them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from autoscaler.catalog.findings import BY_ID
from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.yaml import Document, Loc

CLUSTER_SCOPED = frozenset(
    {"Node", "PriorityClass", "NodePool", "ClusterQueue", "ResourceFlavor", "Namespace", "Cohort", "DeviceClass"}
    | {"ClusterTriggerAuthentication"}
)
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
MAX_SENTENCE = 2000  # characters
MAX_KIND, MAX_NAME = 63, 253  # characters, as Kubernetes allows
MAX_SHOWN = 300  # characters of a value within a sentence


def selects(selector: object, labels: Mapping[str, str]) -> bool:
    """Return whether a selector of labels fits: matchLabels and matchExpressions; an empty one fits all."""
    if any(labels.get(key) != value for key, value in mapping(at(selector, "matchLabels")).items()):
        return False
    expressions = at(selector, "matchExpressions")
    for each in expressions if isinstance(expressions, list) else []:
        key, values = text_at(each, "key"), at(each, "values")
        among = labels.get(key) in (values if isinstance(values, list) else [])
        held = {"In": among, "NotIn": not among, "Exists": key in labels, "DoesNotExist": key not in labels}
        if not held.get(text_at(each, "operator"), False):
            return False
    return True


def path_of(loc: Loc) -> str:
    """Format a place as spec.triggers[0].metadata.query; a key with dots or slashes as ["a.b/c"]."""
    words = ""
    for part in loc:
        if isinstance(part, int):
            words += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            words += f".{part}" if words else part
        else:
            key = "".join(each if each.isprintable() else "?" for each in part[:MAX_SHOWN])
            words += f'["{key}"]'
    return words


@dataclass(frozen=True, eq=False)
class Manifest:
    """One object of a file, or of the cluster."""

    kind: str
    namespace: str  # "" for kinds without
    name: str
    document: Document
    given: bool = True  # in a file that was named; False: it was listed to know what is around
    live: bool = False  # as the cluster has it

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def value(self) -> object:
        return self.document.value

    def at(self, *loc: str | int) -> object:
        return at(self.document.value, *loc)

    def text(self, *loc: str | int) -> str:
        return text_at(self.document.value, *loc)

    def map(self, *loc: str | int) -> dict[str, object]:
        return mapping(self.at(*loc))

    def list(self, *loc: str | int) -> list[object]:
        found = self.at(*loc)
        return found if isinstance(found, list) else []

    def texts(self, *loc: str | int) -> dict[str, str]:
        """Return a mapping of texts, such as labels; other values are left out."""
        return {key: value for key, value in self.map(*loc).items() if isinstance(value, str)}

    @property
    def labels(self) -> dict[str, str]:
        return self.texts("metadata", "labels")

    @property
    def annotations(self) -> dict[str, str]:
        return self.texts("metadata", "annotations")

    def owners(self) -> Iterator[tuple[str, str]]:
        """Yield kind and name of each owner."""
        for owner in self.list("metadata", "ownerReferences"):
            yield text_at(owner, "kind"), text_at(owner, "name")


def read_object(document: Document, *, given: bool = True, live: bool = False) -> Manifest | None:
    """Return the object of a document; None: it has no kind or name of Kubernetes."""
    kind = text_at(document.value, "kind")
    name = text_at(document.value, "metadata", "name") or text_at(document.value, "metadata", "generateName")
    namespace = text_at(document.value, "metadata", "namespace") or "default"
    if not kind or not name or len(kind) > MAX_KIND or max(len(name), len(namespace)) > MAX_NAME:
        return None
    return Manifest(kind, "" if kind in CLUSTER_SCOPED else namespace, name, document, given, live)


@dataclass(frozen=True)
class PreflightFinding:
    """One finding about one object."""

    id: str
    severity: str
    object: Manifest
    loc: Loc
    message: str  # what happens
    why: str
    fix: str  # the line as it should be, where that is certain

    @property
    def path(self) -> str:
        return path_of(self.loc)

    @property
    def line(self) -> int:
        """Line in its file, from 1; 0: the object is in no file."""
        return 0 if self.object.live else self.object.document.line_of(self.loc)


@dataclass(frozen=True)
class NotChecked:
    """Something that was not checked, with the reason."""

    object: str  # Kind/namespace/name; or the name of a file
    path: str
    what: str  # what would be checked
    reason: str


Result = PreflightFinding | NotChecked


def found(id: str, thing: Manifest, loc: Loc, message: str, why: str, fix: str, severity: str = "") -> PreflightFinding:
    message, why, fix = (text[:MAX_SENTENCE] for text in (message, why, fix))
    return PreflightFinding(id, severity or BY_ID[id].severity, thing, loc, message, why, fix)


def not_checked(thing: Manifest, loc: Loc, what: str, reason: str) -> NotChecked:
    return NotChecked(thing.key, path_of(loc), what[:MAX_SENTENCE], reason[:MAX_SENTENCE])


@dataclass(frozen=True, eq=False)
class Manifests:
    """All objects, by kind and by name."""

    all: tuple[Manifest, ...]
    listed: frozenset[str] = frozenset()  # kinds of which the cluster was listed: what is not here does not exist
    again: tuple[Manifest, ...] = ()  # given, and passed over because an object with the same name came before
    _by_kind: dict[str, list[Manifest]] = field(default_factory=lambda: defaultdict(list))
    _by_key: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Iterable[Manifest], *, listed: frozenset[str] = frozenset()) -> Manifests:
        """Index objects. Of equal ones the first counts, so given ones come before listed ones."""
        named: dict[tuple[str, str, str], Manifest] = {}
        again = tuple(
            each
            for each in objects
            if named.setdefault((each.kind, each.namespace, each.name), each) is not each and each.given
        )
        made = cls(tuple(named.values()), listed, again)
        made._by_key.update(named)
        for each in made.all:
            made._by_kind[each.kind].append(each)
        return made

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [each for kind in kinds for each in self._by_kind.get(kind, ())]

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._by_key.get((kind, namespace, name))
