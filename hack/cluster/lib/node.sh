# shellcheck shell=bash
# The node: container runtime, kubelet, service proxy, cluster DNS.

# shellcheck disable=SC2034 # read in cluster.sh
readonly NODE_DAEMONS="containerd kubelet kube-proxy cluster-dns"
readonly PAUSE_IMAGE=agenttask.dev/pause:1

# has_cap_sys_resource tells whether we may lower a process's oom_score_adj.
has_cap_sys_resource() {
  local effective
  effective="$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)"
  (((16#$effective >> 24) & 1))
}

snapshotter() {
  case "$(stat -f -c %T "$STATE_DIR")" in
    overlayfs) echo native ;; # overlayfs does not stack on itself
    *) echo overlayfs ;;
  esac
}

write_containerd_config() {
  local dir="$STATE_DIR/containerd" restrict=true
  if has_cap_sys_resource; then restrict=false; fi
  mkdir -p "$dir"
  write "$CONF_DIR/containerd.toml" <<END
version = 2
root = "$dir/root"
state = "$dir/state"
[grpc]
  address = "$CONTAINERD_SOCKET"
[debug]
  level = "warn"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = $restrict
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(cni_bin_dir)"
    conf_dir = "$CONF_DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$(snapshotter)"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "$dir/runc"
        SystemdCgroup = false
END
}

nodectl() { "$BIN_DIR/nodectl" -socket "$CONTAINERD_SOCKET" "$@"; }

start_containerd() {
  write_cni_config
  write_containerd_config
  start_daemon containerd containerd --config "$CONF_DIR/containerd.toml"
  wait_for "containerd and its pod network to be ready" 30 containerd nodectl -timeout 2s ready
}

# load_archives FILE... imports those that the runtime does not hold yet.
load_archives() {
  local missing file
  missing="$(nodectl missing "$@")"
  if [[ -z "$missing" ]]; then return; fi
  while read -r file; do
    ctr --address "$CONTAINERD_SOCKET" --namespace k8s.io images import --snapshotter "$(snapshotter)" "$file" >/dev/null
  done <<<"$missing"
  nodectl wait "$@"
}

load_pause_image() {
  local archive="$STATE_DIR/pause.tar"
  [[ -s "$archive" ]] ||
    "$BIN_DIR/mkimage" -tag "$PAUSE_IMAGE" -out "$archive" -program "$BIN_DIR/pause" -name pause -user 65535
  load_archives "$archive"
}

resolv_conf() {
  # A resolver on the machine's loopback is of no use inside a pod.
  if [[ -s /run/systemd/resolve/resolv.conf ]]; then
    echo /run/systemd/resolve/resolv.conf
  else
    echo /etc/resolv.conf
  fi
}

write_kubelet_config() {
  write "$CONF_DIR/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $GATEWAY_IP
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
podLogsDir: $STATE_DIR/pod-logs
volumePluginDir: $STATE_DIR/kubelet/volume-plugins
resolvConf: $(resolv_conf)
clusterDomain: cluster.local
clusterDNS: [$DNS_SERVICE_IP]
tlsCertFile: $PKI_DIR/kubelet.crt
tlsPrivateKeyFile: $PKI_DIR/kubelet.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $PKI_DIR/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
maxPods: 250
syncFrequency: 10s
serializeImagePulls: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard:
  memory.available: 50Mi
  nodefs.available: 1%
  nodefs.inodesFree: 1%
  imagefs.available: 1%
kubeAPIQPS: 200
kubeAPIBurst: 400
END
}

# cgroup_hierarchies prints the mount points of this machine's cgroups: one for
# version 2, one for each controller for version 1.
cgroup_hierarchies() {
  awk '$0 ~ / - cgroup2? / {print $5}' /proc/self/mountinfo
}

# make_cgroup makes the cgroup below which the kubelet keeps pods: apart from
# that of another kubelet, should there be one.
make_cgroup() {
  local hierarchy
  while read -r hierarchy; do
    if [[ -e "$hierarchy/cgroup.subtree_control" ]]; then
      sed 's/[^ ]*/+&/g' "$hierarchy/cgroup.controllers" >"$hierarchy/cgroup.subtree_control" 2>/dev/null || true
    fi
    mkdir -p "$hierarchy/$CGROUP"
  done < <(cgroup_hierarchies)
}

start_kubelet() {
  write_kubelet_config
  make_cgroup
  mkdir -p "$STATE_DIR/kubelet"
  daemon_alive kubelet || date +%s | write "$STATE_DIR/kubelet-since"
  start_daemon kubelet "$BIN_DIR/kubelet" \
    --config "$CONF_DIR/kubelet.yaml" --kubeconfig "$CONF_DIR/kubelet.kubeconfig" \
    --root-dir "$STATE_DIR/kubelet" --hostname-override "$NODE_NAME" --node-ip "$GATEWAY_IP"
}

start_proxy() {
  write "$CONF_DIR/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: $NODE_NAME
bindAddress: 0.0.0.0
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: $CONF_DIR/proxy.kubeconfig}
clusterCIDR: $POD_CIDR
detectLocalMode: ClusterCIDR
iptables: {localhostNodePorts: false, minSyncPeriod: 0s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
  start_daemon kube-proxy "$BIN_DIR/kube-proxy" --config "$CONF_DIR/kube-proxy.yaml"
}

start_dns() {
  {
    printf '.:%s {\n  bind %s\n  ready 127.0.0.1:10254\n  errors\n' "$DNS_PORT" "$GATEWAY_IP"
    printf '  kubernetes cluster.local in-addr.arpa {\n    kubeconfig %s\n    ttl 5\n    fallthrough in-addr.arpa\n  }\n' \
      "$CONF_DIR/dns.kubeconfig"
    if grep -q '^nameserver' "$(resolv_conf)" 2>/dev/null; then printf '  forward . %s\n' "$(resolv_conf)"; fi
    printf '}\n'
  } | write "$CONF_DIR/Corefile"
  start_daemon cluster-dns "$BIN_DIR/cluster-dns" -conf "$CONF_DIR/Corefile"
}

apply_node_objects() {
  sed -e "s/@NODE_IP@/$GATEWAY_IP/g" -e "s/@DNS_SERVICE_IP@/$DNS_SERVICE_IP/g" -e "s/@DNS_PORT@/$DNS_PORT/g" \
    "$CLUSTER_ROOT/node-objects.yaml" | kubectl_admin apply --validate=false -f - >/dev/null
}

http_ok() { (exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3 && head -n 1 <&3 | grep -q ' 200 '); }

# node_ready believes only what the kubelet has reported since it was started.
node_ready() {
  local ready heartbeat
  read -r ready heartbeat < <(kubectl_admin get node "$NODE_NAME" --request-timeout 5s \
    -o 'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{"\n"}{end}')
  [[ "$ready" == True && "$(date -d "$heartbeat" +%s)" -ge "$(cat "$STATE_DIR/kubelet-since")" ]]
}

finish_node() {
  wait_for "the node to be Ready" 60 kubelet node_ready
  wait_for "kube-proxy to have written the service rules" 30 kube-proxy http_ok 10256 /healthz
  wait_for "the cluster's DNS to know its services" 30 cluster-dns http_ok 10254 /ready
}
