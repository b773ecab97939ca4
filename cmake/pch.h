// SPDX-License-Identifier: Apache-2.0
// What every file of the running half parses: tensors, the common operators, and the standard
// headers of quatrain's own interfaces. Sources still include what they use.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Logging.h>  // before base/check.h, which takes CHECK from it

#include "cmake/pch_pure.h"
