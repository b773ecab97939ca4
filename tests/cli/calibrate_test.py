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
        said = self.calibrate("--out", "this.toml", "--timeout", "20", "--fault",
                              "products 256x256x256 float32=crash", "--fault",
                              "products 512x512x512 float32=hang", "--fault",
                              "all_reduce 1024=fail")
        failures = {row["trial"]: row["failure"] for row in said["trials"] if row["failure"]}
        self.assertEqual(list(failures), ["products 256x256x256 float32",
                                          "products 512x512x512 float32", "all_reduce 1024"])
        for failure, reason in zip(failures.values(), ("Segmentation fault",
                                                       "took longer than 20 s", "asked to fail")):
            self.assertIn(reason, failure)

    def test_unknown_trial(self):
        self.refuse("calibrate", "--trial", "tea", code=2, says=['there is no trial "tea"'])


if __name__ == "__main__":
    main()
