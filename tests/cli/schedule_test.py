# SPDX-License-Identifier: Apache-2.0
"""quatrain schedule list, show, check and run."""
import json
import xml.etree.ElementTree

from support import CommandTest, main


class List(CommandTest):
    def test_a_line_each(self):
        table = self.run_json("schedule", "list")["schedules"]
        names = [line["schedule"] for line in table]
        for name in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-auto", "zb-v", "dualpipe"):
            self.assertIn(name, names)
        for line in table:
            for key in ("placement", "chunks", "peak", "bubble", "source"):
                self.assertTrue(line[key], line)
        text = self.run_command("schedule", "list").stdout
        for name in names:
            self.assertIn(f"\n{name} ", text)


class Show(CommandTest):
    def show(self, name, *more):
        return self.run_json("schedule", "show", name, *more)

    def test_zb_h1(self):
        shown = self.show("zb-h1", "--ranks", "4", "--microbatches", "8")
        self.assertEqual(shown["schedule"], "zb-h1")
        self.assertEqual((shown["ranks"], shown["microbatches"], shown["chunks"]), (4, 8, 1))
        self.assertEqual((shown["makespan"], shown["span"], shown["bubble"]), (27, 27, 3))
        self.assertAlmostEqual(shown["bubble_rate"], 0.1111, 4)
        self.assertEqual(shown["peak_stash"], [4, 4, 4, 4])
        self.assertEqual(shown["messages"], 48)
        self.assertEqual(len(shown["rows"]), 4)
        self.assertEqual(shown["rows"][0][:5], ["0F0", "0F1", "0F2", "0F3", "0I0"])

    def test_chunks_by_default_are_what_it_is_made_for(self):
        for name, chunks in (("1f1b", 1), ("zb-v", 2), ("interleaved-1f1b", 2), ("dualpipe", 1)):
            self.assertEqual(self.show(name)["chunks"], chunks, name)
        self.assertEqual(self.show("interleaved-1f1b", "--chunks", "3")["chunks"], 3)

    def test_zero_bubble_by_costs_and_memory(self):
        def rate(limit):
            return self.show("zb-auto", "--ranks", "8", "--microbatches", "32", "--times",
                             "18.513,18.086,9.331,0.626", "--memory-limit", limit, "--stash",
                             "201216,-127488,-73728")["bubble_rate"]
        # Table 5 of the paper, 1.5B: ZB-1p and ZB-2p.
        self.assertAlmostEqual(rate("1"), 0.1242, 4)
        self.assertAlmostEqual(rate("2"), 0.0039, 4)

    def test_lowered_has_both_ends_of_every_message(self):
        shown = self.show("1f1b", "--ranks", "2", "--microbatches", "2", "--lowered")
        actions = [action for row in shown["rows"] for action in row]
        for action in ("0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0"):
            self.assertEqual(actions.count(action), 1, shown["rows"])
        self.assertEqual(shown["messages"], 4)

    def test_grid_fits_the_terminal(self):
        for name in ("1f1b", "zb-h1", "zb-h2", "zb-v", "interleaved-1f1b", "dualpipe-v"):
            for more in ((), ("--colour",)):
                text = self.run_command("schedule", "show", name, "--ranks", "8",
                                        "--microbatches", "16", *more).stdout
                self.assertIn("rank 7", text)
                if not more:
                    self.assertLessEqual(max(map(len, text.splitlines())), 100, name)
                self.assertEqual("\x1b[" in text, bool(more))

    def test_other_formats(self):
        def text(form):
            return self.run_command("schedule", "show", "zb-v", "--format", form).stdout
        csv = text("csv")
        self.assertEqual(len(csv.splitlines()), 4)
        self.assertTrue(csv.startswith("0F0,0F1"))
        svg = xml.etree.ElementTree.fromstring(text("svg"))
        rects = [node for node in svg.iter() if node.tag.endswith("}title")]
        self.assertEqual(len(rects), 4 * 2 * 3 * 8)
        events = json.loads(text("trace"))["traceEvents"]
        self.assertEqual(sum(event["ph"] == "X" for event in events), 4 * 2 * 3 * 8)

    def test_own_file(self):
        csv = self.run_command("schedule", "show", "zb-h2", "--format", "csv").stdout
        (self.folder / "own.csv").write_text(csv)
        own, made = self.show("file:own.csv"), self.show("zb-h2")
        self.assertEqual(own["rows"], made["rows"])
        self.assertEqual(own["span"], made["span"])

    def test_refusals(self):
        for arguments, says in (
                (("zb-h3",), ["zb-h3", "zb-h1"]),
                (("dualpipe", "--ranks", "3"), ["3 ranks"]),
                (("1f1b", "--chunks", "2"), ["one chunk"]),
                (("1f1b", "--ranks", "0"), ["0"]),
                (("1f1b", "--times", "1,2"), ["--times"]),
                (("1f1b", "--format", "png"), ["grid"]),
                (("zb-auto", "--memory-limit", "0.1"), ["memory limit"])):
            self.refuse("schedule", "show", *arguments, code=2, says=says)

    def test_help_has_an_example(self):
        for command in ("list", "show", "check"):
            done = self.run_command("schedule", command, "--help")
            self.assertIn(f"quatrain schedule {command}", done.stdout)


class Run(CommandTest):
    def test_measured_beside_simulated(self):
        both = self.run_json("schedule", "run", "zb-h1", "--unit-ms", "2", "--runs", "1")
        self.assertEqual((both["unit_ms"], both["runs"]), (2, 1))
        simulated, measured = both["simulated"], both["measured"]
        self.assertEqual(simulated.keys(), measured.keys())
        self.assertEqual((simulated["makespan"], simulated["bubble"]), (27, 3))
        for key in ("schedule", "ranks", "rows", "messages", "peak_stash"):
            self.assertEqual(simulated[key], measured[key], key)
        self.assertGreater(measured["makespan"], 26.9)

    def test_period_of_steps(self):
        both = self.run_json("schedule", "run", "zb-h2", "--unit-ms", "2", "--runs", "1",
                             "--steps", "3", "--post-validation")
        self.assertEqual(both["simulated"]["step_period"], 24)
        self.assertGreater(both["measured"]["step_period"], 23.9)

    def test_two_replicas_are_refused(self):
        done = self.start("schedule", "run", "dualpipe")
        self.assertEqual(done.returncode, 2)
        self.assertIn("use dualpipe-v", done.stderr)


class Check(CommandTest):
    def check(self, text, code):
        (self.folder / "s.csv").write_text(text)
        done = self.run_command("schedule", "check", "s.csv", "--json", code=code)
        return json.loads(done.stdout)

    def test_valid(self):
        self.assertEqual(self.check("0F0,0B0\n1F0,1B0\n", 0), {"valid": True, "problems": []})

    def test_every_problem_with_its_action(self):
        report = self.check("0F0,0F1,0B0\n1F0,1F0,1B0,1F1,1B1\n", 1)
        self.assertFalse(report["valid"])
        problems = {problem["code"]: problem for problem in report["problems"]}
        self.assertEqual(problems["repeated"]["rank"], 1)
        self.assertEqual(problems["repeated"]["action"], "1F0")
        self.assertIn("0B1", problems["missing"]["message"])

    def test_deadlock(self):
        report = self.check("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 1)
        self.assertEqual([problem["code"] for problem in report["problems"]], ["deadlock"])

    def test_no_schedule_at_all(self):
        report = self.check("0F0,0B0\n1F0,1X0\n", 1)
        self.assertEqual(report["problems"][0]["code"], "syntax")
        self.assertIn("row 2, column 2", report["problems"][0]["message"])

    def test_no_file(self):
        done = self.start("schedule", "check", "absent.csv")
        self.assertIn(done.returncode, (2, 74))
        self.assertIn("absent.csv", done.stderr)


if __name__ == "__main__":
    main()
