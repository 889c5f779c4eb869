PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= smollm2-135m-instruct
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help chat test test-gpu lint fmt bench docs kernels wheel clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# A whole environment has a python that starts and a pip with its record; else it is made again.
# What an interrupted install left behind looks installed, so it is installed over.
COMMA := ,
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(BIN)/python -c 'from importlib.metadata import files; import pip; assert files("pip")' \
	    2>/dev/null || { echo 'making $(VENV)'; \
	  rm -rf $(BIN)/python* $(VENV)/lib/python*/site-packages/pip*; $(PYTHON) -m venv $(VENV); }
	@echo 'installing $(1) into $(VENV), a minute or two the first time'
	@again=; test ! -e $(VENV)/.unfinished || again=--ignore-installed; touch $(VENV)/.unfinished; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $$again --editable '$(1)'
	@rm -f $(VENV)/.unfinished; touch $@
endef

$(VENV)/.installed: pyproject.toml
	$(call install,.)

$(VENV)/.wheel-installed: pyproject.toml
	$(call install,.[wheel])
	@touch $(VENV)/.installed

$(VENV)/.test-installed: pyproject.toml
	$(call install,.[test])
	@touch $(VENV)/.installed

$(VENV)/.gpu-installed: pyproject.toml
	$(call install,.[test$(COMMA)cuda-jit])
	@touch $(VENV)/.installed $(VENV)/.test-installed

# A python that is gone (another version was installed, the folder was moved) is no environment.
ifneq ($(shell $(BIN)/python -c 'print(1)' 2>/dev/null),1)
.PHONY: $(VENV)/.installed $(VENV)/.test-installed $(VENV)/.gpu-installed $(VENV)/.wheel-installed
endif

chat: $(VENV)/.installed  ## install, fetch the default model, chat
	@$(BIN)/python -m llama3jit pull $(MODEL) >/dev/null
	@$(BIN)/python -m llama3jit chat $(MODEL)

test: $(VENV)/.test-installed  ## run the tests; those on real weights too, if the model can be had
	@$(BIN)/python -m llama3jit pull $(MODEL) >/dev/null || echo 'without the tests on $(MODEL)' >&2
	@$(BIN)/python -m pytest -q -m 'not slow and not gpu'

test-gpu: $(VENV)/.gpu-installed  ## compile every GPU kernel; where there is a GPU, run the tests on it
	@$(BIN)/python -m pytest -q tests/compile/test_cuda_kernels.py
	@$(BIN)/python -m pytest -q -m gpu

lint: $(VENV)/.test-installed  ## ruff and mypy
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy

fmt: $(VENV)/.test-installed  ## format
	@$(BIN)/python -m ruff format .
	@$(BIN)/python -m ruff check --fix .

bench: $(VENV)/.installed  ## speed of the default model
	@$(BIN)/python -m llama3jit pull $(MODEL) >/dev/null
	@$(BIN)/python -m llama3jit bench $(MODEL)

docs: $(VENV)/.installed  ## rewrite the generated parts of docs/
	@$(BIN)/python docs/generate.py

kernels: $(VENV)/.wheel-installed  ## compile all kernels for all processor levels and GPUs, for shipping
	@$(BIN)/python -m llama3jit compile --target all --target cuda --out llama3jit/_kernels >/dev/null

# The shared libraries call nothing newer than glibc 2.28 has; auditwheel looks.
PLATFORM := manylinux_2_28_x86_64

wheel: $(VENV)/.wheel-installed kernels  ## dist/: a wheel with the kernels inside, and an sdist
	@rm -rf build dist
	@$(BIN)/python -m build --quiet --wheel -C--build-option=--plat-name=$(PLATFORM)
	@$(BIN)/python -m build --quiet --sdist
	@$(BIN)/python -m auditwheel show dist/*.whl
	@ls -l dist

clean:  ## remove what the targets made (models and compiled kernels in the user's cache stay)
	@rm -rf $(VENV) build dist llama3jit/_kernels *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
