"""Writing: all or nothing, only over what was analysed, bytes kept."""

from __future__ import annotations

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
