# Every target sets itself up: the first `make` of any kind makes .venv with the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.gatewise-installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench tiny clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(STAMP) ## load the default model, make the IOI task, evaluate circuits, print a table
	$(BIN)/gatewise demo

test: $(STAMP) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

lint: $(STAMP) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## speed and memory of the engine, in units of a plain forward pass
	$(BIN)/python bench/engine.py

tiny: $(STAMP) ## train the model `tiny` again (at most half an hour on 2 cores)
	$(BIN)/python scripts/train_tiny.py

clean: ## remove the environment and the tools' caches
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "gatewise needs Python 3.10 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make $(or $(MAKECMDGOALS),test) PYTHON=python3.11"; exit 1; }
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@
