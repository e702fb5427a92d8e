# `make help` lists the targets. Each sets up what it needs: Python 3.11 to 3.13 with pip is all that has to be there.

PYTHON ?= python3
VENV ?= .venv
# Where pip finds torch; empty takes pip's own default. A CPU build elsewhere: docs/install.md.
TORCH_INDEX ?=
TORCH_VERSION := 2.13.0
UV_VERSION := 0.13.9

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
DEMO_RUN := runs/demo
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	--excludes requirements/excludes.txt --no-emit-package torch --custom-compile-command "make lock" \
	$(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev demo test lint format lock wheel-check bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12 picks the interpreter, TORCH_INDEX=URL where torch comes from (docs/install.md)."

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else \
		f"setup: $(PYTHON) is Python {v[0]}.{v[1]}, and 3.11 to 3.13 is needed; run make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# The lock is a constraint here: torch's own dependencies get their pinned versions too.
$(VENV)/.torch: | $(VENV)/pyvenv.cfg
	@echo "setup: installing torch $(TORCH_VERSION) into $(VENV); this is the largest download"
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c requirements/core.lock torch==$(TORCH_VERSION)
	@$(BIN)/python .ci/check_torch.py
	@touch $@

$(VENV)/.core: requirements/core.lock pyproject.toml setup.py $(VENV)/.torch
	$(PIP) --no-deps -r requirements/core.lock
	$(PIP) --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.core
	$(PIP) --no-deps -r requirements/dev.lock
	@touch $@

setup: $(VENV)/.core ## Make .venv with the core: torch, the pinned packages, dapo
setup-dev: $(VENV)/.dev ## The same with the tools for tests and lint

demo: $(VENV)/.core ## Prepare, train, evaluate and export a small model on arithmetic; minutes on two cores
	$(BIN)/dapo prepare-data recipes/demo.yaml
	$(BIN)/dapo train recipes/demo.yaml --fresh
	$(BIN)/dapo convert $(DEMO_RUN) --out $(DEMO_RUN)/export
	$(BIN)/dapo eval --run $(DEMO_RUN)
	@echo "the trained model is in $(DEMO_RUN)/export; for more: . $(BIN)/activate, then dapo --help"

test: $(VENV)/.dev ## Run the whole test suite
	$(BIN)/python -m pytest

lint: $(VENV)/.dev ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: | $(VENV)/pyvenv.cfg ## Write requirements/*.lock from pyproject.toml; UPGRADE=1 takes newer versions
	$(PIP) uv==$(UV_VERSION)
	$(COMPILE) -o requirements/core.lock
	$(COMPILE) --all-extras -c requirements/core.lock -o requirements/dev.lock

wheel-check: $(VENV)/.dev ## Build sdist and wheel, install the wheel in an empty venv, train the demo there
	$(BIN)/python .ci/wheel_check.py --torch $(TORCH_VERSION) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

bench: $(VENV)/.dev ## Profile a toy step: the share of time outside generate, forward and backward
	$(BIN)/dapo prepare-data demo
	$(BIN)/python benchmarks/profile_toy_step.py

clean: ## Remove .venv, builds and caches; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
