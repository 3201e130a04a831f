#!/usr/bin/env bash
# Builds the project's images without a container engine and gives them to the
# node of hack/cluster. What has not changed is neither built nor loaded again.
#
#   VERSION                the images' tag (default: dev)
#   AGENTTASK_CACHE        where archives are kept (default: ~/.cache/agenttask)
#   AGENTTASK_SKIP_IMAGES  1: do nothing, successfully, when KUBECONFIG is another cluster's
set -euo pipefail

IMAGES_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
SOURCE_ROOT="$(cd "$IMAGES_ROOT/../.." && pwd)"
CLUSTER="$SOURCE_ROOT/hack/cluster/cluster.sh"
REGISTRY=ghcr.io/agenttask-dev
VERSION="${VERSION:-dev}"
# shellcheck source=/dev/null
source "$SOURCE_ROOT/hack/cluster/lib/common.sh"

# refuse_foreign_cluster ends the run when KUBECONFIG is not that of hack/cluster.
refuse_foreign_cluster() {
  foreign_kubeconfig || return 0
  if [[ "${AGENTTASK_SKIP_IMAGES:-}" == 1 ]]; then
    log "KUBECONFIG is set to $KUBECONFIG: leaving the images to its registry"
    exit 0
  fi
  die "KUBECONFIG is set to $KUBECONFIG, so the images must be pushed to a registry which that cluster can pull from (then set AGENTTASK_SKIP_IMAGES=1 to pass this step)"
}

go_build() {
  local folder="$1" package="$2" output="$3"; shift 3
  (
    cd "$folder" &&
      GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w $*" -o "$output" "$package"
  ) || die "building $package in $folder failed: the lines above say why"
}

# archive NAME INPUT FLAGS... writes NAME.tar with mkimage, unless the archive
# there was made by the same mkimage from the same input and flags.
archive() {
  local name="$1" input="$2" key; shift 2
  key="$(cat "$OUT/bin/mkimage" "$input" | cksum) $*"
  if [[ -s "$OUT/$name.tar" && "$(cat "$OUT/$name.key" 2>/dev/null)" == "$key" ]]; then
    log "  $name: unchanged"
    return
  fi
  rm -f "$OUT/$name.key"
  "$OUT/bin/mkimage" -out "$OUT/$name.tar" "$@"
  echo "$key" >"$OUT/$name.key"
  log "  $name: built"
}

# program_image IMAGE COMMAND wraps ./cmd/COMMAND of the root module; the command's
# name is also that of the entrypoint.
program_image() {
  local image="$1" command="$2" flags=()
  [[ -d "$SOURCE_ROOT/cmd/$command" ]] || die "there is no cmd/$command to build the image $image from"
  GOOS=linux go_build "$SOURCE_ROOT" "./cmd/$command" "$OUT/bin/$command" "-X github.com/agenttask-dev/agenttask/internal/version.Version=$VERSION"
  if [[ -r /etc/ssl/certs/ca-certificates.crt ]]; then flags=(-ca /etc/ssl/certs/ca-certificates.crt); fi
  archive "$image" "$OUT/bin/$command" -tag "$REGISTRY/$image:$VERSION" \
    -program "$OUT/bin/$command" -name "$command" -arch "$(go env GOARCH)" ${flags[@]+"${flags[@]}"}
}

busybox_image() {
  local busybox
  busybox="$(command -v busybox)" || die "no 'busybox' on the PATH: install the package busybox-static"
  archive busybox "$busybox" -tag docker.io/library/busybox:1.35 -busybox "$busybox"
}

build_images() {
  mkdir -p "$OUT/bin"
  log "building images into $OUT"
  go_build "$IMAGES_ROOT" ./cmd/mkimage "$OUT/bin/mkimage"
  program_image operator manager
  program_image runner runner
  program_image sample-agent sample-agent
  busybox_image
}

main() {
  [[ "$VERSION" =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] ||
    die "VERSION is '$VERSION': use letters, digits, '.', '_' and '-', at most 128 of them"
  command -v go >/dev/null || die "no 'go' on the PATH: install the Go release that go.mod names, or a later one"
  settle_paths
  OUT="$CACHE_DIR/images"
  refuse_foreign_cluster
  with_lock images build_images
  "$CLUSTER" load "$OUT"/{operator,runner,sample-agent,busybox}.tar
}

main "$@"
