# shellcheck shell=bash
# Programs: built from Go modules once, kept outside the checkout by version.

# programs prints a line for each: name, folder of its module, package.
programs() {
  local k8s=k8s.io/kubernetes/cmd
  cat <<END
etcd etcd go.etcd.io/etcd/server/v3
etcdutl etcd go.etcd.io/etcd/etcdutl/v3
kube-apiserver . $k8s/kube-apiserver
kubectl . $k8s/kubectl
kube-controller-manager . $k8s/kube-controller-manager
kube-scheduler . $k8s/kube-scheduler
END
  is_linux || return 0
  cat <<END
kubelet . $k8s/kubelet
kube-proxy . $k8s/kube-proxy
cluster-dns dns .
nodectl . ./cmd/nodectl
pause . ./cmd/pause
mkimage ../images ./cmd/mkimage
END
}

# fingerprint MODULE PACKAGE changes whenever the program has to be built anew:
# with what its module requires, or, for a program of this repository, with its
# source too.
fingerprint() {
  local module="$CLUSTER_ROOT/$1" package="$2"
  case "$package" in
    ./* | .) cat "$module/go.mod" "$module/$package"/*.go | cksum ;;
    *) cksum <"$module/go.mod" ;;
  esac
}

is_built() {
  local name="$1" module="$2" package="$3"
  [[ -x "$BIN_DIR/$name" && "$(cat "$BIN_DIR/.$name.built" 2>/dev/null)" == "$(fingerprint "$module" "$package")" ]]
}

missing_programs() {
  local name module package
  while read -r name module package; do
    is_built "$name" "$module" "$package" || echo "$name $module $package"
  done < <(programs)
}

link_flags() {
  local version=k8s.io/component-base/version minor="${K8S_VERSION#v*.}"
  echo "-s -w -X $version.gitVersion=$K8S_VERSION -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}"
}

build_program() {
  local name="$1" module="$2" package="$3"
  (
    cd "$CLUSTER_ROOT/$module" &&
      GOWORK=off GOFLAGS='' CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath \
        -ldflags "$(link_flags)" -o "$BIN_DIR/.$name.partial" "$package"
  ) || die "building $name failed: the lines above say why"
  mv -f "$BIN_DIR/.$name.partial" "$BIN_DIR/$name"
  fingerprint "$module" "$package" | write "$BIN_DIR/.$name.built"
}

build_missing() {
  local missing name module package count at=0
  missing="$(missing_programs)"
  [[ -n "$missing" ]] || return 0
  command -v go >/dev/null || die "no 'go' on the PATH: install the Go release that go.mod names, or a later one"
  count="$(wc -l <<<"$missing" | tr -d ' ')"
  log "building $count programs into $BIN_DIR"
  if grep -q '^kube-apiserver ' <<<"$missing"; then
    log "  the first time this takes 10 to 15 minutes on two cores; afterwards they are there"
  fi
  mkdir -p "$BIN_DIR"
  while read -r name module package; do
    at=$((at + 1))
    log "  $at of $count: $name"
    build_program "$name" "$module" "$package"
  done <<<"$missing"
}

build() {
  if [[ -n "$(missing_programs)" ]]; then with_lock build build_missing; fi
}
