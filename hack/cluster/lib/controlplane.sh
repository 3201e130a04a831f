# shellcheck shell=bash
# etcd, the API server, the controllers and the scheduler.

# shellcheck disable=SC2034 # read in cluster.sh
readonly CONTROL_PLANE="etcd kube-apiserver kube-controller-manager kube-scheduler"

start_etcd() {
  local client="https://127.0.0.1:$ETCD_PORT" peer="http://127.0.0.1:$ETCD_PEER_PORT"
  start_daemon etcd "$BIN_DIR/etcd" \
    --name agenttask --data-dir "$STATE_DIR/etcd" \
    --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "agenttask=$peer" \
    --cert-file "$PKI_DIR/etcd.crt" --key-file "$PKI_DIR/etcd.key" \
    --client-cert-auth --trusted-ca-file "$PKI_DIR/etcd-ca.crt" \
    --log-level warn
}

write_audit_policy() {
  write "$CONF_DIR/audit-policy.yaml" <<'END'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
END
}

start_apiserver() {
  local reconciler=lease
  # A loopback address is not one that the service `kubernetes` may have.
  can_run_node || reconciler=none
  write_audit_policy
  start_daemon kube-apiserver "$BIN_DIR/kube-apiserver" \
    --bind-address "$(api_ip)" --advertise-address "$(api_ip)" --secure-port "$API_PORT" \
    --endpoint-reconciler-type "$reconciler" \
    --service-cluster-ip-range "$SERVICE_CIDR" \
    --etcd-servers "https://127.0.0.1:$ETCD_PORT" --etcd-cafile "$PKI_DIR/etcd-ca.crt" \
    --etcd-certfile "$PKI_DIR/etcd-client.crt" --etcd-keyfile "$PKI_DIR/etcd-client.key" \
    --tls-cert-file "$PKI_DIR/apiserver.crt" --tls-private-key-file "$PKI_DIR/apiserver.key" \
    --client-ca-file "$PKI_DIR/ca.crt" \
    --kubelet-certificate-authority "$PKI_DIR/ca.crt" \
    --kubelet-client-certificate "$PKI_DIR/apiserver-kubelet-client.crt" \
    --kubelet-client-key "$PKI_DIR/apiserver-kubelet-client.key" \
    --kubelet-preferred-address-types InternalIP \
    --requestheader-client-ca-file "$PKI_DIR/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$PKI_DIR/front-proxy.crt" --proxy-client-key-file "$PKI_DIR/front-proxy.key" \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file "$PKI_DIR/service-account.pub" \
    --service-account-signing-key-file "$PKI_DIR/service-account.key" \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --allow-privileged \
    --audit-policy-file "$CONF_DIR/audit-policy.yaml" --audit-log-path "$LOG_DIR/audit.log" \
    --audit-log-maxsize 100 --audit-log-maxbackup 3
}

start_controller_manager() {
  local conf="$CONF_DIR/controller-manager.kubeconfig"
  start_daemon kube-controller-manager "$BIN_DIR/kube-controller-manager" \
    --kubeconfig "$conf" --authentication-kubeconfig "$conf" --authorization-kubeconfig "$conf" \
    --bind-address 127.0.0.1 --leader-elect=false --use-service-account-credentials \
    --client-ca-file "$PKI_DIR/ca.crt" --requestheader-client-ca-file "$PKI_DIR/front-proxy-ca.crt" \
    --root-ca-file "$PKI_DIR/ca.crt" --service-account-private-key-file "$PKI_DIR/service-account.key" \
    --cluster-signing-cert-file "$PKI_DIR/ca.crt" --cluster-signing-key-file "$PKI_DIR/ca.key" \
    --service-cluster-ip-range "$SERVICE_CIDR" --flex-volume-plugin-dir "$STATE_DIR/kubelet/volume-plugins"
}

start_scheduler() {
  local conf="$CONF_DIR/scheduler.kubeconfig"
  start_daemon kube-scheduler "$BIN_DIR/kube-scheduler" \
    --kubeconfig "$conf" --authentication-kubeconfig "$conf" --authorization-kubeconfig "$conf" \
    --bind-address 127.0.0.1 --leader-elect=false
}

api_ready() { kubectl_admin get --raw /readyz --request-timeout 5s; }

start_control_plane() {
  start_etcd
  start_apiserver
  wait_for "the API server to be ready" 90 "etcd kube-apiserver" api_ready
  start_controller_manager
  start_scheduler
}

# finish_control_plane waits for what a client may count on from the start.
finish_control_plane() {
  wait_for "the service account 'default', which lets pods be made" 60 kube-controller-manager \
    kubectl_admin --namespace default get serviceaccount default
}
