# `make` alone lists what can be done. Everything installs itself into .venv on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO   := compare --methods separate,fedavg-local,apple,graft --partition iid --set shift=labels --set model=small-cnn --set lr=0.02
FLOOR  := 87  # percent of the lines in src/ that the tests must run

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format bench docs documents release clean

help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Orchard needs Python 3.11 or newer; try: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) -e .
	@touch $@

$(VENV)/development: $(VENV)/runtime
	@echo "Adding the development tools ..."
	@$(BIN)/python $(PIP) -e '.[all]'
	@touch $@

demo: $(VENV)/runtime ## Eight silos that use two codings of labels: alone, together, APPLE and graft, in a minute
	@$(BIN)/orchard $(DEMO)

test: $(VENV)/development ## Run the tests, and measure how much of the code they run
	@$(BIN)/pytest -n auto --cov --cov-report= --cov-fail-under=$(strip $(FLOOR))

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

docs: $(VENV)/development ## Build the documentation as a site, in site/, and check its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

documents: $(VENV)/runtime ## Write anew what is generated of docs/: figures that were measured, methods, settings, commands
	@$(BIN)/python -m orchard.paper.document results docs/results.md
	@$(BIN)/python -m orchard.report.panel results docs/choosing.md
	@$(BIN)/python -m orchard.report.privacy results docs/privacy.md
	@$(BIN)/python -m orchard.audit.document results docs/audit.md
	@$(BIN)/python benchmarks/attack_tables.py results/attacks.json docs/dishonest.md
	@$(BIN)/python -m orchard.methods.description docs/methods.md
	@$(BIN)/python -m orchard.cli.reference docs

release: $(VENV)/development ## Build the packages in dist/, check them, and run the demo from the wheel
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@$(BIN)/twine check --strict dist/*
	@echo "Running the demo from the wheel, in an empty environment ..."
	@trial=$$(mktemp -d) && trap 'rm -rf "$$trial"' EXIT && \
	$(PYTHON) -m venv "$$trial/venv" && \
	"$$trial/venv/bin/python" $(PIP) dist/*.whl && \
	cd "$$trial" && venv/bin/orchard --version && venv/bin/orchard $(DEMO)

clean: ## Remove everything that was set up or built
	rm -rf $(VENV) dist site .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
