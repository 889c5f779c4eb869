import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama3jit.engine.kv import BlockPool


def test_shared_block_is_freed_by_the_last_who_holds_it():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.free(blocks)
    assert pool.n_free == 3
    pool.check([blocks[:1]])
    pool.free(blocks[:1])
    assert pool.n_free == 4
    pool.check([])


def test_misuse_is_refused():
    pool = BlockPool(3)
    with pytest.raises(ValueError, match="4 KV blocks asked for, 3 are free"):
        pool.allocate(4)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(ValueError, match="freed twice"):
        pool.free([block])
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share([block])


def test_check_sees_a_leak_and_a_stray_reference():
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    with pytest.raises(ValueError, match="wrong reference counts"):
        pool.check([blocks[:1]])
    with pytest.raises(ValueError, match="wrong reference counts"):
        pool.check([blocks, blocks])


def test_marked_blocks_stay_until_they_are_needed_the_oldest_first():
    forgotten = []
    pool = BlockPool(4, forgotten.append)
    a, b, c, d = blocks = pool.allocate(4)
    for block in (a, b, c):
        pool.mark(block)
    pool.free(blocks)  # the last one first
    assert (pool.n_free, pool.n_cached) == (4, 3)
    pool.share([b])
    pool.free([b])
    assert pool.allocate(2) == [d, c]
    pool.touch(a)
    assert pool.allocate(1) == [b]
    assert forgotten == [c, b]
    pool.check([[d, c], [b]])
    pool.unmark(a)
    assert pool.n_cached == 0
    with pytest.raises(ValueError, match="cannot be marked"):
        pool.mark(a)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share([a])
    assert pool.allocate(1) == [a]
    assert forgotten == [c, b]


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "free", "mark"]), st.integers(0, 9))))
def test_any_order_of_calls_keeps_the_counts(calls):
    pool = BlockPool(8)
    tables: list[list[int]] = []
    for action, number in calls:
        if action == "take" and number <= pool.n_free:
            tables.append(pool.allocate(number))
        elif action == "share" and tables:
            tables.append(list(tables[number % len(tables)]))
            pool.share(tables[-1])
        elif action == "mark" and tables and tables[number % len(tables)]:
            pool.mark(tables[number % len(tables)][-1])
        elif action == "free" and tables:
            pool.free(tables.pop(number % len(tables)))
        pool.check(tables)
    assert pool.n_free == 8 - len({block for table in tables for block in table})
