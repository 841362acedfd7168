// SPDX-License-Identifier: Apache-2.0
// Nothing: it gives the precompiled headers a target to belong to.
