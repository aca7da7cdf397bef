// The programs of examples/deals that are for Node: they are TypeScript, and their types hold.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const HERE = fileURLToPath(new URL('.', import.meta.url));
// These tests run where they lie, or beside their packages in `target`.
const DEALS = ['../../examples/deals', '../../../examples/deals'].map((path) => join(HERE, path)).find(existsSync);

test('the programs of the example have the types that they say', () => {
  const programs = readdirSync(DEALS).filter((name) => name.endsWith('.ts'));
  assert.ok(programs.length >= 3, programs.join());
  const checked = spawnSync(
    process.execPath,
    [
      join(HERE, 'node_modules/typescript/bin/tsc'),
      ...['--project', DEALS, '--noEmit'],
      ...['--typeRoots', join(HERE, 'node_modules/@types')],
    ],
    { encoding: 'utf8' },
  );
  assert.equal(checked.status, 0, checked.stdout + checked.stderr);
});
