# SPDX-License-Identifier: Apache-2.0
"""Programs of the step benchmark, a process each, and what their one JSON line says."""
import json
import statistics
import subprocess


def run(command):
    """The line's object, or {"error": why there is none}."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def tokens_per_s(result):
    return result["tokens"] / statistics.median(result["seconds"])
