"""Publish fetched files: the hub's own cache layout for hf://; for other sources a folder for each version, and a link.

Everything is built aside and renamed into place, the name that readers look up last. So no reader sees half a model,
and one that loads a version goes on with it when the name leads to another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from autoscaler.config.weights.source import COMMIT, ModelSource
from autoscaler.weights.disk import read_small, remove_tree, sync, within, write_small
from autoscaler.weights.listing import VERSION_CHARS, Listing, RemoteFile
from autoscaler.weights.problems import disk_error

MAIN = "main"  # the branch that engines load unless they name a revision


def place(root: Path, listing: Listing) -> Path:
    """Return the path that engines load: the snapshot of a commit, or the folder of a version."""
    if listing.source.scheme == "hf":
        return _repository(root, listing.source) / "snapshots" / listing.commit
    return root / f"{listing.source.folder}.{listing.version}"


def name_of(root: Path, listing: Listing) -> Path:
    """Return the path that stays the same while it leads to one version after the other; of a hub: the snapshot."""
    return place(root, listing) if listing.source.scheme == "hf" else root / listing.source.folder


def find(root: Path, listing: Listing) -> Path | None:
    """Return where a published model is; None: it is gone. Earlier releases have the files where the link is now."""
    path, name = place(root, listing), name_of(root, listing)
    if path.is_dir():
        return path
    return name if name.is_dir() and not name.is_symlink() else None


def adopt(root: Path, listing: Listing) -> Path:
    """Give a model that an earlier release has published its present place. Raises WeightsError."""
    path, name = place(root, listing), name_of(root, listing)
    if path == name or name.is_symlink() or not name.is_dir():
        return path
    try:
        within(root, name)
        remove_tree(path)
        name.rename(path)
        point(root, listing)
    except OSError as error:
        raise disk_error(error, f"cannot rename {name.name}") from error
    return path


def point(root: Path, listing: Listing) -> None:
    """Let the name of a model lead to this version, from one moment to the next. Raises OSError."""
    path, name = place(root, listing), name_of(root, listing)
    if path == name:
        return
    aside = within(root, name.parent) / f".{name.name}.link"
    aside.unlink(missing_ok=True)
    aside.symlink_to(path.name)
    aside.rename(name)
    sync(name.parent)


def remove_unrecorded(root: Path, source: ModelSource, recorded: Collection[Path]) -> None:
    """Remove versions of a folder that a crash has left before they had a record. Raises WeightsError and OSError."""
    if source.scheme != "hf":
        name = root / source.folder
        for path in within(root, name.parent).glob(f"{name.name}.{'[0-9a-f]' * VERSION_CHARS}"):
            if path not in recorded:
                remove_tree(path)


def publish(root: Path, listing: Listing, fetched: Sequence[Path] | None) -> Path:
    """Link the fetched files to where engines look for them. Return that path. Raises WeightsError.

    fetched: path of each file of the listing, verified, on the disk of `root`. They stay, so that nothing is fetched
    again if this is cut short. None: this version of a folder is there, and its name leads to another one.
    """
    try:
        within(root, place(root, listing))
        if fetched is None:
            point(root, listing)
            return place(root, listing)
        if listing.source.scheme == "hf":
            return _publish_hub(root, listing, fetched)
        return _publish_folder(root, listing, fetched)
    except OSError as error:
        raise disk_error(error, f"cannot publish {listing.source}") from error


def _publish_folder(root: Path, listing: Listing, fetched: Sequence[Path]) -> Path:
    target = place(root, listing)
    aside = _empty(target.with_name(f".{target.name}.new"))
    for file, path in zip(listing.files, fetched, strict=True):
        name = aside / file.path
        name.parent.mkdir(parents=True, exist_ok=True)
        name.hardlink_to(path)
    _sync_tree(aside)
    _replace(aside, target)
    point(root, listing)
    return target


def _publish_hub(root: Path, listing: Listing, fetched: Sequence[Path]) -> Path:
    repository, target = _repository(root, listing.source), place(root, listing)
    blobs = within(root, repository / "blobs")
    blobs.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(exist_ok=True)
    for file, path in zip(listing.files, fetched, strict=True):
        aside = blobs / f".{file.digest}.new"
        aside.unlink(missing_ok=True)
        aside.hardlink_to(path)
        aside.rename(blobs / file.digest)
    aside = _empty(target.with_name(f".{target.name}.new"))
    for file in listing.files:
        name = aside / file.path
        name.parent.mkdir(parents=True, exist_ok=True)
        name.symlink_to(os.path.relpath(blobs / file.digest, (target / file.path).parent))
    sync(blobs)
    _sync_tree(aside)
    _replace(aside, target)
    write_refs(root, listing, {listing.source.revision})
    return target


def write_refs(root: Path, listing: Listing, names: Iterable[str]) -> None:
    """Let these names of branches and tags mean the commit of a listing. Raises OSError."""
    repository = _repository(root, listing.source)
    write_small(within(root, repository / "trees") / f"{listing.commit}.json", _tree(listing))
    for name in names:
        if not COMMIT.fullmatch(name):
            ref = repository / "refs" / name
            write_small(within(root, ref.parent) / ref.name, listing.commit.encode())


def blob(root: Path, source: ModelSource, file: RemoteFile) -> Path | None:
    """Return where a file of a hub would be, even if another process fetched it; None for other sources."""
    return _repository(root, source) / "blobs" / file.digest if source.scheme == "hf" and file.digest else None


def _tree(listing: Listing) -> bytes:
    files = {
        file.path: {"size": file.size, "blob_id": file.digest}
        | ({"lfs_sha256": file.sha256, "lfs_size": file.size} if file.sha256 else {})
        for file in listing.files
    }
    return msgspec.json.encode({"format_version": 1, "files": files})


def remove(root: Path, listing: Listing) -> None:
    """Remove a model, the name that readers look up first. Files that another commit uses stay. Raises WeightsError."""
    target, name = find(root, listing) or place(root, listing), name_of(root, listing)
    try:
        within(root, target.parent)
        if name.is_symlink() and name.readlink() == Path(target.name):
            name.unlink()
        if listing.source.scheme == "hf":
            repository = _repository(root, listing.source)
            for folder in ("refs", "trees", "blobs"):
                within(root, repository / folder)
            _remove_refs(repository, listing.commit)
        if target.is_dir():
            gone = _empty(target.with_name(f".{target.name}.gone"), create=False)
            target.rename(gone)
            shutil.rmtree(gone)
        if listing.source.scheme == "hf":
            _remove_unused_blobs(repository, listing)
    except OSError as error:
        raise disk_error(error, f"cannot remove {listing.source}") from error


def _remove_refs(repository: Path, commit: str) -> None:
    refs = repository / "refs"
    for ref in sorted(refs.rglob("*")) if refs.is_dir() else []:
        if _read_ref(ref) == commit:
            ref.unlink()
    (repository / "trees" / f"{commit}.json").unlink(missing_ok=True)


def _remove_unused_blobs(repository: Path, listing: Listing) -> None:
    snapshots = repository / "snapshots"
    links = snapshots.rglob("*") if snapshots.is_dir() else ()
    used = {link.readlink().name for link in links if link.is_symlink()}
    for file in listing.files:
        if file.digest not in used:
            (repository / "blobs" / file.digest).unlink(missing_ok=True)
    if not used:
        shutil.rmtree(repository)


def _read_ref(path: Path) -> str:
    """Return the commit that a ref names; "": it is no ref."""
    try:
        return read_small(path, 64)[0].decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _repository(root: Path, source: ModelSource) -> Path:
    return root / source.folder


def _empty(folder: Path, create: bool = True) -> Path:
    """Return a folder beside a published one, without what a crash has left in it."""
    remove_tree(folder)
    if create:
        folder.mkdir(parents=True)
    return folder


def _replace(aside: Path, target: Path) -> None:
    """Rename a folder into place. One that is there already has other files, and goes."""
    if target.is_dir():
        gone = _empty(target.with_name(f".{target.name}.gone"), create=False)
        target.rename(gone)
        aside.rename(target)
        shutil.rmtree(gone)
    else:
        aside.rename(target)
    sync(target.parent)


def _sync_tree(folder: Path) -> None:
    for parent, _, _ in os.walk(folder):
        sync(Path(parent))
