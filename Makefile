# Every target sets itself up: the first `make` of any kind makes .venv, with the versions of constraints.txt. Each installs
# only what it needs: `make demo` what running needs, `make test` the tests' tools on top of it, and so on.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: $(RUN) says that gatewise is installed, $(VENV)/.installed-NAME that it is with the extra NAME of pyproject.toml.
RUN := $(VENV)/.installed
TEST := $(VENV)/.installed-test
LINT := $(VENV)/.installed-lint
PEERS_VENV := .venv-peers
PEERS := bench/results/peers.json
ACDC := bench/results/acdc.json
COMPARED = $(if $(wildcard $(PEERS)),--peers $(PEERS) --out $(ACDC))

.DEFAULT_GOAL := help
.NOTPARALLEL: # two pips at once would spoil the environment
.PHONY: help demo test coverage browser lint format hooks docs pictures notebook bench coverage-study bench-long bench-peers \
	scaling frontier fuzz attack torture torture-ray tiny dist clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(RUN) ## find the IOI circuits of the default model, and write a report to open in a browser
	$(BIN)/gatewise run --out runs/demo

test: browser ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup

coverage: browser ## run the tests, and print which lines none of them reaches
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup --cov --cov-report=term-missing

browser: $(TEST) ## what the tests of the report need: chromium, if we may install it
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium > /dev/null; } \
		|| echo "no chromium, and no right to install it: the tests of the report are skipped (CI=true: they fail)"

lint: $(TEST) $(LINT) ## ruff, mypy --strict of packages and tests, and the check of names and docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_words.py

format: $(LINT) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(LINT) $(VENV)/.installed-hooks ## run the quick part of `make lint` before every commit of this clone
	$(BIN)/pre-commit install

docs: $(VENV)/.installed-docs ## build the documentation as a site in build/site (open index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

pictures: $(VENV)/.installed-figures ## draw the figures of the README and of the documentation (two minutes)
	$(BIN)/python scripts/draw_docs.py

notebook: $(VENV)/.installed-figures ## run docs/example.ipynb and keep its outputs
	OMP_NUM_THREADS=1 $(BIN)/python scripts/run_notebook.py

bench: $(RUN) ## speed and memory, in units of a plain forward pass, beside AutoCircuit after `make bench-peers`
	$(BIN)/python bench/engine.py
	$(BIN)/python bench/command.py
	$(BIN)/python bench/acdc.py $(COMPARED)
	$(if $(wildcard $(PEERS)),$(BIN)/python bench/beside.py --peers $(PEERS) --acdc $(ACDC))

coverage-study: $(RUN) ## whether intervals of the Jaccard index hold what independent draws of pairs agree on (1 minute)
	OMP_NUM_THREADS=1 $(BIN)/python bench/coverage_study.py

bench-long: $(RUN) ## searches that take minutes each: by ACDC, with two threads, and by Edge Pruning (an hour in all)
	$(BIN)/python bench/acdc.py --long --threads 1 $(COMPARED)
	$(BIN)/python bench/acdc.py --speedup "smollm2-135m, tau 0.01"
	OMP_NUM_THREADS=1 $(BIN)/python bench/edge_pruning_settings.py --model smollm2-135m --task ioi --examples 8 \
		--edges 500 --settings ours "ours, 1,000 steps" "one mask for all"

bench-peers: $(PEERS_VENV)/.installed ## measure AutoCircuit, in an environment of its own (.venv-peers)
	$(PEERS_VENV)/bin/python bench/peers.py --out $(PEERS)

scaling: $(VENV)/.installed-figures ## cost against edges, examples, tokens and layers, drawn to docs/img/scaling.svg
	$(BIN)/python bench/scaling.py

frontier: $(VENV)/.installed-figures ## faithfulness against edges and cost, all methods, two models, three tasks (hours; it resumes)
	OMP_NUM_THREADS=1 $(BIN)/python bench/frontier.py

fuzz: $(VENV)/.installed-fuzz ## feed broken files to every loader: a million cases each, mutated and guided by coverage (an hour)
	$(BIN)/python fuzz/run.py

attack: $(TEST) ## hostile files, stores, numbers and names: the tests of it, and longer random attacks (loopback only)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m attack tests
	OMP_NUM_THREADS=1 $(BIN)/python tests/attack/attack.py --minutes 10

torture: $(TEST) ## kill work of seven kinds at 9 random moments each, and compare with undisturbed work
	OMP_NUM_THREADS=1 $(BIN)/python tests/torture/torture.py --kills 9

torture-ray: $(TEST) ## a sweep of 200 cells on a local Ray cluster whose workers are killed, against one process
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow tests/sweep/test_ray.py

tiny: $(RUN) ## train the model `tiny` again (at most half an hour on 2 cores)
	$(BIN)/python scripts/train_tiny.py

dist: $(VENV)/.installed-build ## build the source archive and the wheel of a release in dist/
	rm -rf dist
	$(BIN)/python -m build

clean: ## remove the environment and the tools' caches
	rm -rf $(VENV) $(PEERS_VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

# Makes .venv if there is none, and installs gatewise there, with an extra if one is given as in `[test]`.
define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "gatewise needs Python 3.10 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make $(or $(MAKECMDGOALS),test) PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".$(1)"
	@touch $(RUN) $@
endef

$(RUN): pyproject.toml constraints.txt
	$(call INSTALL)

$(VENV)/.installed-%: pyproject.toml constraints.txt
	$(call INSTALL,[$*])

# AutoCircuit needs TransformerLens before version 4, and that older transformers and numpy than gatewise.
$(PEERS_VENV)/.installed:
	$(PYTHON) -m venv --clear $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check auto-circuit==1.0.1 \
		transformer-lens==2.18.0 transformers==4.57.6 numpy==1.26.4 "pyarrow<20" torch==2.13.0
	touch $@
