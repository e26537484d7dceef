# Every command a person or a machine needs. `make setup` is a prerequisite of all others that use .venv;
# a second call is instant, since the stamp is newer than what it was made from.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
TORCH_BACKEND ?= auto
COMPILE ?= --compile-bytecode
PYTEST_ARGS ?=

BIN := $(VENV)/bin
UV := $(BIN)/uv
STAMP := $(VENV)/.installed-$(EXTRAS)
# Where the environment names wheels of its own (PIP_FIND_LINKS), torch comes from there: its CPU build wins over
# the registry's, since 2.13.0+cpu sorts above 2.13.0. Elsewhere uv picks the build that fits the machine's driver.
TORCH_SOURCE := $(if $(PIP_FIND_LINKS),$(addprefix --find-links ,$(PIP_FIND_LINKS)),--torch-backend=$(TORCH_BACKEND))
export DS_BUILD_OPS := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-stack test-gpu check format bench up kenlm clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'

setup: $(STAMP)  ## make .venv with everything pinned in constraints.txt

# torch goes first and alone: --torch-backend also redirects triton to the same index, and torch's CPU index need not
# carry it. The second call finds torch present and takes the rest, triton included, from the registry.
$(STAMP): pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) .ci/missing-packages --explain setup
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(UV) pip install --quiet $(COMPILE) --python $(BIN)/python --constraint constraints.txt $(TORCH_SOURCE) torch
	$(UV) pip install --quiet $(COMPILE) --python $(BIN)/python --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo:  ## run the whole pipeline on the sample and print where the report is
	@start=$$(date +%s); $(MAKE) --no-print-directory setup && \
	    echo "installation: $$(( $$(date +%s) - start )) s" && $(BIN)/lmpipe run demo

# One thread each: two processes with two threads each on two cores wait for one another (LOG: 429 s, with one 365).
test: check  ## check, then all tests that need neither a service nor a GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests --ignore=tests/stack --ignore=tests/gpu -n 2 --dist worksteal $(PYTEST_ARGS)

test-stack: setup  ## tests on real services, which they start themselves on loopback
	@.ci/missing-packages --explain stack
	$(BIN)/python -m pytest tests/stack $(PYTEST_ARGS)

# PYTHON=... names an interpreter that already has torch, triton and pytest; nothing is installed.
test-gpu: GPU_PYTHON = $(if $(filter command environment,$(firstword $(origin PYTHON))),$(PYTHON),$(BIN)/python)
test-gpu:  ## tests on a CUDA device: make test-gpu PYTHON=python3
	$(GPU_PYTHON) -m pytest tests/gpu $(PYTEST_ARGS)

check: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## let ruff put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## one benchmark: make bench NAME=flash_attention (without NAME: list them)
	$(BIN)/lmpipe bench $(NAME)

up: setup  ## start the local stack: server, deployments, worker (the shared one: docker/compose.yaml)
	$(BIN)/lmpipe up

kenlm: setup  ## build lmplz and build_binary from kenlm's own source into .venv/bin (1.5 CPU-minutes)
	@.ci/missing-packages --explain kenlm
	rm -rf build/kenlm && mkdir -p build/kenlm
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary kenlm \
	    --constraint constraints.txt --dest build/kenlm kenlm
	tar -xzf build/kenlm/kenlm-*.tar.gz -C build/kenlm --strip-components 1
	cmake -S build/kenlm -B build/kenlm/out -DCMAKE_BUILD_TYPE=Release -DCMAKE_POLICY_VERSION_MINIMUM=3.5
	cmake --build build/kenlm/out --target lmplz build_binary --parallel
	cp build/kenlm/out/bin/lmplz build/kenlm/out/bin/build_binary $(BIN)/
	$(if $(TEXT),$(MAKE) --no-print-directory kenlm-model)

# A pruned, quantised 3-gram model as `signals` reads it, named by its language: make kenlm TEXT=german.parquet OUT=de.kenlm
OUT ?= build/model.kenlm
.PHONY: kenlm-model
kenlm-model:
	$(BIN)/python -m lmpipe.curation.quality.perplexity --vocabulary build/vocabulary.txt $(TEXT) > build/train.txt
	$(BIN)/lmplz -o 3 --prune 0 2 3 --limit_vocab_file build/vocabulary.txt --discount_fallback -S 25% \
	    --temp_prefix build/ < build/train.txt > build/model.arpa
	$(BIN)/build_binary -q 8 -b 8 -a 22 trie build/model.arpa $(OUT)

clean:  ## remove caches and build products; .venv and artifacts stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find lmpipe tasks flows deployments tests -name __pycache__ -type d -prune -exec rm -rf {} +
