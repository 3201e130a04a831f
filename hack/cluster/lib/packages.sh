# shellcheck shell=bash
# What a node needs from the system's packages.

# system_packages prints a line for each package: a file or program it brings,
# and its name.
system_packages() {
  cat <<'END'
openssl openssl
containerd containerd
runc runc
iptables iptables
ip iproute2
conntrack conntrack
busybox busybox-static
END
}

cni_bin_dir() {
  local dir
  for dir in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
    if [[ -x "$dir/bridge" && -x "$dir/host-local" && -x "$dir/portmap" ]]; then
      echo "$dir"
      return
    fi
  done
  return 1
}

missing_packages() {
  local program package
  while read -r program package; do
    command -v "$program" >/dev/null || echo "$package"
  done < <(system_packages)
  cni_bin_dir >/dev/null || echo containernetworking-plugins
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >>"$LOG_DIR/packages.log" 2>&1
}

install_packages() {
  local missing=() package
  while read -r package; do missing+=("$package"); done < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  command -v apt-get >/dev/null ||
    die "the node needs these Debian packages, or your system's like: ${missing[*]}; install them and try again"
  log "installing packages: ${missing[*]}"
  mkdir -p "$LOG_DIR"
  apt_install "${missing[@]}" || {
    apt-get update -qq >>"$LOG_DIR/packages.log" 2>&1 || true
    apt_install "${missing[@]}" || fail_with_log packages "could not install ${missing[*]}"
  }
}
