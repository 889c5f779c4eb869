PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help chat test lint fmt bench docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

chat: $(VENV)/.installed  ## install, fetch the default model, chat
	@$(BIN)/llama3jit pull smollm2-135m-instruct
	@$(BIN)/llama3jit chat smollm2-135m-instruct

test: $(VENV)/.test-installed  ## run the tests
	$(BIN)/python -m pytest -q -m 'not slow and not gpu'

lint: $(VENV)/.test-installed  ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(VENV)/.test-installed  ## format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed  ## speed of the default model
	@$(BIN)/llama3jit pull smollm2-135m-instruct
	@$(BIN)/llama3jit bench smollm2-135m-instruct

docs: $(VENV)/.installed  ## rewrite the generated parts of docs/
	$(BIN)/python docs/generate.py

clean:  ## remove what the targets made (models and compiled kernels in the user's cache stay)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
