import os
import stat
import threading
from pathlib import Path

import pytest

from autoscaler.lab.report.output_files import check, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text("what was there")
    return path


def test_file_is_replaced_atomically_and_keeps_its_mode(file: Path) -> None:
    file.chmod(0o600)
    with file.open() as reader:
        write([(file, "new")])
        assert reader.read() == "what was there"
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_new_file_is_world_readable(tmp_path: Path) -> None:
    write([(tmp_path / "new", "new")])
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644


def test_link_stays_and_its_target_is_written(file: Path, tmp_path: Path) -> None:
    for name, target in (("link", file), ("dangling", tmp_path / "new.json")):
        link = tmp_path / name
        link.symlink_to(target)
        check([link])
        write([(link, "new")])
        assert link.is_symlink()
        assert target.read_text() == "new"


def test_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check([pipe])
    write([(pipe, "new")])
    reader.join()
    assert read == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_no_file_is_written_when_one_cannot_be(file: Path, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    os.mknod(socket, stat.S_IFSOCK | 0o600)  # without a listener
    for wrong in (socket, Path("/proc/comparison.html")):
        with pytest.raises(ValueError, match=f"^{wrong} cannot be written: No such "):
            write([(file, "new"), (wrong, "new")])
        assert file.read_text() == "what was there"
        assert set(tmp_path.iterdir()) == {file, socket}


def test_unencodable_character_becomes_a_question_mark(file: Path) -> None:
    write([(file, "of \udcff.csv")])
    assert file.read_text() == "of ?.csv"


def test_file_with_the_longest_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    check([path])
    assert list(tmp_path.iterdir()) == []
    write([(path, "new")])
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 256, "cannot be written: File name too long"),
        ("x/" * 3000, "cannot be written: File name too long"),
        ("/proc/x.json", "/proc/x.json cannot be written: No such file or directory"),
        ("result.json/x.json", "result.json/x.json cannot be written: Not a directory"),
        ("nowhere/x.json", "the folder .*/nowhere does not exist"),
        (".", "is a folder; allowed: a file"),
        ("loop", "cannot be written: Too many levels of symbolic links"),
    ],
)
def test_unwritable_output_is_found_by_the_check(file: Path, name: str, said: str) -> None:
    (file.parent / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match=said):
        check([file.parent / name])
    assert sorted(file.parent.iterdir()) == [file.parent / "loop", file]


def test_output_must_differ_from_inputs_and_outputs(file: Path, tmp_path: Path) -> None:
    link, new = tmp_path / "link", tmp_path / "new"
    link.symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    for other in (file, link, tmp_path / "hard", tmp_path / "." / "result.json"):
        with pytest.raises(ValueError, match=r"would replace the input .*/result.json; allowed: a file of its own"):
            check([other], [file])
    with pytest.raises(ValueError, match=r"would replace the output .*/new;"):
        check([new, new])
    check([new, Path("/dev/null"), Path("/dev/null")], [file, Path("/dev/null")])
