// The picture of the model: boxes inside boxes, each group laid out by itself from the inside out.
import { server } from '../data/source';
import type { Group, GroupNode } from '../data/types';
import { layOut } from './host';

export interface Box {
  node: GroupNode | null; // null: the root
  x: number;
  y: number;
  width: number;
  height: number;
  open: boolean;
  boxes: Box[];
  edges: { points: { x: number; y: number }[]; on: string[] }[];
}

export const HEAD = 30; // room for the name of an opened group
const TEXT = 7.25; // width of a letter

export class Scene {
  private groups = new Map<string, Group>();

  constructor(
    readonly step: number,
    readonly rank: number,
    readonly phase: string,
  ) {}

  private async group(id: string): Promise<Group> {
    let found = this.groups.get(id);
    if (!found) {
      found = await server.group(this.step, this.rank, this.phase, id);
      this.groups.set(id, found);
    }
    return found;
  }

  /** Lay out the root and all groups in `open`. */
  async build(open: ReadonlySet<string>): Promise<Box> {
    return this.box(null, 'root', open);
  }

  private async box(node: GroupNode | null, id: string, open: ReadonlySet<string>): Promise<Box> {
    const group = await this.group(id);
    const boxes = await Promise.all(
      group.nodes.map((child) => (child.opens && open.has(child.id) ? this.box(child, child.id, open) : Promise.resolve(leaf(child)))),
    );
    const answer = await layOut({
      nodes: boxes.map((box) => ({ id: box.node!.id, width: box.width, height: box.height })),
      edges: group.edges.map(([from, to]) => [from, to]),
    });
    const top = node ? HEAD : 0;
    const width = Math.max(answer.width, node ? caption(node).length * TEXT + 70 : 0);
    const aside = (width - answer.width) / 2; // in the middle of a box that its name made wider
    for (const box of boxes) {
      const at = answer.nodes[box.node!.id]!;
      box.x = at.x + aside;
      box.y = at.y + top;
    }
    const edges = answer.edges.map((points, i) => ({
      points: points.map((point) => ({ x: point.x + aside, y: point.y + top })),
      on: group.edges[i]![2],
    }));
    return { node, x: 0, y: 0, width, height: answer.height + top, open: true, boxes, edges };
  }
}

export function caption(node: GroupNode): string {
  if (node.kind === 'stretch') return `${caption({ ...node, kind: '', label: node.label.replace(/ …$/, '') })} …`;
  const label = node.label ?? '';
  const module = /^Module\.(.*)\.([^.]+)\.(?:forward|backward)\.\d+$/.exec(label);
  if (module) return `${module[1]!.split('.').slice(-2).join('.')} · ${module[2]}`;
  return label.replace(/^(Module|Functional|Torch|Tensor|Aten|Distributed)\./, '').replace(/\.(forward|backward)(\.\d+)?$/, '');
}

function leaf(node: GroupNode): Box {
  const width = Math.min(Math.max(caption(node).length * TEXT + (node.opens ? 60 : 42), node.inside ? 150 : 90), 340);
  return { node, x: 0, y: 0, width, height: node.inside ? 42 : 30, open: false, boxes: [], edges: [] };
}
