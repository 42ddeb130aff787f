import { expect, it } from 'vitest';
import type { WeightsAnswer, WeightsPair } from '../src/data/documents';
import { firstOpen, gridOf, leavesOf, linesOf, size, treeOf, worstOf } from '../src/model/weights';

function pair(name: string, verdict: WeightsPair['verdict'] = 'identical', relative: WeightsPair['relative'] = 0): WeightsPair {
  return { a: [name], b: [name], relation: 'equal', relative, verdict, reason: '', fault: null, repair: null };
}

const names = [0, 1, 2].flatMap((n) => [`model.layers.${n}.attn.q.weight`, `model.layers.${n}.attn.k.weight`, `model.layers.${n}.experts.0.up`, `model.layers.${n}.experts.1.up`]);
const answer: WeightsAnswer = {
  format: 'numscope.weights/1',
  verdict: 'diverged',
  reason: '',
  a: 'a',
  b: 'b',
  matched: 12,
  pairs: [...names.map((name) => (name.includes('1.attn.q') ? pair(name, 'diverged', 0.5) : pair(name))), { ...pair('head.weight', 'equivalent', 'nan'), b: ['head.weight', 'head.bias'] }],
  missing: ['model.norm.weight'],
  extra: ['v'],
  unjudged: [],
};
const all = () => true;

it('there is a leaf for each name of the reference and for each extra one', () => {
  const leaves = leavesOf(answer);
  expect(leaves.map((leaf) => leaf.name).slice(-4)).toEqual(['head.weight', 'head.bias', 'model.norm.weight', 'v']);
  expect(leaves.find((leaf) => leaf.name === 'v')!.mark).toBe('extra');
});

it('a branch has the worst mark, the largest error and the numbers of what is inside', () => {
  const root = treeOf(leavesOf(answer));
  const model = root.branches.find((one) => one.label === 'model')!;
  expect([model.leaves, model.mark, model.relative]).toEqual([13, 'diverged', 0.5]);
  expect(model.marks.get('missing')).toBe(1);
  expect(root.relative).toBeNaN();
});

it('parts without a sibling are written together, and keep their path', () => {
  const root = treeOf(leavesOf({ ...answer, pairs: [pair('a.b.c.weight'), pair('a.b.d.weight')], missing: [], extra: [] }));
  expect(root.branches.map((one) => [one.label, one.path])).toEqual([['a.b', 'a.b']]);
  expect(root.branches[0]!.branches.map((one) => one.label)).toEqual(['c.weight', 'd.weight']);
});

it('the way to what is wrong is unfolded at first', () => {
  const root = treeOf(leavesOf(answer));
  const open = firstOpen(root);
  const lines = linesOf(root, (path) => open.has(path), all).map((line) => line.node.path);
  expect(lines).toContain('model.layers.1.attn.q.weight');
  expect(lines).not.toContain('model.layers.0.attn.q.weight');
});

it('a filter leaves the branches that hold what is wanted', () => {
  const root = treeOf(leavesOf(answer));
  const lines = linesOf(root, () => true, (leaf) => leaf.mark === 'diverged');
  expect(lines.map((line) => line.node.path)).toEqual(['model', 'model.layers', 'model.layers.1', 'model.layers.1.attn', 'model.layers.1.attn.q.weight']);
});

it('the map has a column for each layer, and experts share a cell', () => {
  const grid = gridOf(leavesOf(answer));
  expect(grid.layers).toEqual([0, 1, 2]);
  expect(grid.rows.map((row) => row.role)).toEqual(['attn.q.weight', 'attn.k.weight', 'experts.*.up']);
  expect(grid.rows[2]!.cells[0]!.length).toBe(2);
  expect(worstOf(grid.rows[0]!.cells.flatMap((cell) => cell!)).name).toBe('model.layers.1.attn.q.weight');
});

it('an error that is no number is the largest', () => {
  expect([0, 1e-8, 1e-3, 0.1, 0.6, NaN, Infinity].map(size)).toEqual([0, 1, 2, 3, 4, 4, 4]);
});
