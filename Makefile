# The user's door: each target first sets the machine up where that is still to do (tools/setup.sh), then runs one tool.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV  := $(CURDIR)/.venv
STAMP := .venv/.setup-ok
PY    := $(VENV)/bin/python
export PATH := $(VENV)/bin:$(PATH)
# another NIC behind the same ports: the folder of its sources, with rnic.sv in it (docs/bring-your-own-nic.md)
export CAMHIL_RTL := $(abspath $(RTL))

SEED  ?= 1
JOBS  ?= 2
SEEDS ?= 5
PES   ?= 4
MINUTES ?= 10

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-8s %s\n' "$$name" "$$text"; done

.PHONY: setup
setup: $(STAMP) ## system packages and .venv from requirements.lock; nothing to do when it is current

$(STAMP): requirements.lock pyproject.toml tools/setup.sh
	@bash tools/setup.sh

.PHONY: sim
sim: $(STAMP) ## the main job: a device program on the RTL NICs, all checked; TEST=program SEED=n PES=n WAVES=1 PCAP=1 TIMELINE=1 RTL=folder FAULTS="rule; rule" FAULT_FILE=file
	@$(PY) -m tb.sim.sim --test "$(TEST)" --seed "$(SEED)" --pes "$(PES)" --waves "$(WAVES)" --pcap "$(PCAP)" \
	  --timeline "$(TIMELINE)" --window "$(WINDOW)" --faults "$(FAULTS)" --fault-file "$(FAULT_FILE)"

.PHONY: test
test: $(STAMP) ## the tests, at most 20 minutes; JOBS=n SEED=n TEST=expression
	@mkdir -p build/test
	@$(PY) -m pytest -n $(JOBS) -m "not long" --run-seed $(SEED) --hypothesis-seed $(SEED) \
	  --junitxml=build/test/junit.xml $(if $(TEST),-k "$(TEST)")

.PHONY: regress
regress: $(STAMP) ## every test, the long ones too, over SEEDS=n seeds; JOBS=n SEED=first TEST=expression RERUN=failed
	@$(PY) tools/regress.py --seeds $(SEEDS) --first-seed $(SEED) --jobs $(JOBS) --rerun "$(RERUN)" --select "$(TEST)"

.PHONY: faults
faults: $(STAMP) ## the matrix of link faults: kind x operation x packet x state of the QP; SEEDS=n (3) SEED=first TEST=part
	@$(PY) tools/fault_matrix.py --seeds $(if $(filter command environment,$(origin SEEDS)),$(SEEDS),3) --first-seed $(SEED) \
	  --jobs $(JOBS) --select "$(TEST)"

.PHONY: soak
soak: $(STAMP) ## random traffic under random faults until the time is up; MINUTES=n SEED=s JOBS=n, ROUND=seed for one round
	@$(PY) tools/soak.py --minutes $(MINUTES) --seed $(SEED) --jobs $(JOBS) $(if $(ROUND),--round $(ROUND))

.PHONY: waves
waves: $(STAMP) ## TEST=name (test or program) with waves, laid out along the data path for GTKWave; WINDOW=from:to ns
	@$(PY) tools/waves.py --test "$(TEST)" --seed "$(SEED)" --pes "$(PES)" --window "$(WINDOW)"

.PHONY: lint
lint: $(STAMP) ## verilator -Wall, pyslang, verible, ruff, mypy, sources of benches, generated files
	@$(PY) tools/lint.py

.PHONY: synth
synth: $(STAMP) ## yosys: no latch, loop or multiple driver; gates, flops and memory bits per block
	@$(PY) tools/synth.py

.PHONY: bench
bench: $(STAMP) ## the table of testbench cost and NIC speed, measured here; ARGS=--no-cold, more with ARGS=--help
	@$(PY) tools/bench.py $(ARGS)

.PHONY: clean
clean: ## remove everything that was built (build/); .venv stays
	rm -rf build
