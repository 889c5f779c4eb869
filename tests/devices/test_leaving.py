"""How a process ends that has a model open, and what its threads do until then."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from tiny_model import tiny_model

HERE = Path(__file__).parent
LONG = 4000  # tokens of a pass that takes about a second


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return tiny_model(path, n_layer=8, n_embd=256, n_head=8, n_head_kv=8, n_ff=512)


OPEN = f"""
    import sys, threading, time
    from pathlib import Path
    from types import SimpleNamespace
    sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
    from driving import ids_of, logits_of, opened
    from llama3jit.model.batch import Piece, make_batch

    LONG = {LONG}
    tiny = SimpleNamespace(path=Path(sys.argv[1]))
    wide = dict(n_ctx=LONG, max_tokens=LONG, precision="exact", kv_dtype="f32")

    def long_pass(runner):
        print("running", flush=True)
        runner.forward(make_batch([Piece(ids_of(LONG), 0, range(-(-LONG // 64)))]))
"""

# What the process does -> its exit status, and what it says last on stderr.
ENDINGS = {
    "with a model open": (
        "runner = opened(tiny); logits_of(runner, [1, 2]); print('used', flush=True)",
        0,
        "",
    ),
    "with a model closed": (
        "runner = opened(tiny); logits_of(runner, [1, 2]); runner.close()",
        0,
        "",
    ),
    "with two pools": (
        "a, b = opened(tiny), opened(tiny, threads=3); logits_of(a, [1]); logits_of(b, [1])",
        0,
        "",
    ),
    "by an exception": (
        "runner = opened(tiny); logits_of(runner, [1, 2]); raise ValueError('enough')",
        1,
        "ValueError: enough",
    ),
    "by an exception in a pass's arguments": (
        "runner = opened(tiny); runner.forward(make_batch([Piece([10**6], 0, [0])]))",
        1,
        "InvalidArgumentError",
    ),
    "after a thread used it": (
        "t = threading.Thread(target=lambda: logits_of(opened(tiny), [1, 2])); t.start(); t.join()",
        0,
        "",
    ),
    "by sys.exit in the middle of another thread's pass": (
        "runner = opened(tiny, **wide)\n"
        "threading.Thread(target=long_pass, args=(runner,), daemon=True).start()\n"
        "time.sleep(0.2); sys.exit(7)",
        7,
        "",
    ),
    "while another thread waits for its pass": (
        "runner = opened(tiny, **wide)\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=long_pass, args=(runner,), daemon=True).start()\n"
        "time.sleep(0.3)",
        0,
        "",
    ),
}


def started(tiny, code):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OPEN) + code, str(tiny.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_a_process_ends(tiny, name):
    code, status, words = ENDINGS[name]
    for _ in range(3 if "another thread" in name else 1):
        with started(tiny, code) as process:
            _, complaint = process.communicate(timeout=120)
        assert process.returncode == status, complaint
        assert (words in complaint) if words else complaint == ""


def test_ctrl_c_ends_a_process_that_computes(tiny):
    with started(tiny, "long_pass(opened(tiny, **wide))") as process:
        assert process.stdout.readline() == "running\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert complaint.rstrip().endswith("KeyboardInterrupt")


def worker_seconds():
    """Processor time of each of our workers so far, by thread; Linux tells."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[task.name] = (int(fields[11]) + int(fields[12])) / ticks
    return found


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc")
def test_idle_workers_take_under_a_hundredth_of_a_core(tiny):
    runner = opened(tiny, threads=4)
    logits_of(runner, ids_of(9))
    time.sleep(1.0)  # they spin a while first, longer where others want the cores
    before = worker_seconds()
    time.sleep(2.5)
    after = worker_seconds()
    busy = {tid: after[tid] - before.get(tid, 0) for tid in after if tid != str(os.getpid())}
    assert len(busy) >= 3
    assert max(busy.values()) < 0.025, busy
    runner.close()


def test_more_threads_than_cores(tiny):
    """The same bits, and a step that takes no time slice of the scheduler's at each barrier: some
    90 barriers of a slice of 4 ms would be 0.36 s a step."""
    few, many = opened(tiny, threads=1), opened(tiny, threads=4 * (os.cpu_count() or 1))
    assert np.array_equal(logits_of(many, ids_of(40)), logits_of(few, ids_of(40)))
    steps = []
    for i in range(40):
        began = time.perf_counter()
        logits_of(many, [i])
        steps.append(time.perf_counter() - began)
    assert sorted(steps)[20] < 0.36
    few.close()
    many.close()
