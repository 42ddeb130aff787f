import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { chinese } from '../src/i18n';

const examples = JSON.parse(readFileSync(join(import.meta.dirname, '../../tests/unit/core/language_examples.json'), 'utf8')) as Record<string, string>;

it('sentences read as on the command line', () => {
  for (const [english, said] of Object.entries(examples)) expect(chinese(english)).toBe(said);
});
