"""Facts of a conflict -> rule, one line each."""

from __future__ import annotations

from typing import Any

import pytest

from gradmend import rules
from gradmend.model import Frame
from gradmend.rules.classify import classify

USER = Frame("/home/me/train.py", 10, "main")
FACTS: dict[str, Any] = {
    "kind": "error",
    "quiet": False,
    "how": "data",
    "write_op": "add_",
    "write_stack": (USER,),
    "save_op": "mul",
    "slot": "self",
    "saved_is_leaf": False,
    "saved_is_output": False,
    "same_region": True,
}


def torch_frame(path: str) -> Frame:
    return Frame(f"/env/lib/python3.11/site-packages/torch/{path}", 1, "f", "torch")


SILENT = {"kind": "silent", "quiet": True}


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("GM101", {"save_op": "exp", "slot": "result", "saved_is_output": True}),
        ("GM102", {}),
        ("GM102", {"write_op": "__iadd__"}),
        ("GM103", {"write_op": "__setitem__", "same_region": False}),
        ("GM103", {"write_op": "copy_", "same_region": False, "saved_is_output": True}),
        ("GM104", {"write_op": "SGD.step", "saved_is_leaf": True}),
        ("GM104", {"write_stack": (torch_frame("optim/sgd.py"), USER), "saved_is_leaf": True}),
        ("GM105", {"write_op": "mul_", "saved_is_leaf": True}),
        ("GM105", {"write_op": "normalize", "write_stack": (torch_frame("nn/utils/spectral_norm.py"), USER)}),
        ("GM105", {"write_op": "copy_", "write_stack": (torch_frame("nn/modules/module.py"), USER)}),
        ("GM106", {"slot": "indices[0]"}),
        ("GM106", {"slot": "mask", "write_op": "zero_"}),
        ("GM106", {"slot": "target", "write_op": "copy_", "same_region": False}),
        ("GM107", {"write_op": "relu_", "write_stack": (torch_frame("nn/functional.py"), torch_frame("nn/modules/activation.py"), USER)}),
        ("GM101", {"write_op": "relu_", "saved_is_output": True}),
        ("GM101", {"write_op": "relu_", "saved_is_output": True, "write_stack": (USER, torch_frame("nn/modules/module.py"))}),
        ("GM108", {"write_op": "embedding_renorm_", "saved_is_leaf": True}),
        ("GM108", {"write_op": "F.embedding", "same_region": False}),
        ("GM109", {"kind": "refused-but-right", "slot": "mask"}),
        ("GM109", {"kind": "refused-but-right", "how": "metadata", "write_op": "t_"}),
        ("GM110", {"how": "unknown", "write_op": "", "write_stack": ()}),
        ("GM201", SILENT),
        ("GM201", {**SILENT, "write_op": "__setitem__", "same_region": False}),
        ("GM202", {**SILENT, "how": "foreign", "write_op": "", "write_stack": ()}),
        ("GM202", {**SILENT, "how": "unknown", "write_op": "", "write_stack": ()}),
        ("GM202", {**SILENT, "write_op": "storage.copy_"}),
        ("GM203", {**SILENT, "write_op": "_fused_adam_", "write_stack": (torch_frame("optim/adam.py"), USER)}),
        ("GM203", {**SILENT, "write_op": "torch._fused_sgd_"}),
        ("GM204", {**SILENT, "how": "metadata", "write_op": ".data =", "saved_is_leaf": True}),
        ("GM204", {"how": "metadata", "write_op": "set_"}),
        ("GM209", {**SILENT, "write_op": "dist.all_reduce"}),
        ("GM209", {"write_op": "dist.broadcast"}),
        ("GM211", {**SILENT, "write_op": "F.batch_norm", "slot": "running_mean"}),
        ("GM211", {**SILENT, "write_op": "copy_", "slot": "running_var"}),
    ],
)  # fmt: skip
def test_code(code: str, facts: dict[str, Any]) -> None:
    assert classify(**FACTS | facts) == code


def test_a_users_file_that_only_looks_like_torchs_is_the_users() -> None:
    mine = Frame("/home/me/torch/optim/mine.py", 3, "step")
    assert classify(**FACTS | {"write_stack": (mine,)}) == "GM102"


def test_every_code_that_comes_out_has_a_rule() -> None:
    import inspect
    import re

    source = inspect.getsource(inspect.getmodule(classify) or classify)
    for code in set(re.findall(r"GM\d{3}", source)):
        assert rules.get(code).code == code
