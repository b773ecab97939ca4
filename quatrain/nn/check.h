// SPDX-License-Identifier: Apache-2.0
// CHECK for the sources of nn/ and of what stands on it.
#pragma once
#include "quatrain/kernels/check.h"
