import type { CallDetail } from '../data/types';
import { t } from '../i18n';
import { comparing } from '../state';

export function Arguments({ detail }: { detail: CallDetail }) {
  const sides = ([['target', detail.target], ['reference', detail.reference]] as const).filter(([, record]) => record?.arguments);
  if (!sides.length) return null;
  const flat = sides.map(([side, record]) => [side, flatten(record!.arguments)] as const);
  const names = [...new Set(flat.flatMap(([, values]) => Object.keys(values)))];
  return (
    <section class="card" data-testid="arguments">
      <h2>{t('Arguments that are not tensors')}</h2>
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th />
              {flat.map(([side]) => (
                <th key={side}>{t(side === 'target' ? (comparing.value ? 'Target' : 'Run') : 'Reference')}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {names.map((name) => {
              const values = flat.map(([, all]) => all[name]);
              const different = values.length > 1 && values[0] !== values[1];
              return (
                <tr key={name}>
                  <th>{name}</th>
                  {values.map((value, i) => (
                    <td key={i} class={different ? 'diff' : ''}>
                      {value ?? '—'}
                    </td>
                  ))}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function flatten(value: unknown, prefix = ''): Record<string, string> {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return { [prefix || 'value']: JSON.stringify(value) };
  const all: Record<string, string> = {};
  for (const [name, item] of Object.entries(value)) {
    const path = prefix === '' && (name === 'args' || name === 'kwargs') ? '' : prefix ? `${prefix}.${name}` : name;
    if (item !== null && typeof item === 'object' && !Array.isArray(item)) Object.assign(all, flatten(item, path));
    else all[path || name] = JSON.stringify(item);
  }
  return all;
}
