import { useEffect, useState } from 'preact/hooks';
import { Main } from '../app';
import { json } from '../data/source';
import { t } from '../i18n';
import { bytes } from '../data/format';
import { elapsed, open, problem, progress, state, title } from '../open';
import { go, link } from '../route';

interface Pick {
  path: string;
  created: string;
  bytes: number;
  compared: { with: string; verdict: string; target: boolean } | null;
}

interface Known {
  recent: Pick[];
  near: Pick[];
  forms: Record<string, Record<string, string>>;
  here: string;
}

const WORDS: Record<string, string> = { identical: 'identical', equivalent: 'equivalent', diverged: 'origin', incomplete: 'unmatched' };

export function Start() {
  const [known, setKnown] = useState<Known | null>(null);
  const [target, setTarget] = useState(remembered('target'));
  const [reference, setReference] = useState(remembered('reference'));
  const [noise, setNoise] = useState('');
  const [map, setMap] = useState('');
  const [fault, setFault] = useState('');
  const busy = state.value === 'working';
  useEffect(() => {
    if (state.value !== 'asking') json<Known>('start').then(setKnown, (error: Error) => setFault(error.message));
  }, [state.value]);
  const begin = async (event: Event) => {
    event.preventDefault();
    try {
      localStorage.setItem('numscope.start', JSON.stringify({ target, reference }));
    } catch {
      // only convenience is lost
    }
    setFault('');
    try {
      await open(target.trim(), reference.trim(), { noise: noise.split(',').map((path) => path.trim()).filter(Boolean), map: map.trim() });
      go(link('answer'));
    } catch (error) {
      setFault((error as Error).message);
    }
  };
  if (state.value === 'asking') return <Main><p class="quiet">…</p></Main>;
  if (busy) return <Progress />;
  const picks = [...new Map([...(known?.near ?? []), ...(known?.recent ?? [])].map((one) => [one.path, one])).values()].reverse();
  const paths = picks.map((one) => one.path);
  return (
    <Main>
      <div class="narrow">
        <h1>{t('Which runs?')}</h1>
        {(fault || problem.value) && <div class="error" role="alert">{fault || problem.value}</div>}
        <form class="card stack-y" onSubmit={(event) => void begin(event)}>
          <div class="two">
            <Field title={t('Target: the run in question')} value={target} set={setTarget} list="paths" required placeholder="runs/npu" />
            <Field title={t('Reference (leave empty to look at one run)')} value={reference} set={setReference} list="paths" placeholder="runs/gpu" />
          </div>
          <datalist id="paths">
            {paths.map((path) => (
              <option key={path} value={path} />
            ))}
          </datalist>
          <details>
            <summary class="small quiet">{t('Options')}</summary>
            <div class="two" style={{ marginTop: '10px' }}>
              <Field title={t('Noise runs, separated by commas')} value={noise} set={setNoise} placeholder="runs/gpu-again" />
              <Field title={t('Map file')} value={map} set={setMap} placeholder="map.toml" />
            </div>
          </details>
          <div class="row">
            <button class="button main" type="submit">{reference.trim() ? t('Compare') : t('Open')}</button>
            <span class="small quiet">{known && t('Paths are relative to {0}', known.here)}</span>
          </div>
        </form>
        {paths.length > 0 && (
          <section class="card" data-testid="recent">
            <h2>{t('Recent runs, and runs in this folder')}</h2>
            <div class="picks">
              {picks.map(({ path, created, bytes: size, compared }) => (
                <div class="pick" key={path}>
                  <code class="tail" title={path}>
                    <bdi>{path}</bdi>
                  </code>
                  {compared && (
                    <span class={`badge v-${WORDS[compared.verdict] ?? 'unmatched'}`} title={`${t('against')} ${compared.with}`}>
                      {t(compared.verdict)}
                    </span>
                  )}
                  <span class="small quiet">{created}</span>
                  <span class="small quiet mono">{bytes(size)}</span>
                  <button class="button" onClick={() => setTarget(path)}>{t('Target')}</button>
                  <button class="button" onClick={() => setReference(path)}>{t('Reference')}</button>
                </div>
              ))}
            </div>
          </section>
        )}
        <p class="small quiet">
          {t('From hooktools:')} <a href={link('directory')}>{t('compare two directories')}</a> · <a href={link('file')}>{t('compare two files')}</a>
        </p>
      </div>
    </Main>
  );
}

function remembered(name: string): string {
  try {
    return (JSON.parse(localStorage.getItem('numscope.start') ?? '{}') as Record<string, string>)[name] ?? '';
  } catch {
    return '';
  }
}

interface FieldProps {
  title: string;
  value: string;
  set: (value: string) => void;
  placeholder?: string;
  list?: string;
  required?: boolean;
}

export function Field({ title, value, set, ...rest }: FieldProps) {
  return (
    <label class="field">
      {title}
      <input type="text" class="mono" value={value} onInput={(e) => set(e.currentTarget.value)} spellcheck={false} autocomplete="off" {...rest} />
    </label>
  );
}

function Progress() {
  return (
    <Main>
      <div class="narrow" aria-live="polite">
        <h1>{title.value}</h1>
        <section class="card">
          <p class="row">
            <span class="pulse" /> <span class="quiet">{t('{0} s', elapsed.value.toFixed(0))}</span>
          </p>
          <div class="progress" data-testid="progress">
            {progress.value.map((line) => (
              <div key={line.text}>
                <span class="faint">{line.seconds.toFixed(1).padStart(6)} s</span> {line.text}
              </div>
            ))}
          </div>
        </section>
      </div>
    </Main>
  );
}
