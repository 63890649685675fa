PYTHON ?= python3
BIN := .venv/bin
# One thread per test worker: the workers already fill the cores. Compiled modules are kept, wherever this runs.
THREADS := OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help env lock demo test golden mutants study results slow soak fuzz lint docs dist clean
QUICK ?=
SECONDS ?= 60
SOAK ?= 600
MUTANTS ?=
JOBS ?= 2
# A study is a TOML file, which also says after which study it runs, and which published files it can read.
PRESETS := src/unmask_studies/presets/study
ALL := $(basename $(notdir $(wildcard $(PRESETS)/*.toml)))
declare = $(shell sed -n 's/^$(1) = //p' $(PRESETS)/$(2).toml | tr -d '[],"')
NEED_DATA := $(foreach study,$(ALL),$(if $(call declare,needs_data,$(study)),$(study)))
AFTER_LENGTHS := $(foreach study,$(ALL),$(if $(filter lengths,$(call declare,after,$(study))),$(study)))
STUDIES := $(filter-out $(NEED_DATA) $(AFTER_LENGTHS),$(ALL))
# A folder of published files: a study reads those of its own that are there. Open text has no study without one.
DATA ?=
ifneq ($(DATA),)
$(if $(wildcard $(DATA)/.),,$(error expected a folder of published files, but there is none at DATA=$(DATA)))
endif
found = $(if $(DATA),$(wildcard $(addprefix $(DATA)/,$(call declare,published,$(1)))))
read = $(if $(call found,$(1)),--data $(call found,$(1)))
TEXT = $(if $(QUICK),--data README.md,$(call read,characters))
STUDIES += $(if $(TEXT),characters) $(if $(call read,sentence-pads),sentence-pads)
STUDY = OMP_NUM_THREADS=1 $(BIN)/unmask study
SIZE = $(if $(QUICK),-quick)
FROM ?= runs/study
PLACE = runs/study$(if $(DATA),-data)

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s  %s\n", $$1, $$2}' Makefile

env: .venv/.stamp ## the virtual environment, with pinned versions

# By hash, but for torch, of which every index has builds of its own, and this package.
.venv/.stamp: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install -c constraints.txt -e ".[dev]"
	touch $@

lock: env ## requirements.lock: the hashes of what constraints.txt pins, after a change of either
	$(BIN)/pip install --quiet uv
	echo torch > .venv/unlocked.txt
	$(BIN)/uv pip compile pyproject.toml --extra dev -c constraints.txt --universal --python-version 3.11.5 --generate-hashes \
		--no-annotate --excludes .venv/unlocked.txt --custom-compile-command "make lock" --quiet -o requirements.lock

demo: env ## see the order of thought, on a laptop, in minutes
	$(BIN)/unmask demo

# Each worker begins with one half in order, so that what a module sets up is mostly set up once; one that is done takes tests from the other.
test: env ## every test but the slow ones
	$(THREADS) $(BIN)/pytest -q -n 2 --dist worksteal -m "not slow"

golden: env ## record anew what tests/golden compares with; only where a change of results is wanted
	$(THREADS) PYTHONPATH=tests $(BIN)/python tests/golden/golden.py

study: env ## every study into runs/study, two at a time, and the slow tests; goes on where it stopped (QUICK=1: small; DATA=folder: published files)
	$(MAKE) -j $(JOBS) $(addprefix study-,$(STUDIES) $(AFTER_LENGTHS))
	$(if $(QUICK),,$(MAKE) slow)

$(addprefix study-,$(STUDIES)): study-%: env
	$(STUDY) $* $(if $(QUICK),--quick) --out $(PLACE)/$*$(SIZE) --resume $(if $(filter characters,$*),$(TEXT),$(call read,$*))

$(addprefix study-,$(AFTER_LENGTHS)): study-%: study-lengths
	$(STUDY) $* $(if $(QUICK),--quick) --out $(PLACE)/$*$(SIZE) --resume --runs $(PLACE)/lengths$(SIZE)/runs

results: env ## the tables of docs/tables in the pages, those of finished studies recorded first (FROM=runs/study)
	$(BIN)/python -m unmask_studies.recorded docs $(wildcard $(FROM))

slow: env ## the slow, seeded tests: learning an order beats confidence; the whole golden record; launched processes
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

soak: env ## hundreds of kills and resumes, then a training whose memory is watched (SOAK=600 seconds)
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/kill_harness.py --kills 100
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/soak.py --seconds $(SOAK)

mutants: env ## mutation tests of the decoding loop and of policy training; continues where it stopped (MUTANTS='unmask.decoding.rows*')
	$(BIN)/pip install --quiet -c constraints.txt mutmut
	$(THREADS) $(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut export-cicd-stats && cat mutants/mutmut-cicd-stats.json

fuzz: env ## coverage-guided fuzzing of every reader of untrusted files (SECONDS=60 for each; TARGETS=trace; CORPORA=folder goes on from there)
	$(BIN)/pip install --quiet atheris
	OMP_NUM_THREADS=1 $(BIN)/python fuzz/run.py $(TARGETS) -max_total_time=$(SECONDS) $(if $(CORPORA),--corpora=$(CORPORA))

lint: env ## ruff, import-linter, pyright, and oxlint for the JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/oxlint --deny-warnings

docs: env ## the documentation site, strictly, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

dist: env ## sdist, wheel and a CycloneDX bill of materials in dist/, the wheel tried in an empty environment without the source tree
	rm -rf dist build/empty build/bom build/tried && mkdir -p build/tried
	$(BIN)/pip install --quiet -c constraints.txt build
	$(BIN)/python -m build
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build/tried && ../empty/bin/python -I -c "import unmask; print(*[getattr(unmask, name).__name__ for name in unmask.__all__])"
	cd build/tried && ../empty/bin/unmask decode 1000002003000004 --denoiser sudoku-4x4
	cd build/tried && ../empty/bin/unmask demo --quick --puzzles 40
	$(PYTHON) -m venv build/bom && build/bom/bin/pip install --quiet cyclonedx-bom
	build/bom/bin/cyclonedx-py environment build/empty/bin/python --pyproject pyproject.toml --mc-type library --output-reproducible \
		--of JSON -o dist/unmask.cdx.json

clean: ## remove the environment and everything built
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
