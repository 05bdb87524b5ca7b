# `make` alone lists what can be done. Everything installs itself into .venv on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format bench results clean

help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Orchard needs Python 3.11 or newer; try: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@touch $@

$(VENV)/development: $(VENV)/runtime
	@echo "Adding the development tools ..."
	@$(PIP) -e '.[all]'
	@touch $@

demo: $(VENV)/runtime ## Training alone, together, and with APPLE on embedded data, in about a minute
	@$(BIN)/orchard compare --methods separate,fedavg-local,apple --rounds 12

test: $(VENV)/development ## Run the tests
	@$(BIN)/pytest -n auto

test-all: $(VENV)/development ## Run the tests, the slow ones too
	@$(BIN)/pytest -n auto -m ''

lint: $(VENV)/development ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/development ## Put the code into the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/runtime ## Measure speed, as ratios
	@$(BIN)/python benchmarks

results: $(VENV)/runtime ## Write docs/results.md anew from the figures in results/
	@$(BIN)/python -m orchard.paper.document results docs/results.md

clean: ## Remove everything that was set up or built
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
