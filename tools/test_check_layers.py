# SPDX-License-Identifier: Apache-2.0
"""Plants each kind of violation in a small tree and sees check_layers report file and line."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path

TOOL = Path(__file__).resolve().parent / 'check_layers'


def load():
    """The tool as a module: a process for each planted tree would cost minutes."""
    sys.path.insert(0, str(TOOL.parent))
    sys.dont_write_bytecode = True
    loader = SourceFileLoader('check_layers', str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


CHECK = load()

CLEAN = {
    'quatrain/base/CMakeLists.txt': 'quatrain_module(base\n  SOURCES a.cc)\n',
    'quatrain/base/a.h': '#pragma once\n#include <string>\n',
    'quatrain/base/a.cc': '#include "quatrain/base/a.h"\n',
    'quatrain/mesh/CMakeLists.txt': '# c\nquatrain_module(mesh\n  DEPS base\n  SOURCES m.cc)\n',
    'quatrain/mesh/m.h': '#pragma once\n#include "quatrain/base/a.h"\n',
    'quatrain/mesh/m.cc': '#include "quatrain/mesh/m.h"\n',
    'quatrain/kernels/CMakeLists.txt':
        'quatrain_module(kernels DEPS base SOURCES k.cc TESTS k_test.cc TORCH NATIVE)\n',
    'quatrain/kernels/k.h': '#pragma once\n#include <ATen/core/Tensor.h>\n',
    'quatrain/kernels/k.cc':
        '#include "quatrain/kernels/k.h"\n#include <ATen/ops/mm.h>\n'
        'auto y() { return at::mm(a, b.mm(c)).data_ptr<float>(); }\n',
    'quatrain/nn/CMakeLists.txt':
        'quatrain_module(nn DEPS base mesh kernels SOURCES n.cc TESTS n_test.cc TORCH)\n',
    'quatrain/nn/n.h': '#pragma once\n#include <ATen/core/Tensor.h>\n',
    'quatrain/nn/n.cc':
        '#include "quatrain/nn/n.h"\n#include <ATen/ops/cat.h>\n'
        '#include "quatrain/kernels/k.h"\n'
        '// exit(1), at::mm(a, b) and x.data_ptr() may be written about.\n'
        'const char* s = "std::cout << printf(abort())";\n'
        'auto z = kernels::matmul(a, b);\n'
        'auto w = snprintf(buffer, 3, "x"); auto v = thread.exit(); int exit_code(int);\n',
    'quatrain/nn/n_test.cc': 'auto y = at::matmul(a, b); auto p = y.data_ptr<float>();\n',
    'quatrain/nn/testing.h': '#include <ATen/ops/full.h>\n',
    'apps/main.cc': '#include "quatrain/nn/n.h"\nint main() { exit(printf("x")); }\n',
}


class CheckLayersTest(unittest.TestCase):
    def run_on(self, changes):
        """(exit code, lines) on the clean tree with some files replaced."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**CLEAN, **changes}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            output = CHECK.check_tree(folder)
            return (1 if output else 0), output

    def expect(self, changes, *lines):
        code, output = self.run_on(changes)
        self.assertEqual(code, 1, output)
        for line in lines:
            self.assertIn(line, output)
        return output

    def expect_start(self, changes, start):
        code, output = self.run_on(changes)
        self.assertEqual(code, 1, output)
        self.assertTrue(any(line.startswith(start) for line in output), output)

    def add(self, name, text):
        return {name: CLEAN[name] + text}

    def test_clean_tree(self):
        self.assertEqual(self.run_on({}), (0, []))

    def test_include_up_the_table(self):
        output = self.expect(
            self.add('quatrain/base/a.cc', '\n#include "quatrain/mesh/m.h"\n'),
            'quatrain/base/a.cc:3: base includes "quatrain/mesh/m.h"; allowed: base')
        self.assertTrue(any('folder cycle' in line for line in output), output)
        self.expect(self.add('quatrain/mesh/m.cc', '#include "quatrain/nn/n.h"\n'),
                    'quatrain/mesh/m.cc:2: mesh includes "quatrain/nn/n.h"; allowed: base mesh')

    def test_folder_cycle(self):
        self.expect(
            {**self.add('quatrain/base/a.h', '#include "quatrain/mesh/m.h"\n'),
             'quatrain/base/CMakeLists.txt': 'quatrain_module(base DEPS mesh SOURCES a.cc)\n'},
            'quatrain/mesh/m.h:2: folder cycle: base -> mesh -> base')

    def test_header_cycle(self):
        self.expect(
            {**self.add('quatrain/mesh/m.h', '#include "quatrain/mesh/x.h"\n'),
             'quatrain/mesh/x.h': '#pragma once\n\n#include "quatrain/mesh/m.h"\n'},
            'quatrain/mesh/x.h:3: include cycle: quatrain/mesh/m.h -> quatrain/mesh/x.h -> '
            'quatrain/mesh/m.h')

    def test_running_half_in_the_pure_half(self):
        for header in ('ATen/core/Tensor.h', 'c10/core/Device.h', 'mpi.h', 'nccl.h',
                       'torch/types.h', 'cuda_runtime.h'):
            self.expect(self.add('quatrain/mesh/m.cc', f'#include <{header}>\n'),
                        f'quatrain/mesh/m.cc:2: <{header}> in the pure half; allowed: base mesh')

    def test_pure_module_depends_on_running_module(self):
        self.expect(
            {'quatrain/mesh/CMakeLists.txt': '\nquatrain_module(mesh DEPS base kernels SOURCES)\n'},
            'quatrain/mesh/CMakeLists.txt:2: the pure half (mesh) depends on the running half '
            '(kernels)')

    def test_heavy_headers_anywhere(self):
        for name in ('quatrain/nn/n.cc', 'quatrain/kernels/k.cc', 'apps/main.cc'):
            line = CLEAN[name].count('\n') + 1
            for header in ('torch/torch.h', 'ATen/ATen.h'):
                self.expect_start(self.add(name, f'#include <{header}>\n'),
                                  f'{name}:{line}: heavy header <{header}>')

    def test_operators_in_a_header(self):
        self.expect_start(self.add('quatrain/nn/n.h', '#include <ATen/ops/cat.h>\n'),
                          'quatrain/nn/n.h:3: <ATen/ops/cat.h> in a header')

    def test_ends_of_the_process(self):
        for call in ('exit(1)', 'std::exit(1)', '::abort()', 'std::abort()', '_Exit(1)',
                     'std::quick_exit (1)', 'std::terminate()'):
            self.expect_start(self.add('quatrain/base/a.cc', f'\n  {call};\n'),
                              'quatrain/base/a.cc:3: ')

    def test_prints(self):
        for call in ('std::cout << 1', 'std::cerr << 1', 'printf("x")', 'std::printf("x")',
                     'fprintf(stderr, "x")', 'std::puts("x")', 'fmt::print("x")'):
            self.expect_start(self.add('quatrain/base/a.cc', f'  {call};\n'),
                              'quatrain/base/a.cc:2: ')

    def test_products_outside_kernels(self):
        for call in ('at::mm(a, b)', 'at::addmm(c, a, b)', 'at::bmm(a, b)', 'at::matmul(a, b)',
                     'at::linear(x, w)', 'at::baddbmm(c, a, b)', 'at::einsum("ij,jk", {a, b})',
                     'at::mm_out(c, a, b)', 'at::_ops::mm::call(a, b)', 'a.mm(b)', 'a.matmul(b)',
                     'c.addmm_(a, b)', 'p->bmm(b)', 'a.t()\n.mm(b)'):
            line = CLEAN['quatrain/nn/n.cc'].count('\n') + 1 + call.count('\n')
            self.expect_start(self.add('quatrain/nn/n.cc', f'auto x = {call};\n'),
                              f'quatrain/nn/n.cc:{line}: GEMM ')
        self.expect_start(self.add('apps/main.cc', 'auto x = a.mm(b);\n'), 'apps/main.cc:3: GEMM ')
        self.expect_start(self.add('quatrain/nn/n.cc', '#include <ATen/ops/addmm.h>\n'),
                          'quatrain/nn/n.cc:8: <ATen/ops/addmm.h> outside kernels/')

    def test_data_pointers(self):
        for call in ('data_ptr<float>()', 'mutable_data_ptr()', 'const_data_ptr<int>()'):
            self.expect_start(self.add('quatrain/nn/n.cc', f'auto p = x.{call};\n'),
                              f'quatrain/nn/n.cc:8: {call[:call.index("ptr") + 3]} outside '
                              'kernels/, comm/, checkpoint/')

    def test_folder_without_a_layer(self):
        self.expect_start({'quatrain/stray/s.cc': 'int x;\n'}, 'quatrain/stray/s.cc:1: ')

    def test_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'quatrain' / 'stray' / 's.cc'
            path.parent.mkdir(parents=True)
            path.write_text('int x;\n')
            command = [sys.executable, str(TOOL), folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (1, ''))
            self.assertTrue(done.stdout.startswith('quatrain/stray/s.cc:1: '), done.stdout)
            path.unlink()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, '', ''))

    def test_all_at_once(self):
        code, output = self.run_on({
            **self.add('quatrain/base/a.cc', 'exit(1);\n'),
            **self.add('quatrain/nn/n.cc', 'auto x = a.mm(b).data_ptr();\n')})
        self.assertEqual(code, 1)
        self.assertEqual(len(output), 3, output)


if __name__ == '__main__':
    unittest.main()
