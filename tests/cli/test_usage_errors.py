"""A slip of the fingers is told at once: nothing that is heavy loads before the words are known to make sense."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "rich", "numba", "numpy"):
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Block())
from gradmend.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "required: COMMAND"),
        ("nonsense", "invalid choice: 'nonsense'"),
        ("run", "no program given"),
        ("run nowhere.py", "can't read nowhere.py"),
        ("run --budget 1MB x.py", "--budget goes with --heal"),
        ("run --heal --budget x.py", "--budget takes a size, for example --budget 512MB x.py"),
        ("run --heal --budget", "--budget takes a size, for example --budget 512MB"),
        ("run --retain x.py", "--retain goes with --heal"),
        ("run --audit --heal x.py", "--audit goes without --heal"),
        ("run --report no/where.json x.py", "there is no folder"),
        ("fix nowhere.py", "can't read nowhere.py"),
        ("report nowhere.json", "can't read nowhere.json"),
        ("check nowhere.py", "can't read nowhere.py"),
        ("check --select GM999 .", "there is no rule GM999"),
        ("check --jobs 0 .", "--jobs must be at least 1"),
        ("explain GM999", "there is no rule GM999"),
    ],
)
def test_usage_errors_load_no_torch(words: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
