// The address after the # says which page, and what it shows: every view can be linked to, and Back goes back.
import { computed, signal } from '@preact/signals';

export interface Route {
  page: string;
  parts: string[];
  query: URLSearchParams;
}

const hash = signal(location.hash);
addEventListener('hashchange', () => (hash.value = location.hash));

export const route = computed<Route>(() => parse(hash.value));

export function parse(text: string): Route {
  const [path = '', query = ''] = text.replace(/^#\/?/, '').split('?');
  const [page = '', ...parts] = path.split('/').map(decodeURIComponent);
  return { page, parts, query: new URLSearchParams(query) };
}

export function link(page: string, parts: (string | number)[] = [], query?: URLSearchParams): string {
  const path = [page, ...parts.map((part) => encodeURIComponent(String(part)))].join('/');
  const search = query?.toString();
  return `#/${path}${search ? `?${search}` : ''}`;
}

export function go(to: string): void {
  if (location.hash !== to) location.hash = to;
}

/** Change the address without a new entry in the history: typing in a filter is one visit. */
export function replace(to: string): void {
  if (location.hash === to) return;
  history.replaceState(null, '', to);
  hash.value = to;
}

export function setQuery(change: Record<string, string | null>): void {
  const { page, parts, query } = route.peek();
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === '') next.delete(name);
    else next.set(name, value);
  }
  replace(link(page, parts, next));
}
