# make setup | native | cuda | ab | test | faults | attack | asan | repro | rebuild | gate | bench-cpu | bench-gpu | sweep-gpu | test-gpu | lint | lock | clean
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# the cmake and ninja of the system where they are new enough, else the wheels in .venv
CMAKE = $(shell .ci/new-enough.sh cmake 3.22 || echo $(CURDIR)/$(BIN)/cmake)
NINJA = $(shell .ci/new-enough.sh ninja 1.10 || echo $(CURDIR)/$(BIN)/ninja)

.PHONY: ab setup check-tools native cuda test faults attack asan repro rebuild gate bench-cpu bench-gpu sweep-gpu test-gpu lint lock clean

# AB: more options. --same-library: right after an acceptance the build is the baseline, and its M rows are still worth a proof
ab: setup native
	$(BIN)/run-ab --same-library $(AB)

setup: .venv/installed

check-tools:
	@PYTHON='$(PYTHON)' .ci/check-tools.sh

.venv/installed: .requirements.lock pyproject.toml | check-tools
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r .requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

native: setup
	$(CMAKE) -S native -B build/cpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(NINJA)
	$(CMAKE) --build build/cpu -j2

# needs nvcc, no GPU: machine code for 80, 90a and 120
cuda: setup
	$(CMAKE) -S native -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DVCUDA_BACKEND=cuda -DCMAKE_MAKE_PROGRAM=$(NINJA)
	$(CMAKE) --build build/cuda -j2

test: setup native
	CTEST_OUTPUT_ON_FAILURE=1 $(CMAKE) --build build/cpu --target test
	$(BIN)/python -m pytest

faults: setup
	$(BIN)/python -m pyharness.tests.faults

attack: setup
	$(BIN)/python -m pyharness.tests.attack

# Python itself is not sanitized: the sanitizers' libraries come first, and its leaks are not ours.
asan: setup
	$(CMAKE) -S native --preset cpu-asan -DCMAKE_MAKE_PROGRAM=$(NINJA)
	$(CMAKE) --build build/cpu-asan -j2
	CTEST_OUTPUT_ON_FAILURE=1 $(CMAKE) --build build/cpu-asan --target test
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
	$(BIN)/python -m pyharness.tests.attack.sanitized build/cpu-asan/libvllm_cuda.so

gate: setup
	$(BIN)/run-ab gate

bench-cpu: setup native
	$(BIN)/python -m pyharness.bench_cpu

# a GPU is needed from here: every byte is checked before its time is taken
bench-gpu: cuda
	build/cuda/step_bench --context 512,32768 --json build/bench-gpu-steps.json
	build/cuda/kernel_bench --m 1,8 --json build/bench-gpu-operations.json
	$(BIN)/python -m pyharness.bench_gpu build/bench-gpu-steps.json build/bench-gpu-operations.json

# the fastest cut of each projection's rows on this GPU, and that every cut gives the same bits
sweep-gpu: cuda
	build/cuda/kernel_bench --cuts --m 1,8 --table native/cuda/cuts.h

test-gpu: native cuda
	$(BIN)/python native/tests/test_cuda.py build/cpu/libvllm_cuda.so build/cuda/libvllm_cuda.so --checks bits,graphs,cuts,extremes,taps,memory

repro: setup
	CMAKE=$(CMAKE) NINJA=$(NINJA) .ci/repro.sh cpu
	if command -v nvcc >/dev/null; then CMAKE=$(CMAKE) NINJA=$(NINJA) .ci/repro.sh cuda; else echo "repro: no nvcc here, the CUDA library was not built"; fi

# make rebuild LABEL=cuda-m8-2: an archived library against what its revision builds
rebuild: setup
	CMAKE=$(CMAKE) NINJA=$(NINJA) .ci/rebuild.sh $(LABEL)

lint: setup
	$(PIP) --require-hashes -r .requirements-lint.lock
	$(BIN)/ruff check pyharness native .ci && $(BIN)/ruff format --check pyharness native .ci && $(BIN)/mypy && $(BIN)/mypy native/tests/test_cuda.py
	find native -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.inc' | xargs $(BIN)/clang-format --dry-run --Werror

lock: setup
	$(BIN)/python .ci/lock.py

clean:
	rm -rf build .venv
