"""Templates that want out, or that want the machine: refused, soon and with little memory."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llama3jit.errors import TemplateError
from llama3jit.text.budget import MAX_SECONDS
from llama3jit.text.chat import ChatTemplate, load_chat_template
from llama3jit.text.tokenizer import load_tokenizer
from tests.text import vocabularies as v

TALK = [{"role": "user", "content": "hi"}]
GROW = "{% set ns = namespace(x='aaaaaaaa', l=[1], n=9) %}{% for i in range(99) %}"

# CVE-2024-34359, CVE-2026-5760
ESCAPES = [
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ raise_exception.__globals__.keys() }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format(1)[0] }}",
    "{{ (('%s' | attr('for' ~ 'mat'))('x') | attr('__class__')).mro() }}",
    "{{ namespace.mro() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ self._TemplateReference__context.environment.loader.x }}",
    "{% import 'os' as os %}",
]
TWICE = (
    "{%% set ns = namespace(x='a') %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}"
)
MACRO = (
    "{%% set ns = namespace(x='a') %%}{%% macro m() %%}{%% set ns.x = %s %%}{%% endmacro %%}"
    "{%% for i in range(60) %%}"
)
LARGE = "{% set x = 'a' * 1000000 ~ 'b' %}{% set y = 'a' * 1000000 ~ 'b' %}"
BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(10**30) %}x{% endfor %}",
    "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "{% set t %}{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
    "{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'x' * 10**9 }}",
    "{{ 1000000000 * 'x' }}",
    "{{ [1] * 10**9 }}",
    "{{ (1, 2) * 10**9 }}",
    "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    GROW + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    GROW + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    GROW + "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}{% endfor %}",
    GROW + "{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    GROW + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
    GROW + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
    GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | string }}",
    GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l ~ '' }}",
    GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ '%s' % (ns.l,) }}",
    GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == [ns.l, ns.l] }}",
    # What holds itself twice, 2**60 times in all, in ways that C code would go through.
    *(
        TWICE % made + "{{ ns.x | length }}"
        for made in (
            "[ns.x, ns.x]",
            "{'a': ns.x, 'b': ns.x}.values()",
            "dict(a=ns.x, b=ns.x).items()",
            "cycler(ns.x, ns.x).items",
            "[1] | batch(3, ns.x) | list",
            "[1] | slice(3, ns.x) | list",
        )
    ),
    TWICE % "(ns.x, ns.x)" + "{{ {}[ns.x] }}",
    MACRO % "varargs" + "{% set _ = m(ns.x, ns.x) %}{% endfor %}{{ ns.x | length }}",
    MACRO % "kwargs" + "{% set _ = m(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x | length }}",
    LARGE + "{{ ([x, y] * 100000) | sort | length }}",
    LARGE + "{{ ([x, y] * 100000) | max }}",
    LARGE + "{{ ([x, y] * 100000) | unique | list | length }}",
    LARGE + "{{ ([x] * 100000).count(y) }}",
    LARGE + "{{ [1, 2] | join([x] * 10000) }}",
    LARGE + "{{ ([x] * 10000) is upper }}",
    LARGE + "{{ [{x: 1}] * 10000 }}",
    LARGE + "{{ {}[[x] * 10000].y }}",
    LARGE + "{{ raise_exception([x] * 10000) }}",
    LARGE + "{{ x.lstrip('c' * 1000000 ~ 'a') }}",
    LARGE + "{{ x | trim('c' * 1000000 ~ 'a') }}",
    "{{ ([['a'] * 100000] * 600) | sum(start=[]) | length }}",
    "{{ 'a'" + " | replace('a', 'aaaaaaaaaa')" * 10 + " }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.center(width=10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x' | indent(1000000000, true) }}",
    "{{ 'x x' | wordwrap(1, wrapstring='y' * 99999) }}",
    "{{ ['x'] | batch(1000000000, 'y') | list }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ (1).to_bytes(1000000000) }}",
    "{{ 'x'.encode().ljust(1000000000) }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ strftime_now('%1000000000Y') }}",
]


def open_template(text: str) -> ChatTemplate:
    return load_chat_template({}, load_tokenizer(v.bytelevel("gpt-2")), override=text)


@pytest.mark.parametrize("text", ESCAPES)
def test_a_template_cannot_get_out(text: str) -> None:
    with pytest.raises(TemplateError, match=r"unsafe|undefined|no loader|sets the attribute"):
        open_template(text).render(TALK)


def test_bombs_are_refused_soon_and_with_little_memory() -> None:
    # In a process of its own, under a limit that any one of them would break.
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "import time\n"
        "from llama3jit.errors import TemplateError\n"
        "from tests.text.test_sandbox import BOMBS, TALK, open_template\n"
        "for text in BOMBS:\n"
        "    began = time.process_time()\n"
        "    try: print('RENDERED', text, open_template(text).render(TALK)[:50])\n"
        "    except TemplateError as error: told = str(error)\n"
        "    if 'stopped' not in told: print('OTHERWISE', text[:99], told)\n"
        "    took = time.process_time() - began\n"
        f"    if took > {MAX_SECONDS} + 1: print('SLOW', took, text[:99])\n"
        # Not ru_maxrss, which a process inherits from the one that started it.
        "lines = open('/proc/self/status').read().splitlines()\n"
        "peak = int(next(l for l in lines if 'VmHWM' in l).split()[1]) >> 10\n"
        "if peak > 700: print('MEMORY', peak)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


def test_a_namespace_shows_nothing_of_what_it_holds() -> None:
    text = "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }} {{ 'secret' in ns | string }}"
    assert open_template(text).render(TALK) == "<namespace> False"


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(TemplateError) as refusal:
        open_template("{{ raise_exception('x' * 100000) }}").render(TALK)
    assert len(str(refusal.value)) < 600


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama3jit.text.budget.MAX_SECONDS", 0.05)
    text = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    began = time.perf_counter()
    with pytest.raises(TemplateError, match=r"stopped: it takes longer than 0\.05 s"):
        open_template(text).render(TALK)
    assert time.perf_counter() - began < 2


def test_long_conversations_fit_the_budget() -> None:
    talk = [{"role": "user", "content": "x" * 1000}] * 3000
    text = "{% for m in messages %}{{ m.role ~ ': ' + m['content'] | trim }}\n{% endfor %}"
    assert len(open_template(text).render(talk)) == 3000 * 1007
    long = [{"role": "user", "content": "y" * 20_000_000}]
    assert len(open_template(text).render(long)) == 20_000_007


def test_budgets_of_threads_are_apart() -> None:
    template = open_template("{% for i in range(60000) %}{% endfor %}ok")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(template.render, [TALK] * 4)) == ["ok"] * 4
