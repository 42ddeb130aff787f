import { describe, expect, it } from 'vitest';
import { ROW, scrollTo, visible } from '../src/parts/grid';

describe('the rows on the screen', () => {
  it('are those under the scroll position', () => {
    expect(visible(0, 280, 1000)).toEqual({ first: 0, last: 14, shift: 0 });
    expect(visible(100 * ROW, 280, 1000)).toEqual({ first: 96, last: 114, shift: 0 });
  });

  it.each([10, 1000, 400_000, 1_000_000, 5_000_000])('reach the last of %i', (count) => {
    const tall = Math.min(count * ROW, 12_000_000);
    const { first, last } = visible(Math.max(0, tall - 280), 280, count);
    expect(last).toBe(count);
    expect(last - first).toBeLessThanOrEqual(24);
  });

  it.each([0, 7, 499_999, 999_999])('hold row %i of a million after going to it', (row) => {
    const { first, last } = visible(scrollTo(row, 280, 1_000_000), 280, 1_000_000);
    expect(first).toBeLessThanOrEqual(row);
    expect(last).toBeGreaterThan(row);
  });
});
