"""The lines of help: true of the program that ran, and harmless to a terminal."""

import pytest
from programs import BROKEN, Program


def helps(err):
    return [line.partition("= help: ")[2] for line in err.splitlines() if "= help: " in line]


def test_control_characters_of_the_source_are_spelled_out(tmp_path):
    hostile = BROKEN.replace("y += 1", 'y.add_(len("\x1b[31m\u202e"))').replace("y", 'd["\x1b[2J"]')
    hostile = hostile.replace('pd["\x1b[2J"]', "py").replace("import", "d = {}\nimport")
    for flags in ([], ["--heal"]):
        ran = Program(tmp_path, hostile).gradmend(before=flags)
        assert "[GM101]" in ran.err and "\\x1b[2J" in ran.err
        assert not {"\x1b", "\u202e"} & set(ran.err.partition("[GM101]")[2])


def test_the_command_can_be_typed(tmp_path):
    ran = Program(tmp_path, BROKEN, "my prog.py").gradmend()
    assert [
        h for h in helps(ran.err) if h.startswith("`gradmend fix 'my prog.py'` tries this edit and others")
    ]


@pytest.mark.parametrize("elastic", [False, True])
def test_what_torchrun_started_is_fixed_below_torchrun(tmp_path, elastic):
    env = {"TORCHELASTIC_RUN_ID": "1"} if elastic else {}
    ran = Program(tmp_path, BROKEN).gradmend(env=env)
    launcher = "torchrun --nproc-per-node 1 -m " if elastic else ""
    assert [h for h in helps(ran.err) if h.startswith(f"`{launcher}gradmend fix program.py`")]


def test_a_line_of_another_file_goes_with_its_file(tmp_path):
    Program(tmp_path, "def grow(t):\n    t += 1\n    return t\n", "model.py")
    text = BROKEN.replace("import torch", "import torch\nfrom model import grow").replace(
        "y += 1", "y = grow(y)"
    )
    ran = Program(tmp_path, text).gradmend()
    first = helps(ran.err)[0]
    assert "model.py line 2" in first or "program.py line 5" in first, first
    ran = Program(tmp_path / "alone", BROKEN).gradmend()
    assert helps(ran.err)[0] == "write line 4 as `y = y + 1`"
