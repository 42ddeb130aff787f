import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { CHINESE } from '../src/i18n';

function sources(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? sources(join(folder, entry.name)) : /\.tsx?$/.test(entry.name) ? [readFileSync(join(folder, entry.name), 'utf8')] : [],
  );
}

it('every text of the pages has its Chinese', () => {
  const texts = sources(join(import.meta.dirname, '../src')).flatMap((text) =>
    [...text.matchAll(/\bt\(\s*'((?:[^'\\]|\\.)+)'/g)].map((match) => match[1]!),
  );
  expect(texts.length).toBeGreaterThan(80);
  expect([...new Set(texts)].filter((text) => !(text in CHINESE))).toEqual([]);
});

it('the Chinese has only places that the English has', () => {
  const places = (text: string) => [...text.matchAll(/\{\d\}/g)].map(String).sort();
  for (const [english, chinese] of Object.entries(CHINESE)) {
    expect(places(chinese).filter((place) => !places(english).includes(place)), english).toEqual([]);
  }
});
