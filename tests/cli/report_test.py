# SPDX-License-Identifier: Apache-2.0
"""quatrain report: run folders as one page."""
import html.parser
import json
import xml.etree.ElementTree

from support import CommandTest, main


class Page(html.parser.HTMLParser):
    """Every element is closed in order; what is fetched from elsewhere is collected."""

    def __init__(self, text):
        super().__init__()
        self.open, self.fetched, self.titles = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta",):
            self.open.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.titles.append(data)


class Report(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train(cls, "one", "metrics.trace_steps=2")
        cls.train(cls, "two", "parallel.pp=2", "training.micro_batch=1", "metrics.trace_steps=2")

    def train(self, name, *more):
        done = self.start("train", "tiny.toml", f"run.folder=runs/{name}", *more)
        assert done.returncode == 0, done.stderr

    def test_runs_overlaid_on_one_page(self):
        said = self.run_json("report", "runs/one", "runs/two/", "--out", "page.html")
        self.assertEqual(said["runs"], ["one", "two"])
        text = (self.folder / "page.html").read_text()
        page = Page(text)
        self.assertEqual((page.open, page.fetched), ([], []))
        self.assertEqual(page.titles, ["2 runs compared", "Learning and speed", "Time and memory",
                                       "Communication by axis", "Timeline", "Plan"])
        losses = [json.loads(line)["loss"]
                  for line in (self.folder / "runs/one/metrics.jsonl").read_text().splitlines()]
        self.assertIn(f"{losses[-1]:.4f}", text)
        self.assertIn("stage 1 predicted", text)
        for run in ("one", "two"):
            self.assertRegex(text, rf"{run}: [0-9.]+ ms measured, [0-9.]+ ms by the schedule")

    def test_what_the_planner_says(self):
        self.run_command("report", "runs/two", "--out", "why.html", "--cluster", "this-machine")
        text = (self.folder / "why.html").read_text()
        self.assertRegex(text, r"<li>predicted [0-9.]+ ms a step and .*, measured [0-9.]+ ms")
        self.refuse("report", "runs/two", "--out", "why.html", "--cluster", "h100-smx-80gb", code=2,
                    says=["h100-sxm-80gb"])

    def test_picture_of_a_sweep(self):
        self.run_command("plan", "--model", "llama-3-8b", "--cluster", "h100-sxm-80gb", "--gpus",
                         "16", "--seq", "8192", "--global-batch-tokens", "1048576", "--sweep",
                         "tp=1,2,4,8", "--out", "sweep.csv", "--svg", "sweep.svg")
        svg = xml.etree.ElementTree.parse(self.folder / "sweep.svg").getroot()
        texts = [node.text for node in svg.iter() if node.tag.endswith("}text")]
        for tp in (1, 2, 4, 8):
            self.assertTrue(any(str(text).startswith(f"tp={tp}: ") for text in texts), texts)
        self.assertEqual(len((self.folder / "sweep.csv").read_text().splitlines()), 5)

    def test_every_problem_at_once(self):
        bad = self.folder / "bad"
        bad.mkdir()
        (bad / "metrics.jsonl").write_text('{"step": 1}\n[\n')
        (bad / "plan.json").write_text("{}")
        self.refuse("report", "runs/one", "runs/nowhere", "bad", "--out", "no/page.html", code=2,
                    says=["runs/nowhere: no such folder", "bad/metrics.jsonl:1",
                          "bad/metrics.jsonl:2", "bad/plan.json", "there is no folder"])
        self.refuse("report", "--out", "page2.html", code=2, says=["runs is required"])


if __name__ == "__main__":
    main()
