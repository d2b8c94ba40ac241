"""Errors of sparse tensors are conflicts like the others: a rule, a line, what to write."""

import pytest
import torch

from gradmend.story.failures import diagnose


def sparse():
    values = torch.ones(3, requires_grad=True)
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), values, (2, 3))


def raised(run):
    with pytest.raises((RuntimeError, TypeError)) as caught:
        run()
    return diagnose(caught.value)


def test_an_uncoalesced_tensor_is_told_by_its_line():
    conflict = raised(lambda: sparse().values())
    assert conflict.rule == "GM301"
    assert conflict.kind == "error"
    assert conflict.culprits[0].file == __file__
    assert "coalesce" in conflict.help[0]


def test_sum_over_a_dimension():
    assert raised(lambda: sparse().coalesce().sum(0).to_dense().sum().backward()).rule == "GM306"


def test_an_assignment_raises_another_type_and_is_told_all_the_same():
    def assign():
        sparse().detach()[0, 0] = 1.0

    assert raised(assign).rule == "GM314"


def test_a_dense_expanded_tensor_stays_with_its_own_rule():
    def write():
        torch.ones(1).expand(3).add_(torch.ones(3))

    assert raised(write).rule == "GM124"


def test_an_error_of_another_kind_is_left_alone():
    def error():
        raise ValueError("of the program's own")

    with pytest.raises(ValueError) as caught:
        error()
    assert diagnose(caught.value) is None
