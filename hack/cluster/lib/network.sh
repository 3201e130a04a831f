# shellcheck shell=bash
# The node's network: one bridge, whose address is also the node's; two rules
# that let its traffic pass and one that hides pods behind the machine.

readonly RULE_NAME=agenttask-cluster

# changed_sysctls prints the kernel settings that the cluster's parts change.
# `down` puts the former values back.
changed_sysctls() {
  printf '%s\n' net/ipv4/ip_forward net/bridge/bridge-nf-call-iptables net/ipv4/vs/conntrack \
    net/ipv4/conf/all/route_localnet net/netfilter/nf_conntrack_max \
    net/netfilter/nf_conntrack_tcp_timeout_established net/netfilter/nf_conntrack_tcp_timeout_close_wait \
    net/netfilter/nf_conntrack_tcp_be_liberal \
    vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes
}

save_sysctls() {
  local key
  [[ ! -e "$STATE_DIR/sysctls" ]] || return 0
  while read -r key; do
    if [[ -r "/proc/sys/$key" ]]; then echo "$key $(cat "/proc/sys/$key")"; fi
  done < <(changed_sysctls) | write "$STATE_DIR/sysctls"
}

restore_sysctls() {
  local key value
  [[ -e "$STATE_DIR/sysctls" ]] || return 0
  while read -r key value; do
    if [[ "$(cat "/proc/sys/$key" 2>/dev/null)" != "$value" ]]; then
      { echo "$value" >"/proc/sys/$key"; } 2>/dev/null || log "could not put $key back to $value"
    fi
  done <"$STATE_DIR/sysctls"
}

# packet_rules prints the arguments of our iptables rules, without the verb.
packet_rules() {
  local mark="-m comment --comment $RULE_NAME"
  echo "filter FORWARD -i $BRIDGE $mark -j ACCEPT"
  echo "filter FORWARD -o $BRIDGE $mark -j ACCEPT"
  echo "nat POSTROUTING -s $POD_CIDR ! -d $POD_CIDR $mark -j MASQUERADE"
}

add_packet_rules() {
  local table chain rule
  while read -r table chain rule; do
    # The rule's words are separate arguments.
    # shellcheck disable=SC2086
    iptables -w -t "$table" -C "$chain" $rule 2>/dev/null || iptables -w -t "$table" -I "$chain" $rule
  done < <(packet_rules)
}

# kube-proxy makes the chain KUBE-FIREWALL and leaves it, since kubelets used to
# own it. It is ours to remove unless it was there before.
readonly SHARED_CHAIN=KUBE-FIREWALL

note_shared_chain() {
  if [[ ! -e "$STATE_DIR/shared-chain" ]]; then
    if iptables -w -n -L "$SHARED_CHAIN" >/dev/null 2>&1; then echo foreign; else echo ours; fi | write "$STATE_DIR/shared-chain"
  fi
}

remove_shared_chain() {
  local tool chain
  [[ "$(cat "$STATE_DIR/shared-chain" 2>/dev/null)" == ours ]] || return 0
  for tool in iptables ip6tables; do
    for chain in INPUT OUTPUT; do "$tool" -w -D "$chain" -j "$SHARED_CHAIN" 2>/dev/null || true; done
    "$tool" -w -F "$SHARED_CHAIN" 2>/dev/null || true
    "$tool" -w -X "$SHARED_CHAIN" 2>/dev/null || true
  done
}

remove_packet_rules() {
  local table chain rule
  command -v iptables >/dev/null || return 0
  while read -r table chain rule; do
    # shellcheck disable=SC2086
    while iptables -w -t "$table" -D "$chain" $rule 2>/dev/null; do :; done
  done < <(packet_rules)
}

refuse_taken_addresses() {
  local cidr taken
  for cidr in "$POD_CIDR" "$SERVICE_CIDR"; do
    taken="$(ip -4 route show root "$cidr" | grep -vw "dev $BRIDGE" | head -n 1)" || true
    [[ -z "$taken" ]] || die "$cidr, which the cluster uses, is taken on this machine ($taken): take that network down first"
  done
}

refuse_second_cluster() {
  if [[ -d /sys/class/net/$BRIDGE && ! -e "$STATE_DIR/sysctls" ]]; then
    die "the interface $BRIDGE is there, so this machine has another such cluster: take that down first, with the AGENTTASK_CLUSTER_DIR it was started with (or, if none runs, 'ip link delete $BRIDGE')"
  fi
}

start_network() {
  refuse_second_cluster
  refuse_taken_addresses
  save_sysctls
  note_shared_chain
  if [[ ! -d /sys/class/net/$BRIDGE ]]; then
    ip link add "$BRIDGE" type bridge
  fi
  if ! ip -4 addr show dev "$BRIDGE" | grep -qF "$GATEWAY_IP/"; then
    ip addr add "$GATEWAY_IP/${POD_CIDR#*/}" dev "$BRIDGE"
  fi
  ip link set "$BRIDGE" up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  # Answers between two pods on the bridge must pass the service rules too.
  [[ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]] || modprobe br_netfilter 2>/dev/null || true
  [[ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]] ||
    die "the kernel has no br_netfilter: load that module (modprobe br_netfilter), or services will not answer pods"
  echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
  add_packet_rules
}

outgoing_mtu() {
  local device
  device="$(ip -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)"
  cat "/sys/class/net/${device:-lo}/mtu" 2>/dev/null || echo 1500
}

write_cni_config() {
  local mtu
  mtu="$(outgoing_mtu)"
  mkdir -p "$CONF_DIR/cni"
  write "$CONF_DIR/cni/10-agenttask.conflist" <<END
{
  "cniVersion": "1.0.0",
  "name": "agenttask",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "$BRIDGE",
      "isGateway": true,
      "hairpinMode": true,
      "mtu": $((mtu > 1500 ? 1500 : mtu)),
      "ipam": {
        "type": "host-local",
        "dataDir": "$STATE_DIR/cni",
        "ranges": [[{"subnet": "$POD_CIDR", "gateway": "$GATEWAY_IP"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
END
}
