# SPDX-License-Identifier: Apache-2.0
"""Plants names of tests that are not there and sees check_docs report file and line."""
import importlib.util
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path


def load():
    sys.dont_write_bytecode = True
    loader = SourceFileLoader('check_docs', str(Path(__file__).resolve().parent / 'check_docs'))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


CHECK = load()
ROWS = ''.join(f'| {i} | all | `Some.Test` |\n' for i in range(1, 41))


class CheckDocs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / 'docs').mkdir()
        (self.root / 'quatrain').mkdir()
        (self.root / 'quatrain/some_test.cc').write_text(
            'TEST(Some, Test) {\nTEST_F(Other,\n       Long) {\nTYPED_TEST(Typed, One) {\n')

    def found(self, proofs, rows=ROWS):
        (self.root / 'README.md').write_text(
            f'Some `words.here`.\n\n| feature | proved by |\n|---|---|\n| all | {proofs} |\n')
        (self.root / 'docs/lecture.md').write_text(f'| # | what | proved by |\n|---|\n{rows}')
        return list(CHECK.problems(self.root))

    def test_names_that_exist(self):
        self.assertEqual(self.found('`Some.Test`, `Other.Long`, `Typed.*`: `quatrain plan`'), [])
        self.assertEqual(self.found('`quatrain/some_test.cc`, `unknown_without_a_build`'), [])

    def test_names_that_do_not(self):
        for name in ('Some.Tests', 'None.*', 'tools/nothing'):
            found = self.found(f'`Some.Test`, `{name}`')
            self.assertEqual(len(found), 1, found)
            self.assertTrue(found[0].startswith(f'README.md:5: `{name}`: no such'), found)

    def test_names_of_ctest(self):
        tree = CHECK.Tree(self.root)
        tree.ctests = {'zero_test', 'zero_mpi_test_2', 'header_fuzz'}
        for name in ('zero_test', 'zero_mpi_test', '*_fuzz'):
            self.assertIsNone(tree.missing(name), name)
        for name in ('zero', 'mpi_test', 'zero_mpi_tests'):
            self.assertEqual(tree.missing(name), 'no such test of ctest', name)

    def test_every_item_once_and_in_order(self):
        lines = ROWS.splitlines(keepends=True)
        for rows in (lines[:-1], lines[:5] + lines[6:], lines[1:2] + lines[:1] + lines[2:]):
            found = self.found('`Some.Test`', ''.join(rows))
            self.assertEqual(len(found), 1, found)
            self.assertIn('docs/lecture.md:1: the items are not 1 to 40', found[0])

    def test_a_page_without_the_column(self):
        (self.root / 'README.md').write_text('| feature | by |\n|---|---|\n| all | `Some.Test` |\n')
        (self.root / 'docs/lecture.md').write_text(f'| # | what | proved by |\n|---|\n{ROWS}')
        self.assertEqual(list(CHECK.problems(self.root)),
                         ['README.md:1: no column "proved by"'])


if __name__ == '__main__':
    unittest.main()
