PYTHON ?= python3
BIN := .venv/bin
# One thread per test worker: the workers already fill the cores.
THREADS := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help env demo test golden study slow soak lint clean
QUICK ?=
SOAK ?= 600
JOBS ?= 2
STUDIES = sudoku sudoku-4x4 tau training failures heatmap difficulty four-by-four quality cross-scale stage2 ablations cost lengths countdown
# These take the denoisers and orders that the study of lengths has trained.
AFTER_LENGTHS = parallel transfer rewards ends hidden
# A folder of published files: a study reads those of its own that are there. Open text has no study without one.
DATA ?=
ifneq ($(DATA),)
$(if $(wildcard $(DATA)/.),,$(error expected a folder of published files, but there is none at DATA=$(DATA)))
endif
FILES_sudoku = rao_5000.csv
FILES_sudoku-4x4 = d1_4x4_unique.csv
FILES_tau = rao_5000.csv
FILES_failures = rao_5000.csv
FILES_heatmap = rao_5000.csv
FILES_difficulty = royle17_clue.csv
FILES_countdown = d1_countdown_cd3_test.jsonl pcsampler_countdown.jsonl
FILES_characters = text.txt
found = $(if $(DATA),$(wildcard $(addprefix $(DATA)/,$(FILES_$(1)))))
read = $(if $(call found,$(1)),--data $(call found,$(1)))
TEXT = $(if $(QUICK),--data README.md,$(call read,characters))
STUDIES += $(if $(TEXT),characters)
STUDY = OMP_NUM_THREADS=1 $(BIN)/unmask study
SIZE = $(if $(QUICK),-quick)
PLACE = runs/study$(if $(DATA),-data)

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

golden: env ## record anew what tests/golden compares with; only where a change of results is wanted
	$(THREADS) PYTHONPATH=tests $(BIN)/python tests/golden/golden.py

study: env ## every study into runs/study, two at a time, and the slow tests; goes on where it stopped (QUICK=1: small; DATA=folder: published files)
	$(MAKE) -j $(JOBS) $(addprefix study-,$(STUDIES) $(AFTER_LENGTHS))
	$(if $(QUICK),,$(MAKE) slow)

$(addprefix study-,$(STUDIES)): study-%: env
	$(STUDY) $* $(if $(QUICK),--quick) --out $(PLACE)/$*$(SIZE) --resume $(if $(filter characters,$*),$(TEXT),$(call read,$*))

$(addprefix study-,$(AFTER_LENGTHS)): study-%: study-lengths
	$(STUDY) $* $(if $(QUICK),--quick) --out $(PLACE)/$*$(SIZE) --resume --runs $(PLACE)/lengths$(SIZE)/runs

slow: env ## the slow, seeded tests: learning an order beats confidence
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

soak: env ## hundreds of kills and resumes, then a training whose memory is watched (SOAK=600 seconds)
	OMP_NUM_THREADS=1 $(BIN)/python tests/kill_harness.py --kills 100
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py --seconds $(SOAK)

lint: env ## ruff, pyright, and oxlint for the JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/oxlint --deny-warnings

clean: ## remove the environment and everything built
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
