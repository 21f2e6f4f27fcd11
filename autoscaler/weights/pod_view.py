"""The folder that one pod sees as its cache of weights: links to its own model, and nothing of its neighbours.

Names such as `main` are resolved here, for this pod alone. Resolved in the folder of the node, a pod that names another
commit would choose what the pods beside it load.
"""

from __future__ import annotations

from pathlib import Path

from autoscaler.config.weights.source import ModelSource
from autoscaler.weights import layout
from autoscaler.weights.disk import remove_tree
from autoscaler.weights.store import PublishedModel


def link(into: Path, root: Path, model: PublishedModel) -> Path:
    """Link a model of the node into a pod's folder, in place of what is there. Return the path to load. Raises OSError.

    root: of the node, at the path under which the engine sees it.
    """
    own = layout.name_of(into, model.listing)
    clear_links(into, model.listing.source)
    remove_tree(into / own.relative_to(into).parts[0])  # begun by this container before it was restarted
    own.parent.mkdir(parents=True)
    own.symlink_to(root / model.path.relative_to(root))
    name(into, model)
    return own


def name(into: Path, model: PublishedModel) -> None:
    """Let an engine that states no revision find the model of its pod. Raises OSError."""
    if model.listing.source.scheme == "hf":
        layout.write_refs(into, model.listing, {layout.MAIN, model.listing.source.revision})


def clear_links(into: Path, source: ModelSource) -> None:
    """Remove links to the node that an earlier start has left, so that nothing is fetched into them. Raises OSError."""
    path = into
    for part in source.folder.split("/"):
        path = path / part
        if path.is_symlink() and path.readlink().is_absolute():  # the pod's own name of a version is relative
            path.unlink()
    for snapshot in (path / "snapshots").glob("*"):
        if snapshot.is_symlink():
            snapshot.unlink()
