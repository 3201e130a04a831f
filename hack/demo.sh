#!/usr/bin/env bash
# Copyright The AgentTask Authors.
# SPDX-License-Identifier: Apache-2.0
#
# From nothing to a finished job: brings a cluster up (unless KUBECONFIG is set),
# installs the operator, applies the eight-step sample, kills the operator in step 4,
# and shows that the task goes on and each effect happened once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

NAMESPACE=agenttask-demo
OPERATOR_NAMESPACE=agenttask-system
TASK=research
SAMPLE_IMAGE="${IMG_REGISTRY:-ghcr.io/agenttask-dev}/sample-agent:${VERSION:-dev}"
watcher=""

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
fail() { printf '\ndemo: %s\n' "$*" >&2; exit 1; }
k() { kubectl -n "$NAMESPACE" "$@"; }

stop_watching() {
  if [[ -n "$watcher" ]]; then
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    watcher=""
  fi
}
trap stop_watching EXIT

prepare_cluster() {
  embedded=true
  if [[ -n "${KUBECONFIG:-}" && "$KUBECONFIG" != "$(hack/cluster/cluster.sh env | sed -n 's/^export KUBECONFIG=//p')" ]]; then
    embedded=false
  fi
  if $embedded; then
    say "A one-node Kubernetes on this machine (the first time builds it, in about ten minutes)"
    make --no-print-directory cluster-up cluster-images
    eval "$(hack/cluster/cluster.sh env)"
  fi
  kubectl version | sed 's/^/   /'
}

install_operator() {
  say "Install the operator"
  make --no-print-directory deploy
  # Restarts it only where the image was built anew under the same tag.
  if $embedded; then kubectl -n "$OPERATOR_NAMESPACE" rollout restart deployment/agenttask-operator >/dev/null; fi
  kubectl -n "$OPERATOR_NAMESPACE" rollout status deployment/agenttask-operator --timeout=180s
}

start_task() {
  say "A small ledger that records effects, and an agent's plan of eight steps"
  kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl label namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted --overwrite >/dev/null
  k delete agenttask "$TASK" --ignore-not-found --wait
  apply_sample ledger.yaml
  k rollout status deployment/ledger --timeout=180s
  kubectl delete --raw "$(ledger)?all=true" >/dev/null
  apply_sample agenttask_research.yaml
}

# apply_sample applies a sample with the image that this version's programs are in.
apply_sample() {
  sed "s#ghcr.io/agenttask-dev/sample-agent:dev#$SAMPLE_IMAGE#" "config/samples/$1" | k apply -f -
}

ledger() { echo "/api/v1/namespaces/$NAMESPACE/services/ledger:http/proxy/effects"; }

# kill_operator ends the operator's process with SIGKILL. On a cluster whose nodes are
# elsewhere its pod is deleted without grace instead.
kill_operator() {
  local pod uid pid=""
  pod="$(kubectl -n "$OPERATOR_NAMESPACE" get pods -l app.kubernetes.io/name=agenttask-operator --field-selector=status.phase=Running -o name | head -n 1)"
  if $embedded; then
    uid="$(kubectl -n "$OPERATOR_NAMESPACE" get "$pod" -o jsonpath='{.metadata.uid}')"
    pid="$(grep -ls "$uid" /proc/[0-9]*/cgroup 2>/dev/null | while read -r file; do
      dir="${file%/cgroup}"
      if [[ "$(tr '\0' ' ' <"$dir/cmdline" 2>/dev/null)" == /manager* ]]; then echo "${dir#/proc/}"; fi
    done | head -n 1)"
  fi
  if [[ -n "$pid" ]]; then
    kill -KILL "$pid"
    say "Step 4 runs: kill -9 $pid, the operator's process"
  else
    kubectl -n "$OPERATOR_NAMESPACE" delete "$pod" --grace-period=0 --force >/dev/null 2>&1
    say "Step 4 runs: the operator's pod is deleted without grace"
  fi
}

run_task() {
  say "Watch it"
  kubectl -n "$NAMESPACE" get agenttask "$TASK" --watch &
  watcher=$!
  k wait agenttask/"$TASK" --for=jsonpath='{.status.progress}'=3/8 --timeout=180s >/dev/null || fail "the task did not come to step 4; see kubectl -n $NAMESPACE describe agenttask $TASK"
  kill_operator
  k wait agenttask/"$TASK" --for=condition=Succeeded --timeout=300s >/dev/null || fail "the task did not succeed; see kubectl -n $NAMESPACE describe agenttask $TASK"
  stop_watching
}

show_result() {
  say "The task, its steps and their Jobs"
  k get agenttask "$TASK" -o wide
  echo
  k get agenttask "$TASK" -o jsonpath='{range .status.steps[*]}{.name}{"\t"}{.phase}{"\t"}{.attempt}{"\t"}{.jobName}{"\n"}{end}' |
    awk -F'\t' 'BEGIN { printf "%-12s %-10s %-8s %s\n", "STEP", "PHASE", "ATTEMPT", "JOB" } { printf "%-12s %-10s %-8s %s\n", $1, $2, $3, $4 }'
  say "The operator, killed once"
  kubectl -n "$OPERATOR_NAMESPACE" get pods
  say "What the ledger has seen: each effect, and how often it was asked for"
  effects="$(kubectl get --raw "$(ledger)?task=$TASK")"
  echo "$effects" | sed 's/},{"seq"/},\n{"seq"/g' |
    sed -nE 's/.*"key":"([^"]*)".*"step":"([^"]*)".*"count":([0-9]+).*/\2\t\3\t\1/p' |
    awk -F'\t' 'BEGIN { printf "%-10s %-6s %s\n", "EFFECT", "TIMES", "IDEMPOTENCY KEY" } { printf "%-10s %-6s %s\n", $1, $2, $3 }'
}

# check refuses any effect that is missing, double or out of order, and any Job too many.
check() {
  local kinds counts jobs
  kinds="$(grep -o '"kind":"[a-z]*"' <<<"$effects" | cut -d'"' -f4 | paste -sd' ')"
  counts="$(grep -o '"count":[0-9]*' <<<"$effects" | cut -d: -f2 | sort -u | paste -sd' ')"
  jobs="$(k get jobs -l agenttask.dev/task="$TASK" -o name | wc -l)"
  [[ "$kinds" == "publish notify" ]] || fail "the ledger has the effects '$kinds', not 'publish notify'"
  [[ "$counts" == 1 ]] || fail "an effect was asked for more than once: counts $counts"
  [[ "$jobs" -eq 8 ]] || fail "there are $jobs Jobs, not 8"
  say "Each step ran once, each effect happened once, though the operator was killed in between."
}

next() {
  cat <<END

Try next:
  $($embedded && echo "eval \"\$(hack/cluster/cluster.sh env)\"" || echo "# your cluster")
  kubectl -n $NAMESPACE describe agenttask $TASK
  kubectl -n $NAMESPACE logs job/\$(kubectl -n $NAMESPACE get agenttask $TASK -o jsonpath='{.status.steps[5].jobName}')
  kubectl -n $NAMESPACE apply -f config/samples/agenttask_failing.yaml
  kubectl explain agenttask.spec.steps
  make cluster-down        # leaves nothing behind
END
}

prepare_cluster
install_operator
start_task
run_task
show_result
check
next
