# The images operator, runner and sample-agent: docker buildx build --target operator --build-arg VERSION=v0.1.0 .
# Each is one static program on nothing else, run by a user without rights.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api/ api/
COPY cmd/ cmd/
COPY controllers/ controllers/
COPY internal/ internal/
ARG TARGETOS TARGETARCH VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X github.com/agenttask-dev/agenttask/internal/version.Version=$VERSION" \
    -o /out/ ./cmd/manager ./cmd/runner ./cmd/sample-agent

# The init container of each step's pod copies /runner into the pod, and the pod of an
# http action is this image.
FROM scratch AS runner
ARG VERSION=dev
LABEL org.opencontainers.image.title="AgentTask runner" \
      org.opencontainers.image.description="Runs a step's program inside its pod" \
      org.opencontainers.image.source="https://github.com/agenttask-dev/agenttask" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/runner /runner
USER 65532:65532
ENTRYPOINT ["/runner"]

# The programs of config/samples and of make demo.
FROM scratch AS sample-agent
ARG VERSION=dev
LABEL org.opencontainers.image.title="AgentTask sample agent" \
      org.opencontainers.image.description="The programs and the ledger of AgentTask's samples" \
      org.opencontainers.image.source="https://github.com/agenttask-dev/agenttask" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /out/sample-agent /sample-agent
USER 65532:65532
ENTRYPOINT ["/sample-agent"]

FROM scratch AS operator
ARG VERSION=dev
LABEL org.opencontainers.image.title="AgentTask operator" \
      org.opencontainers.image.description="Runs AgentTasks on Kubernetes, one step at a time" \
      org.opencontainers.image.source="https://github.com/agenttask-dev/agenttask" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
