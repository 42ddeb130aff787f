import { signal, useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Main } from '../app';
import { count } from '../data/format';
import type { Cell } from '../data/frame';
import { LISTS, queryOf, viewOf, type View } from '../data/view';
import { t } from '../i18n';
import { Grid } from '../parts/grid';
import { go, link, replace, route } from '../route';
import { source, summary } from '../state';
import { GLYPH, VERDICTS, verdictClass } from '../verdict';
import { columnTitle, firstColumns, gridColumn } from './columns';

// Columns that the reader chose, by table; kept between visits.
const chosen = signal<Record<string, string[]>>(readChosen());

function readChosen(): Record<string, string[]> {
  try {
    return JSON.parse(localStorage.getItem('numscope.columns') ?? '{}') as Record<string, string[]>;
  } catch {
    return {};
  }
}

export function Calls() {
  const about = summary.value!;
  const from = source.value!;
  const view = viewOf(route.value.query);
  const key = queryOf(view).toString();
  // Signals, because keys come faster than the page is drawn; and what was chosen under other filters is chosen no more.
  const selection = useSignal({ key, at: -1 });
  const counted = useSignal({ key, of: [0, 0] });
  const at = () => (selection.peek().key === key ? selection.peek().at : -1);
  const select = (position: number) => (selection.value = { key, at: position });
  const selected = selection.value.key === key ? selection.value.at : -1;
  const [fault, setFault] = useState('');
  const looking = useRef<Promise<void>>(Promise.resolve());
  const table = about.tables[view.table];
  const memory = `${about.mode}.${view.table}`;
  const names = (chosen.value[memory] ?? firstColumns(about.mode, view.table, table.facets)).filter((name) => table.columns.includes(name));
  const columns = useMemo(() => names.map((name) => gridColumn(name, about.mode, view.table)), [names.join(), about, view.table]);
  const asked = [...new Set([...names, 'verdict', 'reference_name', 'pair', 'slot'])].filter((name) => table.columns.includes(name));
  const change = (part: Partial<View>) => {
    // The address as it is now: a change that comes late, such as typed text, must not undo another.
    replace(link('calls', [], queryOf({ ...viewOf(route.peek().query), ...part })));
  };
  const open = async (position: number) => {
    const frame = await from.rows(view, position, 1, view.table === 'pairs' ? ['pair', 'slot'] : []);
    const get = (name: string): Cell => {
      const column = frame.columns.get(name);
      return column ? (column.words ? column.words[column.values[0]!]! : column.values[0]!) : null;
    };
    if (!frame.rows) return;
    const here = queryOf(view);
    here.set('row', String(get('row')));
    replace(link('calls', [], here)); // the way back leads to this row
    go(view.table === 'pairs' ? link('tensor', [Number(get('pair')), String(get('slot'))]) : link('tensor', [Number(get('row'))]));
  };

  useLayoutEffect(() => {
    const rows = () => (counted.peek().key === key ? counted.peek().of[0]! : 0);
    const find = async (direction: 1 | -1) => {
      const start = at() < 0 && direction < 0 ? rows() : at();
      const hit = await from.find(view, start, direction);
      if (hit.position >= 0) select(hit.position);
    };
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key === 'Escape' && target.matches('.search input')) target.blur();
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest('input, select, dialog[open], button, a')) {
        if (!(target.closest('.head, .chip') && /^[jknp]$/.test(event.key))) return;
      }
      if (event.key === 'j' || event.key === 'ArrowDown') select(Math.min(at() + 1, rows() - 1));
      else if (event.key === 'k' || event.key === 'ArrowUp') select(Math.max(at() - 1, 0));
      else if (event.key === 'n' || event.key === 'p') {
        const direction = event.key === 'n' ? 1 : -1;
        looking.current = looking.current.then(() => find(direction)).catch(() => {}); // one after the other
      } else if (event.key === 'Enter' && at() >= 0) void open(at());
      else if (event.key === '/') document.querySelector<HTMLInputElement>('.search input')?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, [key]);

  // A link may name the row to begin at.
  const wanted = route.value.query.get('row');
  useEffect(() => {
    if (wanted) void from.position(view, Number(wanted)).then((position) => position >= 0 && select(position));
  }, [wanted]);

  // A first look begins at the origin, not at the weights' initialisation.
  const untouched = !wanted && !view.sort && queryOf({ ...view, table: 'calls' }).toString() === '' && view.table === 'calls';
  useEffect(() => {
    if (untouched && at() < 0 && about.origin_row !== null) {
      void from.position(view, about.origin_row).then((position) => position >= 0 && at() < 0 && select(position));
    }
  }, [untouched, about.version]);

  const onSort = (name: string) => {
    if (view.sort !== name) change({ sort: name, descending: /error|l2|rmse|mape|max|magnitude|nan|inf/.test(name) });
    else if (view.descending === /error|l2|rmse|mape|max|magnitude|nan|inf/.test(name)) change({ descending: !view.descending });
    else change({ sort: '', descending: false });
  };

  return (
    <Main full>
      <Filters view={view} change={change} counts={counted.value.of} fault={fault}>
        <ColumnMenu all={table.columns} shown={names} choose={(next) => keepColumns(memory, next)} />
        <button class="button" onClick={() => from.save(view, names)} title={t('Save these rows and columns as CSV')}>
          {t('Export')}
        </button>
      </Filters>
      <Grid
        id={`${key}|${asked.join()}|${about.version}`}
        columns={columns}
        load={async (offset, limit) => {
          checkPattern(view);
          return from.rows(view, offset, limit, asked);
        }}
        selected={selected}
        sort={view.sort}
        descending={view.descending}
        onSort={onSort}
        onSelect={(position) => (position === at() ? void open(position) : select(position))}
        onOpen={() => void open(at())}
        onCount={(matched, total) => (counted.value = { key, of: [matched, total] })}
        onFault={setFault}
      />
    </Main>
  );
}

/** A pattern that is not finished yet is said here, without asking anyone. */
function checkPattern(view: View): void {
  if (!view.regex) return;
  try {
    new RegExp(view.q);
  } catch {
    throw new Error(t('not a regular expression: {0}', view.q));
  }
}

function keepColumns(memory: string, next: string[]): void {
  chosen.value = { ...chosen.value, [memory]: next };
  try {
    localStorage.setItem('numscope.columns', JSON.stringify(chosen.value));
  } catch {
    // a report opened from disk may have no storage
  }
}

interface FilterProps {
  view: View;
  change: (part: Partial<View>) => void;
  counts: number[];
  fault: string;
  children: preact.ComponentChildren;
}

function Filters({ view, change, counts, fault, children }: FilterProps) {
  const about = summary.value!;
  const facets = about.tables[view.table].facets;
  const [text, setText] = useState(view.q);
  const timer = useRef(0);
  useEffect(() => setText(view.q), [view.q]);
  const type = (value: string) => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => change({ q: value }), 120);
  };
  const toggle = (word: string) =>
    change({ verdict: view.verdict.includes(word) ? view.verdict.filter((item) => item !== word) : [...view.verdict, word] });
  const lists = LISTS.filter((name) => name !== 'verdict' && (facets[name]?.length ?? 0) > 1);
  const filtered = queryOf({ ...view, table: 'calls', sort: '' }).toString() !== '';
  return (
    <div class="stack-y" style={{ gap: '8px' }}>
      <div class="filters">
        <span class="segments" role="group" aria-label={t('Table')}>
          {(['calls', 'pairs'] as const).map((name) => (
            <button key={name} aria-pressed={view.table === name} onClick={() => change({ table: name, sort: '', kind: [], phase: [], dtype: [], module: '' })}>
              {t(name === 'calls' ? 'Calls' : 'Tensors')}
            </button>
          ))}
        </span>
        <span class="search">
          <input type="search" value={text} placeholder={t('Name (press / to search)')} aria-label={t('Name')} onInput={(e) => type(e.currentTarget.value)} />
          <button aria-pressed={view.regex} title={t('Regular expression')} onClick={() => change({ regex: !view.regex })}>
            .*
          </button>
        </span>
        {view.table === 'calls' && (
          <>
            <input type="text" list="modules" value={view.module} placeholder={t('module')} aria-label={t('module')} onChange={(e) => change({ module: e.currentTarget.value })} style={{ width: '170px' }} />
            <datalist id="modules">
              {about.modules.map((name) => (
                <option key={name} value={name} />
              ))}
            </datalist>
          </>
        )}
        {lists.map((name) => (
          <select key={name} aria-label={t(name)} value={view[name][0] ?? ''} onChange={(e) => change({ [name]: e.currentTarget.value ? [e.currentTarget.value] : [] })}>
            <option value="">{t(name)}</option>
            {facets[name]!.map((value) => (
              <option key={value} value={String(value)}>
                {name === 'step' || name === 'rank' ? `${t(name)} ${value}` : t(String(value))}
              </option>
            ))}
          </select>
        ))}
        <span class="grow" />
        {children}
      </div>
      <div class="row" style={{ gap: '6px' }}>
        {(facets['verdict']?.length ?? 0) > 0 &&
          VERDICTS.filter((word) => facets['verdict']!.includes(word)).map((word) => (
            <button key={word} class={`chip ${verdictClass(word)}`} aria-pressed={view.verdict.includes(word)} onClick={(event) => (event.detail > 0 && event.currentTarget.blur(), toggle(word))}>
              <span class={`badge ${verdictClass(word)}`}>
                <i aria-hidden="true">{GLYPH[word]}</i>
                {t(word)}
              </span>
            </button>
          ))}
        <span class="small quiet" role="status" data-testid="count">
          {t('{0} of {1}', count(counts[0]!), count(counts[1]!))}
        </span>
        {about.shown && <span class="small faint">{t('(the file holds the rows that matter most)')}</span>}
        {filtered && (
          <button class="tool small" onClick={() => replace(link('calls', [], queryOf({ table: view.table })))}>
            {t('Clear filters')}
          </button>
        )}
        {fault && <span class="error small">{fault}</span>}
      </div>
    </div>
  );
}

function ColumnMenu({ all, shown, choose }: { all: string[]; shown: string[]; choose: (next: string[]) => void }) {
  return (
    <details class="menu">
      <summary class="button">{t('Columns')}</summary>
      <div>
        {all.map((name) => (
          <label class="check" key={name}>
            <input
              type="checkbox"
              checked={shown.includes(name)}
              onChange={(e) => choose(e.currentTarget.checked ? [...shown, name] : shown.filter((item) => item !== name))}
            />
            {columnTitle(name)}
          </label>
        ))}
      </div>
    </details>
  );
}
