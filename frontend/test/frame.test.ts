import { describe, expect, it } from 'vitest';
import { cell, decode, fromBase64, record } from '../src/data/frame';

// Written by report/frames.py: two rows of a number, a text and a bool; the second number is null, the second text too.
export function frame(columns: { name: string; type: string; values: number[]; valid?: number[]; words?: string[] }[], extra = {}): ArrayBuffer {
  const sizes: Record<string, number> = { f64: 8, f32: 4, i32: 4, u8: 1, bool: 1, text: 4 };
  const parts: Uint8Array[] = [];
  let at = 0;
  const append = (bytes: Uint8Array) => {
    const start = at;
    const padded = new Uint8Array(Math.ceil(bytes.length / 8) * 8);
    padded.set(bytes);
    parts.push(padded);
    at += padded.length;
    return start;
  };
  const bytesOf = (type: string, values: number[]) => {
    const array = type === 'f64' ? Float64Array.from(values) : type === 'f32' ? Float32Array.from(values) : sizes[type] === 4 ? Int32Array.from(values) : Uint8Array.from(values);
    return new Uint8Array(array.buffer);
  };
  const heads = columns.map((column) => ({
    name: column.name,
    type: column.type,
    at: append(bytesOf(column.type, column.values)),
    ...(column.valid ? { valid: append(Uint8Array.from(column.valid)) } : {}),
    ...(column.words ? { words: column.words } : {}),
  }));
  let header = JSON.stringify({ rows: columns[0]?.values.length ?? 0, ...extra, columns: heads });
  while ((header.length + 4) % 8) header += ' ';
  const text = new TextEncoder().encode(header);
  const whole = new Uint8Array(4 + text.length + at);
  new DataView(whole.buffer).setUint32(0, text.length, true);
  whole.set(text, 4);
  let position = 4 + text.length;
  for (const part of parts) {
    whole.set(part, position);
    position += part.length;
  }
  return whole.buffer;
}

describe('a frame', () => {
  const decoded = decode(
    frame(
      [
        { name: 'x', type: 'f64', values: [NaN, 0, Infinity], valid: [1, 0, 1] },
        { name: 'word', type: 'text', values: [1, -1, 0], words: ['a', 'b'] },
        { name: 'flag', type: 'bool', values: [1, 0, 0], valid: [1, 1, 0] },
        { name: 'n', type: 'i32', values: [1, 2, 3] },
      ],
      { total: 9 },
    ),
  );

  it('tells null, NaN and infinity apart', () => {
    expect([0, 1, 2].map((row) => cell(decoded.columns.get('x'), row))).toEqual([NaN, null, Infinity]);
  });

  it('looks words up, and knows a missing one', () => {
    expect([0, 1, 2].map((row) => cell(decoded.columns.get('word'), row))).toEqual(['b', null, 'a']);
  });

  it('gives booleans as such', () => {
    expect([0, 1, 2].map((row) => cell(decoded.columns.get('flag'), row))).toEqual([true, false, null]);
  });

  it('gives a row as a record, and the header', () => {
    expect(record(decoded, 0)).toEqual({ x: NaN, word: 'b', flag: true, n: 1 });
    expect(decoded.header['total']).toBe(9);
    expect(cell(undefined, 0)).toBeNull();
  });

  it('comes out of base64', () => {
    const text = btoa(String.fromCharCode(...new Uint8Array(frame([{ name: 'n', type: 'i32', values: [7] }]))));
    expect(cell(decode(fromBase64(text)).columns.get('n'), 0)).toBe(7);
  });
});
