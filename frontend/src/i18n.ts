// The words of the pages. English is written where it is shown; Chinese is looked up by it.
import { signal } from '@preact/signals';
import { CHINESE } from './chinese';

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
