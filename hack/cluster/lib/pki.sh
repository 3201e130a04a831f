# shellcheck shell=bash
# Certificates and the kubeconfigs that carry them. What is there is kept.

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

# authority NAME makes a certificate authority.
authority() {
  local base="$PKI_DIR/$1"
  [[ ! -s "$base.crt" ]] || return 0
  new_key "$base.key"
  openssl req -x509 -new -sha256 -key "$base.key" -subj "/CN=agenttask-$1" -days 3650 \
    -extensions authority -config <(
      printf '[req]\ndistinguished_name=dn\n[dn]\n[authority]\n'
      printf 'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n'
    ) | write "$base.crt"
}

# certificate NAME AUTHORITY SUBJECT [ALTERNATIVE-NAMES] makes a key and a
# certificate for it, which serves as a client's and a server's.
certificate() {
  local base="$PKI_DIR/$1" ca="$PKI_DIR/$2" subject="$3" names="${4:-}"
  [[ ! -s "$base.crt" ]] || return 0
  new_key "$base.key"
  openssl req -new -sha256 -key "$base.key" -subj "$subject" -config <(printf '[req]\ndistinguished_name=dn\n[dn]\n') |
    openssl x509 -req -sha256 -CA "$ca.crt" -CAkey "$ca.key" -set_serial "0x$(openssl rand -hex 15)" -days 3650 \
      -extfile <(
        printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n'
        if [[ -n "$names" ]]; then printf 'subjectAltName=%s\n' "$names"; fi
      ) 2>/dev/null | write "$base.crt"
}

# kubeconfig FILE CERTIFICATE makes a kubeconfig that needs no other file.
kubeconfig() {
  local file="$1" certificate="$2"
  [[ ! -s "$file" ]] || return 0
  write "$file" <<END
apiVersion: v1
kind: Config
current-context: agenttask
contexts:
- name: agenttask
  context: {cluster: agenttask, user: $certificate}
clusters:
- name: agenttask
  cluster:
    server: https://$(api_ip):$API_PORT
    certificate-authority-data: $(base64 <"$PKI_DIR/ca.crt" | tr -d '\n')
users:
- name: $certificate
  user:
    client-certificate-data: $(base64 <"$PKI_DIR/$certificate.crt" | tr -d '\n')
    client-key-data: $(base64 <"$PKI_DIR/$certificate.key" | tr -d '\n')
END
}

make_certificates() {
  local service=kubernetes.default.svc
  command -v openssl >/dev/null || die "no 'openssl' on the PATH: install the package openssl"
  mkdir -p "$PKI_DIR" "$CONF_DIR"
  authority ca
  authority etcd-ca
  authority front-proxy-ca
  certificate etcd etcd-ca /CN=etcd "IP:127.0.0.1,DNS:localhost"
  certificate etcd-client etcd-ca /CN=kube-apiserver
  certificate front-proxy front-proxy-ca /CN=front-proxy-client
  certificate apiserver ca /CN=kube-apiserver \
    "IP:127.0.0.1,IP:$API_SERVICE_IP,IP:$(api_ip),DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:$service,DNS:$service.cluster.local"
  certificate apiserver-kubelet-client ca /CN=kube-apiserver-kubelet-client
  certificate admin ca /O=system:masters/CN=admin
  certificate controller-manager ca /CN=system:kube-controller-manager
  certificate scheduler ca /CN=system:kube-scheduler
  certificate proxy ca /CN=system:kube-proxy
  certificate dns ca /CN=system:coredns
  certificate kubelet ca "/O=system:nodes/CN=system:node:$NODE_NAME" "IP:$(api_ip),DNS:$NODE_NAME"
  if [[ ! -s "$PKI_DIR/service-account.pub" ]]; then
    openssl genrsa -out "$PKI_DIR/service-account.key" 2048 2>/dev/null
    openssl rsa -in "$PKI_DIR/service-account.key" -pubout 2>/dev/null | write "$PKI_DIR/service-account.pub"
  fi
  local user
  for user in controller-manager scheduler kubelet proxy dns; do
    kubeconfig "$CONF_DIR/$user.kubeconfig" "$user"
  done
  kubeconfig "$KUBECONFIG_FILE" admin
}
