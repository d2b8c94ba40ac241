"""`GRADMEND=1 python program.py`: PyTorch's own error with its story, and no frame of ours."""

import sys

from programs import BROKEN, Program, launch

ARM = "import gradmend.arm\n"  # what the .pth file does; it is not there in every environment


def test_the_traceback_has_no_frame_of_ours(tmp_path):
    program = Program(tmp_path, ARM + BROKEN)
    ran = launch([sys.executable, str(program.path)], tmp_path, env={"GRADMEND": "1"})
    assert ran.code == 1 and "[GM101]" in ran.err and "y.sum().backward()" in ran.err
    assert "gradmend/capture" not in ran.err and "gradmend/api" not in ran.err
    plain = Program(tmp_path, BROKEN, "plain.py").python()
    count = plain.err.count('  File "')
    assert ran.err.count('  File "') == count > 1


def test_an_error_of_the_programs_own_is_as_without_us(tmp_path):
    wrong = "import torch\ntorch.ones(3).add_(torch.ones(2))\n"
    ours = Program(tmp_path, ARM + wrong).python()
    plain = Program(tmp_path, "import sys\n" + wrong).python()
    assert ours.code == plain.code == 1 and ours.err == plain.err
