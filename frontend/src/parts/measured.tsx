// The tables of numbers of one slot: its statistics, its errors, its worst elements.
import { exact, number, short, type Numeric } from '../data/format';
import type { Cell } from '../data/frame';
import type { CallDetail, Element, TensorRecord } from '../data/types';
import { t } from '../i18n';
import { comparing } from '../state';
import { Badge } from '../verdict';

const STATISTICS = ['dtype', 'shape', 'min', 'max', 'mean', 'std', 'l2', 'nan', 'inf', 'zero'];

export function Statistics({ slot, detail, lone }: { slot: Record<string, Cell>; detail: CallDetail; lone: 'target' | 'reference' | null }) {
  const record = (side: 'target' | 'reference'): TensorRecord | null => detail[side]?.slots.find((item) => item.slot === slot['slot'])?.tensor ?? null;
  const two = comparing.value && !lone;
  const sides = two ? (['target', 'reference'] as const) : ([lone ?? 'target'] as const);
  const value = (side: string, name: string): Cell => slot[`${side}_${name}`] ?? null;
  const show = (cell: Cell) => (typeof cell === 'string' && !/^(nan|-?inf)$/.test(cell) ? cell : <span title={exact(cell as Numeric)}>{short(cell as Numeric) || '—'}</span>);
  const gap = (name: string): string => {
    const [a, b] = [number(value('target', name) as Numeric), number(value('reference', name) as Numeric)];
    return a === null || b === null || Number.isNaN(a - b) ? '' : a === b ? '0' : short(a - b);
  };
  const rows = STATISTICS.filter((name) => sides.some((side) => value(side, name) !== null));
  const hashes = sides.map((side) => record(side)?.hash ?? null);
  return (
    <section class="card" data-testid="statistics">
      <h2>{t('Statistics')}</h2>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th />
              {sides.map((side) => (
                <th key={side} class="number">
                  {t(side === 'reference' ? 'Reference' : comparing.value ? 'Target' : 'Run')}
                </th>
              ))}
              {two && <th class="number">{t('difference')}</th>}
            </tr>
          </thead>
          <tbody>
            {rows.map((name) => {
              const different = two && String(value('target', name)) !== String(value('reference', name));
              return (
                <tr key={name}>
                  <th>{t(name)}</th>
                  {sides.map((side) => (
                    <td key={side} class={`number ${different && (name === 'dtype' || name === 'shape' || name === 'nan' || name === 'inf') ? 'diff' : ''}`}>
                      {show(value(side, name))}
                    </td>
                  ))}
                  {two && <td class="number">{name === 'dtype' || name === 'shape' ? (different ? '≠' : '') : gap(name)}</td>}
                </tr>
              );
            })}
            {hashes.some(Boolean) && (
              <tr>
                <th>{t('hash')}</th>
                {hashes.map((hash, i) => (
                  <td key={i} class="number">
                    {hash ?? '—'}
                  </td>
                ))}
                {two && <td class="number">{hashes[0] && hashes[0] === hashes[1] ? '=' : '≠'}</td>}
              </tr>
            )}
          </tbody>
        </table>
      </div>
      {!comparing.value && slot['headroom'] !== null && slot['headroom'] !== undefined && (
        <p class="small quiet" style={{ marginTop: '8px' }}>
          {t('Headroom: {0} doublings below the largest {1}.', short(slot['headroom'] as Numeric), String(slot['target_dtype']))}
        </p>
      )}
    </section>
  );
}

const ERRORS: [string, string][] = [
  ['relative_l2', 'relative L2'],
  ['expected', 'rounding explains'],
  ['cosine', 'cosine'],
  ['rmse', 'RMSE'],
  ['mape', 'MAPE'],
  ['max_abs_err', 'max abs error'],
  ['max_rel_err', 'max rel error'],
  ['euclid', 'Euclidean'],
  ['bias', 'bias'],
  ['ulp_median', 'ULP, median'],
  ['ulp_p99', 'ULP, 99 %'],
  ['ulp_max', 'ULP, largest'],
  ['within_0_1_percent', 'within 0.1 %'],
  ['within_0_5_percent', 'within 0.5 %'],
  ['mismatch_share', 'outside torch’s tolerance'],
  ['structure', 'structure'],
  ['first_index', 'first at'],
  ['worst_index', 'worst at'],
];

export function Errors({ slot }: { slot: Record<string, Cell> }) {
  const known = ERRORS.filter(([name]) => slot[name] !== null && slot[name] !== undefined && slot[name] !== '');
  return (
    <section class="card" data-testid="errors">
      <h2>
        {t('Error')} {slot['estimated'] ? `(${t('estimated')})` : ''}
      </h2>
      <div class="row" style={{ marginBottom: '8px' }}>
        <Badge word={slot['verdict']} pill />
        <span class="small quiet">{slot['reason']}</span>
      </div>
      <dl class="facts">
        {slot['bitwise_equal'] !== null && (
          <>
            <dt>{t('bitwise equal')}</dt>
            <dd>{slot['bitwise_equal'] ? t('yes') : t('no')}</dd>
          </>
        )}
        {known.map(([name, title]) => (
          <>
            <dt>{t(title)}</dt>
            <dd class="mono" title={exact(slot[name] as Numeric)}>
              {typeof slot[name] === 'string' && number(slot[name]) === null ? slot[name] : short(slot[name] as Numeric)}
            </dd>
          </>
        ))}
      </dl>
    </section>
  );
}

export function Worst({ elements, comparable }: { elements: Element[]; comparable: boolean }) {
  return (
    <section class="card" data-testid="worst">
      <h2>{comparable ? t('Worst elements') : t('Largest elements')}</h2>
      <div class="scroll" style={{ maxHeight: '320px' }}>
        <table class="plain">
          <thead>
            <tr>
              <th>{t('index')}</th>
              {elements[0]!.target !== undefined && <th class="number">{t('target')}</th>}
              {elements[0]!.reference !== undefined && <th class="number">{t('reference')}</th>}
              {comparable && (
                <>
                  <th class="number">{t('difference')}</th>
                  <th class="number">{t('relative')}</th>
                  <th class="number">ULP</th>
                </>
              )}
            </tr>
          </thead>
          <tbody>
            {elements.map((element) => (
              <tr key={element.flat}>
                <td>[{element.index.join(', ')}]</td>
                {element.target !== undefined && <td class="number" title={exact(element.target)}>{short(element.target)}</td>}
                {element.reference !== undefined && <td class="number" title={exact(element.reference)}>{short(element.reference)}</td>}
                {comparable && (
                  <>
                    <td class="number">{short(element.difference)}</td>
                    <td class="number">{short(element.relative)}</td>
                    <td class="number">{short(element.ulp)}</td>
                  </>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
