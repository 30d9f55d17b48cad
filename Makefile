# The same commands for people and for CI. `make` alone lists them.
#
#   PYTHON    interpreter that makes the virtual environment          (python3)
#   PIP_ARGS  more arguments for every pip install, e.g. an index of CPU-only torch wheels
#   MODEL     what to serve: smollm2, sim, a folder, a .gguf file, a Hub id
#   HOST PORT where to serve                                          (127.0.0.1 8000)
#   WORKERS   test processes of `make test`                           (3)
#   ARGS      more arguments for `ebbtide serve`, `ebbtide bench` or pytest

PYTHON ?= python3
PIP_ARGS ?=
MODEL ?= smollm2
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=

# gpu-check: an interpreter with PyTorch, Triton and transformers, and its version; the wheels that it may lack.
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
GPU_WHEELS := fastapi gguf msgspec pyzmq setproctitle shtab starlette uvicorn

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

# Stamps live in the environment they describe: removing .venv removes them too.
CREATED := $(VENV)/.created
TOOLS := $(VENV)/.build-tools
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
SITE := $(VENV)/.docs
LINTERS := $(VENV)/.deploy
# The Python files of flash-attn without its compiled module, for the tests; not on the path of the programs.
FLASH_LAYER := $(VENV)/flash-attn-layer
INPUTS := pyproject.toml setup.py constraints.txt ebbtide/__init__.py

# The workers share the machine: one thread each inside the tensor library. For two cores, three workers: the tests of a
# daemon wait half of their time.
WORKERS ?= 3
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PURE := $(addprefix tests/,scheduler server tokenizer_mgr detokenizer ebbtide/runtime ebbtide/tokenization test_architecture.py)

# Percent of the lines and branches that the tests which start no daemon cover inside their own process.
FLOORS := scheduler:97 tokenizer_mgr:98 detokenizer:96 server:94 ebbtide:88 model_runner:88

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help serve demo check test coverage soak lint lint-deploy docs bench gpu-wheels gpu-check clean

help:
	@echo 'make serve     install, fetch the default model, serve it on http://$(HOST):$(PORT)'
	@echo 'make demo      show memory pressure in the console, with the simulated model under load'
	@echo 'make check     while working: lint, types and the tests that need no other process (under a minute)'
	@echo 'make test      before merging: lint, types and the whole test suite (under 12 minutes on two cores)'
	@echo 'make coverage  coverage of each folder by the tests that start no daemon, against its floor'
	@echo 'make soak      the long tests, one by one (hours); ARGS selects some'
	@echo 'make lint      formatting, lint and types only'
	@echo 'make docs      the documentation site in build/site; a broken link or page is an error'
	@echo 'make lint-deploy  check deploy/ with the tools of systemd, compose and Kubernetes'
	@echo 'make bench     measure a server that is running on http://$(HOST):$(PORT)'
	@echo 'make gpu-check  test and measure the CUDA code on this machine (under 6 minutes); GPU_PYTHON has PyTorch'
	@echo 'make clean     remove everything that make has put into this folder'

serve: $(RUNTIME)
ifeq ($(MODEL),smollm2)
	@$(BIN)/ebbtide pull smollm2
endif
	@exec $(BIN)/ebbtide serve '$(MODEL)' --host $(HOST) --port $(PORT) $(ARGS)

# Needs no model: the simulated one runs in a small pool under `ebbtide bench`.
demo: $(RUNTIME)
	@exec $(BIN)/python tools/demo.py --host $(HOST) --port $(PORT)

# Without `slow` tests, which play many random loads, start processes or run a model.
check: lint
	$(PYTEST) -q -n 2 -m 'not slow and not soak and not gpu' $(PURE) $(ARGS)

test: lint
	@$(BIN)/ebbtide pull smollm2
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Prints the lines that are not covered in a folder that is below its floor.
coverage: $(DEV)
	@$(BIN)/ebbtide pull smollm2
	$(PYTEST) -q -n 2 --dist loadfile -m 'not daemon and not soak and not gpu' --cov --cov-report= $(ARGS)
	@for entry in $(FLOORS); do \
		folder=$${entry%:*}; floor=$${entry#*:}; \
		percent=$$($(BIN)/coverage report --include="$$folder/*" --format=total) || { echo "$$percent" >&2; exit 1; }; \
		echo "coverage of $$folder: $$percent % (floor $$floor %)"; \
		[ "$$percent" -ge "$$floor" ] || { $(BIN)/coverage report -m --skip-covered --include="$$folder/*"; exit 1; }; \
	done

soak: $(DEV)
	@$(BIN)/ebbtide pull smollm2
	$(PYTEST) -m soak -v --durations=0 --durations-min=1 -o faulthandler_timeout=3600 $(ARGS)

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict -p ebbtide
	$(BIN)/mypy --strict tests

# systemd-analyze and promtool are of Debian; what is not installed is skipped, with its name.
lint-deploy: $(LINTERS)
	$(PYTEST) -m 'soak or not soak' tests/deploy --ignore tests/deploy/test_proxies.py $(ARGS)

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'The site is in build/site.'

bench: $(RUNTIME)
	@$(BIN)/ebbtide bench --base-url http://$(HOST):$(PORT)/v1 $(ARGS)

# What the machine with the GPU may lack, as wheels: PyTorch, Triton and transformers are there.
gpu-wheels: $(CREATED)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -c constraints.txt --only-binary=:all: \
		--python-version $(GPU_PYTHON_VERSION) --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
		--platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d build/wheels $(PIP_ARGS) $(GPU_WHEELS)

# Checks and measures the CUDA code. Uses the wheels of gpu-wheels if there are any, and no network.
gpu-check:
	@if [ -d build/wheels ]; then $(GPU_PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
		--upgrade --target build/gpu-site build/wheels/*.whl; fi
	PYTHONPATH=$(CURDIR)/build/gpu-site:$(CURDIR) $(GPU_PYTHON) tools/gpu_check.py $(ARGS)

clean:
	rm -rf $(VENV) build dist ebbtide.egg-info .schemathesis .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'ebbtide needs Python 3.11 or newer: say which one with make PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo 'Python has no venv module: on Debian and Ubuntu, apt-get install python3-venv.' >&2; exit 1; }
	@echo 'Making the virtual environment $(VENV).'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(TOOLS): $(CREATED) constraints.txt
	@$(PIP_INSTALL) --quiet setuptools wheel
	@touch $@

# No build isolation: the pinned setuptools builds the package, not whichever is newest today.
$(RUNTIME): $(TOOLS) $(INPUTS)
	@echo 'Installing ebbtide (some minutes the first time).'
	@$(PIP_INSTALL) --no-build-isolation -e .
	@touch $@

$(DEV): $(RUNTIME)
	@echo 'Installing the development tools.'
	@$(PIP_INSTALL) --quiet --no-build-isolation -e '.[dev]'
	@FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE $(PIP_INSTALL) --quiet --no-build-isolation \
		--no-deps --upgrade --target $(FLASH_LAYER) flash-attn \
		|| echo 'flash-attn cannot be installed: its tests are skipped.' >&2
	@touch $@

$(SITE): $(DEV)
	@$(PIP_INSTALL) --quiet --no-build-isolation -e '.[docs]'
	@touch $@

$(LINTERS): $(DEV)
	@$(PIP_INSTALL) --quiet --no-build-isolation -e '.[deploy]'
	@touch $@
