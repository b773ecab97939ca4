# SPDX-License-Identifier: Apache-2.0
"""Plants each kind of violation and sees check_sizes report file and line."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path

TOOL = Path(__file__).resolve().parent / 'check_sizes'


def load():
    """The tool as a module: a process for each planted tree would cost minutes."""
    sys.path.insert(0, str(TOOL.parent))
    sys.dont_write_bytecode = True
    loader = SourceFileLoader('check_sizes', str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


CHECK = load()
TOP = '// SPDX-License-Identifier: Apache-2.0\n'


def body(lines):
    return '  work();\n' * (lines - 2)


class CheckSizesTest(unittest.TestCase):
    def report(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return CHECK.check_tree(Path(folder))

    def one(self, text, name='quatrain/x.cc'):
        return self.report({name: text})

    def test_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'apps' / 'x.cc'
            path.parent.mkdir()
            for text, code in ((TOP, 0), ('int x;\n', 1)):
                path.write_text(text)
                done = subprocess.run([sys.executable, str(TOOL), folder], capture_output=True,
                                      text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (code, ''))
                self.assertEqual(bool(done.stdout), bool(code))

    def test_limits_are_allowed(self):
        self.assertEqual(self.one(TOP + 'x\n' * 499), [])
        self.assertEqual(self.one(TOP + 'x\n' * 249, 'quatrain/x.h'), [])
        self.assertEqual(self.one(TOP + 'x' * 100 + '\n'), [])
        self.assertEqual(self.one(TOP + 'void f() {\n' + body(60) + '}\n'), [])

    def test_files(self):
        self.assertEqual(self.one(TOP + 'x\n' * 500),
                         ['quatrain/x.cc:501: 501 lines; at most 500'])
        self.assertEqual(self.one(TOP + 'x\n' * 250, 'quatrain/x.h'),
                         ['quatrain/x.h:251: 251 lines; at most 250'])
        self.assertEqual(self.one('# SPDX-License-Identifier: Apache-2.0\n' + 'x\n' * 500,
                                  'tests/x.py'), ['tests/x.py:501: 501 lines; at most 500'])

    def test_columns(self):
        self.assertEqual(self.one(TOP + '\n' + 'x' * 101 + '\n'),
                         ['quatrain/x.cc:3: 101 columns; at most 100'])

    def test_licence(self):
        rule = 'the first line is not "SPDX-License-Identifier: Apache-2.0"'
        self.assertEqual(self.one('int x;\n'), [f'quatrain/x.cc:1: {rule}'])
        self.assertEqual(self.one('#!/bin/sh\n' + TOP, 'tools/x'), [])
        self.assertEqual(self.one('#!/bin/sh\necho\n', 'tools/x'), [f'tools/x:2: {rule}'])

    def long_function(self, before, after='}\n', line=2):
        found = self.one(TOP + before + body(61) + after)
        self.assertEqual(found, [f'quatrain/x.cc:{line}: a function of 61 lines; at most 60'])

    def test_functions(self):
        self.long_function('void f() {\n')
        self.long_function('namespace a {\nnamespace {\nint f(int x) const noexcept {\n',
                           '}\n}\n}\n', line=4)
        self.long_function('class A : public B {\n public:\n  auto f() -> int {\n',
                           '  }\n};\n', line=4)
        self.long_function('struct A {\n  int x = 3;\n  A& operator=(A&& o) {\n', '  }\n};\n',
                           line=4)
        self.long_function('constexpr int k[] = {1, 2};\nTEST(A, B) {\n', line=3)
        self.long_function('#define X {\nvoid f() {  // {\n', line=3)

    def test_constructors(self):
        self.long_function('A::A(int a) : a_{a}, b_({1}) {\n')

    def test_heads_over_lines(self):
        found = self.one(TOP + 'template <class T>\nvoid f(int a,\n       int b) {\n'
                         + '  work();\n' * 57 + '}\n')
        self.assertEqual(found, ['quatrain/x.cc:2: a function of 61 lines; at most 60'])

    def test_what_is_no_function(self):
        self.assertEqual(self.one(TOP + 'namespace a {\n' + 'int x;\n' * 80 + '}\n'), [])
        self.assertEqual(self.one(TOP + 'class A {\n' + '  int f();\n' * 80 + '};\n'), [])
        self.assertEqual(self.one(TOP + 'const std::array kTable = {\n' + '  1,\n' * 80 + '};\n'),
                         [])
        self.assertEqual(self.one(TOP + 'void f() {}\n' * 80), [])

    def test_strings_and_comments_hold_no_braces(self):
        text = TOP + 'void f() { g("}{", \'{\', R"(}{)"); }  /* { */\n' * 3
        self.assertEqual(self.one(text + 'int x;\n' * 80), [])


if __name__ == '__main__':
    unittest.main()
