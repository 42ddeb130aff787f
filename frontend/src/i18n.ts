// The words of the pages. English is written where it is shown; Chinese is looked up by it, in the files that the command
// line reads too (src/numscope/core/language/chinese.py says how a sentence of several parts is taken apart).
import { signal } from '@preact/signals';
import ANSWERS from '../../src/numscope/core/language/answers.json';
import VIEWER from '../../src/numscope/core/language/viewer.json';

export const CHINESE: Record<string, string> = { ...(VIEWER as Record<string, string>), ...(ANSWERS as Record<string, string>) };

export type Language = 'en' | 'zh';

function first(): Language {
  const kept = stored();
  if (kept) return kept;
  return (navigator.languages ?? [navigator.language]).map((tag) => tag.slice(0, 2)).find((tag) => tag === 'zh' || tag === 'en') === 'zh'
    ? 'zh'
    : 'en';
}

function stored(): Language | null {
  try {
    const kept = localStorage.getItem('numscope.language');
    return kept === 'en' || kept === 'zh' ? kept : null;
  } catch {
    return null;
  }
}

export const language = signal<Language>(first());

export function setLanguage(to: Language): void {
  language.value = to;
  document.documentElement.lang = to;
  try {
    localStorage.setItem('numscope.language', to);
  } catch {
    // a report opened from disk may have no storage
  }
}

/** The text in the reader's language; `{0}` and so on take the other arguments. */
export function t(text: string, ...values: (string | number)[]): string {
  const found = language.value === 'zh' ? (CHINESE[text] ?? text) : text;
  return found.replace(/\{(\d)\}/g, (_, index: string) => String(values[Number(index)] ?? ''));
}

/** A sentence of a report in the reader's language. */
export function say(text: string): string;
export function say<T>(text: T): T;
export function say(text: unknown): unknown {
  return language.value === 'zh' && typeof text === 'string' ? chinese(text) : text;
}

interface Form {
  pattern: RegExp;
  chinese: string;
  places: number[];
  joint: boolean;
  weight: number;
}

const said = new Map<string, string>();
let forms: Form[] | null = null;

export function chinese(text: string): string {
  let found = said.get(text);
  if (found === undefined) {
    found = look(text);
    said.set(text, found);
  }
  return found;
}

function look(text: string): string {
  const stripped = text.trim();
  if (!stripped) return text;
  if (stripped !== text) return text.replace(stripped, () => chinese(stripped));
  const known = CHINESE[text];
  if (known !== undefined) return known;
  const whole = byForm(text, true);
  if (whole !== null) return whole;
  if (text.includes('; ')) return text.split('; ').map(chinese).join('；');
  const form = byForm(text, false);
  if (form !== null) return form;
  for (const [english, own] of [
    [': ', '：'],
    [', ', '，'],
  ] as const) {
    const parts = text.split(english);
    const each = parts.map((part) => (part === text ? part : chinese(part)));
    if (each.some((part, i) => part !== parts[i])) return each.join(own);
  }
  return text;
}

function byForm(text: string, joint: boolean): string | null {
  forms ??= Object.entries(CHINESE)
    .filter(([english]) => /\{\d\}/.test(english))
    .map(([english, own]) => {
      const pieces = english.split(/\{(\d)\}/);
      const source = pieces.map((piece, i) => (i % 2 ? '([^]+?)' : piece.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))).join('');
      return {
        pattern: new RegExp(`^${source}$`),
        chinese: own,
        places: pieces.filter((_, i) => i % 2).map(Number),
        joint: english.includes('; '),
        weight: pieces.filter((_, i) => i % 2 === 0).join('').length,
      };
    })
    .sort((a, b) => b.weight - a.weight);
  for (const form of forms) {
    if (form.joint !== joint) continue;
    const match = form.pattern.exec(text);
    if (!match) continue;
    const values = new Map(form.places.map((place, i) => [place, chinese(match[i + 1]!)]));
    return form.chinese.replace(/\{(\d)\}/g, (place, index: string) => values.get(Number(index)) ?? place);
  }
  return null;
}
