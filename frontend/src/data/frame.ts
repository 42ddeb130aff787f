// Columns as bytes: the other end of report/frames.py, which describes the layout.

export type Cell = number | string | boolean | null;

export interface Column {
  readonly name: string;
  readonly values: Float64Array | Float32Array | Int32Array | Uint8Array;
  readonly valid?: Uint8Array;
  readonly words?: readonly string[];
  readonly bool: boolean;
}

interface Head {
  name: string;
  type: 'f64' | 'f32' | 'i32' | 'u8' | 'bool' | 'text';
  at: number;
  valid?: number;
  words?: string[];
}

export interface Frame {
  readonly rows: number;
  readonly header: Record<string, unknown>;
  readonly columns: ReadonlyMap<string, Column>;
}

const ARRAYS = {
  f64: Float64Array,
  f32: Float32Array,
  i32: Int32Array,
  u8: Uint8Array,
  bool: Uint8Array,
  text: Int32Array,
} as const;

export function decode(buffer: ArrayBuffer): Frame {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))) as {
    rows: number;
    columns: Head[];
  } & Record<string, unknown>;
  const base = 4 + length;
  const columns = new Map<string, Column>();
  for (const head of header.columns) {
    columns.set(head.name, {
      name: head.name,
      values: new ARRAYS[head.type](buffer, base + head.at, header.rows),
      valid: head.valid === undefined ? undefined : new Uint8Array(buffer, base + head.valid, header.rows),
      words: head.words,
      bool: head.type === 'bool',
    });
  }
  return { rows: header.rows, header, columns };
}

export function cell(column: Column | undefined, row: number): Cell {
  if (!column || row >= column.values.length) return null;
  const value = column.values[row]!;
  if (column.words) return value < 0 ? null : column.words[value]!;
  if (column.valid && !column.valid[row]) return null;
  return column.bool ? value !== 0 : value;
}

export function record(frame: Frame, row: number): Record<string, Cell> {
  const result: Record<string, Cell> = {};
  for (const [name, column] of frame.columns) result[name] = cell(column, row);
  return result;
}

export function fromBase64(text: string): ArrayBuffer {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes.buffer;
}
