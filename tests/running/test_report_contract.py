"""The Session JSON that other tools read, key by key, and what stands on stderr."""

import json

from programs import BROKEN, Program

SITE = {"file": str, "line": int, "function": str}
CONFLICT = {
    "rule": str,
    "kind": str,
    "message": str,
    "culprits": list,
    "saved": dict,
    "writes": list,
    "backward": dict,
    "healed_bytes": int,
    "fixes": list,
}


def _has(found, wanted):
    for key, kind in wanted.items():
        assert isinstance(found[key], kind), (key, found[key])


def _check(report, outcome):
    _has(report, {"schema": int, "outcome": str, "conflicts": list})
    assert report["schema"] == 1
    assert report["outcome"] == outcome
    assert report["error"] is None or isinstance(report["error"], dict)
    for conflict in report["conflicts"]:
        _has(conflict, CONFLICT)
        assert conflict["kind"] in ("error", "silent", "refused-but-right")
        for culprit in conflict["culprits"]:
            _has(culprit, {"file": str, "line": int, "op": str})
        _has(conflict["saved"], {**SITE, "op": str, "tensor": dict})
        for write in conflict["writes"]:
            _has(write, {**SITE, "op": str, "stack": list})
            for frame in write["stack"]:
                _has(frame, SITE)
        _has(conflict["backward"], {"file": str, "line": int})
        for fix in conflict["fixes"]:
            _has(fix, {"title": str, "diff": str, "status": str})
            assert fix["status"] in ("proven", "unproven", "failed")


def test_a_conflict_stops_the_program(tmp_path):
    program = Program(tmp_path, BROKEN)
    ran = program.gradmend()
    assert ran.code == 1
    assert ran.out == ""
    _check(ran.report, "conflict")
    (conflict,) = ran.report["conflicts"]
    path = str(program.path)
    assert conflict["kind"] == "error"
    assert conflict["culprits"] == [{"file": path, "line": program.line("y += 1"), "op": "__iadd__"}]
    saved = conflict["saved"]
    assert (saved["file"], saved["line"], saved["op"]) == (path, program.line("x.exp()"), "exp")
    assert saved["tensor"]["name"] == "y"
    assert (conflict["writes"][0]["file"], conflict["writes"][0]["line"]) == (path, program.line("y += 1"))
    assert conflict["writes"][0]["function"] == "<module>"
    assert (conflict["backward"]["file"], conflict["backward"]["line"]) == (path, program.line("backward()"))
    assert ran.report["error"]["line"] == program.line("backward()")
    # The story, once, with the three lines; and no frame of ours in the traceback.
    assert (
        " ".join(ran.err.split()).count(
            "line 4 changes `y` in place, but backward() on line 5 still needs `y`"
        )
        == 1
    )
    for text in ("y = x.exp()", "y += 1", "y.sum().backward()", "Traceback (most recent call last)"):
        assert text in ran.err
    assert "gradmend/capture" not in ran.err and "gradmend/running" not in ran.err
    assert "\x1b[" not in ran.err
    json.dumps(ran.report)


def test_healed(tmp_path):
    program = Program(
        tmp_path,
        """
        import torch
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        z = y.exp()
        w = z * z
        z[0] = 0
        w.sum().backward()
        print([round(v, 3) for v in x.grad.tolist()])
        """,
    )
    ran = program.gradmend(before=["--heal"])
    assert ran.code == 0, ran.err
    assert ran.out == "[218.393, 218.393, 218.393]\n"
    _check(ran.report, "healed")
    assert ran.report["conflicts"][0]["healed_bytes"] > 0
    assert "healed" in ran.err


def test_a_program_that_catches_the_conflict_still_has_its_report(tmp_path):
    program = Program(
        tmp_path,
        """
        import os, torch
        y = torch.ones(3, requires_grad=True).exp()
        y += 1
        try:
            y.sum().backward()
        except RuntimeError as error:
            print(type(error).__mro__[-4].__name__, flush=True)
        os._exit(9)
        """,
    )
    ran = program.gradmend()
    assert ran.code == 9
    assert ran.out == "RuntimeError\n"
    _check(ran.report, "conflict")


def test_pytorchs_own_error_has_its_story(tmp_path):
    program = Program(
        tmp_path,
        """
        import torch
        w = torch.ones(3, requires_grad=True)
        loss = (w * w).sum()
        loss.backward()
        loss.backward()
        """,
    )
    ran = program.gradmend()
    assert ran.code == 1
    assert ran.report["outcome"] == "conflict"
    assert [c["line"] for c in ran.report["conflicts"][0]["culprits"]] == [3, 5, 4]
    assert "second time" in ran.err


def test_gradmend_in_the_environment_adds_the_story(tmp_path):
    """GRADMEND=1 python SCRIPT: PyTorch's own exception, and the story as a note below it."""
    program = Program(tmp_path, BROKEN)
    ran = program.python(env={"GRADMEND": "1"})
    assert ran.code == 1
    assert "modified by an inplace operation" in ran.err
    assert (
        f"line {program.line('y += 1')} " in ran.err and "y += 1" in ran.err.partition("inplace operation")[2]
    )
    off = program.python(env={"GRADMEND": "0"})
    assert "y += 1" not in off.err.partition("inplace operation")[2]


def test_gradmend_in_the_environment_does_not_import_torch(tmp_path):
    program = Program(tmp_path, "import sys\nprint('torch' in sys.modules)\n")
    assert program.python(env={"GRADMEND": "1"}).out == "False\n"
