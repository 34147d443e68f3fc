# Set-up, demo, checks, tests and benchmarks. `make` alone lists the targets.

PYTHON ?= python3
SEEDS ?= 100000
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help venv demo test check server browser simulate bench-lend bench-bus bench-boundary bench-regimes bench-policies bench-swap clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: .venv/.installed ## set up .venv with the locked packages (PYTHON=... names another interpreter)

# pip is asked for, not python: a venv whose creation broke off has the latter only.
.venv/.installed: requirements.lock pyproject.toml
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "swingshift needs Python 3.11 or newer, '$(PYTHON)' is: $$($(PYTHON) --version 2>&1). Name another: make venv PYTHON=python3.11" >&2; \
	    exit 1; }
	@test -x $(BIN)/pip || { echo "Creating .venv; the first set-up takes some minutes"; $(PYTHON) -m venv .venv; }
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: venv ## the main job on this machine alone: asynchronous RL that lends the trainer's device
	$(BIN)/swingshift run examples/demo.yaml

# About half of the tests go beside the others, which wait more than they compute: those that start no runs, and the pages, whose runs are short.
BESIDE := tests/bus tests/golden tests/test_docs.py tests/policies tests/replay tests/simulation \
    $(addprefix tests/services/,archiver data engines policy tasks) \
    $(filter-out %/test_restart.py,$(wildcard tests/services/learner/test_*.py))

test: check server browser ## set-up, static checks, then all tests
	@mkdir -p build; \
	$(BIN)/pytest -q $(BESIDE) > build/beside.txt 2>&1 & beside=$$!; \
	trap 'kill $$beside' INT TERM; \
	$(BIN)/pytest --durations=10 $(addprefix --ignore=,$(BESIDE)); others=$$?; \
	echo "and beside them $(BESIDE):"; \
	wait $$beside; beside=$$?; cat build/beside.txt; \
	exit $$((others || beside))

check: venv ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# $(call installed,PROGRAMS,PACKAGE,WITHOUT): nothing if one of PROGRAMS is on the PATH, else PACKAGE by apt-get, else an error that says WITHOUT.
# Debian starts and enables a service it installs; only the program is wanted here. A policy that the machine has already stays as it is.
define installed
@for program in $(1); do if command -v $$program >/dev/null; then exit 0; fi; done; \
if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
    echo "$(3) Install it (Debian, Ubuntu: sudo apt-get install $(2))," >&2; \
    echo "then run this again. Everything but the tests works without it." >&2; \
    exit 1; \
fi; \
set -e; \
policy=/usr/sbin/policy-rc.d; \
if [ ! -e $$policy ]; then \
    trap 'rm -f '$$policy EXIT; \
    printf '#!/bin/sh\nexit 101\n' > $$policy; \
    chmod 755 $$policy; \
fi; \
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
apt-get update --quiet; \
apt-get install --yes --quiet --no-install-recommends $(2) </dev/null
endef

server: ## install redis-server if it is not there (Debian, as root)
	$(call installed,redis-server,redis-server,The tests need redis-server 7.0 or newer on the PATH.); \
	if [ -d /run/systemd/system ]; then systemctl disable --quiet redis-server; fi

browser: ## install a headless Chromium if there is none (Debian, as root)
	$(call installed,chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable,chromium-headless-shell,The tests of the report need a Chromium on the PATH.)

simulate: venv ## simulate SEEDS=100000 runs with crashes, delays and failures
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

bench-lend: venv ## what lending the trainer's device gains over not lending it
	$(BIN)/python -m benchmarks.lend

bench-bus: .venv/.installed-ray ## latency and rate of the log, beside a Ray actor queue
	$(BIN)/python -m benchmarks.bus

bench-boundary: venv ## what a boundary costs
	$(BIN)/python -m benchmarks.boundary

bench-regimes: venv ## hours of each policy in eight kinds of runs, against the best found in hindsight
	$(BIN)/python -m benchmarks.regimes

bench-policies: venv ## what a decision costs, and how many events a second a policy follows
	$(BIN)/python -m benchmarks.policies

bench-swap: venv ## what 50 swaps of the policy cost a run that goes on
	$(BIN)/python -m benchmarks.swap

.venv/.installed-ray: requirements-ray.lock .venv/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements-ray.lock
	@touch $@

clean: ## remove .venv, caches and build products; runs/ stays
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
