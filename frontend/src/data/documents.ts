// Answers that have a page of their own, as their command's --json writes them: they hold no runs, and no table is paged.
import type { Numeric } from './format';
import type { Origin } from './types';

export interface WeightsTensor {
  name: string;
  dtype: string;
  shape: number[];
}

export interface WeightsPair {
  a: string[];
  b: string[];
  relation: string;
  relative: Numeric;
  verdict: 'identical' | 'equivalent' | 'diverged' | 'incomplete';
  reason: string;
  fault: string | null;
  repair: string | null;
  explain?: string[];
  tensors?: { a: WeightsTensor[]; b: WeightsTensor[] };
}

export interface WeightsAnswer {
  format: 'numscope.weights/1';
  verdict: 'identical' | 'equivalent' | 'diverged' | 'incomplete';
  reason: string;
  a: string;
  b: string;
  matched: number;
  pairs: WeightsPair[];
  missing: string[];
  extra: string[];
  unjudged: string[];
  shown?: { pairs: number; of_pairs: number };
}

/** How accurate an operator was on a device, over a run. */
export interface Accuracy {
  operator: string;
  dtype: string;
  device: string;
  calls: number;
  wrong: number;
  own_error: Numeric;
  own_ulp: Numeric;
  units: Numeric; // the largest error beyond rounding the result, in roundoffs of float32
  limit: Numeric; // what healthy kernels of its kind may have
}

export interface CheckAnswer {
  format: 'numscope.check/1';
  run: string;
  found: boolean;
  origin: Origin | null;
  verified?: {
    operators: Record<string, number>; // by how: exact, sample, projection, none
    not_verified: Record<string, number>; // by reason
    wrong: Origin[];
    accuracy: Accuracy[];
  };
}

export type Document = WeightsAnswer | CheckAnswer;
