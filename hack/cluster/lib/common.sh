# shellcheck shell=bash
# Settings and the small helpers that every part uses. Most settings are read in
# the other parts.
# shellcheck disable=SC2034

readonly K8S_VERSION=v1.37.2
readonly NODE_NAME=agenttask
readonly BRIDGE=agenttask0
readonly POD_CIDR=10.213.0.0/16
readonly GATEWAY_IP=10.213.0.1
readonly SERVICE_CIDR=10.96.0.0/16
readonly API_SERVICE_IP=10.96.0.1
readonly DNS_SERVICE_IP=10.96.0.10
readonly DNS_PORT=10053
readonly ETCD_PORT=12379
readonly ETCD_PEER_PORT=12380
readonly API_PORT="${AGENTTASK_API_PORT:-6443}"

log() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

is_linux() { [[ "$(uname -s)" == Linux ]]; }
is_root() { [[ "$(id -u)" == 0 ]]; }
# A node needs namespaces, cgroups and network interfaces, and so root on Linux.
can_run_node() { is_linux && is_root; }

default_state_dir() {
  if is_root; then
    echo /var/lib/agenttask-cluster
  else
    echo "${XDG_STATE_HOME:-$HOME/.local/state}/agenttask-cluster"
  fi
}

# The API server listens on the bridge's address, which pods and this machine
# reach and nobody else; without a node on loopback.
api_ip() {
  if can_run_node; then echo "$GATEWAY_IP"; else echo 127.0.0.1; fi
}

settle_paths() {
  CACHE_DIR="${AGENTTASK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/agenttask}"
  STATE_DIR="${AGENTTASK_CLUSTER_DIR:-$(default_state_dir)}"
  [[ "$STATE_DIR" == /*/* ]] ||
    die "AGENTTASK_CLUSTER_DIR is '$STATE_DIR': set it to an absolute path of a folder of its own"
  # Sockets lie below it, and a socket's path ends at 107 characters.
  [[ ${#STATE_DIR} -le 60 ]] ||
    die "AGENTTASK_CLUSTER_DIR is ${#STATE_DIR} characters long: choose a path of at most 60, since sockets lie below it"
  BIN_DIR="$CACHE_DIR/k8s-$K8S_VERSION/bin"
  LOG_DIR="$STATE_DIR/logs"
  RUN_DIR="$STATE_DIR/run"
  PKI_DIR="$STATE_DIR/pki"
  CONF_DIR="$STATE_DIR/conf"
  KUBECONFIG_FILE="$STATE_DIR/kubeconfig"
  CGROUP=agenttask
  CONTAINERD_SOCKET="$STATE_DIR/containerd/containerd.sock"
}

kubectl_admin() { "$BIN_DIR/kubectl" --kubeconfig "$KUBECONFIG_FILE" "$@"; }

# foreign_kubeconfig succeeds when the user has pointed KUBECONFIG at a cluster
# of their own.
foreign_kubeconfig() {
  [[ -n "${KUBECONFIG:-}" && ! "$KUBECONFIG" -ef "$KUBECONFIG_FILE" && "$KUBECONFIG" != "$KUBECONFIG_FILE" ]]
}

# with_lock NAME COMMAND... runs the command while no other caller runs one
# under the same name. The lock is the kernel's, so it ends with its holder.
with_lock() {
  local name="$1"; shift
  mkdir -p "$CACHE_DIR"
  if ! command -v flock >/dev/null; then
    "$@"
    return
  fi
  exec 9>"$CACHE_DIR/$name.lock"
  if ! flock -n 9; then
    log "another '$name' is running; waiting for it to end"
    flock 9
  fi
  "$@"
  exec 9>&-
}

# wait_for WHAT SECONDS DAEMONS COMMAND... repeats the command until it
# succeeds. It gives up, showing the end of a daemon's log, when the time is
# over or one of the daemons, which are given as one argument, has ended.
wait_for() {
  local what="$1" limit="$2" daemons="$3" daemon; shift 3
  local deadline=$((SECONDS + limit))
  until "$@" >/dev/null 2>&1; do
    for daemon in $daemons; do
      daemon_alive "$daemon" || fail_with_log "$daemon" "$daemon ended while waiting for $what"
    done
    if ((SECONDS >= deadline)); then
      "$@" >&2 || true
      fail_with_log "$daemon" "waited $limit s for $what"
    fi
    sleep 0.1
  done
}

fail_with_log() {
  local daemon="$1" message="$2"
  log "--- the end of $LOG_DIR/$daemon.log"
  { tail -n 15 "$LOG_DIR/$daemon.log" | cut -c 1-400 >&2; } || true
  log "---"
  die "$message"
}

# write FILE puts standard input in the file, whole or not at all.
write() {
  cat >"$1.new"
  mv -f "$1.new" "$1"
}
