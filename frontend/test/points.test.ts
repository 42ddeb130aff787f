import { describe, expect, it } from 'vitest';
import { decode } from '../src/data/frame';
import { level, lower, points } from '../src/parts/points';
import { place } from '../src/model/layout';
import { caption } from '../src/model/scene';
import { parse, link } from '../src/route';
import { ramp } from '../src/parts/ramp';
import { frame } from './frame.test';

describe('the story', () => {
  const p = points(
    decode(
      frame(
        [
          { name: 'at', type: 'i32', values: [0, 5, 9, 12] },
          { name: 'row', type: 'i32', values: [0, 5, 9, 12] },
          { name: 'in', type: 'f32', values: [0, 0, 0, 0], valid: [1, 1, 1, 0] },
          { name: 'out', type: 'f32', values: [0, 1e-6, NaN, 0], valid: [1, 1, 1, 0] },
          { name: 'expected', type: 'f32', values: [1e-7, 1e-7, 1e-7, 1e-7] },
          { name: 'step', type: 'i32', values: [0, 0, 1, 1] },
          { name: 'rank', type: 'i32', values: [0, 0, 0, 0] },
          { name: 'verdict', type: 'text', values: [0, 1, 1, 2], words: ['identical', 'origin', 'unmatched'] },
          { name: 'phase', type: 'text', values: [0, 0, 0, 0], words: ['forward'] },
        ],
        { total: 13 },
      ),
    ),
  );

  it('puts 0 on the floor and what is not finite on the ceiling', () => {
    expect(level(p.out[0]!, p)).toBe(p.floor);
    expect(level(p.out[1]!, p)).toBeCloseTo(-6, 5);
    expect(level(p.out[2]!, p)).toBe(p.ceiling);
    expect(p.out[3]).toBeNaN();
    expect(p.lone).toBe(true);
  });

  it('finds a position by halving', () => {
    expect([0, 1, 5, 6, 13].map((x) => lower(p.at, x))).toEqual([0, 1, 1, 2, 4]);
  });
});

describe('the model', () => {
  it('lays a group out without overlaps', () => {
    const nodes = ['a', 'b', 'c'].map((id) => ({ id, width: 100, height: 30 }));
    const answer = place({ id: 1, nodes, edges: [['a', 'b'], ['a', 'c']] });
    expect(answer.nodes['a']!.y).toBeLessThan(answer.nodes['b']!.y);
    expect(Math.abs(answer.nodes['b']!.x - answer.nodes['c']!.x)).toBeGreaterThanOrEqual(100);
    expect(answer.edges).toHaveLength(2);
  });

  it('shortens names to what is not plain from the picture', () => {
    const node = { id: 'r1', row: 1, kind: 'module', verdict: null, inside: 0, lone: 0, opens: false, target: true, reference: true };
    expect(caption({ ...node, label: 'Module.blocks.0.mlp.Linear.forward.0' })).toBe('0.mlp · Linear');
    expect(caption({ ...node, label: 'Functional.gelu.3.forward' })).toBe('gelu.3');
  });
});

describe('the address', () => {
  it('takes parts and query apart, and puts them together', () => {
    const to = link('tensor', [12, 'kwargs.a/b'], new URLSearchParams({ q: 'a b' }));
    const back = parse(to);
    expect(back.parts).toEqual(['12', 'kwargs.a/b']);
    expect(back.query.get('q')).toBe('a b');
  });
});

describe('the colours of a heatmap', () => {
  it('are told apart by sign, and NaN by its own', () => {
    const middle: [number, number, number] = [247, 247, 245];
    expect(ramp(0, 1, middle)).toEqual(middle);
    expect(ramp(1, 1, middle)[0]).toBeGreaterThan(ramp(-1, 1, middle)[0]);
    expect(ramp(NaN, 1, middle)).not.toEqual(ramp(Infinity, 1, middle));
  });
});
