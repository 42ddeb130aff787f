import { describe, expect, it } from 'vitest';
import { arranged, worstFirst } from '../src/data/ranks';
import type { Heat } from '../src/data/types';

const HEAT: Heat = {
  steps: [0, 1],
  ranks: [0, 1, 2, 5],
  verdict: [
    ['identical', 'equivalent'],
    ['identical', 'origin'],
    ['origin', 'inherited'],
    [null, 'equivalent'],
  ],
  error: [
    [0, 1e-7],
    [0, 0.5],
    [0.1, 0.2],
    [null, 1e-6],
  ],
  calls: [
    [3, 3],
    [3, 3],
    [3, 3],
    [0, 3],
  ],
};

describe('ranks', () => {
  it('are by number, or the worst first: an earlier origin before a larger error', () => {
    expect(arranged(HEAT, 'number')).toEqual([0, 1, 2, 3]);
    expect(arranged(HEAT, 'worst')).toEqual([2, 1, 3, 0]);
  });

  it('of one call are the worst first as well', () => {
    const rows = [
      { rank: 0, verdict: 'identical', relative_l2: 0 },
      { rank: 1, verdict: 'inherited', relative_l2: 0.5 },
      { rank: 2, verdict: 'origin', relative_l2: 0.1 },
      { rank: 3, verdict: 'inherited', relative_l2: 0.9 },
    ];
    expect(worstFirst(rows).map((row) => row.rank)).toEqual([2, 3, 1, 0]);
  });
});
