// Which rows of which table, in which order: kept in the address, so that a link shows what its sender saw.
import type { TableName } from './types';

export interface View {
  table: TableName;
  q: string;
  regex: boolean;
  module: string;
  verdict: string[];
  phase: string[];
  kind: string[];
  dtype: string[];
  step: string[];
  rank: string[];
  sort: string;
  descending: boolean;
}

export const LISTS = ['verdict', 'phase', 'kind', 'dtype', 'step', 'rank'] as const;

export function viewOf(query: URLSearchParams): View {
  const list = (name: string) => (query.get(name) ?? '').split(',').filter(Boolean);
  return {
    table: query.get('table') === 'pairs' ? 'pairs' : 'calls',
    q: query.get('q') ?? '',
    regex: query.get('regex') === '1',
    module: query.get('module') ?? '',
    verdict: list('verdict'),
    phase: list('phase'),
    kind: list('kind'),
    dtype: list('dtype'),
    step: list('step'),
    rank: list('rank'),
    sort: query.get('sort') ?? '',
    descending: query.get('descending') === '1',
  };
}

export function queryOf(view: Partial<View>): URLSearchParams {
  const query = new URLSearchParams();
  if (view.table && view.table !== 'calls') query.set('table', view.table);
  if (view.q) query.set('q', view.q);
  if (view.regex) query.set('regex', '1');
  if (view.module) query.set('module', view.module);
  for (const name of LISTS) {
    const chosen = view[name];
    if (chosen?.length) query.set(name, chosen.join(','));
  }
  if (view.sort) query.set('sort', view.sort);
  if (view.sort && view.descending) query.set('descending', '1');
  return query;
}
