"""Trial runs leave the user's tree alone."""

from __future__ import annotations

from pathlib import Path

from fix_trials import Make


def test_writes_land_in_the_copy(runner: Make, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("old")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("kept")
    source = (
        "import os, torch\n"
        "assert open('log.txt').read() == 'old'\n"
        "open('log.txt', 'a').write(' new'); assert open('log.txt').read() == 'old new'\n"
        "open('data/b.txt', 'w').write('x'); assert open('data/a.txt').read() == 'kept'\n"
        "torch.save({}, 'model.pt'); torch.save({}, 'data/model.pt')\n"
        "os.remove('data/a.txt'); os.makedirs('out/deep')\n"
        "import tempfile; tempfile.NamedTemporaryFile().write(b'x')\n"
    )
    run = runner(source).run({}, "plain")
    assert run.outcome == "finished", run.stderr
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert names == ["data", "data/a.txt", "log.txt", "main.py"]
    assert (tmp_path / "log.txt").read_text() == "old"


def test_writes_elsewhere_are_refused(runner: Make, tmp_path: Path) -> None:
    for write in ("open(path, 'w')", "torch.save({}, path)", "os.mkdir(path)", "pathlib.Path(path).touch()"):
        target = tmp_path.parent / "elsewhere"
        source = f"import os, pathlib, torch\npath = {str(target)!r}\n{write}\n"
        run = runner(source).run({}, "plain")
        assert run.error and "may not write outside" in run.error["message"], write
        assert not target.exists()


def test_nothing_is_left_behind(runner: Make) -> None:
    one = runner("print('hello')\n")
    assert one.run({}, "plain").stdout == "hello\n"
    top = one.scratch.top
    assert top.exists()
    one.close()
    assert not top.exists()


def test_edited_modules_are_the_ones_imported(runner: Make, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'old'\n")
    one = runner("import helper\nprint(helper.WORD, helper.__name__)\n")
    assert one.run({}, "plain").stdout == "old helper\n"
    edited = {str(tmp_path / "helper.py"): b"WORD = 'new'\n"}
    assert one.run(edited, "plain").stdout == "new helper\n"
    assert (tmp_path / "helper.py").read_text() == "WORD = 'old'\n"


def test_arguments_and_main(runner: Make) -> None:
    one = runner(
        "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:], __file__.endswith('main.py'))\n"
    )
    one.argv = ["--lr", "1"]
    assert one.run({}, "plain").stdout == "['--lr', '1'] True\n"
