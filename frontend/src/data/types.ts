// The shapes that the server and the report's data have; src/numscope/report/summary.py and view/session.py make them.
import type { Cell } from './frame';
import type { Numeric } from './format';

export type VerdictWord = 'identical' | 'equivalent' | 'origin' | 'inherited' | 'unmatched';
export type Mode = 'comparison' | 'run';
export type TableName = 'calls' | 'pairs';

export interface Source {
  file: string;
  line: number;
  function?: string;
  code?: string;
}

export interface Origin {
  call: string;
  kind: string;
  module: string;
  phase: string;
  step: number;
  rank: number;
  source: Source | null;
  mechanism?: string;
  reason: string;
  error?: { relative: Numeric; expected: Numeric };
  repair?: string | null;
  chain?: string[];
  details?: Record<string, unknown>;
}

export interface Resolution {
  largest: number;
  call: string;
  typical: number;
  hidden: number;
  modules: { module: string; phase: string; largest: number; call: string }[];
  sentence?: string;
}

export interface Report {
  verdict: 'identical' | 'equivalent' | 'diverged' | 'incomplete' | 'incomparable';
  reason: string;
  origin: Origin | null;
  suspects: Origin[];
  prefix: { calls: number; last: string | null };
  coverage: Record<string, number | null | string[] | Record<string, number>>;
  settings?: { name: string; target: unknown; reference: unknown }[];
  resolution?: Resolution | null;
  counts: Record<string, number>;
  details?: Record<string, unknown>;
}

export interface Check {
  found: boolean;
  origin: Origin | null;
  chain: string[];
  chain_rows?: number[];
  measured?: boolean;
  meant?: number; // tensors with infinities that somebody put there
}

export interface RunAbout {
  path: string;
  steps: number[];
  ranks: number[];
  incomplete: [number, number][];
  skipped: Record<string, number>;
  manifest: Record<string, unknown>;
}

export interface Frames {
  file: string;
  line: number;
  function: string;
  code: string;
  user?: boolean;
}

export interface TableAbout {
  rows: number;
  columns: string[];
  facets: Record<string, (string | number)[]>;
}

export interface Summary {
  mode: Mode;
  report: Report | null;
  check: Check | null;
  target: RunAbout;
  reference: RunAbout | null;
  differences: { name: string; target: unknown; reference: unknown }[];
  origin_row: number | null;
  suspect_rows: (number | null)[];
  start: Record<string, Cell>[];
  stack: Frames[];
  tables: Record<TableName, TableAbout>;
  modules: string[];
  version: string;
  shown?: { calls: number; pairs: number; of_calls: number; of_pairs: number };
}

export interface Heat {
  steps: number[];
  ranks: number[];
  verdict: (VerdictWord | null)[][];
  error: (number | null)[][];
  calls: number[][];
}

export interface TensorRecord {
  dtype: string;
  shape: number[];
  device: string;
  elements: number;
  nan: number;
  posinf: number;
  neginf: number;
  zero: number;
  min: Numeric;
  max: Numeric;
  mean: Numeric;
  l2: Numeric;
  hash: string | null;
  kept: boolean;
  sampled: boolean | null;
}

export interface CallRecord {
  name: string;
  module_class: string | null;
  arguments: unknown;
  frames: Frames[];
  user_frame: number | null;
  recompute?: boolean;
  error?: string | null;
  slots: { slot: string; note: string | null; tensor: TensorRecord | null }[];
}

export interface CallDetail {
  row: number;
  call: Record<string, Cell>;
  slots: Record<string, Cell>[];
  target?: CallRecord | null;
  reference?: CallRecord | null;
}

export interface GroupNode {
  id: string;
  row: number | null;
  label: string;
  reference_label?: string | null;
  kind: string;
  verdict: VerdictWord | null;
  own?: VerdictWord | null;
  inside: number;
  lone: number; // calls without a partner, among those inside
  opens: boolean;
  target: boolean;
  reference: boolean;
}

export interface Group {
  id: string;
  nodes: GroupNode[];
  edges: [string, string, string[]][];
}

export interface Place {
  step: number;
  rank: number;
  phase: string;
  groups: string[];
}

export interface TensorAbout {
  shape: number[];
  comparable: boolean;
  missing: Record<string, string>;
  target: boolean;
  reference: boolean;
  sampled: boolean;
}

export interface Histogram {
  scale: string;
  value: { edges: number[]; target?: number[]; reference?: number[] };
  difference: { edges: number[]; difference: number[]; equal: number; non_finite: number } | null;
}

export interface Element {
  index: number[];
  flat: number;
  target?: Numeric;
  reference?: Numeric;
  difference?: Numeric;
  relative?: Numeric;
  ulp?: Numeric;
}
