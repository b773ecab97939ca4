#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted steps beside measured ones:  bench/predict.py BUILD_FOLDER

Calibrates this machine as a cluster of one-thread ranks before and after each round of runs, in
which each geometry trains for a few steps, all of them in turn, since the machine's own speed
drifts. A row is the median over rounds of a run's median step, beside the mean over calibrations of
what `quatrain simulate` says of it; its noise is half of what the rounds differ by. The rank
correlation is Spearman's, over the layouts of one model and batch.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

SHAPE = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
         "max_position_embeddings": 512}
MODELS = {
    "llama": {"model_type": "llama", **SHAPE, "num_key_value_heads": 2, "intermediate_size": 704,
              "vocab_size": 4096, "tie_word_embeddings": False},
    "wide": {"model_type": "llama", **SHAPE, "hidden_size": 512, "num_key_value_heads": 8,
             "intermediate_size": 1408, "vocab_size": 4096, "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 512,
             "vocab_size": 4096},
    "mixtral": {"model_type": "mixtral", **SHAPE, "num_key_value_heads": 2,
                "intermediate_size": 352, "num_local_experts": 8, "num_experts_per_tok": 2,
                "vocab_size": 4096, "tie_word_embeddings": False},
}
ONE = {
    "one": "",
    "one, 4 micro-batches": "training.micro_batch=2",
    "one, full recomputation": "training.recompute=full",
}
TWO = {
    "dp 2": "parallel.dp_shard=2 training.micro_batch=4",
    "dp 2, ZeRO 1": "parallel.dp_shard=2 parallel.zero=1 training.micro_batch=4",
    "dp 2, ZeRO 2, 2 micro-batches": "parallel.dp_shard=2 parallel.zero=2 training.micro_batch=2",
    "dp 2, ZeRO 3": "parallel.dp_shard=2 parallel.zero=3 training.micro_batch=4",
    "tp 2": "parallel.tp=2",
    "tp 2, sequence": "parallel.tp=2 parallel.sequence_parallel=true",
    "pp 2, gpipe": "parallel.pp=2 parallel.schedule=gpipe training.micro_batch=2",
    "pp 2, 1f1b": "parallel.pp=2 training.micro_batch=2",
    "pp 2, 1f1b, full recomputation":
        "parallel.pp=2 training.micro_batch=2 training.recompute=full",
    "pp 2, zb-h1": "parallel.pp=2 parallel.schedule=zb-h1 training.micro_batch=2",
    "pp 2, zb-v": "parallel.pp=2 parallel.schedule=zb-v parallel.chunks=2 training.micro_batch=2",
    "cp 2, ring": "parallel.cp=2",
    "cp 2, all_gather": "parallel.cp=2 parallel.cp_style=all_gather",
}
EXPERTS = {"ep 2": "parallel.dp_shard=2 parallel.ep=2 training.micro_batch=4"}


def geometries():
    rows = [("llama", name, text) for name, text in {**ONE, **TWO}.items()]
    rows += [("wide", name, TWO[name]) for name in ("dp 2", "tp 2, sequence", "pp 2, zb-h1")]
    rows += [("gpt2", name, {**ONE, **TWO}[name])
             for name in ("one", "dp 2, ZeRO 3", "tp 2", "pp 2, 1f1b")]
    rows += [("mixtral", name, {**ONE, **TWO, **EXPERTS}[name])
             for name in ("one", "dp 2", "ep 2")]
    return rows


def toml(model, steps):
    def value(x):
        return json.dumps(x)
    lines = ["[run]", 'name = "predict"', "threads = 1", "[model]"]
    lines += [f"{key} = {value(x)}" for key, x in MODELS[model].items()]
    lines += ["[data]", 'train = [{ path = "text.txt", weight = 1.0 }]', 'tokenizer = "bytes"',
              "[training]", f"steps = {steps}", "seq_len = 256", "micro_batch = 8",
              "global_batch = 8", "[metrics]", "log_every = 1", "[checkpoint]", "interval = 0"]
    return "\n".join(lines) + "\n"


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stderr[-2000:]}")
    return done.stdout


def calibrated(binary, cluster):
    run([binary, "calibrate", "--out", cluster, "--threads", "1", "--budget", "0.5"])
    return cluster


def predicted(binary, config, overrides, cluster, imbalance):
    text = run([binary, "simulate", config, *overrides, "--cluster", cluster, "--json",
                "--expert-imbalance", imbalance])
    return json.loads(text)["step_s"]


def crowding(loads, ranks):
    """Rows of the rank whose experts get most over the mean, in the mean over a step's layers."""
    held = len(loads[0]) // ranks
    of_layer = [[sum(layer[first:first + held]) for first in range(0, len(layer), held)]
                for layer in loads]
    return statistics.mean(max(rows) * ranks / sum(rows) for rows in of_layer)


def write_inputs(folder, steps):
    # Of many different tokens: new routers load their experts the more evenly. How evenly they did
    # is told to the prediction, which else takes an even load.
    letters = random.Random(1).choices([chr(code) for code in range(32, 127)], k=2000000)
    (folder / "text.txt").write_text("".join(letters))
    for model in MODELS:
        (folder / f"{model}.toml").write_text(toml(model, steps))


def measured(binary, folder, config, overrides, warmup):
    run_folder = folder / "run"
    shutil.rmtree(run_folder, ignore_errors=True)
    run([binary, "train", config.name, *overrides, f"run.folder={run_folder}"], cwd=folder)
    with open(run_folder / "metrics.jsonl") as lines:
        steps = [step for step in map(json.loads, lines) if "step_ms" in step][warmup:]
    imbalance = 1.0
    if "parallel.ep=2" in overrides:
        imbalance = statistics.mean(crowding(step["router"]["loads"], 2) for step in steps)
    return statistics.median(step["step_ms"] for step in steps) / 1000, imbalance


def spearman(pairs):
    def ranks(values):
        order = sorted(range(len(values)), key=values.__getitem__)
        return {index: rank for rank, index in enumerate(order)}
    a, b = (ranks([pair[i] for pair in pairs]) for i in (0, 1))
    n = len(pairs)
    return 1 - 6 * sum((a[i] - b[i]) ** 2 for i in range(n)) / (n * (n * n - 1))


def print_table(rows):
    print(f"{'model':8} {'geometry':34} {'measured':>9} {'noise':>6} {'predicted':>9} {'error':>7}")
    for model, name, seconds, guess in rows:
        middle = statistics.median(seconds)
        noise = (max(seconds) - min(seconds)) / 2 / middle
        print(f"{model:8} {name:34} {middle * 1e3:6.1f} ms {noise:6.1%} {guess * 1e3:6.1f} ms "
              f"{guess / middle - 1:+7.1%}")
    errors = [abs(guess / statistics.median(seconds) - 1) for _, _, seconds, guess in rows]
    noises = [(max(s) - min(s)) / 2 / statistics.median(s) for _, _, s, _ in rows]
    layouts = [(statistics.median(s), g) for model, _, s, g in rows if model == "llama"]
    print(f"\n{len(rows)} geometries: error median {statistics.median(errors):.1%}, largest "
          f"{max(errors):.1%}; noise median {statistics.median(noises):.1%}, largest "
          f"{max(noises):.1%}; rank correlation over {len(layouts)} layouts "
          f"{spearman(layouts):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    options = parser.parse_args()
    binary = (options.build / "quatrain").resolve()
    folder = (options.build / "bench" / "predict").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_inputs(folder, options.steps)
    rows = [(model, name, text.split(), [], []) for model, name, text in geometries()]
    # A core is left to each rank: waiting threads do not keep it from the one that works.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    clusters = [calibrated(binary, folder / "this-0.toml")]
    for round_number in range(options.rounds):
        for model, _, overrides, seconds, imbalances in rows:
            took, imbalance = measured(binary, folder, folder / f"{model}.toml", overrides,
                                       options.warmup)
            seconds.append(took)
            imbalances.append(imbalance)
        clusters.append(calibrated(binary, folder / f"this-{round_number + 1}.toml"))
    print_table([(model, name, seconds, statistics.mean(
        predicted(binary, folder / f"{model}.toml", overrides, cluster,
                  statistics.median(imbalances)) for cluster in clusters))
        for model, name, overrides, seconds, imbalances in rows])


if __name__ == "__main__":
    main()
