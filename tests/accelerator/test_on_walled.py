"""Our tests, run a second time on a device whose memory the host can't read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., int]


@pytest.mark.slow
def test_the_claims(tests_there: Run) -> None:
    assert tests_there("tests/claims") >= 25


@pytest.mark.slow
def test_silent_programs_are_told_and_healed_and_audited(tests_there: Run) -> None:
    assert tests_there("tests/silent", "--ignore", "tests/silent/test_ranks.py") >= 150


@pytest.mark.slow
def test_random_programs(tests_there: Run) -> None:
    assert tests_there("tests/oracles/test_random_programs.py", GRADMEND_PROGRAMS="200") == 5


def test_heal(tests_there: Run) -> None:
    records, regions = "tests/heal/test_undo_records.py", "tests/heal/test_undo_regions.py"
    assert (
        tests_there(records, regions, "tests/heal/test_checkpointed.py", "tests/heal/test_swapped.py") >= 60
    )


@pytest.mark.ops
def test_all_of_heal(tests_there: Run) -> None:
    assert tests_there("tests/heal", "--ignore", "tests/heal/test_public_name.py") >= 120


@pytest.mark.slow
def test_watch_and_install(tests_there: Run) -> None:
    assert tests_there("tests/test_watch.py", "tests/test_install.py") >= 30


def test_the_sparse_catalogue(tests_there: Run) -> None:
    """Every compiled kernel's threshold is zero there: what keeps them off this memory is that they ask for the CPU."""
    assert tests_there("tests/sparse/test_sparse_ops.py", "-k", "not gradcheck") >= 200


@pytest.mark.ops
def test_the_sparse_catalogue_by_differences(tests_there: Run) -> None:
    assert tests_there("tests/sparse/test_sparse_ops.py", "-k", "gradcheck") >= 95
