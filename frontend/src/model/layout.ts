// Where the boxes of one group go. Only the group that was opened and those around it are laid out again.
import { graphlib, layout as dagre } from '@dagrejs/dagre';

export interface LayoutRequest {
  id: number;
  nodes: { id: string; width: number; height: number }[];
  edges: [string, string][];
}

export interface LayoutAnswer {
  id: number;
  width: number;
  height: number;
  nodes: Record<string, { x: number; y: number }>; // upper left corner
  edges: { x: number; y: number }[][];
}

export function place(request: LayoutRequest): LayoutAnswer {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: 'TB', nodesep: 22, ranksep: 30, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of request.nodes) graph.setNode(node.id, { width: node.width, height: node.height });
  for (const [from, to] of request.edges) graph.setEdge(from, to);
  dagre(graph);
  const nodes: LayoutAnswer['nodes'] = {};
  for (const node of request.nodes) {
    const at = graph.node(node.id) as { x: number; y: number };
    nodes[node.id] = { x: at.x - node.width / 2, y: at.y - node.height / 2 };
  }
  const size = graph.graph() as { width?: number; height?: number };
  return {
    id: request.id,
    width: Math.max(size.width ?? 0, 60),
    height: Math.max(size.height ?? 0, 30),
    nodes,
    edges: request.edges.map(([from, to]) => (graph.edge(from, to) as { points: { x: number; y: number }[] }).points),
  };
}
