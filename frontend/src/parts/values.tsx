import { useEffect, useState } from 'preact/hooks';
import { count, digits, exact, short } from '../data/format';
import { server } from '../data/source';
import type { Element } from '../data/types';
import { t } from '../i18n';

const PAGE = 100;

/** Every element in order, a page at a time. */
export function Values({ row, slot, comparable, dtype }: { row: number; slot: string; comparable: boolean; dtype: string }) {
  const [offset, setOffset] = useState(0);
  const [size, setSize] = useState(0);
  const [elements, setElements] = useState<Element[]>([]);
  useEffect(() => {
    let gone = false;
    void server.values(row, slot, `offset=${offset}&limit=${PAGE}`).then((found) => {
      if (gone) return;
      setElements(found.elements);
      setSize(found.size);
    });
    return () => {
      gone = true;
    };
  }, [row, slot, offset]);
  const turn = (to: number) => setOffset(Math.max(0, Math.min(to, Math.floor((size - 1) / PAGE) * PAGE)));
  const has = (name: 'target' | 'reference') => elements[0]?.[name] !== undefined;
  return (
    <section class="card" data-testid="values">
      <div class="row" style={{ marginBottom: '8px' }}>
        <h2 class="grow">{t('Values')}</h2>
        <button class="button" disabled={offset === 0} onClick={() => turn(offset - PAGE)}>←</button>
        <span class="small quiet">{t('{0} to {1} of {2}', count(offset), count(Math.min(offset + PAGE, size)), count(size))}</span>
        <button class="button" disabled={offset + PAGE >= size} onClick={() => turn(offset + PAGE)}>→</button>
        <input
          type="number"
          min={0}
          max={size - 1}
          placeholder={t('element')}
          aria-label={t('element')}
          style={{ width: '110px' }}
          onChange={(e) => turn(Math.floor(Number(e.currentTarget.value) / PAGE) * PAGE)}
        />
      </div>
      <div class="scroll" style={{ maxHeight: '300px' }}>
        <table class="plain">
          <thead>
            <tr>
              <th>{t('index')}</th>
              {has('target') && <th class="number">{t('target')}</th>}
              {has('reference') && <th class="number">{t('reference')}</th>}
              {comparable && <th class="number">{t('difference')}</th>}
              {comparable && <th class="number">ULP</th>}
            </tr>
          </thead>
          <tbody>
            {elements.map((element) => (
              <tr key={element.flat}>
                <td>[{element.index.join(', ')}]</td>
                {has('target') && <td class="number">{digits(element.target, dtype)}</td>}
                {has('reference') && <td class="number">{digits(element.reference, dtype)}</td>}
                {comparable && <td class={`number ${element.difference === 0 ? '' : 'diff'}`}>{short(element.difference)}</td>}
                {comparable && <td class="number">{exact(element.ulp)}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
