// Is the committed build that of these sources? Builds again beside it and compares every byte.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));
const committed = join(here, '../src/numscope/view/static');
const fresh = mkdtempSync(join(tmpdir(), 'numscope-view-'));
const LARGEST = 360 * 1024; // of which the Chinese of reports is a fifth

function bin(name, ...args) {
  execFileSync(process.execPath, [join(here, 'node_modules', name), ...args], { cwd: here, stdio: ['ignore', 'inherit', 'inherit'] });
}

try {
  bin('typescript/bin/tsc', '--noEmit');
  bin('vite/bin/vite.js', 'build', '--outDir', fresh, '--logLevel', 'warn');
  const names = [...new Set([...readdirSync(fresh), ...readdirSync(committed)])].sort();
  const read = (folder, name) => {
    try {
      return readFileSync(join(folder, name));
    } catch {
      return null;
    }
  };
  const stale = names.filter((name) => {
    const [a, b] = [read(fresh, name), read(committed, name)];
    return !a || !b || !a.equals(b);
  });
  if (stale.length) {
    console.error(`src/numscope/view/static is not built from these sources (${stale.join(', ')}): run make frontend and commit it`);
    process.exit(1);
  }
  const size = names.reduce((sum, name) => sum + read(fresh, name).length, 0);
  if (size > LARGEST) {
    console.error(`the front end is ${size} bytes, more than ${LARGEST}`);
    process.exit(1);
  }
  if (/<\/script/i.test(read(fresh, 'app.js').toString())) {
    console.error('app.js holds </script, which would end it inside an HTML report');
    process.exit(1);
  }
  console.log(`front end up to date: ${names.join(', ')}, ${Math.round(size / 1024)} KB in all`);
} finally {
  rmSync(fresh, { recursive: true, force: true });
}
