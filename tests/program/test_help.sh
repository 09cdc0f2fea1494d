# Help, versions, commands that do not exist.
. "$(dirname "$0")/support.sh"
version=$(sed -n 's/^#define PURR_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$SOURCE_DIR/runtime/purr.h" | paste -sd.)

run 0 --version
says out "purr $version"
run 0 --help
for command in run verify bench trace plan config; do says out "  $command "; done
says out "exit codes: 0 good, 1 a check failed, 2 bad usage or input"
cp "$work/out" "$work/top"
run 0 help
cmp -s "$work/out" "$work/top" || complain "purr help differs from purr --help"

for command in run verify bench trace plan config; do
  run 0 "$command" --help
  says out "usage: purr $command"
  says out "options:"
  says out "example:"
  says out "  purr $command"
  cp "$work/out" "$work/help"
  run 0 help "$command"
  cmp -s "$work/out" "$work/help" || complain "purr help $command differs from purr $command --help"
  awk 'length($0) > 120 { exit 1 }' "$work/help" || complain "purr $command --help has lines over 120 characters"
  refuses "--nonsense is not an option" "$command" --nonsense
  says err "purr $command --help"
done

run 2
says err "usage: purr COMMAND"
refuses "'rnu' is not a command; did you mean 'run'?" rnu
refuses "'verfy' is not a command; did you mean 'verify'?" help verfy
refuses "'launch-the-missiles' is not a command" launch-the-missiles
says_not err "did you mean"
finish
