import { useEffect, useState } from 'preact/hooks';
import { short, type Numeric } from '../data/format';
import type { Cell } from '../data/frame';
import { onRanks, worstFirst, type OnRank } from '../data/ranks';
import { t } from '../i18n';
import { go, link } from '../route';
import { comparing, source, summary } from '../state';
import { Badge } from '../verdict';

/** The same tensor of the same call on every rank, side by side; [ and ] go from rank to rank. */
export function OnRanks({ call, slot }: { call: Record<string, Cell>; slot: Record<string, Cell> }) {
  const [rows, setRows] = useState<OnRank[]>([]);
  const about = summary.value!;
  const ranks = about.tables.calls.facets['rank'] ?? [];
  const side = call['target_name'] ? 'target' : 'reference';
  const name = `${call[`${side}_name`]}.${slot['slot']}`;
  const step = Number(call['step']);
  const here = Number(call['rank']);
  const word = String(slot['slot']);
  useEffect(() => {
    let gone = false;
    if (ranks.length > 1) void onRanks(source.value!, comparing.value, name, side, step).then((found) => !gone && setRows(found));
    return () => {
      gone = true;
    };
  }, [name, step, ranks.length, about.version]);
  const open = (row: OnRank | undefined) => row && go(link('tensor', [Number(row['pair']), word]));
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || (event.target as HTMLElement).closest('input, select, dialog')) return;
      if (event.key === ']') open(rows.find((row) => Number(row['rank']) > here));
      else if (event.key === '[') open([...rows].reverse().find((row) => Number(row['rank']) < here));
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, [rows, here]);
  if (rows.length < 2) return null;
  const two = comparing.value;
  const figure = (row: OnRank, column: string) => <td class="number">{short(row[column] as Numeric)}</td>;
  return (
    <section class="card" data-testid="on-ranks">
      <h2>
        {t('On all ranks')}
        <span class="small quiet" style={{ marginLeft: '10px' }}>
          <kbd>[</kbd> <kbd>]</kbd> {t('previous and next rank')}
        </span>
      </h2>
      <div class="scroll" style={{ maxHeight: '340px' }}>
        <table class="plain">
          <thead>
            <tr>
              <th class="number">{t('rank')}</th>
              {two && <th>{t('verdict')}</th>}
              {two && <th class="number">{t('error')}</th>}
              {two ? (
                <>
                  <th class="number">{t('target')} L2</th>
                  <th class="number">{t('reference')} L2</th>
                </>
              ) : (
                <>
                  <th class="number">L2</th>
                  <th class="number">{t('mean')}</th>
                </>
              )}
            </tr>
          </thead>
          <tbody>
            {worstFirst(rows).map((row) => (
              <tr key={String(row['rank'])} aria-current={Number(row['rank']) === here ? 'true' : undefined}>
                <td class="number">
                  <a href={link('tensor', [Number(row['pair']), word])}>{row['rank']}</a>
                </td>
                {two && (
                  <td>
                    <Badge word={row['verdict']} />
                  </td>
                )}
                {two && figure(row, 'relative_l2')}
                {(two ? ['target_l2', 'reference_l2'] : ['target_l2', 'target_mean']).map((column) => figure(row, column))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
