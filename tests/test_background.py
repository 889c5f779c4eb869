"""Work in a thread of its own."""

import os
import signal
import threading

import pytest

from llama3jit.background import Background


def test_result_and_errors():
    work = Background(lambda: 7)
    work.join()  # not begun: nothing to wait for
    work.start()
    assert work.result() == 7
    failing = Background(lambda: 1 // 0)
    failing.start()
    failing.join()
    with pytest.raises(ZeroDivisionError):
        failing.result()


def test_waiting_that_ctrl_c_interrupts_can_be_taken_up_again():
    go, ended = threading.Event(), []

    def run():
        os.kill(os.getpid(), signal.SIGINT)
        go.wait(10)
        ended.append(1)

    work = Background(run)

    def start_and_wait():
        work.start()
        work.result()

    with pytest.raises(KeyboardInterrupt):
        start_and_wait()
    work.cancel(go.set)
    assert ended == [1]
    work.join()
