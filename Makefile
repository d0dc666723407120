# The tasks of this repository. "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The version is stamped by VERSION below; Go's own stamp fails in a checkout of another user.
# The same compiler flags for programs, tests and lint, so that common packages are compiled once; the race detector needs
# others. The tag leaves out gRPC's trace pages, which no program of this repository uses.
export GOFLAGS := $(GOFLAGS) -buildvcs=false -trimpath -tags=grpcnotrace
export CGO_ENABLED := 0

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
KUBERNETES := k8s.io/kubernetes
KUBERNETES_VERSION = $(shell sed -n 's|.*$(KUBERNETES) \(v[^ ]*\).*|\1|p' tools/kube/go.mod)
KUBERNETES_FLAGS = -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)"
# The programs of a cluster for tests. All except etcd are one binary; its file name selects the program.
KUBERNETES_PROGRAMS := $(addprefix $(TOOLS)/,kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl kubeadm metrics-server)
CLUSTER := $(TOOLS)/etcd $(KUBERNETES_PROGRAMS)
# The same as images, for a control plane of static pods: examples/controlplane.
CONTROL_PLANE_IMAGES := $(BIN)/images/kubernetes.tar $(BIN)/images/etcd.tar
COREDNS_VERSION = $(shell sed -n 's|.*github.com/coredns/coredns \(v[^ ]*\).*|\1|p' tools/coredns/go.mod)
ETCD_VERSION = $(shell sed -n 's|.*go.etcd.io/etcd/server/v3 \(v[^ ]*\).*|\1|p' tools/kube/go.mod)
# Upstream's node suite, ginkgo, which runs it, and the contents of its images.
CONFORMANCE := $(BIN)/conformance
KUBERNETES_TESTS := $(KUBERNETES)/test
SUITE_PROGRAMS := $(addprefix $(CONFORMANCE)/bin/,ginkgo agnhost nonewprivs)
SUITE := $(CONFORMANCE)/bin/e2e_node.test $(SUITE_PROGRAMS) $(CONFORMANCE)/images/made
# Without gRPC's debug pages the linker can drop unused methods: see test/linked.
PRODUCT_FLAGS = -tags grpcnotrace -trimpath -ldflags "-s -w $(STAMP)"
STAMP = -X github.com/quartet-node/quartet/internal/buildinfo.version=$(VERSION)
# With symbols, without optimizations, and with the paths of this checkout: for a debugger. Its -gcflags
# replace those of GOFLAGS, by which CI leaves out debug information.
DEBUG_FLAGS = -tags grpcnotrace -trimpath=false -gcflags "all=-N -l" -ldflags "$(STAMP)"
ifdef DEBUG
PRODUCT_FLAGS = $(DEBUG_FLAGS)
endif
# The images of pods; the bundled runtime imports them.
POD_IMAGES := $(BIN)/images/hello.tar $(BIN)/images/pause.tar
# The images of deploy/compose, their tag, and the file that pins them, whose name is the version in its .env.
SERVICE_IMAGES := $(SERVICES) quartet containerd
IMAGE_TAG ?= dev
IMAGE_PINS = deploy/compose/images/$(IMAGE_TAG).yaml
# Modules of this repository's own code besides the product.
TESTED_MODULES := tools/doclinks tools/images tools/initramfs test/dashboard test/csidriver/sanity cmd/quartet/internal/kubeletcmd/oracle services/syncloop/internal/devices/allocation/oracle services/syncloop/internal/devices/cpus/oracle services/syncloop/internal/devices/memory/oracle services/syncloop/internal/devices/resourceclaims/oracle services/syncloop/internal/metricset/oracle services/syncloop/internal/runtime/podcgroups/oracle services/syncloop/internal/storage/csi/oracle services/configmux/internal/mux/oracle
MAKE_IMAGE := go -C tools/images run .
# The four processes of the last release, which tests run beside those of this commit.
RELEASED := $(BIN)/released/syncloop
# A machine that cannot start a Docker engine skips the tests that need one, and builds nothing for them.
DOCKER_TOOLS := $(if $(shell command -v dockerd),$(TOOLS)/docker-compose $(BIN)/images/jaeger-standin.tar $(TOOLS)/dlv)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' ' \
	  /^##@ / { group = substr($$0, 5); if (!(group in lines)) order[++n] = group; lines[group] = lines[group]; next } \
	  /^[a-z0-9-]+:.*## / { lines[group] = lines[group] sprintf("  %-14s %s\n", $$1, $$2) } \
	  END { for (i = 1; i <= n; i++) printf("%s%s\n%s", (i > 1 ? "\n" : ""), order[i], lines[order[i]]) }' $(firstword $(MAKEFILE_LIST))

##@ Try it
.PHONY: up
up: packages build ## Install the requirements, build, start a node, run examples/hello.yaml on it
	@$(BIN)/quartet up --detach
	@tools/scripts/try-hello

.PHONY: down
down: ## Stop the node of "make up" and its pods
	@$(BIN)/quartet down

##@ Build
.PHONY: packages
packages: ## Install the system packages that are missing
	@tools/scripts/packages

.PHONY: build
build: build-runtime build-product pod-images ## Build the product, the bundled runtime and the images of the examples into bin/

.PHONY: build-runtime
build-runtime: $(RUNTIME)

$(BIN)/containerd $(BIN)/containerd-shim-runc-v2 $(BIN)/ctr: $(RUNTIME_MODULE)
	@CGO_ENABLED=0 $(PART) $(@F) go -C tools/runtime build -trimpath $(CONTAINERD_FLAGS) -o $@ $(CONTAINERD)/cmd/$(@F)
	@touch $@

# Static, so that it runs in an image without a base and on any machine. Only the Makefile sets this.
$(BIN)/runc: $(RUNTIME_MODULE) Makefile
	@CGO_ENABLED=1 $(PART) runc go -C tools/runtime build -trimpath -tags "seccomp netgo osusergo" \
	  -ldflags '-s -w -extldflags "-static"' -o $@ github.com/opencontainers/runc
	@touch $@

$(BIN)/bridge $(BIN)/loopback: CNI_KIND := main
$(BIN)/host-local: CNI_KIND := ipam
$(BIN)/portmap: CNI_KIND := meta
$(BIN)/bridge $(BIN)/loopback $(BIN)/host-local $(BIN)/portmap: $(RUNTIME_MODULE)
	@CGO_ENABLED=0 $(PART) "$(@F) (network)" go -C tools/runtime build -trimpath -ldflags "-s -w" -o $@ $(CNI)/$(CNI_KIND)/$(@F)
	@touch $@

# The four services are the same program under other names, so that a node has it in memory once. The links are hard ones,
# by which each process shows its name.
.PHONY: build-product
build-product: ## Build the command line and the four services; DEBUG=1 builds them for a debugger
	@CGO_ENABLED=0 $(PART) quartet go build $(PRODUCT_FLAGS) -o $(BIN)/ ./cmd/quartet ./cmd/quartet-supervisor
	@for service in $(SERVICES); do ln -f $(BIN)/quartet $(BIN)/$$service; done

# Each service as a program of its own, for its image.
.PHONY: build-services
build-services:
	@for service in $(SERVICES); do \
	  CGO_ENABLED=0 $(PART) "$$service (alone)" go build $(PRODUCT_FLAGS) -o $(BIN)/services/ ./cmd/$$service; \
	done

.PHONY: pod-images
pod-images: $(POD_IMAGES)

# The program that "kubectl cp" calls in a container.
$(BIN)/images/hello.tar: POD_IMAGE_FLAGS := -link /bin/tar=/hello

$(POD_IMAGES): $(BIN)/images/%.tar: images/%/main.go $(wildcard images/*/*.go tools/images/*.go) tools/images/go.mod
	@CGO_ENABLED=0 $(PART) "$* (program)" go build -trimpath -ldflags "-s -w" -o $(BIN)/images/ ./images/$*
	@$(PART) "$* (image)" $(MAKE_IMAGE) -file $(BIN)/images/$* $(POD_IMAGE_FLAGS) -name quartet.local/$*:1 -out $@

##@ Containers
.PHONY: images
images: packages service-images ## Build the images of deploy/compose, load them into Docker, and pin them by their IDs
	@tools/scripts/load-images --pin $(IMAGE_PINS) $(SERVICE_IMAGES:%=$(BIN)/images/%.tar)

# A machine with a registry does not need them.
.PHONY: standins
standins: $(TOOLS)/docker-compose $(BIN)/images/jaeger-standin.tar ## Build docker compose and an image of Jaeger from Go modules, for machines without a registry
	@tools/scripts/load-images $(BIN)/images/jaeger-standin.tar

.PHONY: service-images
service-images: $(SERVICE_IMAGES:%=image-%)

# The directories of a service's sockets and state: an empty volume gets the owner and mode that they have here.
image-configmux: OWNER := 10241:10240
image-pleg image-syncloop: OWNER := 0:10240
image-nodestatus: OWNER := 10244:10240
image-%: IMAGE_FLAGS = -file $(BIN)/services/$* -user $(OWNER) -dir /run/quartet=711:0:0 -dir /run/quartet/$*=710:$(OWNER) -dir /var/lib/quartet=700:$(OWNER)
image-quartet: IMAGE_FLAGS := -file $(BIN)/quartet
# The layout is that of bin/, because the command looks for a runtime there.
image-containerd: IMAGE_FLAGS := -file $(BIN)/quartet -entrypoint "/quartet runtime" \
  $(foreach file,$(RUNTIME) $(POD_IMAGES),-file $(file)=/runtime$(file:$(BIN)%=%))

.PHONY: $(SERVICE_IMAGES:%=image-%)
$(SERVICES:%=image-%): build-services
$(SERVICE_IMAGES:%=image-%): image-%: build
	@$(PART) "$* (image)" $(MAKE_IMAGE) $(IMAGE_FLAGS) -name quartet.local/$*:$(IMAGE_TAG) -out $(BIN)/images/$*.tar \
	  -label org.opencontainers.image.title="quartet $*" -label org.opencontainers.image.version=$(VERSION) \
	  -label org.opencontainers.image.source=https://github.com/quartet-node/quartet \
	  -label org.opencontainers.image.licenses=Apache-2.0

##@ Build
.PHONY: generate
generate: $(TOOLS)/buf ## Generate gen/ and docs/reference/rpc.md from proto/
	@PATH="$(TOOLS):$$PATH" buf generate
	@PATH="$(TOOLS):$$PATH" buf generate --template buf.docs.yaml

$(TOOLS)/buf $(TOOLS)/gotestsum &: tools/dev/go.mod tools/dev/go.sum
	@$(PART) "buf, protoc-gen-go, gotestsum" go -C tools/dev build -o $(TOOLS)/ tool
	@touch $(TOOLS)/buf $(TOOLS)/gotestsum

$(TOOLS)/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	@$(PART) golangci-lint go -C tools/lint build -o $(TOOLS)/ tool
	@touch $@

# Without its web interface, which is not in the module: the tests need only OTLP input and the query API.
$(TOOLS)/jaeger: tools/jaeger/go.mod tools/jaeger/go.sum
	@CGO_ENABLED=0 $(PART) jaeger go -C tools/jaeger build -trimpath -ldflags "-s -w" -o $@ github.com/jaegertracing/jaeger/cmd/all-in-one
	@touch $@

$(TOOLS)/kube: tools/kube/main.go tools/kube/go.mod tools/kube/go.sum
	@CGO_ENABLED=0 $(PART) kube go -C tools/kube build $(KUBERNETES_FLAGS) -o $@ .
	@touch $@

$(KUBERNETES_PROGRAMS): $(TOOLS)/kube
	@ln -sf kube $@

$(TOOLS)/sample-device-plugin: tools/kube/go.mod tools/kube/go.sum
	@CGO_ENABLED=0 $(PART) $(@F) go -C tools/kube build $(KUBERNETES_FLAGS) -o $@ $(KUBERNETES_TESTS)/images/$(@F)
	@touch $@

$(TOOLS)/dra-test-driver: tools/kube/go.mod tools/kube/go.sum
	@CGO_ENABLED=0 $(PART) $(@F) go -C tools/kube build $(KUBERNETES_FLAGS) -o $@ $(KUBERNETES_TESTS)/e2e/dra/test-driver
	@touch $@

$(CONFORMANCE)/bin/ginkgo: PACKAGE := github.com/onsi/ginkgo/v2/ginkgo
$(CONFORMANCE)/bin/agnhost $(CONFORMANCE)/bin/nonewprivs: PACKAGE = $(KUBERNETES_TESTS)/images/$(@F)
$(CONFORMANCE)/bin/kubelet: PACKAGE := $(KUBERNETES)/cmd/kubelet
# As the releases of Kubernetes are built (hack/lib/golang.sh): without it the linker keeps all methods, 30 MiB more.
$(CONFORMANCE)/bin/kubelet: KUBERNETES_FLAGS += -tags grpcnotrace
$(SUITE_PROGRAMS) $(CONFORMANCE)/bin/kubelet: tools/kube/go.mod tools/kube/go.sum
	@CGO_ENABLED=0 $(PART) $(@F) go -C tools/kube build $(KUBERNETES_FLAGS) -o $@ $(PACKAGE)
	@touch $@

$(CONFORMANCE)/bin/e2e_node.test: tools/kube/go.mod tools/kube/go.sum
	@CGO_ENABLED=0 $(PART) "e2e_node (suite)" go -C tools/kube test -c -vet=off $(KUBERNETES_FLAGS) -o $@ $(KUBERNETES_TESTS)/e2e_node
	@touch $@

$(CONFORMANCE)/images/made: $(SUITE_PROGRAMS) tools/scripts/conformance-images $(wildcard tools/kube/testimages/*.go tools/images/*.go test/conformance/image/* test/conformance/netclient/*.go images/pause/*.go)
	@tools/scripts/packages busybox-static bash-static
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(CONFORMANCE)/bin/ ./test/conformance/netclient ./images/pause
	@$(PART) "conformance (images)" tools/scripts/conformance-images $(CONFORMANCE)/bin $(@D)
	@touch $@

##@ Test
# RUNS, LABELS and FOCUS select runs and specs, PROCS is the number of parallel specs: see test/conformance.
.PHONY: conformance
conformance: packages build $(SUITE) $(CONFORMANCE)/bin/kubelet ## Compare upstream's [Conformance] node specs on the kubelet and on Quartet; needs root
	@CGO_ENABLED=0 go build -o $(CONFORMANCE)/bin/ ./test/conformance
	@$(CONFORMANCE)/bin/conformance $(if $(RUNS),-runs "$(RUNS)") $(if $(PROCS),-procs $(PROCS)) \
	  $(if $(filter undefined,$(flavor LABELS)),,-labels "$(LABELS)") $(if $(FOCUS),-focus "$(FOCUS)")

$(TOOLS)/etcd: tools/kube/go.mod tools/kube/go.sum
	@CGO_ENABLED=0 $(PART) etcd go -C tools/kube build -trimpath -ldflags "-s -w" -o $@ go.etcd.io/etcd/server/v3
	@touch $@

##@ Build
.PHONY: control-plane
control-plane: $(CLUSTER) $(CONTROL_PLANE_IMAGES) ## Build etcd and Kubernetes' own programs and images of them, for examples/controlplane

# kube-proxy uses this machine's iptables.
$(BIN)/images/kubernetes.tar: $(TOOLS)/kube $(wildcard tools/images/*.go) tools/images/go.mod tools/scripts/iptables-files
	@mkdir -p $(@D)
	@$(PART) "kubernetes (image)" $(MAKE_IMAGE) -file $(TOOLS)/kube=/usr/local/bin/kube -env PATH=/usr/local/bin \
	  $$(tools/scripts/iptables-files) \
	  $(foreach program,$(notdir $(KUBERNETES_PROGRAMS)),-link /usr/local/bin/$(program)=kube) \
	  -name quartet.local/kubernetes:$(KUBERNETES_VERSION) -out $@

$(BIN)/images/etcd.tar: $(TOOLS)/etcd $(wildcard tools/images/*.go) tools/images/go.mod
	@mkdir -p $(@D)
	@$(PART) "etcd (image)" $(MAKE_IMAGE) -file $(TOOLS)/etcd=/usr/local/bin/etcd -env PATH=/usr/local/bin \
	  -name quartet.local/etcd:$(ETCD_VERSION) -out $@

$(TOOLS)/coredns: tools/coredns/main.go tools/coredns/go.mod tools/coredns/go.sum
	@CGO_ENABLED=0 $(PART) coredns go -C tools/coredns build -trimpath -ldflags "-s -w" -o $@ .
	@touch $@

$(BIN)/images/coredns.tar: $(TOOLS)/coredns $(wildcard tools/images/*.go) tools/images/go.mod
	@mkdir -p $(@D)
	@$(PART) "coredns (image)" $(MAKE_IMAGE) -file $(TOOLS)/coredns -name quartet.local/coredns:$(COREDNS_VERSION) -out $@

# The controllers of a cluster with a CSI driver, the driver of the tests, Kubernetes' mock driver, and
# local-path-provisioner with its shell.
STORAGE_PROGRAMS := $(addprefix $(TOOLS)/,csi-attacher csi-resizer local-path-provisioner csi-provisioner)
$(STORAGE_PROGRAMS) &: tools/storage/main.go tools/storage/go.mod tools/storage/go.sum
	@CGO_ENABLED=0 $(PART) storage go -C tools/storage build -trimpath -ldflags "-s -w" -o $(TOOLS)/ tool
	@CGO_ENABLED=0 $(PART) csi-provisioner go -C tools/storage build -trimpath -ldflags "-s -w" -o $(TOOLS)/csi-provisioner .
	@touch $(STORAGE_PROGRAMS)

MOCK_DRIVER := services/syncloop/internal/storage/csi/oracle
$(TOOLS)/mockdriver: $(wildcard $(MOCK_DRIVER)/mockdriver/*.go) $(MOCK_DRIVER)/go.mod
	@CGO_ENABLED=0 $(PART) mockdriver go -C $(MOCK_DRIVER) build -trimpath -ldflags "-s -w" -o $@ ./mockdriver
	@touch $@

$(BIN)/images/storage.tar: $(STORAGE_PROGRAMS) $(TOOLS)/mockdriver $(wildcard test/csidriver/*.go test/csidriver/csidriver/*.go tools/images/*.go) tools/images/go.mod
	@mkdir -p $(@D)
	@tools/scripts/packages busybox-static
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(TOOLS)/csidriver ./test/csidriver/csidriver
	@$(PART) "storage (image)" $(MAKE_IMAGE) -file /bin/busybox=/bin/busybox \
	  $(foreach program,sh mkdir rm cat echo sleep stat blockdev dd sync,-link /bin/$(program)=busybox) \
	  $(foreach program,$(STORAGE_PROGRAMS) $(TOOLS)/csidriver $(TOOLS)/mockdriver,-file $(program)) -env PATH=/bin:/ \
	  -name quartet.local/storage:1 -out $@

# The kernel of the tests in virtual machines. Other distributions and processors have none, and skip them.
VM_KERNEL := $(BIN)/vm/vmlinuz
$(VM_KERNEL): tools/scripts/vm-kernel
	@$(PART) "kernel (virtual machines)" tools/scripts/vm-kernel $(@D)
	@[ ! -e $@ ] || touch $@

$(TOOLS)/initramfs: tools/initramfs/main.go tools/initramfs/go.mod tools/initramfs/go.sum
	@CGO_ENABLED=0 $(PART) initramfs go -C tools/initramfs build -trimpath -ldflags "-s -w" -o $@ .
	@touch $@

$(RELEASED): test/versions/release tools/scripts/released
	@CGO_ENABLED=0 $(PART) "last release" tools/scripts/released $(@D)
	@touch $@

$(TOOLS)/docker-compose: tools/compose/go.mod tools/compose/go.sum
	@CGO_ENABLED=0 $(PART) docker-compose go -C tools/compose build -trimpath -ldflags "-s -w" -o $@ github.com/docker/compose/v5/cmd
	@touch $@

$(TOOLS)/dlv: tools/delve/go.mod tools/delve/go.sum
	@CGO_ENABLED=0 $(PART) dlv go -C tools/delve build -trimpath -ldflags "-s -w" -o $@ github.com/go-delve/delve/cmd/dlv
	@touch $@

# syncloop as DEBUG=1 builds it, for the test with a debugger.
.PHONY: debug-syncloop
debug-syncloop:
	@CGO_ENABLED=0 $(PART) "syncloop (debug)" go build $(DEBUG_FLAGS) -o $(BIN)/debug/ ./cmd/syncloop

# A replacement of Jaeger's own image for machines that cannot pull it.
$(BIN)/images/jaeger-standin.tar: $(TOOLS)/jaeger $(wildcard tools/images/*.go) tools/images/go.mod
	@mkdir -p $(@D)
	@$(PART) "jaeger (image)" $(MAKE_IMAGE) -file $(TOOLS)/jaeger -user 10001:10001 -name quartet.local/jaeger:1.62.0 -out $@

##@ Check
.PHONY: lint
lint: $(TOOLS)/buf $(TOOLS)/golangci-lint ## Check the protos, gen/, modules, dependencies, documents and the code
	@tools/scripts/check-protos
	@tools/scripts/check-modules
	@tools/scripts/check-dependencies
	@go -C tools/doclinks run .
	@$(TOOLS)/golangci-lint run --allow-parallel-runners ./...
	@for module in $(TESTED_MODULES); do (cd $$module && $(TOOLS)/golangci-lint run --allow-parallel-runners ./...); done

##@ Test
.PHONY: test
test: test-unit test-e2e ## Run every test

# "make lint" runs go vet on the tests, too.
TEST_FLAGS := -vet=off

# $(call go_test,NAME,FLAGS,PACKAGES) tests packages. With CI=true up to four tests that failed, of thousands that wait for
# processes on a machine that is busy with them, are run once more, each alone. Those that pass then are in
# $(FLAKY)/NAME, which .ci/run prints at its end. A data race is never run again.
FLAKY := $(BIN)/flaky
ifeq ($(CI),true)
RERUN := --rerun-fails=1 --rerun-fails-max-failures 4 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race
go_test = mkdir -p $(FLAKY) && $(TOOLS)/gotestsum --format standard-quiet $(RERUN) --rerun-fails-report $(FLAKY)/$(1) --packages "$(3)" -- $(2)
else
go_test = go test $(2) $(3)
endif

# The servers and clients of tests. A unit test without its server skips, except with CI=true.
.PHONY: test-tools
test-tools: $(TOOLS)/jaeger $(TOOLS)/sample-device-plugin $(TOOLS)/dra-test-driver $(CLUSTER) $(SUITE) $(CONTROL_PLANE_IMAGES) $(BIN)/images/coredns.tar $(BIN)/images/storage.tar $(VM_KERNEL) $(TOOLS)/initramfs $(DOCKER_TOOLS) $(RELEASED) ## Build the programs that only tests need

# Many tests wait for servers or for a clock, so more packages than processors are tested in parallel.
UNIT_TESTS_AT_ONCE := $(shell echo $$(($$(nproc) + 1)))
# Those that take the longest begin first, so that none is left alone at the end.
UNIT_TESTS_FIRST := $(addprefix ./,services/syncloop/internal/storage/csi services/syncloop conformance services/syncloop/internal/storage/persistentvolumes test/systemdunits services/pleg)
# A program with the race detector sleeps for a second at its end, so that races on the way are reported. Some tests start
# hundreds.
RACE_OPTIONS := atexit_sleep_ms=10

.PHONY: test-unit
test-unit: packages build $(if $(filter true,$(CI)),$(TOOLS)/gotestsum build-services test-tools) ## Run the tests of every package, with the race detector
	@export CGO_ENABLED=1 GORACE=$(RACE_OPTIONS); $(call go_test,unit,$(TEST_FLAGS) -race -p $(UNIT_TESTS_AT_ONCE) -timeout 20m,$(UNIT_TESTS_FIRST) $$(go list ./... | grep -v -e /test/e2e -e /test/conformance -e /test/kubeadm -e /test/nodecluster -e /test/faults -e /test/disks -e /test/chaos -e /test/bench -e /test/dockerhost -e /test/compose -e /test/versions -e /test/vmnode -e /test/machines -e /test/shadow -e '/test/site$$'))
	@for module in $(TESTED_MODULES); do go -C $$module test $(TEST_FLAGS) -count 1 ./...; done # -count 1: they read files outside of the module

# The first two inspect the whole machine, and the third emulates one, so nothing runs beside them. Of the others those that
# take the longest begin first, so that none is left alone at the end.
E2E_TESTS := e2e nodecluster kubeadm disks versions faults chaos conformance shadow site machines
# These tests start pods nearly all the time: with more packages than processors, starts take so long that tests give up.
# More than three have not been tried.
E2E_TESTS_AT_ONCE := $(shell echo $$(($$(nproc) < 3 ? $$(nproc) : 3)))
# For each package. The longest takes 20 minutes beside another one on two processors, and more on slow ones.
E2E_TIMEOUT := 40m
.PHONY: test-e2e
test-e2e: packages build test-tools $(if $(filter true,$(CI)),$(TOOLS)/gotestsum) $(if $(DOCKER_TOOLS),service-images debug-syncloop) ## Run the end-to-end tests on real containers; needs root
	@$(call go_test,e2e-machine,$(TEST_FLAGS) -count 1 -p 1 -timeout $(E2E_TIMEOUT),./test/dockerhost/... ./test/compose/... ./test/vmnode/...)
	@$(call go_test,e2e,$(TEST_FLAGS) -count 1 -p $(E2E_TESTS_AT_ONCE) -timeout $(E2E_TIMEOUT),$(addsuffix /...,$(addprefix ./test/,$(E2E_TESTS))))

# It takes an hour; test-e2e runs a sample of it.
.PHONY: test-hostile
test-hostile: packages build $(CLUSTER) ## Have each file of a node fail in each way; needs root
	@QUARTET_HOSTILE=1 go test $(TEST_FLAGS) -count 1 -timeout 2h ./test/disks
	@QUARTET_HOSTILE=1 go test $(TEST_FLAGS) -count 1 -timeout 20m -run WhateverHappened ./services/syncloop

##@ Measure
.PHONY: bench
bench: packages build $(CLUSTER) $(CONFORMANCE)/bin/kubelet ## Measure pods beside the kubelet, nodes of one API server, streams, probes and volumes; writes bench.json and the tables of the documents
	@tools/scripts/packages busybox-static
	@go run ./test/bench -out bench.json
	@go run ./test/bench -tables -out bench.json
	@go run ./test/bench -hollow 50 -out ""
	@go run ./test/bench -costs 10,500 -out ""
	@go test ./services/configmux ./services/configmux/internal/mux ./services/configmux/internal/server -run '^$$' -bench . -timeout 20m
	@go -C services/configmux/internal/mux/oracle test -run '^$$' -bench .
	@go test ./services/pleg -run '^$$' -bench . -timeout 20m
	@go test ./services/syncloop/internal/probe/prober ./services/syncloop/internal/probe/probecalls -run '^$$' -bench .
	@go test ./services/syncloop/internal/storage/volumeprojected -run '^$$' -bench .
	@go test ./services/syncloop/internal/cluster/statusmanager -run '^$$' -bench .

# The kubelet and the programs of a cluster are built first, which takes some minutes once.
.PHONY: bench-site
bench-site: build $(CLUSTER) ## Measure one configmux for 200 nodes beside a watch for each; writes bench-site.json
	@go run ./test/bench -site 200 -out bench-site.json

.PHONY: bench-volumes
bench-volumes: packages build $(CLUSTER) $(CONFORMANCE)/bin/kubelet ## Measure pods with CSI volumes beside the kubelet; needs root; writes bench-volumes.json
	@tools/scripts/packages busybox-static
	@go run ./test/bench -volumes 100 -rounds 3 -out bench-volumes.json
