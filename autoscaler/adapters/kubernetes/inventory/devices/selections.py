"""Which devices a request selects, and the names that devices have in the inventory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kubernetes.inventory.devices.cel import CelFault, comparisons, matches, required
from autoscaler.adapters.kubernetes.inventory.devices.device_claims import ClaimRequest, ClassStore, Selection
from autoscaler.adapters.kubernetes.inventory.devices.kinds import DeviceKind
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.catalog.dra import PROFILES, TYPE, is_accelerator_driver, resource_name
from autoscaler.config.findings import shown

MAX_STEPS = 50_000  # comparisons of one claim or class, for all kinds of devices


class Selected(NamedTuple):
    """The devices that a request selects."""

    resource: str = ""  # their name in the inventory; "": they are no accelerators
    either: tuple[frozenset[DeviceKind], ...] = ()  # kinds that exist, by alternative
    problem: str = ""  # why that is not known
    doubtful: str = ""  # whose devices may be accelerators, or not


class Selections:
    """Answers for one state of the classes and the devices."""

    def __init__(self, classes: ClassStore, kinds: Sequence[DeviceKind], unplaced: Iterable[DeviceKind]) -> None:
        """unplaced: kinds of devices that several nodes can use."""
        self._classes = classes
        self._kinds = kinds
        self._unplaced = frozenset(unplaced)
        self._known: dict[Selection, Selected] = {}
        self._claims: dict[tuple[ClaimRequest, ...], Sequence[Selected]] = {}
        self._extended = self._served()
        self.names = self._name_kinds()

    def of_claim(self, requests: tuple[ClaimRequest, ...]) -> Sequence[Selected]:
        """Return what each request of a claim selects."""
        if requests not in self._claims:
            choices = {each for request in requests for each in request.either}
            too_much = self._too_much(expression for each in choices for expression in each.selectors)
            found = [Selected(problem=too_much) if too_much else self._of_request(each) for each in requests]
            self._claims[requests] = found
        return self._claims[requests]

    def _of_request(self, request: ClaimRequest) -> Selected:
        if request.problem:
            return Selected(problem=request.problem)
        found = [self.of(each) for each in request.either]
        for each in found:
            if each.problem or each.doubtful:
                return each
        resources = sorted({each.resource for each in found})
        if len(resources) > 1:
            return Selected(problem=f"its alternatives are devices of {' and '.join(filter(None, resources))}")
        return Selected(resources[0], tuple(kinds for each in found for kinds in each.either))

    def of_extended(self, resource: str) -> Selected | None:
        """Return the devices by which a DeviceClass serves an extended resource; None: there is no such class."""
        name = self._classes.serving(resource)
        return self.of(Selection(name, ())) if name else None

    def of(self, selection: Selection) -> Selected:
        if selection not in self._known:
            self._known[selection] = self._select(selection)
        return self._known[selection]

    def _select(self, selection: Selection) -> Selected:
        name = selection.device_class
        device_class = self._classes.classes.get(name)
        if device_class is None:
            return Selected(problem=f"DeviceClass {shown(name)} does not exist, or may not be listed")
        expressions = *device_class.selectors, *selection.selectors
        found = self._matching(expressions)
        if isinstance(found, str):
            return Selected(problem=found)
        if not expressions:
            return Selected(doubtful=f"a device of DeviceClass {shown(name)}")
        if not found:
            return self._missing(name, expressions)
        resources = sorted({self.names[kind] for kind in found})
        if len(resources) > 1:
            return Selected(problem=f"it may get devices of {' and '.join(resources[:3])}")
        if any(kind.shared for kind in found):
            return Selected(problem=f"pods share devices of {resources[0]}")
        if found & self._unplaced:
            return Selected(problem=f"several nodes can use the same devices of {resources[0]}")
        return Selected(resources[0], (found,))

    def _matching(self, expressions: Sequence[str]) -> frozenset[DeviceKind] | str:
        """Return the kinds for which all expressions are true; a text: why they are not known.

        An expression is read only for devices for which those before it are true, as the scheduler does.
        """
        if too_much := self._too_much(expressions):
            return too_much
        found = set()
        for kind in self._kinds:
            for expression in expressions:
                value = matches(expression, kind)
                if isinstance(value, CelFault):
                    return value.reason
                if not value:
                    break
            else:
                found.add(kind)
        return frozenset(found)

    def _too_much(self, expressions: Iterable[str]) -> str:
        """Return why expressions are not evaluated: anyone may write a claim, and all workloads wait for it."""
        steps = sum(map(comparisons, expressions)) * len(self._kinds)
        if steps <= MAX_STEPS:
            return ""
        return f"its selectors need {steps} comparisons on {len(self._kinds)} kinds of devices; allowed: {MAX_STEPS}"

    def _missing(self, name: str, expressions: Sequence[str]) -> Selected:
        """Return what a selection without a device is about: the nodes may still be created."""
        stated: dict[str, str] = {}
        for expression in expressions:
            stated.update(required(expression))
        driver = stated.get("driver", "")
        is_accelerator_of = is_accelerator_driver(driver) if driver else None
        if is_accelerator_of is None:
            return Selected(doubtful=f"a device of DeviceClass {shown(name)}")
        profile = next((stated[each] for each in PROFILES if each in stated), "")
        extended = self._classes.classes[name].extended
        return Selected(extended or resource_name(driver, stated.get(TYPE, ""), profile) if is_accelerator_of else "")

    def _served(self) -> dict[str, frozenset[DeviceKind]]:
        """Return the kinds that serve extended resources, by resource."""
        found = {}
        for resource in {each.extended for each in self._classes.classes.values()} - {""}:
            name = self._classes.serving(resource)
            kinds = self._matching(self._classes.classes[name].selectors)
            if not isinstance(kinds, str):
                found[resource] = kinds
        return found

    def _name_kinds(self) -> Mapping[DeviceKind, str]:
        """Return the names of kinds. Devices that serve an extended resource have its name.

        So pods that request it, and pods with claims on the same devices, are in one pool.
        """
        names = {kind: kind.name for kind in self._kinds}
        # The last one counts: names that are known everywhere come before others.
        for resource in sorted(self._extended, key=lambda each: (is_accelerator(each), each)):
            names |= dict.fromkeys(self._extended[resource], resource)
        return names
