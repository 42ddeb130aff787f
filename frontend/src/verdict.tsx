// One colour and one glyph per verdict, the same everywhere: nobody has to tell them apart by hue.
import type { VerdictWord } from './data/types';
import { t } from './i18n';

export const VERDICTS: readonly VerdictWord[] = ['identical', 'equivalent', 'origin', 'inherited', 'unmatched'];
export const GLYPH: Record<VerdictWord, string> = {
  identical: '=',
  equivalent: '≈',
  origin: '✱',
  inherited: '↳',
  unmatched: '◇',
};

export function isVerdict(word: unknown): word is VerdictWord {
  return typeof word === 'string' && word in GLYPH;
}

export function verdictClass(word: unknown): string {
  return isVerdict(word) ? `v-${word}` : 'v-none';
}

export function Badge({ word, pill }: { word: unknown; pill?: boolean }) {
  if (!isVerdict(word)) return null;
  return (
    <span class={`badge ${verdictClass(word)} ${pill ? 'pill' : ''}`}>
      <i aria-hidden="true">{GLYPH[word]}</i>
      {t(word)}
    </span>
  );
}
