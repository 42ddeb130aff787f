// hooktools' two forms: two directories, two files. What is typed is remembered here and on the server.
import { useEffect, useState } from 'preact/hooks';
import { Main } from '../app';
import { count, number, short, type Numeric } from '../data/format';
import { json, post, postRaw } from '../data/source';
import { saveBlob, saveText } from '../data/save';
import { t } from '../i18n';
import { link, route } from '../route';
import { Field } from './start';

interface Entry {
  folder: string;
  epoch: number | null;
  step: number | null;
  place: string;
  index: string;
  first_path: string;
  second_path: string;
  metric: string;
  error: Numeric;
  module: string;
  first_value: string;
  second_value: string;
}

const METRICS = ['L1', 'AE', 'MAE', 'CS', 'MSE', 'RMSE', 'MAPE'];
const FOLDERS = ['forward', 'backward', 'gradient'];
const TOP = 100;
const SHOWN = 2000;
const found: Record<string, Entry[]> = {}; // by the form, for who comes back to it

export function Forms({ which }: { which: 'directory' | 'file' }) {
  const [fields, setFields] = useState<Record<string, string>>({ folder: 'forward', metric: 'RMSE', ...remembered(which) });
  const [entries, setEntries] = useState<Entry[]>([]);
  const [summaryOnly, setSummaryOnly] = useState(false);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState('');
  const [done, setDone] = useState(false);
  useEffect(() => {
    setEntries(found[which] ?? []);
    setFault('');
    setDone(false);
    const asked = Object.fromEntries(route.peek().query); // a link of the other form names two files
    const given = { folder: 'forward', metric: 'RMSE', ...remembered(which), ...asked };
    setFields(given);
    if (asked['first'] && asked['second']) return void start(given);
    json<{ forms: Record<string, Record<string, string>> }>('start').then(
      (known) => Object.keys(remembered(which)).length === 0 && known.forms[which] && setFields((now) => ({ ...now, ...known.forms[which] })),
      () => {},
    );
  }, [which]);
  const set = (name: string) => (value: string) => setFields((now) => ({ ...now, [name]: value }));

  const start = async (given: Record<string, string>) => {
    try {
      localStorage.setItem(`numscope.${which}`, JSON.stringify(given));
    } catch {
      // only convenience is lost
    }
    setBusy(true);
    setDone(false);
    setFault('');
    setEntries([]);
    try {
      const all: Entry[] = [];
      await lines(await postRaw(`forms/${which}`, given), (line) => {
        if (line.entry) all.push(line.entry);
        if (line.error) setFault(line.error);
        if (all.length % 200 === 1) setEntries([...all]);
      });
      setEntries((found[which] = all));
      setDone(true);
    } catch (error) {
      setFault((error as Error).message);
    }
    setBusy(false);
  };
  const turn = async (direction: 1 | -1) => {
    try {
      const next = await post<{ first: string; second: string }>('forms/neighbour', { ...fields, direction });
      const given = { ...fields, ...next };
      setFields(given);
      await start(given);
    } catch (error) {
      setFault((error as Error).message);
    }
  };
  const worse = (entry: Entry) => {
    const error = number(entry.error);
    if (error === null) return -Infinity;
    return Number.isNaN(error) ? Infinity : entry.metric === 'CS' ? -error : Math.abs(error);
  };
  const top = () => [...entries].sort((a, b) => worse(b) - worse(a)).slice(0, TOP);
  const shown = summaryOnly ? top() : entries.slice(0, SHOWN);
  const spreadsheet = async () => {
    try {
      saveBlob('numscope-conclusion.xlsx', await (await postRaw('forms/xlsx', { entries: top() })).blob());
    } catch (error) {
      setFault((error as Error).message);
    }
  };
  const directory = which === 'directory';
  return (
    <Main>
      <div class="row">
        <span class="segments" role="group" aria-label={t('Form')}>
          {(['directory', 'file'] as const).map((name) => (
            <button key={name} aria-pressed={name === which} onClick={() => (location.hash = link(name))}>
              {t(name === 'directory' ? 'Directories' : 'Files')}
            </button>
          ))}
        </span>
        <a class="small" href={link('start')}>{t('Open other runs')}</a>
      </div>
      <form
        class="card stack-y"
        onSubmit={(event) => {
          event.preventDefault();
          void start(fields);
        }}
      >
        <div class="two">
          <Field title={t(directory ? 'First directory' : 'First file')} value={fields['first'] ?? ''} set={set('first')} required />
          <Field title={t(directory ? 'Second directory' : 'Second file')} value={fields['second'] ?? ''} set={set('second')} required />
        </div>
        <div class="three">
          {directory && (
            <>
              <Choice title={t('folder')} value={fields['folder'] ?? ''} set={set('folder')} choices={FOLDERS} />
              <Field title={t('epochs')} value={fields['epochs'] ?? ''} set={set('epochs')} placeholder="[0,8)" />
              <Field title={t('steps')} value={fields['steps'] ?? ''} set={set('steps')} placeholder="[0,8)" />
            </>
          )}
          <Choice title={t('metric')} value={fields['metric'] ?? ''} set={set('metric')} choices={METRICS} />
          <Field title={t('threshold')} value={fields['threshold'] ?? ''} set={set('threshold')} placeholder="1e-3" />
        </div>
        <div class="row">
          <button class="button main" type="submit" disabled={busy}>{busy ? t('Working…') : t('Start')}</button>
          {directory ? (
            <>
              <button class="button" type="button" disabled={!entries.length} onClick={() => saveText('numscope-log.csv', log(shown), 'text/csv')}>{t('Export the log')}</button>
              <button class="button" type="button" disabled={!entries.length} onClick={() => void spreadsheet()}>{t('Conclusion as .xlsx')}</button>
              <button class="button" type="button" aria-pressed={summaryOnly} onClick={() => setSummaryOnly(!summaryOnly)}>{t('Summary only (top {0})', TOP)}</button>
              <button class="button" type="button" onClick={() => (setEntries((found[which] = [])), setFault(''), setDone(false))}>{t('Clear')}</button>
            </>
          ) : (
            <>
              <button class="button" type="button" disabled={busy} onClick={() => void turn(-1)}>← {t('Previous file')}</button>
              <button class="button" type="button" disabled={busy} onClick={() => void turn(1)}>{t('Next file')} →</button>
            </>
          )}
        </div>
      </form>
      {fault && <div class="error" role="alert">{fault}</div>}
      {done && !fault && entries.length === 0 && <p class="quiet" role="status">{t('No error is above the threshold.')}</p>}
      {entries.length > 0 && (
        <section class="card flush" data-testid="entries">
          <div class="scroll" style={{ padding: '10px 14px', maxHeight: '70vh' }}>
            <p class="small quiet">{t('{0} of {1}', count(shown.length), count(entries.length))}</p>
            <table class="plain">
              <thead>
                <tr>
                  {['folder', 'epoch', 'step', 'slot', 'module', 'metric', 'error', 'values'].map((name) => (
                    <th key={name} class={name === 'error' ? 'number' : ''}>{t(name)}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {shown.map((entry, i) => (
                  <tr key={i}>
                    <td>{entry.folder}</td>
                    <td>{entry.epoch ?? ''}</td>
                    <td>{entry.step ?? ''}</td>
                    <td>{entry.place} {entry.index}</td>
                    <td class="wrap" title={`${entry.first_path}\n${entry.second_path}`}>
                      {entry.module && <>{dotted(entry.module)}<br /></>}
                      <Files entry={entry} open={directory} />
                    </td>
                    <td>{entry.metric}</td>
                    <td class="number">{entry.error === null ? '—' : short(entry.error)}</td>
                    <td class="wrap">
                      {entry.first_value}
                      <br />
                      {entry.second_value}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
    </Main>
  );
}

/** The two files of an entry by their last names, which lead to the form of two files. */
function Files({ entry, open }: { entry: Entry; open: boolean }) {
  const names = [...new Set([entry.first_path, entry.second_path].map((path) => path.split(/::|\//).pop()!))].join(' | ');
  const asked = new URLSearchParams({ first: entry.first_path, second: entry.second_path, metric: entry.metric });
  return open ? <a class="small" href={link('file', [], asked)}>{names}</a> : <span class="small quiet">{names}</span>;
}

/** A long name that may be broken after its dots. */
function dotted(name: string) {
  return name.split('.').map((part, i) => (i ? <>.<wbr />{part}</> : part));
}

function Choice({ title, value, set, choices }: { title: string; value: string; set: (value: string) => void; choices: string[] }) {
  return (
    <label class="field">
      {title}
      <select value={value} onChange={(e) => set(e.currentTarget.value)}>
        {choices.map((name) => (
          <option key={name} value={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

function remembered(which: string): Record<string, string> {
  try {
    return JSON.parse(localStorage.getItem(`numscope.${which}`) ?? '{}') as Record<string, string>;
  } catch {
    return {};
  }
}

async function lines(response: Response, take: (line: { entry?: Entry; error?: string; done?: number }) => void): Promise<void> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ?? '';
    const parts = rest.split('\n');
    rest = done ? '' : parts.pop()!;
    for (const part of parts) if (part) take(JSON.parse(part) as { entry?: Entry });
    if (done) return;
  }
}

function log(entries: Entry[]): string {
  const names = ['folder', 'epoch', 'step', 'place', 'index', 'first_path', 'second_path', 'metric', 'error', 'module', 'first_value', 'second_value'] as const;
  const quote = (value: unknown) => `"${String(value ?? '').replaceAll('"', '""')}"`;
  return [names.join(','), ...entries.map((entry) => names.map((name) => quote(entry[name])).join(','))].join('\r\n');
}
