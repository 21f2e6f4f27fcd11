import os
import stat
import threading
from pathlib import Path

import pytest

from autoscaler.lab.report.output_files import check, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "proof.json"
    path.write_text("what was there")
    return path


def test_a_file_is_replaced_whole_and_keeps_its_mode(file: Path) -> None:
    file.chmod(0o600)
    with file.open() as reader:
        write([(file, "new")])
        assert reader.read() == "what was there"
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_new_file_can_be_read_by_everybody(tmp_path: Path) -> None:
    write([(tmp_path / "new", "new")])
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644


def test_a_link_stays_one_and_what_it_leads_to_is_written(file: Path, tmp_path: Path) -> None:
    for name, target in (("link", file), ("dangling", tmp_path / "new.json")):
        link = tmp_path / name
        link.symlink_to(target)
        check([link])
        write([(link, "new")])
        assert link.is_symlink()
        assert target.read_text() == "new"


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check([pipe])
    write([(pipe, "new")])
    reader.join()
    assert read == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_where_one_file_cannot_be_written_none_is(file: Path, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    os.mknod(socket, stat.S_IFSOCK | 0o600)  # nobody listens
    for wrong in (socket, Path("/proc/proof.html")):
        with pytest.raises(ValueError, match=f"^{wrong} cannot be written: No such "):
            write([(file, "new"), (wrong, "new")])
        assert file.read_text() == "what was there"
        assert set(tmp_path.iterdir()) == {file, socket}


def test_what_utf_8_cannot_say_does_not_lose_the_rest(file: Path) -> None:
    write([(file, "of \udcff.csv")])
    assert file.read_text() == "of ?.csv"


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
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
        ("proof.json/x.json", "proof.json/x.json cannot be written: Not a directory"),
        ("nowhere/x.json", "the folder .*/nowhere does not exist"),
        (".", "is a folder; allowed: a file"),
        ("loop", "cannot be written: Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_written_is_known_before(file: Path, name: str, said: str) -> None:
    (file.parent / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match=said):
        check([file.parent / name])
    assert sorted(file.parent.iterdir()) == [file.parent / "loop", file]


def test_an_output_is_no_input_and_no_other_output_by_any_name(file: Path, tmp_path: Path) -> None:
    link, new = tmp_path / "link", tmp_path / "new"
    link.symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    for other in (file, link, tmp_path / "hard", tmp_path / "." / "proof.json"):
        with pytest.raises(ValueError, match=r"would replace the input .*/proof.json; allowed: a file of its own"):
            check([other], [file])
    with pytest.raises(ValueError, match=r"would replace the output .*/new;"):
        check([new, new])
    check([new, Path("/dev/null"), Path("/dev/null")], [file, Path("/dev/null")])
