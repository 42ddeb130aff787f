// The tensors of two sets of weights as the tree of their names, and as a map of roles by layers.
import { number } from '../data/format';
import type { WeightsAnswer, WeightsPair } from '../data/documents';

export type Mark = 'identical' | 'equivalent' | 'diverged' | 'incomplete' | 'missing' | 'extra';

/** From what needs a look at least to what needs it most. */
export const MARKS: readonly Mark[] = ['identical', 'equivalent', 'incomplete', 'extra', 'missing', 'diverged'];

export interface Leaf {
  name: string;
  mark: Mark;
  relation: string; // '' where it has no partner
  relative: number | null;
  pair: WeightsPair | null;
}

export interface Branch {
  path: string; // the name up to here
  label: string;
  branches: Branch[];
  leaf: Leaf | null;
  leaves: number;
  mark: Mark; // the worst inside
  relative: number | null; // the largest inside
  marks: Map<string, number>;
  relations: Map<string, number>;
}

/** One leaf for each name of the reference, and one for each tensor that the reference lacks. */
export function leavesOf(answer: WeightsAnswer): Leaf[] {
  const leaves = new Map<string, Leaf>();
  for (const pair of answer.pairs) {
    for (const name of pair.b) {
      leaves.set(name, { name, mark: pair.verdict, relation: pair.relation, relative: number(pair.relative), pair });
    }
  }
  const lone = (names: string[], mark: Mark) => {
    for (const name of names) if (!leaves.has(name)) leaves.set(name, { name, mark, relation: '', relative: null, pair: null });
  };
  lone(answer.missing, 'missing');
  lone(answer.extra, 'extra');
  return [...leaves.values()];
}

function branch(path: string, label: string): Branch {
  return { path, label, branches: [], leaf: null, leaves: 0, mark: 'identical', relative: null, marks: new Map(), relations: new Map() };
}

/** The tree of the names; a part that has one part only is written together with it. */
export function treeOf(leaves: Leaf[]): Branch {
  const root = branch('', '');
  const known = new Map<string, Branch>([['', root]]);
  for (const leaf of leaves) {
    let at = root;
    const parts = leaf.name.split(/[./]/);
    parts.forEach((part, i) => {
      const path = parts.slice(0, i + 1).join('.');
      let next = known.get(path);
      if (!next) {
        next = branch(path, part);
        known.set(path, next);
        at.branches.push(next);
      }
      at = next;
    });
    at.leaf = leaf;
  }
  return summed(joined(root));
}

function joined(node: Branch): Branch {
  node.branches = node.branches.map((child) => {
    let held = joined(child);
    if (!held.leaf && held.branches.length === 1) {
      const only = held.branches[0]!;
      held = { ...only, label: `${held.label}.${only.label}` };
    }
    return held;
  });
  return node;
}

function summed(node: Branch): Branch {
  const add = (to: Map<string, number>, name: string, count: number) => to.set(name, (to.get(name) ?? 0) + count);
  const take = (mark: Mark, relative: number | null) => {
    if (MARKS.indexOf(mark) > MARKS.indexOf(node.mark)) node.mark = mark;
    if (relative !== null && !(relative <= (node.relative ?? -1))) node.relative = relative;
  };
  if (node.leaf) {
    node.leaves = 1;
    take(node.leaf.mark, node.leaf.relative);
    add(node.marks, node.leaf.mark, 1);
    add(node.relations, node.leaf.relation || node.leaf.mark, 1);
  }
  for (const child of node.branches) {
    summed(child);
    node.leaves += child.leaves;
    take(child.mark, child.relative);
    for (const [name, count] of child.marks) add(node.marks, name, count);
    for (const [name, count] of child.relations) add(node.relations, name, count);
  }
  return node;
}

export interface Line {
  node: Branch;
  depth: number;
}

/** The lines of the tree that are on the page. */
export function linesOf(root: Branch, isOpen: (path: string) => boolean, wanted: (leaf: Leaf) => boolean): Line[] {
  const lines: Line[] = [];
  const walk = (node: Branch, depth: number): boolean => {
    const start = lines.length;
    if (node !== root) lines.push({ node, depth });
    let any = node.leaf !== null && wanted(node.leaf);
    const inside = lines.length;
    for (const child of node.branches) any = walk(child, node === root ? 0 : depth + 1) || any;
    if (!any) lines.length = start;
    else if (node !== root && !isOpen(node.path)) lines.length = inside;
    return any;
  };
  walk(root, 0);
  return lines;
}

/** The paths to unfold at first: the way to each thing that is wrong, as long as that stays readable. */
export function firstOpen(root: Branch, most = 12): Set<string> {
  const open = new Set<string>();
  let found = 0;
  const walk = (node: Branch, above: string[]): void => {
    if (node.leaf && node.mark !== 'identical' && node.mark !== 'equivalent') {
      if (found++ < most) above.forEach((path) => open.add(path));
      return;
    }
    for (const child of node.branches) if (found < most) walk(child, node === root ? [] : [...above, node.path]);
  };
  for (const child of root.branches) walk(child, [child.path]);
  if (!open.size) for (const child of root.branches) if (child.branches.length <= 60) open.add(child.path);
  return open;
}

export interface MapRow {
  role: string;
  cells: (Leaf[] | undefined)[];
}

export interface Grid {
  layers: number[];
  rows: MapRow[];
  outside: Leaf[]; // of no layer
}

const LAYER = /(^|[._/])(?:layers?|h|blocks?|blk|resblocks|stages?)[._/](\d+)(?=[._/])/;

/** Roles by layers, in the order of the names; experts of a layer share a cell. */
export function gridOf(leaves: Leaf[]): Grid {
  const rows = new Map<string, Map<number, Leaf[]>>();
  const layers = new Set<number>();
  const outside: Leaf[] = [];
  for (const leaf of leaves) {
    const found = LAYER.exec(leaf.name);
    if (!found) {
      outside.push(leaf);
      continue;
    }
    const layer = Number(found[2]);
    const role = leaf.name.slice(found.index + found[0].length + 1).replace(/(?<=^|[._/])\d+(?=[._/]|$)/g, '*');
    layers.add(layer);
    const cells = rows.get(role) ?? new Map<number, Leaf[]>();
    const held = cells.get(layer);
    if (held) held.push(leaf);
    else cells.set(layer, [leaf]);
    rows.set(role, cells);
  }
  const ordered = [...layers].sort((a, b) => a - b);
  return { layers: ordered, rows: [...rows].map(([role, cells]) => ({ role, cells: ordered.map((layer) => cells.get(layer)) })), outside };
}

/** The leaf of a cell that needs a look most. */
export function worstOf(leaves: Leaf[]): Leaf {
  return leaves.reduce((worst, leaf) => {
    const order = MARKS.indexOf(leaf.mark) - MARKS.indexOf(worst.mark);
    return order > 0 || (order === 0 && (leaf.relative ?? -1) > (worst.relative ?? -1)) ? leaf : worst;
  });
}

/** How large a relative error is: the same bits, as of arithmetic in float32, in 16 bits, in fewer bits, unlike. */
export function size(relative: number | null): 0 | 1 | 2 | 3 | 4 {
  if (relative === null || relative === 0) return 0;
  return relative <= 1e-5 ? 1 : relative <= 1e-2 ? 2 : relative <= 0.5 ? 3 : 4;
}
