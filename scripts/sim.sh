#!/usr/bin/env bash
# The simulator stage of scripts/test.sh: 500 fresh seeds and every kept regression seed. The fresh ones are chosen by
# the content of crates/, so that every change tries new ones and a rerun of the same code tries the same.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/stage.sh
simulator=$1
if [ -z "$("$simulator" --help 2>/dev/null)" ]; then
    skipped 1 "sim: the simulator has no levels yet"
    exit 0
fi
first=$(git rev-parse --short=7 HEAD:crates 2>/dev/null) && first=$((16#$first)) || first=1
"$simulator" --regressions crates/sim/seeds.txt --from "$first" --seeds "${SIM_SEEDS:-500}" --level all --report "$STAGE_REPORT"
