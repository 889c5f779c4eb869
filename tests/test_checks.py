"""Whether arguments are what they have to be."""

import math

import numpy as np
import pytest

from llama3jit.checks import check_whole, did_you_mean
from llama3jit.errors import InvalidArgumentError


@pytest.mark.parametrize("value", [0, 7, np.int64(7), np.uint8(0), 2**70])
def test_whole_numbers(value):
    found = check_whole("n", value, 0)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, math.nan, [1]])
def test_what_is_none(value):
    with pytest.raises(InvalidArgumentError, match=r"^n is .*: expected a whole number \(so\)$"):
        check_whole("n", value, 0, 9, " (so)")


def test_bounds():
    with pytest.raises(InvalidArgumentError, match=r"^n is -1: expected 0 or more$"):
        check_whole("n", -1, 0)
    with pytest.raises(InvalidArgumentError, match=r"^n is 10: expected 1 to 9$"):
        check_whole("n", 10, 1, 9)


def test_the_nearest_name():
    assert did_you_mean("temprature", {"temperature", "top_k"}) == "; did you mean 'temperature'?"
    assert did_you_mean("xyz", ["temperature"], "; none") == "; none"
