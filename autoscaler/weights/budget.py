"""Decide what makes room for a model: pure. A file that several models share is counted once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

Files = Mapping[str, int]
"""Bytes of files, by their names on the disk."""


class HeldItem(NamedTuple):
    """Something on the disk that may be removed as a whole."""

    name: str
    files: Files
    used_s: float  # moment of its last use, Unix time
    kept: bool = True  # never evicted
    rank: float = float("inf")  # place among what is wished, the most urgent first; infinity: not wished


def judge(held: Iterable[HeldItem], wished: Sequence[str], never: Collection[str], rank: float) -> tuple[HeldItem, ...]:
    """State what may go for the sake of a model: all that is less urgent, but what is in use or pinned.

    wished: names, the most urgent first. never: names of what is in use or pinned. rank: place of the model.
    """
    ranks = {name: place for place, name in reversed(list(enumerate(wished)))}
    judged = []
    for each in held:
        own = ranks.get(each.name, float("inf"))
        judged.append(each._replace(kept=each.name in never or own <= rank < float("inf"), rank=own))
    return tuple(judged)


class Limits(NamedTuple):
    """What weights may take of the disk."""

    max_bytes: float = float("inf")
    min_free_bytes: float = 0.0
    min_free_share: float = 0.05  # the kubelet evicts pods from a disk that is nearly full

    def free_floor(self, disk_bytes: int) -> float:
        """Return the bytes of a disk that stay free."""
        return max(self.min_free_bytes, self.min_free_share * disk_bytes)


POD_SHARE, NAMESPACE_SHARE = 0.75, 0.5
"""Of the room for weights: for models that pods name and nobody wishes, all together and of one namespace."""


class UnwishedModel(NamedTuple):
    """A model that pods name and nobody wishes."""

    size: int  # bytes
    namespaces: Collection[str]  # of these pods


def room_for_pods(
    namespaces: Collection[str], present: Sequence[UnwishedModel], wished_bytes: int, budget_bytes: float
) -> float:
    """Return the bytes that a further model may take which pods of these namespaces name and nobody wishes.

    Nobody removes what a pod uses, and anybody may annotate a pod. So such models leave the room of all wishes, a share
    of the budget for wishes to come, and a share for other namespaces. One that several namespaces name counts in each.
    """
    room = min(POD_SHARE * budget_bytes, budget_bytes - wished_bytes) - sum(each.size for each in present)
    own = [
        NAMESPACE_SHARE * budget_bytes - sum(each.size for each in present if name in each.namespaces)
        for name in namespaces
    ]
    return max(min(room, max(own, default=room)), 0.0)


class Space(NamedTuple):
    """What there is, and what weights may take of it."""

    held: tuple[HeldItem, ...]
    free_bytes: float  # of the disk, without those that stay free
    max_bytes: float

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is there."""
        return _bytes(self.held)

    @property
    def budget_bytes(self) -> float:
        """Most bytes that weights may take on this disk."""
        return max(min(self.max_bytes, self.held_bytes + self.free_bytes), 0.0)

    def after(self, plan: RoomPlan, fetched: HeldItem) -> Space:
        """Return what there will be after a plan, with the model that it makes room for."""
        gone = {each.name for each in plan.evicted} | {fetched.name}
        held = (*(each for each in self.held if each.name not in gone), fetched)
        return self._replace(held=held, free_bytes=self.free_bytes + self.held_bytes - _bytes(held))


class RoomPlan(NamedTuple):
    """What makes room for a model."""

    evicted: tuple[HeldItem, ...] = ()
    missing_bytes: float = 0.0  # that are too few even without all that may be evicted; nothing is evicted then


def make_room(files: Files, there_bytes: int, space: Space) -> RoomPlan:
    """Return what to evict for a model: the least urgent and least recently used, and no more than necessary.

    there_bytes: bytes of these files that the disk has already, in addition to what is held.
    """
    candidates = _in_order(each for each in space.held if not each.kept)
    missing = _missing(files, there_bytes, space, ())
    evicted: list[HeldItem] = []
    for each in candidates:
        if missing <= 0:
            break
        evicted.append(each)
        missing = _missing(files, there_bytes, space, evicted)
    if missing > 0:
        return RoomPlan((), missing)
    for each in reversed(evicted.copy()):  # an old small model need not go if a larger one has to
        fewer = [other for other in evicted if other is not each]
        if _missing(files, there_bytes, space, fewer) <= 0:
            evicted = fewer
    return RoomPlan(tuple(evicted))


def trim(held: Iterable[HeldItem], max_bytes: float) -> list[HeldItem]:
    """Return what to remove so that the rest takes at most this many bytes: the least recently used not to keep."""
    present = _in_order(held)
    total, removed = _bytes(present), []
    for each in present:
        if total > max_bytes and not each.kept:
            removed.append(each)
            total -= sum(each.files.values())
    return removed


def _missing(files: Files, there_bytes: int, space: Space, evicted: Sequence[HeldItem]) -> float:
    """Return how many bytes are too few for a model; zero or less: none."""
    gone = {each.name for each in evicted}
    left = [each for each in space.held if each.name not in gone]
    held = _union(left)
    fetched_bytes = max(sum(size for name, size in files.items() if name not in held) - there_bytes, 0)
    total_bytes = sum((held | dict(files)).values())
    freed_bytes = space.held_bytes - sum(held.values())
    return max(total_bytes - space.max_bytes, fetched_bytes - freed_bytes - space.free_bytes)


def _in_order(held: Iterable[HeldItem]) -> list[HeldItem]:
    """Return what goes first, first."""
    return sorted(held, key=lambda each: (-each.rank, each.used_s, each.name))


def _union(held: Iterable[HeldItem]) -> dict[str, int]:
    return {name: size for each in held for name, size in each.files.items()}


def _bytes(held: Iterable[HeldItem]) -> int:
    return sum(_union(held).values())
