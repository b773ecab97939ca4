# SPDX-License-Identifier: Apache-2.0
"""Bad configurations and command lines: exit 2, every problem named with file and line, nothing
written."""
import resource

from support import CONFIG, CommandTest, main, read_metrics


def line_of(text, key):
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith(key))


def replaced(key, value):
    """CONFIG with the line of `key` replaced."""
    lines = CONFIG.splitlines()
    lines[line_of(CONFIG, key) - 1] = value
    return "\n".join(lines) + "\n"


# name, key whose line is replaced, the new line, what must be said beside file:line
BAD = [
    ("case_100_slip", "lr = ", "learning_rte = 1e-2", ["learning_rte", "did you mean lr?"]),
    ("case_100_wrong_section", "seed = ", "warmup_steps = 3",
     ["warmup_steps", "this key belongs in [lr_schedule]"]),
    ("case_100_wrong_type", "steps = 6", 'steps = "six"', ["steps", "expected an integer"]),
    ("unknown_section", "[metrics]", "[metric]", ["[metric]", "[metrics]"]),
    ("no_toml", "steps = 6", "steps = = 6", ["not valid TOML"]),
    ("negative", "steps = 6", "steps = -1", ["steps"]),
    ("heads", "num_attention_heads", "num_attention_heads = 5", ["num_attention_heads"]),
    ("kv_heads", "num_key_value_heads", "num_key_value_heads = 3", ["num_key_value_heads"]),
    ("global_batch", "global_batch", "global_batch = 5", ["global_batch", "4 or 6"]),
    ("no_such_dtype", "seq_len", 'dtype = "float8"', ["dtype", "float32, bfloat16, float64"]),
    ("no_such_family", "model_type", 'model_type = "lama"', ["model_type", "llama"]),
    ("no_such_optimizer", "lr = ", 'name = "adam"', ["adamw"]),
    ("no_such_schedule", "type = ", 'type = "cosin"', ["cosine"]),
    ("too_long", "seq_len", "seq_len = 128", ["seq_len", "64"]),
    ("path_of_a_number", "train = ", "train = 3", ["train"]),
    ("weight", "train = ", 'train = [{ path = "train.idx", weight = -1.0 }]', ["weight"]),
]


class BadConfig(CommandTest):
    def test_table(self):
        for i, (name, key, value, says) in enumerate(BAD):
            with self.subTest(name):
                text = replaced(key, value)
                (self.folder / "bad.toml").write_text(text)
                where = f"bad.toml:{line_of(text, value)}"
                more = ["--dry-run"] if i % 3 == 0 else []
                self.refuse("train", "bad.toml", *more, code=2, says=[where, *says])

    def test_every_problem_at_once(self):
        text = CONFIG.replace("steps = 6", "stpes = 6").replace("seed = 7", "seed = true")
        text = text.replace("lr = 1e-2", "lr = -1.0").replace("log_every = 2", "log_every = 0")
        text += "[comm]\ntimeout = 3\n"
        (self.folder / "bad.toml").write_text(text)
        says = [f"bad.toml:{line_of(text, key)}"
                for key in ("stpes", "seed", "lr = -1", "log_every", "timeout")]
        done = self.refuse("train", "bad.toml", code=2, says=says)
        self.assertEqual(len([x for x in done.stderr.splitlines() if "bad.toml:" in x]), 5)

    def test_overrides(self):
        self.refuse("train", "tiny.toml", "training.stpes=3", code=2, says=["stpes", "steps"])
        self.refuse("train", "tiny.toml", "training.steps=many", code=2, says=["training.steps"])
        self.refuse("train", "tiny.toml", "steps", code=2, says=["steps", "="])

    def test_json_leaves_stdout_empty(self):
        done = self.refuse("train", "tiny.toml", "training.steps=0", "--json", code=2,
                           says=["training.steps"])
        self.assertEqual(done.stdout, "")

    def test_ranks_are_refused_with_what_would_do(self):
        for override in ("parallel.tp=3", "parallel.pp=3", "parallel.cp=33"):
            with self.subTest(override):
                self.refuse("train", "tiny.toml", override, code=2, says=[override.split("=")[0]])

    def test_missing_config(self):
        self.refuse("train", "absent.toml", code=2, says=["absent.toml", "no such file"])
        self.refuse("eval", "absent.toml", code=2, says=["absent.toml"])
        self.refuse("train", code=2, says=["CONFIG"])

    def test_no_data(self):
        text = "\n".join(x for x in CONFIG.splitlines() if not x.startswith("train = "))
        (self.folder / "bad.toml").write_text(text)
        self.refuse("train", "bad.toml", code=2, says=["data.train"])
        self.refuse("train", "bad.toml", "--dry-run", code=2, says=["data.train"])
        self.refuse("train", "tiny.toml", 'data.train=[{ path = "absent.idx" }]', code=2,
                    says=["absent.idx"])

    def test_eval_without_data_or_weights(self):
        self.refuse("eval", "tiny.toml", code=2, says=["weights", "runs/tiny"])
        self.refuse("eval", "tiny.toml", "data.validation=[]", code=2, says=["data.validation"])
        self.refuse("train", "tiny.toml", "model.weights=absent", code=2, says=["absent"])

    def test_tokenizer_too_large(self):
        self.refuse("train", "tiny.toml", "model.vocab_size=256", code=2,
                    says=["257", "256", "vocab_size"])


class BadCommandLine(CommandTest):
    def test_unknown_command_or_flag(self):
        for arguments, says in [
            (["trian"], "trian"),
            (["train", "tiny.toml", "--dryrun"], "--dryrun"),
            (["data"], "subcommand"),
            (["data", "inspct"], "inspct"),
            ([], "subcommand"),
            (["generate", "--from", "x"], "--prompt"),
            (["generate", "--from", "x", "--prompt", "a", "--tokens", "0"], "--tokens"),
            (["generate", "--from", "x", "--prompt", "a", "--top-p", "2"], "--top-p"),
            (["data", "tokenize", "train.txt", "--out", "x"], "--tokenizer"),
        ]:
            with self.subTest(" ".join(arguments)):
                self.refuse(*arguments, code=2, says=[says])

    def test_folder_that_is_no_model(self):
        self.refuse("generate", "--from", "absent", "--prompt", "a", code=2,
                    says=["absent", "no such folder"])
        self.refuse("generate", "--from", ".", "--prompt", "a", code=2, says=["config.json"])


class Places(CommandTest):
    """Where nothing can be written or read."""

    def test_run_folder_below_a_file(self):
        (self.folder / "plain").write_text("a file")
        self.refuse("train", "tiny.toml", "run.folder=plain/run", code=74,
                    says=["plain/run", "Not a directory"])
        self.refuse("train", "tiny.toml", "run.folder=plain", code=74, says=["plain"])

    def test_tokens_below_a_file(self):
        (self.folder / "plain").write_text("a file")
        (self.folder / "a.txt").write_text("some text")
        self.refuse("data", "tokenize", "a.txt", "--tokenizer", "bytes", "--out", "plain/x",
                    code=74, says=["plain", "Not a directory"])

    def test_full_disk(self):
        # A limit on file sizes stands for it: the first fails at the configuration, the second at
        # the weights, after all steps.
        for limit, file in ((256, "config.toml"), (20_000, "model.safetensors")):
            with self.subTest(file):
                folder = f"runs/limit{limit}"

                def small_files(limit=limit):
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

                done = self.start("train", "tiny.toml", f"run.folder={folder}",
                                  preexec_fn=small_files, restore_signals=False)
                self.assertEqual(done.returncode, 74, done.stderr)
                self.assertIn(file, done.stderr)
                left = [path.name for path in (self.folder / folder).rglob("*") if path.is_file()]
                self.assertNotIn(file, left)  # whole or not at all
                self.assertFalse([name for name in left if "tmp" in name], left)
        self.assertEqual(len(read_metrics(self.folder / "runs/limit20000")), 6)

    def test_config_is_a_folder(self):
        (self.folder / "folder.toml").mkdir(exist_ok=True)
        self.refuse("train", "folder.toml", code=2, says=["folder.toml"])


if __name__ == "__main__":
    main()
