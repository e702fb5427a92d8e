#!/usr/bin/env bash
# What only a GPU can show, in at most 8 minutes on one: the ipc weight transfer, an FSDP2 update over NCCL, the engine's
# sleep and wake, the agreement of log-probs in bfloat16, and memory. Run it from the repository, in an environment with
# the `vllm` extra (docs/install.md):
#
#     bash benchmarks/device_check.sh [folder for its runs]
#
# It prints one line per check and exits 1 if any failed. docs/status.md says where it has been run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
runs="${1:-runs/device_check}"
mkdir -p "$runs"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}" HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
failed=0

check() { # check NAME SECONDS COMMAND...: runs it with a limit and prints a line
  local name="$1" limit="$2" started=$SECONDS
  shift 2
  if timeout --kill-after=20 "$limit" bash -c '"$@"' check "$@" >"$runs/$name.log" 2>&1; then
    echo "ok      $name  $((SECONDS - started)) s"
  else
    echo "FAILED  $name  $((SECONDS - started)) s, exit code $?; the end of $runs/$name.log:"
    tail -n 15 "$runs/$name.log"
    failed=1
  fi
}

train() { # train NAME SETTINGS...: three steps of the smoke recipe on one GPU, evaluation only at the end
  local name="$1"
  shift
  dapo train smoke --run-dir "$runs/$name" --fresh --set train.steps=3 --set eval.before_training=false \
    --set preflight.problems=0 --set eval.problems=20 --set checkpoint.every=3 --set backend.device=cuda \
    --set model.dtype=bfloat16 --set rollout.gpu_memory_utilization=0.3 "$@"
}

export -f train
export runs

python - <<'PY' || exit 1
import torch
if not torch.cuda.is_available():
    raise SystemExit("device_check: torch sees no GPU: nothing was checked")
print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
PY

dapo prepare-data smoke >"$runs/prepare.log" 2>&1 || { tail -n 5 "$runs/prepare.log"; exit 1; }
# Colocated on one GPU: ipc transfer, sleep and wake at every step, FSDP2 of one rank over NCCL; the run itself stops if
# log-probs of engine and trainer part.
one_gpu=(--set backend.gpus_per_node=1 --set backend.policy_ranks=1 --set backend.engine_replicas=1 --set
  backend.placement=colocated)
check ray_colocated 200 train ray_colocated "${one_gpu[@]}"
check ray_offload 120 train ray_offload "${one_gpu[@]}" --set 'backend.offload=[parameters, optimizer]'
check local_vllm 100 train local_vllm --set backend.kind=local
check attention 60 python -m pytest -q tests/policy/test_attention.py

echo "largest log-prob difference after a sync, and GPU memory (docs/metrics.md):"
for name in ray_colocated ray_offload local_vllm; do
  [ -f "$runs/$name/metrics.jsonl" ] && python - "$runs/$name/metrics.jsonl" "$name" <<'PY'
import json, sys
last = [json.loads(line) for line in open(sys.argv[1])][-1]
shown = {key: last[key] for key in last if key.startswith(("sync/", "perf/", "rollout/logprob_mismatch"))}
print(f"  {sys.argv[2]}: " + ", ".join(f"{key} {value:.4g}" for key, value in sorted(shown.items())))
PY
done
nvidia-smi --query-gpu=memory.used,memory.total --format=csv,noheader | sed 's/^/  left on the GPU: /'
exit "$failed"
