// SPDX-License-Identifier: Apache-2.0
// A module as text that stands in a page: node pack.mjs FROM TO writes it deflated, in base64.
import { readFileSync, writeFileSync } from "node:fs";
import { deflateRawSync } from "node:zlib";

const [from, to] = process.argv.slice(2);
writeFileSync(to, deflateRawSync(readFileSync(from), { level: 9 }).toString("base64"));
