// The order of ranks, and the same call on all of them.
import { cell, type Cell, type Frame } from './frame';
import type { Source } from './source';
import type { Heat, VerdictWord } from './types';
import { viewOf } from './view';

export type Order = 'worst' | 'number';

const SEVERITY: VerdictWord[] = ['identical', 'equivalent', 'unmatched', 'inherited', 'origin'];

/** The lines of a heat, by rank or the worst first: by its worst verdict, how early that is, and its largest error. */
export function arranged(heat: Heat, order: Order): number[] {
  const lines = heat.ranks.map((_, i) => i);
  if (order === 'number') return lines;
  const key = (i: number): [number, number, number] => {
    const words = heat.verdict[i]!.map((word) => (word ? SEVERITY.indexOf(word) : -1));
    const worst = Math.max(...words, -1);
    return [-worst, words.indexOf(worst), -Math.max(...heat.error[i]!.map((error) => error ?? 0), 0)];
  };
  const keys = lines.map(key);
  return lines.sort((a, b) => keys[a]![0] - keys[b]![0] || keys[a]![1] - keys[b]![1] || keys[a]![2] - keys[b]![2] || a - b);
}

export type OnRank = Record<string, Cell>;

const SHOWN = ['pair', 'rank', 'verdict', 'relative_l2', 'target_l2', 'reference_l2'];
const OF_ONE = ['pair', 'rank', 'verdict', 'target_l2', 'target_mean'];
const MOST = 2000;

/** A tensor of a call in one step, on every rank that has a call of that name. */
export async function onRanks(from: Source, comparing: boolean, name: string, side: 'target' | 'reference', step: number): Promise<OnRank[]> {
  const view = viewOf(new URLSearchParams());
  const text = `^${name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}$`;
  const columns = [...(comparing ? SHOWN : OF_ONE), `${side}_name`];
  const frame = await from.rows({ ...view, table: 'pairs', q: text, regex: true, step: [String(step)] }, 0, MOST, columns);
  const rows = rowsOf(frame, columns).filter((row) => row[`${side}_name`] === name);
  return rows.sort((a, b) => Number(a['rank']) - Number(b['rank']));
}

/** The same rows, the worst first. */
export function worstFirst(rows: OnRank[]): OnRank[] {
  const severity = (row: OnRank) => SEVERITY.indexOf(row['verdict'] as VerdictWord);
  const error = (row: OnRank) => Number(row['relative_l2'] ?? 0);
  return [...rows].sort((a, b) => severity(b) - severity(a) || error(b) - error(a) || Number(a['rank']) - Number(b['rank']));
}

function rowsOf(frame: Frame, columns: string[]): OnRank[] {
  const known = columns.filter((name) => frame.columns.has(name));
  return Array.from({ length: frame.rows }, (_, i) => Object.fromEntries(known.map((name) => [name, cell(frame.columns.get(name), i)])));
}
