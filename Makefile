# `make help` lists the commands. The work is CMake's (CMakePresets.json); this file makes sure that it has what it needs.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test python test-cuda faults inverses load fuzz bench doctor format lint install clean distclean

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CUDA ?= AUTO
CONFIGURE = cmake --preset release -DINVATTN_CUDA=$(CUDA)
BUILD = cmake --build --preset release --parallel $(JOBS)

help: ## this list
	@echo "make COMMAND [CUDA=ON|OFF|AUTO] [JOBS=n], with COMMAND one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing: system packages (as root or by sudo) and torch; the other commands do this first
	@scripts/setup

build: setup ## build the tool, build/invattn, and the library
	@$(CONFIGURE) >/dev/null
	@$(BUILD) --target invattn_tool

demo: build ## train the four kinds of attention on synthetic images, invert them, print the table, write a report (under a minute)
	@build/invattn reconstruct

doctor: build ## what this build and machine can do, and what is missing
	@build/invattn doctor

test: ## build and run every test that needs no GPU, those of the Python package among them
	@scripts/setup --test
	@$(CONFIGURE) -DINVATTN_BENCH=OFF >/dev/null
	@$(BUILD)
	@ctest --preset release --parallel $(JOBS)
	@scripts/python_package

python: ## build the wheel of the Python package, build/wheel/, install it into .venv and run its tests
	@scripts/setup --test
	@scripts/python_package

test-cuda: ## on a machine with a GPU: the tests that need one, compute-sanitizer, and the kernels' times
	@scripts/setup --test
	@$(CONFIGURE) -DINVATTN_CUDA=ON >/dev/null
	@$(BUILD) --target $(addprefix kernels_cuda_,$(addsuffix _test,attention channel_affine convolution solver swish weights)) \
	  $(addprefix ops_,$(addsuffix _test,branch_convolutions channel_affine composed_score fast_attention largest_singular_value lip_swish)) \
	  train_captured_step_test train_judged_flow_test nn_fast_inverse_test
	@scripts/test_cuda

faults: build ## disturb the tool by crashes, failing disks, damaged files, absurd settings (hours; SHORT=1: a sample, two minutes)
	@tests/faults/campaign.py --jobs $(JOBS) $(if $(SHORT),--short) $(FAULTS)

inverses: ## hold 100,000 inverses of random blocks against their reports and certificates (INVERSES='--seed 7' passes options on)
	@scripts/setup --test
	@$(CONFIGURE) >/dev/null
	@$(BUILD) --target nn_inverse_campaign
	@build/tests/nn_inverse_campaign $(INVERSES)

load: ## take 1,000,000 steps and load 10,000 models: memory, open files and times must not grow (LOAD='--steps 5000' passes options on)
	@scripts/setup --test
	@$(CONFIGURE) >/dev/null
	@$(BUILD) --target train_load_campaign
	@build/tests/train_load_campaign --timed $(LOAD)

RUNS ?= 10000000
fuzz: ## run each fuzz target RUNS times, by hand 10,000,000 (hours; clang)
	@FUZZ_RUNS=$(RUNS) .ci/run fuzz

bench: build ## measure the fast kernels beside plain ATen operations, on the CPU and on a GPU where there is one (minutes)
	@build/invattn bench --device all

format: ## rewrite our files with clang-format
	@scripts/setup --lint
	@scripts/lint --format

lint: ## clang-format, the checks of layers and links, clang-tidy; changes nothing
	@scripts/setup --lint
	@scripts/lint

install: build ## install tool, library, headers, licence and invattnConfig.cmake below PREFIX (/usr/local)
	@cmake --install build --prefix "$(PREFIX)"

clean: ## remove what was built (torch in .venv stays)
	@rm -rf build

distclean: clean ## remove .venv, too
	@rm -rf .venv
