# Everything runs in .venv, which `make setup` builds once. pip takes its index and cache from its own settings.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tosaic-setup
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
WORKERS ?= 2
# Many tests start processes that import torch: they need its compiled modules, which this variable would not keep.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-vgf setup-board demo docs test test-all test-op test-matrix golden bench bench-board bench-quick accuracy mutate lint format clean

help:
	@echo "make setup     build .venv with everything pinned in constraints.txt"
	@echo "make setup-vgf add what the target vgf needs: model converter, emulation layer, a Vulkan driver"
	@echo "make setup-board add what firmware needs: a cross compiler, and the CPU of the virtual board"
	@echo "make demo      compile MobileNetV2 for an Ethos-U55 into out/, and run it on the simulator"
	@echo "make test      the quick tests;  make test-all  every test;  make test-op OP=conv2d  those of one operator"
	@echo "make docs      the documentation as a site, in out/site"
	@echo "make test-matrix  the quick tests with other releases of Python and ExecuTorch; asks before it downloads"
	@echo "make golden    rewrite the golden files of tests/golden"
	@echo "make lint      ruff, basedpyright, import rules;  make format  rewrite in house format"
	@echo "make bench     the side-by-side figures;  make bench-quick  three small models;  make bench-board  firmware"
	@echo "make accuracy  int8 and other precisions against float on real data; fetches weights and data"
	@echo "make mutate    100 small errors in the simulator: do its tests notice them?"
	@echo "make clean     remove what these targets made, .venv included"

setup: $(STAMP)

# torch goes first and alone: it is by far the largest, and a failure there should be the first thing one sees.
# --no-compile: Python compiles what is imported at first use, a small part of what is installed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	$(PIP) install --no-compile torch==2.13.0 -c constraints.txt
	$(PIP) install --no-compile -e '.[dev,vision]' -c constraints.txt
	@touch $@

# The driver comes from apt; without root it is unpacked into the cache folder TOSAIC_CACHE.
setup-vgf: setup
	$(PIP) install --no-compile -e '.[dev,vision,vgf]' -c constraints.txt
	$(BIN)/tosaic doctor --fix vgf --yes

setup-board: setup
	$(PIP) install --no-compile -e '.[dev,vision,board]' -c constraints.txt

demo: setup
	@mkdir -p out
	$(BIN)/tosaic compile mobilenet_v2 -t ethos-u55-128 -o out/mobilenet_v2.pte
	$(BIN)/tosaic run out/mobilenet_v2.pte --values 10

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: setup
	$(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow'

test-all: setup
	$(BIN)/python -m pytest -q -n $(WORKERS)

# In one process: the others would take longer to start than the tests take.
test-op: setup
	$(BIN)/python -m pytest -q tests/ops tests/test_golden.py -m 'not slow' -k '[$(OP)- or [$(OP)]'

# Environments of their own in the cache folder; never part of a check of a change.
test-matrix: setup
	$(BIN)/python tests/run_matrix.py

golden: setup
	$(BIN)/python tests/rewrite_golden.py

bench: setup
	$(BIN)/python bench/run.py
	$(BIN)/python bench/tflite.py
	$(BIN)/python bench/vgf.py
	$(BIN)/python bench/simulator.py

bench-board: setup-board
	$(BIN)/python bench/board.py

bench-quick: setup
	$(BIN)/python bench/run.py --quick --out out/bench

accuracy: setup
	$(BIN)/python bench/accuracy.py
	$(BIN)/python bench/precisions.py

mutate: setup
	$(BIN)/python bench/mutate.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_imports.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out dist build .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
