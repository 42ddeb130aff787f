import { describe, expect, it } from 'vitest';
import { exact, number, ratio, short, tail } from '../src/data/format';

describe('numbers as people read them', () => {
  it.each([
    [null, ''],
    [undefined, ''],
    ['nan', 'NaN'],
    ['inf', '∞'],
    ['-inf', '−∞'],
    [NaN, 'NaN'],
    [0, '0'],
    [-0, '−0'],
    [1234567, '1,234,567'],
    [-3, '−3'],
    [0.123456, '0.1235'],
    [1.23456e-7, '1.23e−7'],
    [-4.5e30, '−4.50e30'],
    [123456.7, '1.23e5'],
  ])('%s is shown as %s', (value, text) => expect(short(value as number)).toBe(text));

  it('an unknown number is null, never 0', () => {
    expect(number('')).toBeNull();
    expect(number('abc')).toBeNull();
    expect(number('1e-3')).toBe(0.001);
  });

  it('keeps every digit where asked', () => expect(exact(0.1 + 0.2)).toBe('0.30000000000000004'));
  it('has no ratio of nothing', () => expect(ratio(0, 0)).toBe(''));
  it('does not round up to all', () => expect(ratio(9999, 10000)).toBe('100.0 %'));
  it('keeps the end of a path', () => expect(tail('/a/very/long/path/runs/gpu', 10)).toBe('…/runs/gpu'));
});
