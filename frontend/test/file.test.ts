import { describe, expect, it } from 'vitest';
import { order, select } from '../src/data/file';
import { decode } from '../src/data/frame';
import { queryOf, viewOf } from '../src/data/view';
import { frame } from './frame.test';

const table = decode(
  frame([
    { name: 'row', type: 'i32', values: [10, 11, 12, 13] },
    { name: 'target_name', type: 'text', values: [0, 1, -1, 2], words: ['Torch.exp.0', 'Torch.log.0', 'Functional.gelu.0'] },
    { name: 'reference_name', type: 'text', values: [0, -1, 1, 2], words: ['Torch.exp.0', 'Torch.sin.0', 'Functional.gelu.0'] },
    { name: 'module', type: 'text', values: [0, 1, 2, -1], words: ['a.b', 'a', 'a.bc'] },
    { name: 'verdict', type: 'text', values: [0, 1, 1, 2], words: ['identical', 'unmatched', 'origin'] },
    { name: 'step', type: 'i32', values: [0, 0, 1, 1] },
    { name: 'error_out', type: 'f64', values: [1, 0, NaN, Infinity], valid: [1, 0, 1, 1] },
  ]),
);
const rows = (query: string) => Array.from(select(table, viewOf(new URLSearchParams(query))));

describe('a report filters and sorts as the server does', () => {
  it.each([
    ['', [0, 1, 2, 3]],
    ['q=TORCH', [0, 1, 2]],
    ['q=(exp|sin)&regex=1', [0, 2]],
    ['module=a', [0, 1, 2]],
    ['module=a.b', [0]],
    ['verdict=unmatched,origin', [1, 2, 3]],
    ['step=1&verdict=origin', [3]],
    ['sort=error_out', [0, 3, 2, 1]],
    ['sort=error_out&descending=1', [2, 3, 0, 1]],
    ['sort=target_name', [3, 0, 1, 2]],
  ])('%s', (query, expected) => expect(rows(query)).toEqual(expected));

  it('nulls are last in both directions', () => {
    expect(order(null, 1, 1)).toBe(1);
    expect(order(null, 1, -1)).toBe(1);
    expect(order(null, null, 1)).toBe(0);
  });
});

describe('a view', () => {
  it('survives the address', () => {
    const text = 'table=pairs&q=a%2Bb&regex=1&module=x.y&verdict=origin%2Cinherited&step=3&sort=rmse&descending=1';
    expect(queryOf(viewOf(new URLSearchParams(text))).toString()).toBe(text);
  });
  it('of everything is an empty address', () => expect(queryOf(viewOf(new URLSearchParams(''))).toString()).toBe(''));
});
