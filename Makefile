# Everything that is done with this repository. "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The version is stamped by VERSION below; Go's own stamp fails in a checkout of another user.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

BIN := $(CURDIR)/bin
TOOLS := $(BIN)/tools
PART := tools/scripts/part
SERVICES := configmux pleg syncloop nodestatus
VERSION := $(shell git describe --always --dirty --tags 2>/dev/null || echo unknown)

CONTAINERD := github.com/containerd/containerd/v2
CNI := github.com/containernetworking/plugins/plugins
CONTAINERD_VERSION = $(shell sed -n 's|.*$(CONTAINERD) \(v[^ ]*\).*|\1|p' tools/runtime/go.mod)
# Snapshotters that need a file system or a device of their own are left out.
CONTAINERD_FLAGS = -tags "no_btrfs no_zfs no_devmapper" -ldflags "-s -w -X $(CONTAINERD)/version.Version=$(CONTAINERD_VERSION)"
RUNTIME := $(addprefix $(BIN)/,containerd containerd-shim-runc-v2 ctr runc bridge host-local loopback portmap)
RUNTIME_MODULE := tools/runtime/go.mod tools/runtime/go.sum
PRODUCT_FLAGS = -trimpath -ldflags "-s -w -X github.com/quartet-node/quartet/internal/buildinfo.version=$(VERSION)"
IMAGES := $(BIN)/images/hello.tar $(BIN)/images/pause.tar

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: up
up: packages build ## Install what is needed, build, start a node, run examples/hello.yaml on it
	@$(BIN)/quartet up --detach
	@tools/scripts/try-hello

.PHONY: down
down: ## Stop the node that "make up" has started, with its pods
	@$(BIN)/quartet down

.PHONY: packages
packages: ## Install the system packages that are missing
	@tools/scripts/packages

.PHONY: build
build: build-runtime build-product images ## Build the product, the bundled runtime and the images into bin/

.PHONY: build-runtime
build-runtime: $(RUNTIME)

$(BIN)/containerd $(BIN)/containerd-shim-runc-v2 $(BIN)/ctr: $(RUNTIME_MODULE)
	@CGO_ENABLED=0 $(PART) $(@F) go -C tools/runtime build -trimpath $(CONTAINERD_FLAGS) -o $@ $(CONTAINERD)/cmd/$(@F)
	@touch $@

$(BIN)/runc: $(RUNTIME_MODULE)
	@CGO_ENABLED=1 $(PART) runc go -C tools/runtime build -trimpath -tags seccomp -ldflags "-s -w" -o $@ github.com/opencontainers/runc
	@touch $@

$(BIN)/bridge $(BIN)/loopback: CNI_KIND := main
$(BIN)/host-local: CNI_KIND := ipam
$(BIN)/portmap: CNI_KIND := meta
$(BIN)/bridge $(BIN)/loopback $(BIN)/host-local $(BIN)/portmap: $(RUNTIME_MODULE)
	@CGO_ENABLED=0 $(PART) "$(@F) (network)" go -C tools/runtime build -trimpath -ldflags "-s -w" -o $@ $(CNI)/$(CNI_KIND)/$(@F)
	@touch $@

.PHONY: build-product
build-product: ## Build the four services and the command line
	@for service in $(SERVICES); do \
	  CGO_ENABLED=0 $(PART) $$service go build $(PRODUCT_FLAGS) -o $(BIN)/ ./services/$$service; \
	done
	@CGO_ENABLED=0 $(PART) quartet go build $(PRODUCT_FLAGS) -o $(BIN)/ ./cmd/quartet

.PHONY: images
images: $(IMAGES) ## Make the image archives: hello and pause

$(IMAGES): $(BIN)/images/%.tar: images/%/main.go tools/images/main.go tools/images/go.mod
	@CGO_ENABLED=0 $(PART) "$* (program)" go build -trimpath -ldflags "-s -w" -o $(BIN)/images/ ./images/$*
	@$(PART) "$* (image)" go -C tools/images run . -program $(BIN)/images/$* -name quartet.local/$*:1 -out $@

.PHONY: generate
generate: $(TOOLS)/buf ## Generate gen/ from proto/
	@PATH="$(TOOLS):$$PATH" buf generate

$(TOOLS)/buf: tools/dev/go.mod tools/dev/go.sum
	@$(PART) "buf, protoc-gen-go" go -C tools/dev build -o $(TOOLS)/ tool
	@touch $@

$(TOOLS)/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	@$(PART) golangci-lint go -C tools/lint build -o $(TOOLS)/ tool
	@touch $@

# Without its web interface, which is no part of the module: what the tests need is OTLP in and the query API.
$(TOOLS)/jaeger: tools/jaeger/go.mod tools/jaeger/go.sum
	@CGO_ENABLED=0 $(PART) jaeger go -C tools/jaeger build -trimpath -ldflags "-s -w" -o $@ github.com/jaegertracing/jaeger/cmd/all-in-one
	@touch $@

.PHONY: lint
lint: $(TOOLS)/buf $(TOOLS)/golangci-lint ## Check the protos, gen/, the modules and the code
	@tools/scripts/check-protos
	@tools/scripts/check-modules
	@$(TOOLS)/golangci-lint run --allow-parallel-runners ./...
	@cd tools/images && $(TOOLS)/golangci-lint run --allow-parallel-runners ./...

.PHONY: test
test: test-unit test-e2e ## Run every test

# What tests talk to. A unit test that needs one skips without it, except with CI=true.
.PHONY: test-tools
test-tools: $(TOOLS)/jaeger ## Build what only tests need

.PHONY: test-unit
test-unit: packages build $(if $(filter true,$(CI)),test-tools) ## Run the tests of every package, with the race detector
	@go test -race -timeout 20m $$(go list ./... | grep -v -e /test/e2e -e /test/chaos -e /test/bench)
	@go -C tools/images test ./...

.PHONY: test-e2e
test-e2e: packages build test-tools ## Run the end-to-end tests on real containers; needs root
	@go test -count 1 -p 1 -timeout 20m ./test/e2e/... ./test/chaos/...

.PHONY: bench
bench: packages build ## Measure against bare CRI calls; prints a table and writes bench.json
	@go run ./test/bench -out bench.json
