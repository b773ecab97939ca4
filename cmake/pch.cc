// SPDX-License-Identifier: Apache-2.0
// Carries the precompiled header that the modules of the running half reuse.
