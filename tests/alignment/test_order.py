import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpipe.alignment.order import RowOrder


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 100), st.integers(1, 60))
def test_any_slice_is_a_slice_of_one_endless_stream(num_rows: int, start: int, count: int) -> None:
    order = RowOrder(num_rows, seed=3)
    whole = order.take(0, start + count)
    assert (order.take(start, count) == whole[start:]).all()


def test_each_epoch_takes_every_row_once_in_another_order() -> None:
    order = RowOrder(50, seed=3)
    first, second = order.take(0, 50), order.take(50, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert (first != second).any()
    assert (first != RowOrder(50, seed=4).take(0, 50)).any()
    assert first.dtype == np.int64
