// Calls as points of the plot: where each lies, and between which powers of ten.
import type { Frame } from '../data/frame';
import type { VerdictWord } from '../data/types';
import { isVerdict } from '../verdict';

export interface Points {
  at: Int32Array;
  row: Int32Array;
  into: Float32Array; // log10 of the error that came in; NaN: unknown
  out: Float32Array;
  raw: Float32Array;
  rawIn: Float32Array;
  expected: Float32Array;
  verdict: (VerdictWord | '')[]; // by code
  code: Int32Array;
  step: Int32Array;
  phase: Int32Array;
  phases: readonly string[];
  lone: boolean; // some calls have no partner: they get a line of their own below 0
  floor: number; // power of ten below which nothing but 0 lies
  ceiling: number;
  total: number;
}

export function points(frame: Frame): Points {
  const get = (name: string) => frame.columns.get(name)!;
  const logOf = (name: string): Float32Array => {
    const column = get(name);
    const result = new Float32Array(frame.rows);
    for (let i = 0; i < frame.rows; i++) {
      const value = column.values[i]!;
      const missing = column.valid && !column.valid[i];
      result[i] = missing ? NaN : value === 0 ? -Infinity : Number.isFinite(value) ? Math.log10(Math.abs(value)) : Infinity;
    }
    return result;
  };
  const out = logOf('out');
  let low = 0;
  let high = -30;
  for (const value of out) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const floor = Math.max(Math.floor(Math.min(low, high)) - 1, -46);
  const ceiling = Math.max(Math.ceil(high) + 1, floor + 2);
  const verdict = get('verdict');
  return {
    at: get('at').values as Int32Array,
    row: get('row').values as Int32Array,
    into: logOf('in'),
    out,
    raw: get('out').values as Float32Array,
    rawIn: get('in').values as Float32Array,
    expected: logOf('expected'),
    verdict: (verdict.words ?? []).map((word) => (isVerdict(word) ? word : '')),
    code: verdict.values as Int32Array,
    step: get('step').values as Int32Array,
    phase: get('phase').values as Int32Array,
    phases: get('phase').words ?? [],
    lone: (verdict.words ?? []).includes('unmatched'),
    floor,
    ceiling,
    total: Number(frame.header['total']),
  };
}

/** The height of a value on the plot: 0 sits on the floor, what is not finite on the ceiling. */
export function level(value: number, p: Pick<Points, 'floor' | 'ceiling'>): number {
  return value === -Infinity ? p.floor : value === Infinity ? p.ceiling : Math.max(value, p.floor);
}

/** The first index whose position is not before x. */
export function lower(at: Int32Array, x: number): number {
  let low = 0;
  let high = at.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle]! < x) low = middle + 1;
    else high = middle;
  }
  return low;
}
