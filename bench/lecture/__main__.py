# SPDX-License-Identifier: Apache-2.0
"""The experiments of the literature on composing parallelisms, small on this machine and simulated
at the published scale, side by side.

    python3 bench/lecture BUILD_FOLDER [--quick] [--only NAME ...] [--docs docs/lecture.md]

Writes BUILD/bench/lecture: sweeps.md, a picture and a page of runs (`quatrain report`) for each
sweep. --docs puts tables and pictures into that page as well, between its two comments.

Ranks are threads that share this machine's cores, so the time of a step of many ranks says little;
measured are bytes, memory, what two ranks of a core each wait, tokens/s of all cores together, and
the time of clock ranks. Each column says whether it is measured or simulated, and on what.
"""
import argparse
import datetime
import os
import pathlib
import shutil
import sys
import time

import contexts
import experts
import memory
import pipelines
import scaling
import tensors
from machine import Machine

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from turns import busy_cpu_seconds, own_cpu_seconds

SWEEPS = {
    "pipeline_against_batch": pipelines.against_batch, "tensor_degree": tensors.degree,
    "tensor_against_pipeline": tensors.against_pipeline,
    "recompute_against_batch": memory.recompute, "zero3_against_3d": memory.zero3_against_3d,
    "experts_by_width": experts.by_width, "context_by_length": contexts.by_length,
    "schedule_bubbles": pipelines.bubbles, "weak_scaling": scaling.weak,
}
BEGIN, END = "<!-- sweeps -->", "<!-- end of sweeps -->"


def parse_arguments():
    parser = argparse.ArgumentParser(prog="bench/lecture", description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="fewer points, one clock run each")
    parser.add_argument("--only", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--docs", type=pathlib.Path, help="the page that takes the tables")
    return parser.parse_args()


def other_cpu_seconds():
    return busy_cpu_seconds() - own_cpu_seconds()


def made(machine, names):
    sections = []
    for name in names:
        begin, others = time.monotonic(), other_cpu_seconds()
        section = SWEEPS[name](machine)
        busy = (other_cpu_seconds() - others) / (time.monotonic() - begin)
        section.note(f"Other programs had {max(0, busy):.1f} of this machine's {os.cpu_count()}"
                     " processors meanwhile: read measured times accordingly.")
        page = machine.report(name)
        print(f"{name}: {time.monotonic() - begin:.0f} s, runs: {page}", file=sys.stderr)
        sections.append(section)
    machine.draw([chart for section in sections for chart in section.charts])
    return sections


def put_into(page, sections, out):
    """Between the page's comments, with pictures beside it in a folder of the page's name."""
    text = page.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    for chart in (chart for section in sections for chart in section.charts):
        shutil.copy(out / chart["file"], folder)
    tables = "\n\n".join(section.text(folder.name) for section in sections)
    page.write_text(f"{before}{BEGIN}\nMade by `bench/lecture` on {datetime.date.today()}.\n\n"
                    f"{tables}\n{END}{after}")


def main():
    args = parse_arguments()
    out = args.build.resolve() / "bench/lecture"
    sections = made(Machine(args.build.resolve(), out, args.quick), args.only)
    (out / "sweeps.md").write_text("\n\n".join(s.text(".") for s in sections) + "\n")
    if args.docs:
        put_into(args.docs, sections, out)
    print(f"written: {out / 'sweeps.md'}")


if __name__ == "__main__":
    main()
