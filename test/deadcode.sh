#!/usr/bin/env bash
# Usage: test/deadcode.sh PROGRAM
# Fails when `stator` cannot reach a function that deadcode.txt does not list, or when a listed function
# is reachable or gone. PROGRAM is golang.org/x/tools/cmd/deadcode.
set -euo pipefail
module=github.com/stator-project/stator/

# The last template condition leaves out generated code.
found=$("$1" -f '{{$p := .Path}}{{range .Funcs}}{{if not .Generated}}{{$p}}.{{.Name}}{{"\n"}}{{end}}{{end}}' ./cmd/stator |
  sed "s#^$module##" | sed '/^$/d' | LC_ALL=C sort)
listed=$(sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' deadcode.txt | LC_ALL=C sort)

if ! difference=$(diff <(echo "$listed") <(echo "$found")); then
  echo "unreachable functions differ from deadcode.txt (<: listed, but reachable or gone; >: unreachable, not listed)."
  echo "Remove what nothing calls, or list it with the reason:"
  grep '^[<>]' <<<"$difference"
  exit 1
fi
