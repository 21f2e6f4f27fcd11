"""The models that a node should hold by wishes and pods, and those that may go for them. This file changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoscaler.config.weights.source import ModelSource
from autoscaler.config.weights.wishes import Wishes
from autoscaler.weights.budget import HeldItem, UnwishedModel, judge, room_for_pods
from autoscaler.weights.listing import Listing
from autoscaler.weights.node import AgentNode
from autoscaler.weights.problems import WeightsCause, WeightsError
from autoscaler.weights.store import PARTS


class Wanted:
    """What wishes and pods of a node ask for at this moment."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node

    def models(self) -> list[ModelSource]:
        """Return the models that should be here, the most urgent first.

        A pod waits for a model that is wished and that it loads. What pods alone name comes last: anybody may annotate.
        """
        wished, used = self._wished(), self._node.used() or ()
        return list(dict.fromkeys([*(source for source in used if source in wished), *wished, *used]))

    def _wished(self) -> dict[ModelSource, None]:
        """Return the models that are wished, in their order."""
        return dict.fromkeys(wish.source for wish in (self._node.wishes() or Wishes()).wishes)

    def check_share(
        self, listing: Listing, present: Mapping[str, int], sizes: Mapping[str, int], budget_bytes: float
    ) -> None:
        """Refuse a model that pods alone name, and that exceeds their share. Raises WeightsError.

        What a pod uses is never evicted, so it must not take the room of wishes, nor that of other namespaces.
        present: bytes of the models that are here, by key. sizes: of those that are not, as far as they are known.
        """
        wished, used = self._wished(), self._node.used() or ()
        if self._node.wishes() is None or listing.source in wished:
            return
        here = {source: present[source.key] for source in used if source.key in present}
        others = [each for each in here if each not in wished and each != listing.source]
        claims = [UnwishedModel(here[source], self._node.namespaces_of(source)) for source in others]
        wished_bytes = sum(here.get(source, sizes.get(source.key, 0)) for source in wished)
        room = room_for_pods(self._node.namespaces_of(listing.source), claims, wished_bytes, budget_bytes)
        if listing.size > room:
            allowed = f"allowed: {room:.0f}, the share of what pods name and nobody wishes"
            raise WeightsError(WeightsCause.NO_SPACE, f"{listing.source} has {listing.size} bytes; {allowed}")

    def judge(self, held: Sequence[HeldItem], source: ModelSource | None = None) -> tuple[HeldItem, ...]:
        """State what may go for the sake of a model, or of none. Nothing may, while the pods are not known."""
        used = self._node.used()
        if used is None:
            return tuple(held)
        wanted = self.models()
        wishes = self._node.wishes() or Wishes()
        never = {each.key for each in used} | {wish.source.key for wish in wishes.wishes if wish.pinned}
        rank = wanted.index(source) if source in wanted else len(wanted)
        named = [each._replace(name=each.name.removeprefix(f"{PARTS}/")) for each in held]
        judged = judge(named, [each.key for each in wanted], never | set(self._node.used_caches()), rank)
        return tuple(each._replace(name=own.name) for each, own in zip(judged, held, strict=True))
