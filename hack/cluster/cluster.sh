#!/usr/bin/env bash
# A one-node Kubernetes for trying and testing AgentTask: README.md tells more.
set -euo pipefail

CLUSTER_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
for part in common process build pki controlplane packages network node down; do
  # shellcheck source=/dev/null
  source "$CLUSTER_ROOT/lib/$part.sh"
done

usage() {
  cat <<'END'
usage: cluster.sh VERB
  build         build the cluster's programs, if they are not there yet
  up            bring the cluster up; does nothing if it is up and well
  down          take it away with all that it holds
  env           print what to put in a shell: eval "$(cluster.sh env)"
  status        say what runs
  load FILE...  give the node images from docker archives
END
}

daemons() {
  echo "$CONTROL_PLANE"
  if can_run_node; then echo "$NODE_DAEMONS"; fi
}

is_well() {
  local daemon
  for daemon in $(daemons); do daemon_alive "$daemon" || return 1; done
  api_ready >/dev/null 2>&1 || return 1
  if can_run_node; then node_ready 2>/dev/null; fi
}

claim_state_dir() {
  local mark="$STATE_DIR/.agenttask-cluster"
  if [[ ! -e "$mark" && -n "$(ls -A "$STATE_DIR" 2>/dev/null)" ]]; then
    die "$STATE_DIR holds files that are not a cluster's: set AGENTTASK_CLUSTER_DIR to another folder"
  fi
  mkdir -p "$STATE_DIR"
  chmod 700 "$STATE_DIR"
  touch "$mark"
}

start_cluster() {
  if is_well; then
    log "the cluster is already up (KUBECONFIG=$KUBECONFIG_FILE)"
    return
  fi
  claim_state_dir
  if can_run_node; then
    install_packages
    start_network
  else
    log "there will be no node, only the control plane: a node needs root on Linux. Pods will stay Pending."
  fi
  make_certificates
  log "starting the control plane"
  start_control_plane
  if can_run_node; then start_node; fi
  finish_control_plane
  if can_run_node; then finish_node; fi
  log "the cluster is up after $SECONDS s (KUBECONFIG=$KUBECONFIG_FILE)"
}

start_node() {
  log "starting the node"
  start_containerd
  load_pause_image
  start_kubelet
  start_proxy
  start_dns
  apply_node_objects
}

up() {
  if foreign_kubeconfig; then
    log "KUBECONFIG is set: using the cluster of $KUBECONFIG, starting nothing"
    return
  fi
  build
  SECONDS=0
  with_lock cluster start_cluster
}

down() {
  if foreign_kubeconfig; then
    die "KUBECONFIG is set to $KUBECONFIG, which is not this cluster's: unset it to take the cluster at $STATE_DIR down"
  fi
  with_lock cluster remove_cluster
}

print_env() {
  if ! foreign_kubeconfig; then printf 'export KUBECONFIG=%q\n' "$KUBECONFIG_FILE"; fi
  printf 'export KUBEBUILDER_ASSETS=%q\n' "$BIN_DIR"
  # The $PATH is for the shell that reads this.
  # shellcheck disable=SC2016
  printf 'case ":$PATH:" in *:%q:*) ;; *) export PATH=%q:"$PATH" ;; esac\n' "$BIN_DIR" "$BIN_DIR"
}

status() {
  local daemon pid failed=0
  if foreign_kubeconfig; then
    log "KUBECONFIG is set: the cluster in use is that of $KUBECONFIG; the lines below are about $STATE_DIR"
  fi
  for daemon in $(daemons); do
    if pid="$(daemon_pid "$daemon")"; then
      printf '%-24s running  process %s\n' "$daemon" "$pid"
    else
      printf '%-24s stopped\n' "$daemon"
      failed=1
    fi
  done
  if ((failed)); then return 1; fi
  kubectl_admin get nodes -o wide
}

load() {
  [[ $# -gt 0 ]] || die "load: name at least one image archive"
  if foreign_kubeconfig; then
    die "KUBECONFIG is set to $KUBECONFIG: push the images to a registry which that cluster can pull from"
  fi
  daemon_alive containerd || die "there is no node to load images into: run '$0 up' first (a node needs root on Linux)"
  load_archives "$@"
}

main() {
  umask 022
  settle_paths
  local verb="${1:-}"
  if [[ $# -gt 0 ]]; then shift; fi
  case "$verb" in
    build) build; echo "$BIN_DIR" ;;
    up | down | status) "$verb" ;;
    env) print_env ;;
    load) load "$@" ;;
    -h | --help | help) usage ;;
    *) usage >&2; exit 2 ;;
  esac
}

main "$@"
