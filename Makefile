# Two commands matter: `make demo` and `make test`. Each sets up all that it needs.
# Caches (Python environment, Go build of the testbed) live outside the checkout, under CACHE.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpu-runbooks
KEY := $(shell { pwd; $(PYTHON) --version; } | sha256sum | cut -c1-12)
VENV := $(CACHE)/venv/$(KEY)
BIN := $(VENV)/bin

export GPU_RUNBOOKS_CACHE := $(CACHE)
export PATH := $(BIN):$(PATH)
export UV_PYTHON_DOWNLOADS := never
export PYTHONPATH := deploy
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(BIN)/.ready: requirements.lock pyproject.toml
	@mkdir -p $(CACHE)
	@command -v uv >/dev/null || [ -x $(CACHE)/uv/bin/uv ] || { echo "installing uv into $(CACHE)/uv"; \
		$(PYTHON) -m venv $(CACHE)/uv && $(CACHE)/uv/bin/pip install --quiet --disable-pip-version-check uv; }
	@echo "installing the Python environment into $(VENV) (about 30 s the first time)"
	@uv=$$(command -v uv || echo $(CACHE)/uv/bin/uv); \
		$$uv venv --quiet --clear --python $(PYTHON) $(VENV) && \
		$$uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock && \
		$$uv pip install --quiet --python $(BIN)/python --no-deps -e . && touch $@

.PHONY: setup
setup: $(BIN)/.ready ## Install the Python environment
	@$(if $(filter setup,$(MAKECMDGOALS)),echo "the command is $(BIN)/gpu-runbooks",true)

.PHONY: binaries
binaries: setup ## Build the testbed's Kubernetes, Karpenter and Alertmanager (minutes the first time, then cached)
	@python -m testbed build

.PHONY: demo
demo: binaries ## Show five faults repaired on real parts; KEEP=1 leaves everything running
	@python -m testbed demo $(if $(KEEP),--keep)

.PHONY: bench-drain
bench-drain: binaries ## Measure our drain against kubectl's (4 minutes); JSON=FILE writes the figures as well
	@python -m testbed bench-drain $(if $(JSON),--json '$(JSON)')

.PHONY: bench-intake
bench-intake: binaries ## Measure what the intake reads, replays, watches and takes; JSON=FILE writes the figures as well
	@python -m testbed bench-intake $(if $(JSON),--json '$(JSON)')

.PHONY: bench-burst
bench-burst: binaries ## Measure 200 faults within a second on 1,000 nodes, and a full ladder; JSON=FILE as well
	@python -m testbed bench-burst $(if $(JSON),--json '$(JSON)')

.PHONY: bench-storm
bench-storm: binaries ## Let a broken detector loose on ours and on Karpenter (10 minutes); JSON=FILE, STEP=SECONDS
	@python -m testbed bench-storm $(if $(JSON),--json '$(JSON)') $(if $(STEP),--step '$(STEP)')

.PHONY: chaos
chaos: binaries ## Disturb incidents in every step of the ladder (20 minutes); CELLS=draining/cancel,..., JSON=FILE
	@python -m testbed.chaos $(if $(CELLS),--cells '$(CELLS)') $(if $(JSON),--json '$(JSON)')

.PHONY: fuzz
fuzz: binaries ## Feed a million mutated lines to the kernel log parser, thousands of bodies to the webhook; SEED=N
	@python -m testbed.fuzz_kernel_log $(if $(SEED),--seed '$(SEED)')
	FUZZ_EXAMPLES=3000 pytest -q --numprocesses 0 tests/intake/test_hostile_input.py

.PHONY: model
model: setup ## Explore every interleaving of two incidents and their budget (under 10 minutes of one core)
	@PYTHONPATH=deploy:tests python -m model

.PHONY: testbed-up
testbed-up: binaries ## Start the testbed and leave it running
	@python -m testbed up

.PHONY: testbed-down
testbed-down: setup ## Stop the testbed that testbed-up or `make demo KEEP=1` left running
	@python -m testbed down

.PHONY: check
check: setup ## Format, lint, types and layers
	ruff format --check .
	ruff check .
	mypy
	lint-imports --no-cache

.PHONY: format
format: setup ## Format the code and mend what ruff can
	ruff format . && ruff check --fix .
	ruff format .

# Most tests wait for servers, so that one process more than there are cores keeps these busy.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4)))

.PHONY: test
test: binaries ## Run all tests, in 2 to 4 processes; WORKERS=N in N of them
	pytest --numprocesses $(WORKERS) --no-loadscope-reorder --max-worker-restart 0

LOCK := uv pip compile pyproject.toml --generate-hashes --universal --python-version 3.11 \
	--no-annotate --no-header --no-emit-index-url

.PHONY: histories
histories: setup ## Record histories for the replay tests (keep those that are committed)
	@PYTHONPATH=deploy:tests python -m incident.record_histories

.PHONY: lock
lock: ## Pin the dependencies anew, with hashes and no index address; the image gets the subset it runs with
	$(LOCK) --group dev --output-file requirements.lock
	$(LOCK) --constraints requirements.lock --output-file requirements-runtime.lock
