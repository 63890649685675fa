PYTHON ?= python3
BIN := .venv/bin
# One thread per test worker: the workers already fill the cores.
THREADS := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help env demo test study slow soak lint clean
QUICK ?=
SOAK ?= 600
JOBS ?= 2
STUDIES = sudoku sudoku-4x4 tau training failures heatmap difficulty four-by-four quality cross-scale stage2 ablations cost lengths countdown
# These take the denoisers and orders that the study of lengths has trained.
AFTER_LENGTHS = parallel transfer rewards ends hidden
STUDY = OMP_NUM_THREADS=1 $(BIN)/unmask study
SIZE = $(if $(QUICK),-quick)

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s  %s\n", $$1, $$2}' Makefile

env: .venv/.stamp ## the virtual environment, with pinned versions

.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e ".[dev]"
	touch $@

demo: env ## see the order of thought, on a laptop, in minutes
	$(BIN)/unmask demo

test: env ## every test but the slow studies
	$(THREADS) $(BIN)/pytest -q -n 2 -m "not slow"

study: env ## every study into runs/study, two at a time, and the slow tests (QUICK=1: small versions, without them); goes on where it stopped
	$(MAKE) -j $(JOBS) $(addprefix study-,$(STUDIES) $(AFTER_LENGTHS))
	$(if $(QUICK),,$(MAKE) slow)

$(addprefix study-,$(STUDIES)): study-%: env
	$(STUDY) $* $(if $(QUICK),--quick) --resume

$(addprefix study-,$(AFTER_LENGTHS)): study-%: study-lengths
	$(STUDY) $* $(if $(QUICK),--quick) --resume --runs runs/study/lengths$(SIZE)/runs

slow: env ## the slow, seeded tests: learning an order beats confidence
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

soak: env ## hundreds of kills and resumes, then a training whose memory is watched (SOAK=600 seconds)
	OMP_NUM_THREADS=1 $(BIN)/python tests/kill_harness.py --kills 100
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py --seconds $(SOAK)

lint: env ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean: ## remove the environment and everything built
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
