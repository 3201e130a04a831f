# shellcheck shell=bash
# Taking it all away: pods first, through the runtime, so that each gives back
# its interface, mounts and cgroup; then the daemons; then what is left.

# our_shims prints the process ids of container shims that serve our socket.
our_shims() {
  local dir
  for dir in /proc/[0-9]*; do
    if tr '\0' '\n' 2>/dev/null <"$dir/cmdline" | grep -qxF "$CONTAINERD_SOCKET"; then echo "${dir#/proc/}"; fi
  done
}

remove_pods() {
  # A runtime that has ended is started again: it alone knows the pods.
  if ! daemon_alive containerd; then
    (start_containerd) || log "containerd does not start; removing pods without it"
  fi
  nodectl -timeout 60s purge || log "some pods were not removed cleanly"
}

shims_gone() { [[ -z "$(our_shims)" ]]; }

# end_shims ends shims that outlived their pods, with what they hold.
end_shims() {
  local pid deadline=$((SECONDS + 5))
  until shims_gone || ((SECONDS >= deadline)); do sleep 0.1; done
  for pid in $(our_shims); do
    log "ending the left-over shim $pid"
    kill -s KILL "$pid" 2>/dev/null || true
  done
}

# end_cgroup_processes ends what still runs in the pods' cgroups, once no shim
# is left that would do it.
end_cgroup_processes() {
  local file pid
  while read -r file; do
    while read -r pid; do
      kill -s KILL "$pid" 2>/dev/null || true
    done < <(cat "$file/cgroup.procs" 2>/dev/null)
  done < <(pod_cgroups)
}

# pod_cgroups prints our cgroups, deepest first.
pod_cgroups() {
  local hierarchy
  while read -r hierarchy; do
    if [[ -d "$hierarchy/$CGROUP" ]]; then find "$hierarchy/$CGROUP" -depth -type d; fi
  done < <(cgroup_hierarchies)
}

remove_cgroups() {
  local dir
  while read -r dir; do rmdir "$dir" 2>/dev/null || true; done < <(pod_cgroups)
}

unmount_all() {
  local target
  # Deepest first, and what was mounted last before what lies under it.
  while read -r target; do
    umount "$target" 2>/dev/null || umount --lazy "$target"
  done < <(awk -v dir="$STATE_DIR/" 'index($5, dir) == 1 {print $5}' /proc/self/mountinfo | tac)
}

remove_network() {
  if [[ -x "$BIN_DIR/kube-proxy" ]]; then
    "$BIN_DIR/kube-proxy" --cleanup --config "$CONF_DIR/kube-proxy.yaml" >>"$LOG_DIR/kube-proxy.log" 2>&1 ||
      log "kube-proxy could not remove all of its rules: see 'iptables-save | grep KUBE'"
  fi
  remove_packet_rules
  remove_shared_chain
  if [[ -d /sys/class/net/$BRIDGE ]]; then ip link delete "$BRIDGE"; fi
  restore_sysctls
}

# remove_strays removes what the runtime and the kubelet keep at places of
# their own choice. A folder that somebody else uses is not empty and stays.
remove_strays() {
  local dir link socket
  for link in /var/log/containers/*; do
    if [[ -L "$link" && "$(readlink "$link")" == "$STATE_DIR"/* ]]; then rm -f "$link"; fi
  done
  rm -f /var/lib/cni/results/agenttask-*
  # The places of these sockets are fixed. One that somebody listens on stays.
  for socket in /var/lib/kubelet/device-plugins/kubelet.sock /run/containerd/s/*; do
    if [[ -S "$socket" ]] && ! grep -qF "$socket" /proc/net/unix; then rm -f "$socket"; fi
  done
  for dir in /var/lib/kubelet/device-plugins /var/lib/kubelet /var/log/containers \
    /var/lib/cni/results /var/lib/cni /run/containerd/s /run/containerd /run/mount; do
    rmdir "$dir" 2>/dev/null || true
  done
}

remove_node() {
  stop_daemon kubelet
  if [[ -e "$CONF_DIR/containerd.toml" ]]; then
    remove_pods
    end_shims
  fi
  stop_daemon containerd
  stop_daemon kube-proxy
  stop_daemon cluster-dns
  end_cgroup_processes
  unmount_all
  remove_cgroups
  remove_network
  remove_strays
}

remove_state() {
  if [[ -r /proc/self/mountinfo ]] && grep -qF " $STATE_DIR/" /proc/self/mountinfo; then
    die "something is still mounted below $STATE_DIR (see /proc/mounts): unmount it, then run 'down' again"
  fi
  rm -rf --one-file-system "$STATE_DIR"
}

remove_cluster() {
  if [[ ! -e "$STATE_DIR/.agenttask-cluster" ]]; then
    log "no cluster at $STATE_DIR"
    return
  fi
  local daemon
  log "taking the cluster at $STATE_DIR down"
  if can_run_node && [[ -e "$STATE_DIR/sysctls" ]]; then remove_node; fi
  # What they would do before they end is of no use: their data goes too.
  for daemon in kube-scheduler kube-controller-manager kube-apiserver etcd; do stop_daemon "$daemon" 2; done
  remove_state
  log "the cluster is down; the built programs stay in $BIN_DIR"
}
