# make demo       compare the shipped digits recipe on torch, TensorFlow and JAX, on 1 and 2 devices
# make test       everything that every change must pass: ruff, mypy, pytest
# make test-all   the same with the tests that take longer
# make gpu-check  on a machine with GPUs: what virtual CPU devices cannot show
# make clean      remove what these commands made (not runs/ and studies/)
#
# Each of them first sets up .venv, unless it is up to date. PYTHON=python3.12 chooses the interpreter for it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.PHONY: help setup demo test test-all gpu-check clean

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.up-to-date
TESTS ?=
GPU_CHECK ?=

help:
	sed -n '/^# make/s/^# //p' Makefile

setup: $(SETUP)

$(SETUP): requirements.lock pyproject.toml
	if ! command -v $(PYTHON) >/dev/null; then
	  echo "There is no $(PYTHON); install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python" >&2
	  exit 1
	fi
	if ! $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
	  echo "$$($(PYTHON) --version) does not fit, kmgpu needs 3.11, 3.12 or 3.13; name one: make PYTHON=python3.12" >&2
	  exit 1
	fi
	if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then
	  echo "$(PYTHON) cannot make virtual environments; install its venv module (Debian: apt install python3-venv)" >&2
	  exit 1
	fi
	echo "Setting up .venv with the packages of requirements.lock (once; some minutes)"
	$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -r requirements.lock
	echo "Compiling them"  # with all cores; pip uses one, and without bytecode each start takes seconds longer
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # some packages carry files of other Pythons
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $(SETUP)

demo: $(SETUP)
	$(BIN)/kmgpu compare digits_cnn --backends torch,tensorflow,jax --devices 1,2

test: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not long" $(TESTS)

test-all: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(TESTS)

# The CUDA builds of the frameworks need different libraries, so each gets an environment of its own, unless
# KMGPU_PYTHON_TORCH, KMGPU_PYTHON_TENSORFLOW or KMGPU_PYTHON_JAX names one.
gpu-check: $(SETUP)
	$(BIN)/python benchmarks/gpu_check.py --look
	for backend in torch tensorflow jax; do
	  variable=KMGPU_PYTHON_$${backend^^}
	  if [ -z "$${!variable:-}" ]; then
	    $(MAKE) --no-print-directory .venv-gpu/$$backend/.up-to-date
	    export $$variable=$$PWD/.venv-gpu/$$backend/bin/python
	  fi
	done
	$(BIN)/python benchmarks/gpu_check.py $(GPU_CHECK)

GPU_PACKAGE_torch := torch
GPU_PACKAGE_tensorflow := tensorflow[and-cuda]
GPU_PACKAGE_jax := jax[cuda13]

.venv-gpu/%/.up-to-date: requirements.lock
	echo "Setting up .venv-gpu/$* with $(GPU_PACKAGE_$*) (once; several GB)"
	version=$$(sed -n 's/^$*\(-cpu\)\?==//p' requirements.lock)
	$(BIN)/python -m venv --clear .venv-gpu/$*
	.venv-gpu/$*/bin/python -m pip install --disable-pip-version-check -c requirements.lock \
	  "$(GPU_PACKAGE_$*)==$$version" keras numpy safetensors scikit-learn
	touch $@

clean:
	rm -rf .venv .venv-gpu build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kmgpu recipes tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
