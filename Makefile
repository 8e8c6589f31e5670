# The front door. Every target does its own set-up; a second call finds nothing left to do.
#   make demo    see it work          make test    prove it
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build wheel demo demo-lightcc demo-zerocache test test-all test-torch
.PHONY: test-cuda bench lint asan tsan fuzz sim conformance faults clean

VENV := .venv

help: ## Show this list
	@printf 'taco_torch: a PyTorch backend with its own user-space transport\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Set up .venv, compile and install the package into it (DEBUG=1: for a debugger too)
	@DEBUG=$(DEBUG) tools/setup.sh install

wheel: ## Build one wheel for several torch versions (TORCHES="2.13 2.14", PYTHON=python3.12)
	@TORCHES="$(TORCHES)" DEBUG=$(DEBUG) tools/wheel.sh

demo: ## Train a real model over gloo, shared memory and HARP/UDP; one table, one plot
	@tools/setup.sh demo
	@$(VENV)/bin/python examples/demo.py

demo-lightcc: ## Train it between two emulated hosts, gradients whole and compressed (root)
	@tools/setup.sh demo
	@$(VENV)/bin/python examples/demo_lightcc.py

demo-zerocache: ## Train a GPT in a tenth of the memory that its state takes, the rest on disk
	@tools/setup.sh demo
	@$(VENV)/bin/python examples/demo_zerocache.py

test: ## Run the tests that a change is tried with (C++ and Python; SLOWEST=50 lists the slowest)
	@tools/test.sh quick

test-all: ## Run every test: also sanitizers, fuzzing, deaths, frameworks, torch's own tests
	@tools/test.sh all

test-torch: ## Run the Python tests over another torch, built apart (TORCH=2.14.1)
	@TORCH=$(TORCH) tools/test_torch.sh

test-cuda: ## Compare the kernels for GPUs with the host's on a GPU; take their times (nvcc)
	@tools/test_cuda.sh

bench: ## Run the benchmarks beside their baselines; results under out/
	@tools/bench.sh

lint: ## Check format, types, layers and lengths
	@tools/lint.sh

asan: ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/sanitize.sh asan

tsan: ## C++ tests under ThreadSanitizer
	@tools/sanitize.sh tsan

fuzz: ## Fuzz all that reads bytes from outside, a minute each (FUZZ_SECONDS=60)
	@tools/sanitize.sh fuzz

sim: ## Simulate 100,000 networks at their worst, from one seed each (SEEDS=100000 FIRST_SEED=1)
	@SEEDS=$(or $(SEEDS),100000) tools/sim.sh

conformance: ## torch's own distributed tests over taco, all that gloo passes
	@tools/setup.sh install
	@$(VENV)/bin/python tests/conformance/run.py --backend taco

faults: ## Kill 500 ranks at random moments; who survives must name the dead (KILLS=500)
	@tools/setup.sh install
	@$(VENV)/bin/python tests/faults/campaign.py --kills $(or $(KILLS),500)

clean: ## Remove everything that was built, the virtual environment too
	@rm -rf build out .venv .venv-* .mypy_cache .ruff_cache .pytest_cache
