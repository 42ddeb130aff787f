// The data of an HTML report: the same questions as to the server, answered from the rows that are in the file.
import { cell, decode, fromBase64, record, type Cell, type Column, type Frame } from './frame';
import { saveText } from './save';
import type { Source } from './source';
import type { CallDetail, Heat, Summary } from './types';
import { LISTS, type View } from './view';

export interface Embedded {
  summary: Summary;
  calls: string;
  pairs: string;
  story: string;
  heat: Heat;
  details: Record<string, Pick<CallDetail, 'target' | 'reference'>>;
}

const DIFFERENT = new Set<Cell>(['origin', 'inherited', 'unmatched']);

export class FileSource implements Source {
  readonly live = false;
  private readonly frames: Record<'calls' | 'pairs', Frame>;
  private readonly points: Frame;
  private last: { key: string; rows: Int32Array } | null = null;

  constructor(private readonly data: Embedded) {
    this.frames = { calls: decode(fromBase64(data.calls)), pairs: decode(fromBase64(data.pairs)) };
    this.points = decode(fromBase64(data.story));
  }

  summary = () => Promise.resolve(this.data.summary);
  heat = () => Promise.resolve(this.data.heat);
  story = () => Promise.resolve(this.points);

  /** Positions, in the frame, of the rows that a view shows. */
  private chosen(view: View): Int32Array {
    const key = JSON.stringify(view);
    if (this.last?.key !== key) this.last = { key, rows: select(this.frames[view.table], view) };
    return this.last.rows;
  }

  rows(view: View, offset: number, limit: number, columns: string[]): Promise<Frame> {
    const whole = this.frames[view.table];
    const rows = this.chosen(view);
    const part = rows.subarray(offset, offset + limit);
    const picked = new Map<string, Column>();
    for (const name of ['row', ...columns]) {
      const column = whole.columns.get(name);
      if (!column) continue;
      const values = Float64Array.from(part, (at) => column.values[at]!);
      const valid = column.valid && Uint8Array.from(part, (at) => column.valid![at]!);
      picked.set(name, { ...column, values, valid });
    }
    const header = { total: whole.rows, matched: rows.length, offset };
    return Promise.resolve({ rows: part.length, header, columns: picked });
  }

  find(view: View, start: number, direction: 1 | -1): Promise<{ position: number; row: number | null }> {
    const whole = this.frames[view.table];
    const rows = this.chosen(view);
    for (let at = start + direction; at >= 0 && at < rows.length; at += direction) {
      if (DIFFERENT.has(cell(whole.columns.get('verdict'), rows[at]!))) {
        return Promise.resolve({ position: at, row: Number(cell(whole.columns.get('row'), rows[at]!)) });
      }
    }
    return Promise.resolve({ position: -1, row: null });
  }

  position(view: View, row: number): Promise<number> {
    const numbers = this.frames[view.table].columns.get('row')!.values;
    return Promise.resolve(this.chosen(view).findIndex((at) => numbers[at] === row));
  }

  save(view: View, columns: string[]): void {
    const whole = this.frames[view.table];
    const quote = (value: Cell) => {
      const text = value === null ? '' : String(value);
      const safe = typeof value === 'string' && /^[=+\-@]/.test(text) ? `'${text}` : text;
      return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    const lines = Array.from(this.chosen(view), (at) =>
      columns.map((name) => quote(cell(whole.columns.get(name), at))).join(','),
    );
    saveText('numscope.csv', [columns.join(','), ...lines].join('\r\n'), 'text/csv');
  }

  call(row: number): Promise<CallDetail> {
    const at = Array.from(this.frames.calls.columns.get('row')!.values).indexOf(row);
    if (at < 0) return Promise.reject(new Error('this call is not among the rows of the report'));
    const call = record(this.frames.calls, at);
    const pairs = this.frames.pairs;
    const owner = pairs.columns.get('pair');
    const slots: Record<string, Cell>[] = [];
    for (let i = 0; i < pairs.rows; i++) if (cell(owner, i) === call['pair']) slots.push(record(pairs, i));
    return Promise.resolve({ row, call, slots, ...this.data.details[String(row)] });
  }
}

export function select(frame: Frame, view: View): Int32Array {
  const tests: ((row: number) => boolean)[] = [];
  const column = (name: string) => frame.columns.get(name);
  if (view.q) {
    const names = [column('target_name'), column('reference_name')];
    let matches: (text: string) => boolean;
    if (view.regex) {
      const pattern = new RegExp(view.q, 'i');
      matches = (text) => pattern.test(text);
    } else {
      const wanted = view.q.toLowerCase();
      matches = (text) => text.toLowerCase().includes(wanted);
    }
    tests.push((row) => names.some((name) => matches(String(cell(name, row) ?? ''))));
  }
  if (view.module) {
    tests.push((row) => {
      const path = String(cell(column('module'), row) ?? '');
      return path === view.module || path.startsWith(view.module + '.');
    });
  }
  for (const name of LISTS) {
    const wanted = new Set(view[name]);
    if (wanted.size && column(name)) tests.push((row) => wanted.has(String(cell(column(name), row))));
  }
  const rows: number[] = [];
  for (let row = 0; row < frame.rows; row++) if (tests.every((test) => test(row))) rows.push(row);
  const by = view.sort ? column(view.sort) : undefined;
  if (by) {
    const sign = view.descending ? -1 : 1;
    rows.sort((a, b) => order(cell(by, a), cell(by, b), sign) || a - b);
  }
  return Int32Array.from(rows);
}

/** Nulls last whatever the direction; NaN counts as the largest number: as report/tables.py does. */
export function order(a: Cell, b: Cell, sign: number): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === 'string' || typeof b === 'string') return sign * (a < b ? -1 : a > b ? 1 : 0);
  const x = Number(a);
  const y = Number(b);
  if (Number.isNaN(x) || Number.isNaN(y)) return sign * (Number(Number.isNaN(x)) - Number(Number.isNaN(y)));
  return sign * (x < y ? -1 : x > y ? 1 : 0);
}
