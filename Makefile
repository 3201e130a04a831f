# Everything there is to do, one line each: make help
#
# If KUBECONFIG is set, that cluster is used; otherwise the one of hack/cluster, which
# make cluster-up starts on this machine.

VERSION ?= dev
IMG_REGISTRY ?= ghcr.io/agenttask-dev

export VERSION
export GOWORK := off

MODULES := . hack/tools hack/golangci hack/images hack/cluster hack/cluster/dns hack/cluster/etcd
# Folders with Go code of this module, and modules with Go code of their own.
GO_FOLDERS := $(wildcard api cmd controllers internal test hack)
VETTED := . hack/images hack/cluster hack/cluster/dns
GENERATED := $(wildcard api/*/zz_generated.deepcopy.go) config/crd/bases config/rbac/role.yaml
SCRIPTS = $(shell git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
KUSTOMIZATIONS := $(patsubst %/kustomization.yaml,%,$(wildcard config/*/kustomization.yaml))

CLUSTER := hack/cluster/cluster.sh
# Puts a cluster's kubeconfig and programs into a recipe's environment.
USE_CLUSTER = eval "$$($(CLUSTER) env)"
TOOLS := bin/tools
CONTROLLER_GEN := $(TOOLS)/controller-gen
KUSTOMIZE := $(TOOLS)/kustomize
GOLANGCI_LINT := $(TOOLS)/golangci-lint
LDFLAGS := -s -w -X github.com/agenttask-dev/agenttask/internal/version.Version=$(VERSION)
# The race detector needs a C compiler.
RACE = $(if $(shell command -v "$$(go env CC)"),-race)

.DEFAULT_GOAL := help
# The parts of make test run one after the other, in the order they are named in.
.NOTPARALLEL:

##@ Start here

.PHONY: help
help: ## say what can be done (this)
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## from nothing to a finished eight-step task, the operator killed in between
	@hack/demo.sh

.PHONY: test
test: verify test-unit test-integration test-faults-spread ## all checks and tests: verify, unit, integration, a spread of faults, e2e
	@if [ -n "$$KUBECONFIG" ] || { [ "$$(uname -s)" = Linux ] && [ "$$(id -u)" = 0 ]; }; then \
		$(MAKE) --no-print-directory test-e2e; \
	elif [ "$$CI" = true ]; then \
		echo "test: the e2e tests need root on Linux (for a node), or KUBECONFIG of a cluster" >&2; exit 1; \
	else \
		echo "LEFT OUT: the e2e tests, which need root on Linux (for a node), or KUBECONFIG of a cluster"; \
	fi

##@ Code

.PHONY: generate
generate: $(CONTROLLER_GEN) ## write what is generated: deep copies, CRDs, the operator's ClusterRole
	@$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...
	@$(CONTROLLER_GEN) crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir=config/crd/bases
	@go run ./hack/crdtrim config/crd/bases/*.yaml
	@$(CONTROLLER_GEN) rbac:roleName=agenttask-operator,headerFile=config/rbac/role_header.txt \
		paths=./controllers/... output:rbac:dir=config/rbac

.PHONY: fmt
fmt: ## format the Go code
	@gofmt -w $(GO_FOLDERS)

.PHONY: lint
lint: $(GOLANGCI_LINT) ## run golangci-lint
	@$(GOLANGCI_LINT) run ./...

.PHONY: build
build: ## build bin/manager and bin/runner
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/manager ./cmd/runner

##@ Checks and tests

.PHONY: verify
verify: verify-generated verify-go lint verify-scripts verify-manifests ## check all that needs no running: generated files, format, lint, modules, scripts, manifests

.PHONY: verify-generated
verify-generated:
	@before="$$(find $(GENERATED) -type f -exec cksum {} + | sort)"; \
	$(MAKE) --no-print-directory generate >/dev/null || exit 1; \
	after="$$(find $(GENERATED) -type f -exec cksum {} + | sort)"; \
	if [ "$$before" != "$$after" ]; then \
		echo "verify: generated files were out of date and are now written anew; commit them" >&2; exit 1; \
	fi; \
	changed="$$(git status --porcelain -- $(GENERATED) 2>/dev/null)"; \
	if [ "$$CI" != true ]; then changed="$$(echo "$$changed" | grep '^??')"; fi; \
	if [ -n "$$changed" ]; then \
		echo "verify: generated files are not committed:" >&2; echo "$$changed" >&2; exit 1; \
	fi

.PHONY: verify-go
verify-go:
	@unformatted="$$(gofmt -l $(GO_FOLDERS))"; \
	if [ -n "$$unformatted" ]; then \
		echo "verify: not formatted (make fmt does it):" >&2; echo "$$unformatted" >&2; exit 1; \
	fi
	@for module in $(VETTED); do (cd $$module && go vet ./...) || exit 1; done
	@for module in $(MODULES); do \
		(cd $$module && go mod tidy -diff) || { echo "verify: run go mod tidy in $$module" >&2; exit 1; }; \
	done

.PHONY: verify-scripts
verify-scripts:
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); \
	else echo "LEFT OUT: the check of shell scripts, which needs shellcheck"; fi

.PHONY: verify-manifests
verify-manifests: $(KUSTOMIZE)
	@for folder in $(KUSTOMIZATIONS); do $(KUSTOMIZE) build $$folder >/dev/null || exit 1; done

.PHONY: test-unit
test-unit: ## tests that need no cluster, with the race detector
	@if [ -z "$(RACE)" ]; then echo "LEFT OUT: the race detector, which needs a C compiler"; fi
	@go test $(RACE) $$(go list ./... | grep -Ev '/test/(integration|faults|e2e)(/|$$)')

.PHONY: test-integration
test-integration: ## tests against a real API server, without a node
	@assets="$${KUBEBUILDER_ASSETS:-$$($(CLUSTER) build)}" && \
	KUBEBUILDER_ASSETS="$$assets" go test -count=1 -timeout 30m ./test/integration/...

# A case that fails prints the command that replays it alone.
USE_FAULTS = assets="$${KUBEBUILDER_ASSETS:-$$($(CLUSTER) build)}" && export KUBEBUILDER_ASSETS="$$assets" \
	AGENTTASK_FAULTS_PAIRS="$(PAIRS)" AGENTTASK_FAULT_CASE="$(CASE)" AGENTTASK_FAULTS_REPORT="$(REPORT)"

.PHONY: test-faults-spread
test-faults-spread: ## a fixed spread of the fault matrix
	@$(USE_FAULTS) && go test -count=1 -timeout 30m ./test/faults/...

.PHONY: test-faults
test-faults: ## the fault matrix: every single fault at every write (PAIRS=1: pairs of crashes; CASE=write-07/die-after: one; REPORT=file: write the table)
	@$(USE_FAULTS) && AGENTTASK_FAULTS_ALL=1 go test -count=1 -timeout 120m -v ./test/faults/... | grep -v '^ *--- PASS\|^=== '

.PHONY: test-e2e
test-e2e: cluster-up cluster-images ## tests with real containers on a real cluster
	@$(USE_CLUSTER) && go test -count=1 -timeout 60m ./test/e2e/...

.PHONY: test-soak
test-soak: cluster-up cluster-images ## 50 tasks of 8 steps, while the operator is killed every 200 to 900 ms
	@$(USE_CLUSTER) && AGENTTASK_SOAK=50 go test -v -count=1 -timeout 60m ./test/e2e/... -ginkgo.focus "dies all the time"

.PHONY: bench
bench: ## measure the operator against a bare loop that makes the same writes
	@assets="$${KUBEBUILDER_ASSETS:-$$($(CLUSTER) build)}" && \
	KUBEBUILDER_ASSETS="$$assets" go run ./hack/bench

##@ Cluster

.PHONY: cluster-up
cluster-up: ## start a one-node Kubernetes on this machine (nothing to do if KUBECONFIG is set)
	@$(CLUSTER) up

.PHONY: cluster-down
cluster-down: ## take that cluster away, with all that it holds
	@$(CLUSTER) down

.PHONY: cluster-images
cluster-images: ## build the images without a container engine and give them to that cluster
	@hack/images/build.sh

.PHONY: install
install: ## install the CRDs into the cluster
	@$(USE_CLUSTER) && kubectl apply -f config/crd/bases

.PHONY: uninstall
uninstall: ## remove the CRDs, and with them every task
	@$(USE_CLUSTER) && kubectl delete --ignore-not-found -f config/crd/bases

.PHONY: deploy
deploy: manifests-bundle ## install the operator and its CRDs into the cluster
	@$(USE_CLUSTER) && kubectl apply -f dist/install.yaml

.PHONY: undeploy
undeploy: manifests-bundle ## remove the operator and its CRDs, and with them every task
	@$(USE_CLUSTER) && if kubectl get crd agenttasks.agenttask.dev >/dev/null 2>&1; then \
		kubectl delete agenttasks --all --all-namespaces --cascade=foreground; fi && \
	kubectl delete --ignore-not-found -f dist/install.yaml

##@ Release

.PHONY: manifests-bundle
manifests-bundle: $(KUSTOMIZE) ## write dist/install.yaml (VERSION=dev IMG_REGISTRY=ghcr.io/agenttask-dev)
	@mkdir -p dist
	@$(KUSTOMIZE) build config/default >dist/install.yaml.dev
	@sed -e 's#ghcr.io/agenttask-dev/operator:dev$$#$(IMG_REGISTRY)/operator:$(VERSION)#' \
		-e 's#ghcr.io/agenttask-dev/runner:dev$$#$(IMG_REGISTRY)/runner:$(VERSION)#' dist/install.yaml.dev >dist/install.yaml
	@rm dist/install.yaml.dev

.PHONY: docker-build
docker-build: ## build the images with docker buildx (VERSION=dev IMG_REGISTRY=ghcr.io/agenttask-dev)
	@for image in operator runner sample-agent; do \
		docker buildx build --load --target $$image --build-arg VERSION=$(VERSION) -t $(IMG_REGISTRY)/$$image:$(VERSION) . || exit 1; \
	done

# Tools, built anew when the go.mod that pins them changes.

$(CONTROLLER_GEN): hack/tools/go.mod
	@echo "building $@"
	@cd hack/tools && go build -o ../../$@ sigs.k8s.io/controller-tools/cmd/controller-gen

$(KUSTOMIZE): hack/tools/go.mod
	@echo "building $@"
	@cd hack/tools && go build -o ../../$@ sigs.k8s.io/kustomize/kustomize/v5

$(GOLANGCI_LINT): hack/golangci/go.mod
	@echo "building $@ (a minute or two, once)"
	@cd hack/golangci && go build -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
