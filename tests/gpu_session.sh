#!/bin/sh
# What a GPU is asked to do, in this order: `softad check-device`, `softad bench`, then the studies of a profile.
# Every part resumes: give the same command again until it ends with status 0. `make gpu` calls this script.
#
#   PY        Python that has torch (default: python3)
#   PROFILE   what is trained (default: paper)
#   DATASETS  in this order (default: "gaussian sinusoid spiral fashionmnist")
#   DEVICE    what is checked and timed (default: cuda); training takes it where the check has passed
#   BUDGET    seconds for everything (default: none); what runs then is ended and resumes in the next call
#   OUT       folder for copies of the results, for a machine whose own disk is lost (default: none)
#
# Exit status: 0 all is done, 1 the check or a study failed, 124 the budget is used up.
set -u
PY=${PY:-python3} PROFILE=${PROFILE:-paper} DEVICE=${DEVICE:-cuda} BUDGET=${BUDGET:-} OUT=${OUT:-}
DATASETS=${DATASETS:-gaussian sinusoid spiral fashionmnist}
root=$(cd "$(dirname "$0")/.." && pwd)
home=${SOFTAD_HOME:-$root}
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
results=$home/outputs
start=$(date +%s)
failed=0

copy_results() {
  [ -n "$OUT" ] || return 0
  mkdir -p "$OUT/outputs"
  for part in "$PROFILE" bench .checked-devices.json; do
    [ -e "$results/$part" ] && cp -R "$results/$part" "$OUT/outputs/"
  done
}

finish() {
  copy_results
  echo "gpu_session: $2"
  exit "$1"
}

# Run a command for as long as the budget allows; 124 where it was ended.
within_budget() {
  if [ -z "$BUDGET" ]; then
    "$@"
    return
  fi
  left=$((BUDGET - $(date +%s) + start))
  [ "$left" -gt 0 ] || finish 124 "the budget of $BUDGET s is used up; the same command resumes"
  timeout -k 30 "$left" "$@"
}

ended_by_budget() {
  [ "$1" -eq 124 ] && finish 124 "the budget of $BUDGET s is used up; the same command resumes"
}

card=$("$PY" -c '
import sys, torch
from softadlib.training.device import device_name, pick_device
print("".join(c if c.isalnum() else "-" for c in device_name(pick_device(sys.argv[1])).lower()))' "$DEVICE") ||
  finish 1 "no device $DEVICE"
mkdir -p "$results/bench"

checked=$("$PY" -c '
import sys, torch
from softadlib.training.device import is_checked
print(is_checked(torch.device(sys.argv[1])))' "$DEVICE")
if [ "$checked" != True ]; then
  within_budget "$PY" -m softadlib check-device --device "$DEVICE" --json "$results/bench/$card-check.json"
  status=$?
  ended_by_budget $status
  [ $status -eq 0 ] || finish 1 "the check failed; nothing is trained on this device"
fi

table=$results/bench/$card.json
if [ ! -e "$table" ]; then
  within_budget "$PY" -m softadlib bench --device "$DEVICE" --json "$results/bench/.$card.json"
  status=$?
  ended_by_budget $status
  [ $status -eq 0 ] && mv "$results/bench/.$card.json" "$table" || failed=1
fi

command=train
"$PY" -c 'import papermill' 2> /dev/null && command=run
for dataset in $DATASETS; do
  within_budget "$PY" -m softadlib "$command" "$PROFILE" --dataset "$dataset"
  status=$?
  copy_results
  ended_by_budget $status
  [ $status -eq 0 ] || failed=1
done
[ $failed -eq 0 ] && finish 0 "all is done"
finish 1 "something failed; the same command tries it again"
