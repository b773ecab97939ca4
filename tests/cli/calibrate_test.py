# SPDX-License-Identifier: Apache-2.0
"""quatrain calibrate: a machine as a cluster file."""
from support import CommandTest, main


class Calibrate(CommandTest):
    def calibrate(self, *more):
        return self.run_json("calibrate", "--ranks", "2", "--threads", "1", "--budget", "0.002",
                             *more)

    def test_the_file_is_a_cluster(self):
        said = self.calibrate("--out", "this.toml")
        self.assertTrue(all(row["seconds"] for row in said["trials"]), said)
        text = (self.folder / "this.toml").read_text()
        for key in ("peak_fp32", "memory_bandwidth", "domain_bandwidth", "domain_latency"):
            self.assertIn(f"\n{key} = ", text)
        plan = self.run_json("plan", "--model", "tiny-llama", "--cluster", "this.toml", "--gpus",
                             "2", "--seq", "128", "--global-batch-tokens", "1024", "--dtype",
                             "float32")
        self.assertGreater(plan["plans"][0]["step_s"], 0)

    def test_case_166_a_trial_that_dies_is_a_row(self):
        reasons = {"crash": "Segmentation fault", "hang": "took longer than 3 s",
                   "fail": "asked to fail"}
        for how, reason in reasons.items():
            said = self.calibrate("--out", "this.toml", "--timeout", "3", "--fault",
                                  f"product 512x512x512 float32={how}")
            failed = [row for row in said["trials"] if row["failure"]]
            self.assertEqual([row["trial"] for row in failed], ["product 512x512x512 float32"])
            self.assertIn(reason, failed[0]["failure"])
            self.assertGreater(sum(row["seconds"] is not None for row in said["trials"]), 20)

    def test_unknown_trial(self):
        self.refuse("calibrate", "--trial", "tea", code=2, says=['there is no trial "tea"'])


if __name__ == "__main__":
    main()
