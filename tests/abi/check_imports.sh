#!/bin/sh
# The library never prints, exits, aborts or changes what belongs to the process; it asks for memory and reads the
# environment in one place. Looks at what each object file asks of libc:  check_imports.sh LIBPURR_INTERNAL_A
set -eu
nm -A --undefined-only "$1" | awk '
  # "archive:object.o:      U name"
  {
    split($0, part, ":"); object = part[2]; name = $NF; sub(/@.*/, "", name)
    sub(/^__isoc99_/, "", name)
  }
  function refuse(why) { printf "%s uses %s: %s\n", object, name, why; failed = 1 }
  name ~ /^(v?f?printf|f?puts|f?putchar|putc|fputc|f?write|fopen|fdopen|freopen|std(out|err|in)|perror|_*[vf]*printf_chk)$/ {
    refuse("the library does not print and has no stdio streams")
  }
  name ~ /^(_?[eE]xit|abort|quick_exit|at_?exit|raise|kill|__assert_fail|longjmp|_longjmp)$/ {
    refuse("the library does not end the process")
  }
  name ~ /^(setenv|putenv|unsetenv|setlocale|signal|sigaction|chdir|umask|srand|strtok|strerror|localtime|environ)$/ {
    refuse("this changes or shares what belongs to the whole process")
  }
  name ~ /^(secure_)?getenv$/ && object != "context.c.o" { refuse("only context.c reads the environment") }
  name ~ /^(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf)$/ && object != "context.c.o" {
    refuse("memory comes through the hooks of the context")
  }
  END { exit failed }'
