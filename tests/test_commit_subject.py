"""The commit message hook: accepted and refused subjects."""

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[1] / "tools" / "commit_subject.sh"


def said(tmp_path: Path, message: str) -> str:
    """Return what the hook says against a message; "": nothing."""
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run([HOOK, file], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


@pytest.mark.parametrize("room", ["grant: ignore", "log, readyz: keep", "Revert"])
def test_subject_is_taken_when_it_names_a_room(tmp_path: Path, room: str):
    body = 90 * "x"
    assert said(tmp_path, f"{room} silent pods\n\n{body}\n") == ""


def test_subject_is_refused_when_it_is_too_long(tmp_path: Path):
    assert "73 characters; allowed: at most 72" in said(tmp_path, "grant: " + 66 * "x")


@pytest.mark.parametrize("message", ["", "x", "Mend a fault", "grant: Ignore silent pods"])
def test_subject_is_refused_when_it_names_no_room(tmp_path: Path, message: str):
    assert "a room, a colon" in said(tmp_path, message)
