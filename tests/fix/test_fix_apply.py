"""Writing: all or nothing, only over what was analysed, bytes kept."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from gradmend.errors import UsageError
from gradmend.fix.source.apply import apply
from gradmend.fix.source.text import read


def test_encoding_line_endings_and_mode_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_bytes("# coding: latin-1\r\nx += 1  # größer\r\n".encode("latin-1"))
    file.chmod(0o755)
    before = read(file)
    apply({str(file): before}, {str(file): before.text.replace("x += 1", "x = x + 1")})
    assert file.read_bytes() == "# coding: latin-1\r\nx = x + 1  # größer\r\n".encode("latin-1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
    assert [p.name for p in tmp_path.iterdir()] == ["a.py"]


def test_a_file_changed_meanwhile_is_not_touched(tmp_path: Path) -> None:
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("1\n")
    b.write_text("2\n")
    texts = {str(f): read(f) for f in (a, b)}
    b.write_text("changed\n")
    with pytest.raises(UsageError, match="changed since it was analysed"):
        apply(texts, {str(a): "3\n", str(b): "4\n"})
    assert (a.read_text(), b.read_text()) == ("1\n", "changed\n")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("1\n")
    link.symlink_to(real)
    apply({str(link): read(link)}, {str(link): "2\n"})
    assert link.is_symlink() and real.read_text() == "2\n"


def test_unreadable_sources_are_told_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_bytes(b"# coding: no-such-code\n")
    with pytest.raises(UsageError, match="cannot read"):
        read(bad)
    bad.write_bytes(b"x = '\xff'\n")
    with pytest.raises(UsageError, match="cannot read"):
        read(bad)


def test_every_name_of_a_file_sees_the_change(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("1\n")
    other.hardlink_to(one)
    apply({str(one): read(one)}, {str(one): "2\n"})
    assert other.read_text() == "2\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_second_file_that_cannot_be_written_takes_the_first_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("1\n")
    b.write_text("2\n")
    texts = {str(f): read(f) for f in (a, b)}
    really = os.replace

    def full(source: str, target: str) -> None:
        if target == str(b):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        really(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="nothing was written"):
        apply(texts, {str(a): "3\n", str(b): "4\n"})
    assert (a.read_text(), b.read_text()) == ("1\n", "2\n")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_is_read_only_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_text("1\n")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write all
    with pytest.raises(UsageError, match="Permission denied"):
        apply({str(file): read(file)}, {str(file): "2\n"})
    assert file.read_text() == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("may", [True, False], ids=["may chown", "may not"])
def test_the_owner_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: bool) -> None:
    file = tmp_path / "a.py"
    file.write_text("1\n")
    os.chown(file, 1234, 1234)
    if not may:

        def refused(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "chown", refused)
    apply({str(file): read(file)}, {str(file): "2\n"})
    assert file.read_text() == "2\n"
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 1234)
    assert len(list(tmp_path.iterdir())) == 1
