# shellcheck shell=bash
# How scripts/test.sh counts: sourced, not run. A stage is a function `stage_NAME` run in a subshell under a timeout; it
# reports with `passed N`, `failed N`, `skipped N REASON`, and whatever it prints is its log. A stage that ends with a
# status other than 0, or that the timeout ends, counts as at least one failure.

STAGES_RUN=()
TOTAL_PASSED=0 TOTAL_FAILED=0 TOTAL_SKIPPED=0
STAGE_REPORT=${STAGE_REPORT:-$(mktemp "${TMPDIR:-/tmp}/terrace-stage.XXXXXX")}
export STAGE_REPORT

passed() { printf 'passed %d\n' "$1" >>"$STAGE_REPORT"; }
failed() { printf 'failed %d\n' "$1" >>"$STAGE_REPORT"; [ $# -gt 1 ] && printf 'FAILED: %s\n' "$2"; return 0; }
skipped() { printf 'skipped %d\n' "$1" >>"$STAGE_REPORT"; printf 'skipped: %s\n' "${2:-}"; }

# Adds up the result lines of `cargo test` in the file $1.
count_cargo_tests() {
    awk '/^test result:/ { p += $4; f += $6; s += $8 } END { printf "passed %d\nfailed %d\nskipped %d\n", p, f, s }' \
        "$1" >>"$STAGE_REPORT"
}

sum_of() { awk -v word="$1" '$1 == word { n += $2 } END { print n + 0 }' "$STAGE_REPORT"; }

# $1 stage, $2 most seconds
run_stage() {
    local name=$1 limit=$2 began=$SECONDS status
    printf '\n== %s\n' "$name"
    : >"$STAGE_REPORT"
    # `timeout` needs a command, so the stage runs as this very script with the stage's name.
    timeout --kill-after=20 "$limit" "$0" --inside "$name"
    status=$?
    local p f s
    p=$(sum_of passed) f=$(sum_of failed) s=$(sum_of skipped)
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        printf 'FAILED: %s did not end within %d s\n' "$name" "$limit"
        f=$((f + 1))
    elif [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
    fi
    TOTAL_PASSED=$((TOTAL_PASSED + p)) TOTAL_FAILED=$((TOTAL_FAILED + f)) TOTAL_SKIPPED=$((TOTAL_SKIPPED + s))
    STAGES_RUN+=("$(printf '%-10s %5d passed %3d failed %3d skipped %5d s' "$name" "$p" "$f" "$s" $((SECONDS - began)))")
    printf -- '-- %s\n' "${STAGES_RUN[-1]}"
}

finish() {
    printf '\n== summary\n'
    printf '%s\n' "${STAGES_RUN[@]}"
    rm -f "$STAGE_REPORT"
    printf '%d passed, %d failed, %d skipped\n' "$TOTAL_PASSED" "$TOTAL_FAILED" "$TOTAL_SKIPPED"
    [ "$TOTAL_FAILED" -eq 0 ]
}
