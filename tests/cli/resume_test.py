# SPDX-License-Identifier: Apache-2.0
"""Runs that go on from a checkpoint: exactly, anywhere, or not at all and with a reason."""
import json
import shutil

from support import TEXT, CommandTest, column, ids_of, main, read_metrics, write_megatron

FP64 = "training.dtype=float64"
# Not a function of training.steps, which the first part of a run sets lower.
DECAY = ["lr_schedule.decay_steps=11"]
RESUME = "checkpoint.resume=if_present"
GEOMETRIES = {
    "zero3": ["parallel.dp_shard=2", "parallel.zero=3", "training.micro_batch=1"],
    "tp": ["parallel.tp=2", "parallel.sequence_parallel=true"],
    "pp": ["parallel.pp=2", "parallel.schedule=zb-h1", "training.micro_batch=1"],
    "post": ["parallel.pp=2", "parallel.schedule=zb-h1", "training.micro_batch=1",
             "parallel.post_validation=true"],
}


class Resume(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = cls.train_once("whole", 12, FP64)

    @classmethod
    def train_once(cls, run, steps, *overrides, code=0):
        done = cls.start("train", "tiny.toml", f"run.folder=runs/{run}", f"training.steps={steps}",
                         *DECAY, *overrides)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return done

    def folder_of(self, run):
        return self.folder / "runs" / run

    def manifest(self, run, step):
        path = self.folder_of(run) / f"checkpoints/step-{step:08}/manifest.json"
        return json.loads(path.read_text())

    def assert_same_run(self, run, other="whole"):
        for key in ("step", "tokens", "loss_hex", "grad_norm_hex", "lr", "trained_tokens"):
            self.assertEqual(column(self.folder_of(run), key), column(self.folder_of(other), key))
        weights = [(self.folder_of(name) / "weights/model.safetensors").read_bytes()
                   for name in (run, other)]
        self.assertEqual(*weights)

    def assert_close_run(self, run):
        got, want = read_metrics(self.folder_of(run)), read_metrics(self.folder_of("whole"))
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertEqual((a["step"], a["tokens"], a["lr"]), (b["step"], b["tokens"], b["lr"]))
            self.assertLess(abs(a["loss"] - b["loss"]), 1e-12 * abs(b["loss"]))

    def test_case_035_037_041_bits_of_the_uninterrupted_run(self):
        self.train_once("same", 7, FP64)
        self.train_once("same", 12, FP64, RESUME)
        self.assert_same_run("same")
        self.assertEqual(self.manifest("same", 12)["optimizer_steps"], 12)

    def test_case_043_121_resumed_again_and_again(self):
        for steps in (2, 3, 7, 12):
            self.train_once("often", steps, FP64, RESUME, "metrics.eval_every=2")
        self.assert_same_run("often")
        cursors = [self.manifest(run, 12)["data_cursor"] for run in ("often", "whole")]
        self.assertEqual(*cursors)

    def test_case_040_evaluation_and_samples_draw_nothing_from_training(self):
        dropout = ["training.steps=6", "metrics.eval_every=1", "metrics.sample_every=1"]
        self.train_once("draws", 3, FP64, *dropout[1:])
        self.train_once("draws", 12, FP64, RESUME)
        self.assert_same_run("draws")

    def test_other_geometries_go_on(self):
        # Each begins alone, goes on as one geometry and ends as another.
        names = list(GEOMETRIES)
        for i, name in enumerate(names):
            with self.subTest(name):
                then = GEOMETRIES[names[(i + 1) % len(names)]]
                self.train_once(name, 3, FP64, "checkpoint.interval=2")
                self.train_once(name, 8, FP64, RESUME, *GEOMETRIES[name])
                done = self.train_once(name, 12, FP64, RESUME, *then)
                self.assertIn("resumed   step 8", done.stdout)
                self.assert_close_run(name)

    def test_keeps_the_newest(self):
        self.train_once("keep", 9, "checkpoint.interval=2", "checkpoint.keep=3")
        steps = sorted(path.name for path in (self.folder_of("keep") / "checkpoints").iterdir())
        self.assertEqual(steps, ["step-00000006", "step-00000008", "step-00000009"])
        self.train_once("all", 9, "checkpoint.interval=2", "checkpoint.keep=0",
                        "checkpoint.async=false")
        self.assertEqual(len(list((self.folder_of("all") / "checkpoints").iterdir())), 5)

    def test_nothing_is_left_to_train(self):
        self.train_once("done", 3)
        done = self.train_once("done", 3, RESUME)
        self.assertIn("nothing is left to train", done.stdout)
        self.assertEqual(column(self.folder_of("done"), "step"), [1, 2, 3])

    def test_case_143_rates_follow_the_declared_unit(self):
        # Twice the batch from step 4 on: a step is a step, or as many tokens as two.
        for unit, want in (("steps", [1, 2, 3, 4, 5, 6]), ("tokens", [1, 2, 3, 4, 6, 8])):
            with self.subTest(unit):
                run = f"unit-{unit}"
                keys = [f"lr_schedule.unit={unit}", "lr_schedule.type=linear"]
                self.train_once(run, 4, *keys)
                done = self.train_once(run, 6, RESUME, "training.global_batch=8", *keys)
                self.assertIn("training.global_batch  4 -> 8", done.stdout)
                factors = [1 - 0.9 * max(step - 1, 0) / 11 for step in want]
                for lr, factor in zip(column(self.folder_of(run), "lr"), factors):
                    self.assertAlmostEqual(lr, 1e-2 * factor, places=15)
                self.assertEqual(self.manifest(run, 6)["data_cursor"], [4 * 4 + 2 * 8])
                self.assertEqual(self.manifest(run, 6)["tokens"], 32 * (4 * 4 + 2 * 8))

    def test_case_118_sources_go_on_where_they_are(self):
        write_megatron(self.folder / "other", [ids_of(TEXT[::-1])])
        mix = 'data.train=[{{ path = "train.idx", weight = {} }}, {{ path = "other.idx" }}]'
        self.train_once("mix", 4, mix.format(1.0))
        self.assertEqual(self.manifest("mix", 4)["data_cursor"], [8, 8])
        self.train_once("mix", 10, mix.format(2.0), RESUME)
        self.assertEqual(self.manifest("mix", 10)["data_cursor"], [24, 16])
        self.refuse("train", "tiny.toml", "run.folder=runs/mix", RESUME, "training.steps=12",
                    code=2, says=["the checkpoint read 2 data sources, the run names 1"])

    def test_case_089_no_more_memory_than_a_fresh_start(self):
        for name, geometry in (("one", []), ("zero3", GEOMETRIES["zero3"])):
            with self.subTest(name):
                run = f"memory-{name}"
                self.train_once(run, 1, *geometry)
                self.train_once(run, 2, RESUME, *geometry)
                fresh, resumed = column(self.folder_of(run), "peak_bytes")
                self.assertLessEqual(resumed["total"], 1.01 * fresh["total"])

    def test_weights_alone_of_a_checkpoint(self):
        self.train_once("donor", 3)
        self.train_once("taker", 2, "model.weights=runs/donor/checkpoints/step-00000003",
                        *GEOMETRIES["zero3"])
        self.assertEqual(self.manifest("taker", 2)["optimizer_steps"], 2)
        reports = [self.run_json("eval", "tiny.toml", f"model.weights=runs/donor{path}")
                   for path in ("/checkpoints/step-00000003", "/weights", "")]
        self.assertEqual(len({report["loss"] for report in reports}), 1)
        texts = [self.run_json("generate", "--from", f"runs/donor{path}", "--prompt", "Sing",
                               "--tokens", "8")["text"]
                 for path in ("/checkpoints/step-00000003", "/weights")]
        self.assertEqual(*texts)


class Refuse(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = cls.start("train", "tiny.toml", "run.folder=runs/base", "training.steps=4",
                         "checkpoint.interval=2")
        assert done.returncode == 0, done.stderr

    def refuse_resume(self, *overrides, code, says, run="new", **options):
        return self.refuse("train", "tiny.toml", f"run.folder=runs/{run}", *overrides, code=code,
                           says=says, **options)

    def copy(self, run):
        shutil.copytree(self.folder / "runs/base", self.folder / f"runs/{run}")
        return self.folder / f"runs/{run}/checkpoints"

    def test_case_146_explicit_paths(self):
        (self.folder / "empty").mkdir()
        ranks = ["parallel.dp_shard=2", "training.micro_batch=1"]
        for more in ([], ranks):
            self.refuse_resume("checkpoint.resume=nowhere", *more, code=2,
                               says=["nowhere", "no such folder"])
            self.refuse_resume("checkpoint.resume=empty", *more, code=65,
                               says=["no checkpoint is there"])
            self.refuse_resume("checkpoint.resume=runs/base", "model.hidden_size=64", *more,
                               code=65, says=["of this model", "wanted F32 [257, 64]"])
        done = self.run_command("train", "tiny.toml", "run.folder=runs/none",
                                "checkpoint.resume=if_present", "training.steps=1")
        self.assertIn("no checkpoint is there: training begins", done.stdout)

    def test_an_order_of_data_that_is_another(self):
        base = "checkpoint.resume=runs/base"
        self.refuse_resume(base, "run.seed=8", code=2, says=["run.seed = 8", "had 7"])
        self.refuse_resume(base, "training.seq_len=16", code=2, says=["seq_len = 16", "had 32"])
        write_megatron(self.folder / "longer", [ids_of(TEXT + TEXT)])
        self.refuse_resume(base, 'data.train=[{ path = "longer.idx" }]', code=2,
                           says=["longer", "6,481 tokens", "3,241"])

    def test_a_state_that_the_optimizer_does_not_read(self):
        self.refuse_resume("checkpoint.resume=runs/base", "optimizer.name=sgd", code=65,
                           says=["exp_avg", "not wanted"])

    def test_damage(self):
        for name, ranks in (("one", []), ("two", ["parallel.dp_shard=2"])):
            with self.subTest(name):
                checkpoints = self.copy(f"damaged-{name}")
                newest = checkpoints / "step-00000004"
                data = bytearray((newest / "rank-00000.safetensors").read_bytes())
                data[-5] ^= 1
                (newest / "rank-00000.safetensors").write_bytes(data)
                self.refuse_resume(f"checkpoint.resume={newest}", *ranks, code=65,
                                   says=["does not have its checksum", "rank-00000.safetensors"])
                done = self.run_command("train", "tiny.toml", f"run.folder=runs/damaged-{name}",
                                        "checkpoint.resume=if_present", "training.steps=4", *ranks)
                self.assertIn("step-00000004 is damaged and is passed over", done.stderr)
                self.assertIn("resumed   step 2", done.stdout)
                self.assertEqual(column(self.folder / f"runs/damaged-{name}", "step"), [1, 2, 3, 4])
                for step in (2, 4):
                    (checkpoints / f"step-{step:08}/manifest.json").write_text("{")
                self.refuse_resume("checkpoint.resume=if_present", *ranks, run=f"damaged-{name}",
                                   code=65, says=["no checkpoint", "is whole"])

    def test_newer_checkpoints_of_another_past(self):
        self.copy("past")
        step2 = "checkpoint.resume=runs/past/checkpoints/step-00000002"
        self.refuse_resume(step2, run="past", code=2, says=["newer checkpoints (step 4)"])
        done = self.run_command("train", "tiny.toml", "run.folder=runs/branch", step2)
        self.assertIn("resumed   step 2", done.stdout)
        self.assertEqual(column(self.folder / "runs/branch", "step"), [3, 4, 5, 6])

    def test_case_065_a_save_that_did_not_end(self):
        checkpoints = self.copy("partial")
        partial = checkpoints / "step-00000006"
        shutil.copytree(checkpoints / "step-00000004", partial)
        (partial / "manifest.json").rename(partial / "manifest.json.tmp")
        done = self.run_command("train", "tiny.toml", "run.folder=runs/partial",
                                "checkpoint.resume=if_present", "parallel.dp_shard=2",
                                "training.micro_batch=1")
        self.assertIn("resumed   step 4", done.stdout)
        self.assertEqual(sorted(path.name for path in checkpoints.iterdir()),
                         ["step-00000004", "step-00000006"])
        self.assertTrue((partial / "manifest.json").exists())

    def test_an_earlier_run_is_kept_beside(self):
        self.copy("again")
        self.run_command("train", "tiny.toml", "run.folder=runs/again", "training.steps=1")
        self.assertTrue((self.folder / "runs/again.1/checkpoints/step-00000004").exists())


if __name__ == "__main__":
    main()
