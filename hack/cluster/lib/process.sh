# shellcheck shell=bash
# Daemons: started apart from the caller, recorded by process id. A record also
# holds when the process started and in which boot, so that an id the kernel
# has handed to somebody else is never taken for ours.

boot_id() { cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo unknown; }

# process_start PID prints when the process started; fails when it is gone or
# a zombie.
process_start() {
  local stat fields
  if [[ -d /proc/self ]]; then
    stat="$(cat "/proc/$1/stat" 2>/dev/null)" || return 1
    read -ra fields <<<"${stat##*) }"
    [[ "${fields[0]}" != Z ]] || return 1
    echo "${fields[19]}"
  else
    ps -o lstart= -p "$1" | tr -s ' ' _ | grep .
  fi
}

# daemon_pid NAME prints the daemon's process id if it is running.
daemon_pid() {
  local pid start boot
  read -r pid start boot 2>/dev/null <"$RUN_DIR/$1.pid" || return 1
  [[ "$boot" == "$(boot_id)" && "$start" == "$(process_start "$pid")" ]] || return 1
  echo "$pid"
}

daemon_alive() { daemon_pid "$1" >/dev/null; }

# start_daemon NAME COMMAND... does nothing if the daemon is running.
start_daemon() {
  local name="$1" pid; shift
  if daemon_alive "$name"; then return; fi
  mkdir -p "$RUN_DIR" "$LOG_DIR"
  if command -v setsid >/dev/null; then
    setsid "$@" >>"$LOG_DIR/$name.log" 2>&1 </dev/null 9>&- &
  else
    nohup "$@" >>"$LOG_DIR/$name.log" 2>&1 </dev/null 9>&- &
  fi
  pid=$!
  echo "$pid $(process_start "$pid" || echo gone) $(boot_id)" | write "$RUN_DIR/$name.pid"
}

# stop_daemon NAME [SECONDS] asks it to end, and after that time makes it.
stop_daemon() {
  local name="$1" grace="${2:-10}" pid='' signal deadline
  for signal in TERM KILL; do
    pid="$(daemon_pid "$name")" || break
    kill -s "$signal" "$pid" 2>/dev/null || true
    deadline=$((SECONDS + grace))
    while daemon_alive "$name" && ((SECONDS < deadline)); do sleep 0.05; done
  done
  if daemon_alive "$name"; then
    die "$name (process $pid) does not end, even when killed: see 'ps -o stat,wchan -p $pid'"
  fi
  rm -f "$RUN_DIR/$name.pid"
}
