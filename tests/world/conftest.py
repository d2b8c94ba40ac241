"""Every case is checked alike; what it showed goes into the JUnit file that tools/make_world.py reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from world_runs import Case


@pytest.fixture
def check(record_property: Callable[[str, object], None]) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            outcome = case.run()
        finally:
            torch.set_num_threads(threads)
        for name, value in asdict(outcome).items():
            record_property(name, value)
        assert not outcome.harmful
        assert outcome.identical, "watched, the losses or parameters came out different"

    return check
