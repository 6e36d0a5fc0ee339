# `make demo` and `make test` work in a fresh clone that has only Python 3.11 and pip: the first call makes .venv, later calls
# reuse it until pyproject.toml changes. To use an environment of your own: make check STAMP= BIN=/path/to/env/bin

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    ?= $(VENV)/bin
STAMP  ?= $(VENV)/.stamp
PYTEST  = $(BIN)/python -m pytest

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
PLANS  ?= 100000
# One more than the cores that there are at least: many tests wait for threads, processes and disks,
# tests of clusters most of all, so that all run together.
# Files mostly stay together, so that what a file makes for its tests is made once.
SPREAD ?= -n 3 --dist worksteal
# Bytecode is kept, or every process that tests start would compile all of its imports again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo demo-fleet test test-all laws check lint types fast bench clean

help:
	@echo "make demo      run the example job: plan, progress, checkpoint, resume"
	@echo "make demo-fleet  runs of a small team: what they share, what to cache, what that saves"
	@echo "make test      every test but the slow ones, long matrices as a seeded sample"
	@echo "make test-all  every test, long matrices whole"
	@echo "make laws      random plans against the oracle, PLANS=100000 of them: half an hour on two cores"
	@echo "make check     format, lint, types, two cases of each quick test: before each commit"
	@echo "make bench     the benchmarks, timed, results into benchmarks/results"
	@echo "make bench ABLATE=1   what each optimisation is worth: each off in turn"
	@echo "make clean     remove .venv and every cache"

$(VENV)/.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dml needs Python 3.11 or later: make PYTHON=...")'
	@echo "installing dml and its tools into $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

demo-fleet: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev,fleet]'
	@$(BIN)/python examples/demo_fleet.py

test: $(STAMP)
	@$(PYTEST) -q $(SPREAD) -m 'not slow' tests benchmarks

test-all: $(STAMP)
	@$(PYTEST) -q --whole tests $(wildcard benchmarks)

laws: $(STAMP)
	@$(PYTEST) -q -n 2 --plans $(PLANS) tests/laws/test_plans.py

check: lint types fast

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check --quiet .

types: $(STAMP)
	@$(BIN)/mypy --no-error-summary

fast: $(STAMP)
	@$(PYTEST) -q -n 3 --dist loadfile --few -m 'not slow and not cluster and not law' tests --ignore=tests/laws --ignore=tests/flows

bench: $(STAMP)
ifdef ABLATE
	@$(BIN)/python benchmarks/bench_ablation.py
else
	@mkdir -p benchmarks/results
	@$(PYTEST) -q --benchmark-enable --benchmark-only --benchmark-json=benchmarks/results/latest.json -p no:randomly benchmarks
endif

clean:
	@rm -rf $(VENV) .benchmarks .demo .hypothesis .mypy_cache .pytest_cache .ruff_cache
