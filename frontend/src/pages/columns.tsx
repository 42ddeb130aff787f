// How each column of the two tables is shown, and which are shown at first: what tells most is left, where a narrow window shows it.
import { exact, short } from '../data/format';
import type { Cell } from '../data/frame';
import type { Mode, TableAbout, TableName } from '../data/types';
import { say, t } from '../i18n';
import type { GridColumn } from '../parts/grid';
import { Badge } from '../verdict';

const TEXT = new Set([
  'target_name', 'reference_name', 'kind', 'module', 'module_class', 'phase', 'alignment', 'arguments_differ', 'arguments', 'verdict',
  'reason', 'source_file', 'slot', 'target_dtype', 'reference_dtype', 'target_shape', 'reference_shape', 'dtype', 'structure',
  'first_index', 'worst_index', 'note', 'error',
]);
const PROSE = new Set(['verdict', 'reason', 'phase', 'kind', 'arguments_differ', 'note']);
const SAID = new Set(['reason', 'arguments_differ', 'note']);
const TRANSLATED = new Set(['phase', 'kind', 'alignment']);
const WIDTH: Record<string, number> = {
  target_name: 290, reference_name: 290, module: 190, reason: 340, verdict: 116, phase: 84, kind: 84, step: 54, rank: 54, pair: 76,
  source_file: 200, arguments: 240, arguments_differ: 230, target_shape: 130, reference_shape: 130, slot: 140, module_class: 140,
  error_in: 104, error_out: 104, relative_l2: 124, cosine: 84, max_abs_err: 138, max_rel_err: 134, nan: 64, inf: 64, headroom: 92,
};
const TITLE: Record<string, string> = {
  pair: '#', target_name: 'call', reference_name: 'reference call', error_in: 'error in', error_out: 'error out',
  target_order: 'target order', reference_order: 'reference order', arguments_differ: 'arguments that differ',
  relative_l2: 'relative L2', max_abs_err: 'max abs error', max_rel_err: 'max rel error', bitwise_equal: 'bitwise equal',
};
const FIRST: Record<Mode, Record<TableName, string[]>> = {
  comparison: {
    calls: ['verdict', 'target_name', 'error_in', 'error_out', 'module', 'phase', 'step', 'rank', 'dtype', 'reason'],
    pairs: ['verdict', 'target_name', 'relative_l2', 'cosine', 'max_abs_err', 'target_dtype', 'target_shape', 'rmse', 'max_rel_err', 'step', 'rank'],
  },
  run: {
    calls: ['verdict', 'target_name', 'magnitude', 'headroom', 'nan', 'inf', 'module', 'phase', 'step', 'rank', 'dtype'],
    pairs: ['target_name', 'target_dtype', 'target_shape', 'target_min', 'target_max', 'target_mean', 'target_l2', 'target_nan', 'target_inf', 'headroom'],
  },
};

/** The columns of a first visit; a step or rank that is everywhere the same says nothing, nor a verdict that nothing has. */
export function firstColumns(mode: Mode, table: TableName, facets: TableAbout['facets']): string[] {
  const least: Record<string, number> = { step: 2, rank: 2, verdict: 1 };
  return FIRST[mode][table].filter((name) => (facets[name]?.length ?? 0) >= (least[name] ?? 0));
}

export function columnTitle(name: string): string {
  return t(TITLE[name] ?? name.replaceAll('_', ' '));
}

export function gridColumn(name: string, mode: Mode, table: TableName): GridColumn {
  const base = { name, title: table === 'pairs' && name === 'target_name' ? t('tensor') : columnTitle(name), width: WIDTH[name] ?? (TEXT.has(name) ? 120 : 106) };
  const tail = /_name$|^module$|^source_file$/.test(name); // the end of a long name says which
  if (name === 'verdict') return { ...base, show: (value) => <Badge word={value} /> };
  if (name === 'target_name' && mode === 'comparison') {
    return { ...base, grow: true, tail, show: (value, row) => value ?? <span class="quiet">{row('reference_name')} ({t('reference only')})</span> };
  }
  if (TEXT.has(name)) {
    return { ...base, grow: name === 'target_name', tail, show: (value) => (SAID.has(name) ? say(value) : TRANSLATED.has(name) ? t(String(value ?? '')) : value), tone: () => (PROSE.has(name) ? 'text' : '') };
  }
  return {
    ...base,
    number: true,
    show: (value) => (typeof value === 'boolean' ? (value ? '✓' : '✗') : <span title={exact(value as number | null)}>{short(value as number | null)}</span>),
    tone: (value: Cell) => (typeof value === 'number' && !Number.isFinite(value) ? 'bad' : ''),
  };
}
