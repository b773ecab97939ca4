# SPDX-License-Identifier: Apache-2.0
"""Programs of the step benchmark, a process each, and what their one JSON line says."""
import json
import os
import resource
import statistics
import subprocess
import time


def busy_cpu_seconds():
    """Of the whole machine since its start: all but idle time, of /proc/stat."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, *other = (int(x) for x in stat.readline().split()[1:9])
    return (user + nice + system + sum(other)) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def run(command):
    """The line's object, or {"error": why there is none}. "other_cpus": processors that other
    programs had meanwhile, on average; a step is slower by more than that."""
    begin = time.monotonic(), busy_cpu_seconds() - own_cpu_seconds()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1][:200]}
    result = json.loads(done.stdout.strip().splitlines()[-1])
    others = busy_cpu_seconds() - own_cpu_seconds() - begin[1]
    result["other_cpus"] = max(0.0, others) / (time.monotonic() - begin[0])
    return result


def tokens_per_s(result):
    return result["tokens"] / statistics.median(result["seconds"])
