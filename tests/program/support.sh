# Sourced by every test of the program. PURR is the program, EMULATOR the command that runs it where it was built for
# another machine, SOURCE_DIR the top folder. Each test gets an empty folder, $work, and counts what went wrong.
set -u
EMULATOR=${EMULATOR:-}
work=$(mktemp -d)
failures=0

finish() {
  rm -rf "$work"
  if [ "$failures" -gt 0 ]; then
    echo "$failures checks failed" >&2
    exit 1
  fi
}

complain() {
  echo "FAILED: $1" >&2
  failures=$((failures + 1))
}

# run CODE ARGUMENTS...: runs purr, keeps $work/out and $work/err, and expects the exit code.
run() {
  local expected=$1 code=0
  shift
  # shellcheck disable=SC2086
  $EMULATOR "$PURR" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
  [ "$code" -eq "$expected" ] && return
  complain "purr $*: exit code $code, expected $expected"
  tail -n 5 "$work/out" "$work/err" >&2
}

# says FILE TEXT: the stream holds the text.
says() {
  grep -qF -- "$2" "$work/$1" && return
  complain "'$2' is not in std$1:"
  cat "$work/$1" >&2
}

says_not() {
  grep -qF -- "$2" "$work/$1" || return 0
  complain "'$2' is in std$1"
}

# refuses TEXT ARGUMENTS...: bad usage or input, with this text, a second line that says what to do, and no output.
refuses() {
  local text=$1
  shift
  run 2 "$@"
  says err "$text"
  [ -s "$work/out" ] && complain "purr $*: prints to stdout although it fails"
  [ "$(wc -l <"$work/err")" -ge 2 ] || complain "purr $*: does not say what to do next"
}

need_python() {
  command -v python3 >/dev/null && return
  echo "skipped: needs python3" >&2
  rm -rf "$work"
  exit 77
}

# json EXPRESSION: prints the value of a Python expression over `o`, the object that the last run printed.
json() { python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$work/out" "$1"; }

# json_is EXPRESSION VALUE
json_is() {
  local value
  value=$(json "$1")
  [ "$value" = "$2" ] || complain "$1 is '$value', expected '$2'"
}
