# make train | quick | test | sweep | lint | docs | lock | bench | clean
#
# PYTHON       interpreter for the virtual environment (3.11 or 3.12)
# TORCH_INDEX  further wheel index with a build of torch for this machine, where pip isn't already pointed at one
# JOBS         processes that run the tests, each on a core of its own
# PLATFORM     cpu or cuda; what the machine has, unless given

PYTHON ?= python3
TORCH_INDEX ?=
PLATFORM ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
EXPERIMENT ?= experiments/quickstart.toml
MODEL ?= smollm2-135m
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PINS := requirements/$(PLATFORM).txt
# The names hold the contents' hash: unchanged contents mean nothing to do, whatever the files' dates say.
hash = $(shell cat $(1) | sha256sum | cut -c1-16)
INSTALLED := $(VENV)/.installed-$(PLATFORM)-$(call hash,$(PINS) pyproject.toml)
BENCHMARKS := $(patsubst benchmarks/test_bench_%.py,%,$(wildcard benchmarks/test_bench_*.py))
BENCH := $(VENV)/.bench-$(call hash,$(PINS) requirements/bench.in)

.PHONY: train quick test sweep lint format docs lock bench clean install model
.DEFAULT_GOAL := train

train: $(INSTALLED) models/$(MODEL)/config.json
	$(BIN)/titanrl check $(EXPERIMENT)
	$(BIN)/titanrl train $(EXPERIMENT)
	@printf '\nNext:\n  %-42s  %s\n  %-42s  %s\n  %-42s  %s\n' \
	  'source $(BIN)/activate' 'puts the titanrl command on the path of this shell' \
	  'titanrl show $(EXPERIMENT)' 'prints the resolved configuration and the dataflow' \
	  'titanrl report RUN_FOLDER' 'writes a page with curves, samples and stage times'

test: $(INSTALLED) models/$(MODEL)/config.json
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

# The unit and architecture tests that take about a second at most; one to two minutes in all.
quick: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow and not distributed and not vllm and not sweep" \
	  $(PYTEST_ARGS) tests/unit

sweep: $(INSTALLED)
	$(BIN)/python -m pytest -m sweep $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	@# bandit warns of every marked line that another of its tests reads; the log matters if it fails.
	@log=$$(mktemp); echo "$(BIN)/bandit -q -c pyproject.toml -r titanrl components tools"; \
	$(BIN)/bandit -q -c pyproject.toml -r titanrl components tools 2>$$log || { cat $$log >&2; rm $$log; exit 1; }; rm $$log
	$(BIN)/python -m tools.audit $(PINS)

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)
	$(BIN)/python -m tools.pages
	$(BIN)/python -m tools.cli_page
	$(BIN)/python -m tools.findings
	$(BIN)/python -m tools.architecture_plot
	$(BIN)/python -m mkdocs build --strict

lock:
	$(PYTHON) requirements/lock.py

# A process a file: what one leaves in memory would slow the next. ONLY=head is one of them.
bench: $(INSTALLED) $(BENCH) models/$(MODEL)/config.json
	@mkdir -p runs/bench
	@missed=; made=; for name in $(or $(ONLY),$(BENCHMARKS)); do \
	  to=runs/bench/$$name.json; rm -f $$to; \
	  $(BIN)/python -m pytest benchmarks/test_bench_$$name.py --benchmark-enable --benchmark-quiet --benchmark-json=$$to $(PYTEST_ARGS) \
	  || missed="$$missed $$name"; \
	  test ! -s $$to || made="$$made $$to"; \
	done; \
	$(BIN)/python -m tools.bench report $$made || exit 1; \
	test -z "$$missed" || { echo "missed a gate:$$missed" >&2; exit 1; }

install: $(INSTALLED)

model: models/$(MODEL)/config.json

models/%/config.json: | $(INSTALLED)
	$(BIN)/titanrl model get $*

$(INSTALLED):
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))" || { echo "Python 3.11 or 3.12 is needed; name one: make PYTHON=python3.11."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing $(PINS) into $(VENV) (once; about two minutes)"
	@$(PIP) install $(INDEX) --no-deps --no-compile -r $(PINS)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@# On all cores, where pip takes one; some packages carry files for other Pythons, which do not compile.
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@$(BIN)/python -c "import torch" || { echo "torch $(PLATFORM) doesn't load: pip took a build for other machines. Remove $(VENV) and call make with TORCH_INDEX=<wheel index with $(PLATFORM) builds of torch>."; exit 1; }
	@rm -f $(VENV)/.installed-*
	@touch $@

$(BENCH): | $(INSTALLED)
	@$(PIP) install $(INDEX) -c $(PINS) -r requirements/bench.in
	@rm -f $(VENV)/.bench-*
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
