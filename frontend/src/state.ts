// What all pages share: where the data comes from, what it is about, and how it looks.
import { computed, effect, signal } from '@preact/signals';
import type { Document } from './data/documents';
import type { Source } from './data/source';
import type { Summary } from './data/types';

export const source = signal<Source | null>(null);
export const summary = signal<Summary | null>(null);
export const answer = signal<Document | null>(null); // of a command, shown in place of runs
export const comparing = computed(() => summary.value?.mode === 'comparison');
export const help = signal(false);

export type Theme = 'light' | 'dark';
const system = matchMedia('(prefers-color-scheme: dark)');
const prefersDark = signal(system.matches);
system.addEventListener('change', (event) => (prefersDark.value = event.matches));
const chosen = signal<Theme | null>(read());
export const theme = computed<Theme>(() => chosen.value ?? (prefersDark.value ? 'dark' : 'light'));
effect(() => {
  document.documentElement.dataset['theme'] = theme.value;
});

function read(): Theme | null {
  try {
    const kept = localStorage.getItem('numscope.theme');
    return kept === 'light' || kept === 'dark' ? kept : null;
  } catch {
    return null;
  }
}

export function toggleTheme(): void {
  chosen.value = theme.value === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem('numscope.theme', chosen.value);
  } catch {
    // a report opened from disk may have no storage
  }
}

/** A colour of the style sheet, for what is drawn on a canvas. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
