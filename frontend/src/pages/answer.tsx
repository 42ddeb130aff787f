import { useState } from 'preact/hooks';
import { Main } from '../app';
import { count, ratio, short, type Numeric } from '../data/format';
import { post } from '../data/source';
import type { Origin, Report, Resolution, RunAbout, Summary } from '../data/types';
import { queryOf } from '../data/view';
import { say, t } from '../i18n';
import { LossCurve, type LossPoint } from '../parts/losses';
import { Stack } from '../parts/stack';
import { link } from '../route';
import { comparing, source, summary } from '../state';
import { Badge, GLYPH, VERDICTS, verdictClass } from '../verdict';

export function Answer() {
  const about = summary.value!;
  return about.mode === 'run' ? <Overview about={about} /> : <Compared about={about} report={about.report!} />;
}

const TITLE: Record<Report['verdict'], string> = {
  identical: 'The two runs are identical, to the bit.',
  equivalent: 'The two runs are equivalent: rounding explains every difference.',
  diverged: 'The two runs diverge.',
  incomplete: 'Nothing diverges in what was compared, but not everything was.',
  incomparable: 'The two runs cannot be compared.',
};
const COLOUR = { identical: 'identical', equivalent: 'equivalent', diverged: 'origin', incomplete: 'unmatched', incomparable: 'unmatched' };

function Compared({ about, report }: { about: Summary; report: Report }) {
  const origin = report.origin;
  return (
    <Main>
      <section class={`card verdict v-${COLOUR[report.verdict]}`} data-testid="verdict">
        <h1>{t(TITLE[report.verdict])}</h1>
        {origin ? (
          <p>
            {t('The first difference that rounding does not explain is at')} <code>{origin.call}</code>
            {t('.')} {report.prefix.calls > 0 && t('The first {0} calls are identical to the bit.', count(report.prefix.calls))}
          </p>
        ) : (
          report.reason && <p>{say(report.verdict === 'incomplete' ? headline(report) : report.reason)}</p>
        )}
        <Missing report={report} />
        <Settings report={report} />
        {about.shown && (
          <p class="small faint" data-testid="cap">
            {t('This file holds {0} of {1} calls and {2} of {3} tensors: those that matter most. `numscope view` shows all.', count(about.shown.calls), count(about.shown.of_calls), count(about.shown.pairs), count(about.shown.of_pairs))}
          </p>
        )}
      </section>
      <div class="columns">
        <div class="stack-y">
          {origin && <OriginCard origin={origin} row={about.origin_row} stack={about.stack} />}
          <Suspects report={report} rows={about.suspect_rows} />
          {report.resolution?.sentence && <Finest resolution={report.resolution} />}
          {(report.verdict === 'equivalent' || report.verdict === 'incomplete') && <Largest />}
          <Beginning about={about} />
        </div>
        <div class="stack-y">
          <LossCurve losses={(report.details?.['losses'] ?? []) as LossPoint[]} origin={origin?.step ?? null} />
          <Counts report={report} />
          <Coverage report={report} />
          <RunCard title={t('Target')} run={about.target} />
          {about.reference && <RunCard title={t('Reference')} run={about.reference} />}
        </div>
      </div>
    </Main>
  );
}

function headline(report: Report): string {
  return String((report.details?.['rest'] as { headline?: string } | undefined)?.headline ?? report.reason);
}

/** What a run holds, or should hold, and was compared with nothing. */
function Missing({ report }: { report: Report }) {
  const missing = (report.coverage['missing'] ?? []) as string[];
  if (!missing.length) return null;
  return (
    <div data-testid="missing">
      <p class="small quiet">{t('Compared with nothing:')}</p>
      <ul class="small">
        {missing.map((item) => (
          <li key={item}>{say(item)}</li>
        ))}
      </ul>
    </div>
  );
}

/** The settings in which the two runs differ; that which explains the origin stands first. */
function Settings({ report }: { report: Report }) {
  const cause = report.origin?.details?.['setting'];
  const all = [...(report.settings ?? [])].sort((a, b) => Number(b.name === cause) - Number(a.name === cause));
  if (!all.length) return null;
  return (
    <dl class="facts" data-testid="settings">
      {all.slice(0, 8).map((item) => (
        <Fact key={item.name} name={item.name} value={`${shown(item.target)} ${t('against')} ${shown(item.reference)}`} />
      ))}
      {all.length > 8 && <Fact name="…" value={t('{0} more settings differ', count(all.length - 8))} />}
    </dl>
  );
}

const SMALLEST = 1e-8; // the left end of the scale of limits, on which 1 is the right one

/** How small a fault would have shown, along the model. */
function Finest({ resolution }: { resolution: Resolution }) {
  const width = (limit: number) => `${Math.max(2, 100 * (1 - Math.log10(Math.min(limit, 1)) / Math.log10(SMALLEST)))}%`;
  return (
    <section class="card" data-testid="resolution">
      <h2>{t('How small a fault would have shown')}</h2>
      <p class="said">{say(resolution.sentence)}</p>
      <div class="limits">
        {resolution.modules.slice(0, 40).map((item) => (
          <div class="limit" key={`${item.module}/${item.phase}`} title={item.call}>
            <span class="mono small">{item.module || t('outside of modules')}</span>
            <span class="small quiet">{t(item.phase)}</span>
            <i class={item.largest > 1e-3 ? 'coarse' : ''} style={{ width: width(item.largest) }} />
            <span class="mono small">{short(item.largest)}</span>
          </div>
        ))}
      </div>
    </section>
  );
}

const MEANING: Record<string, string> = {
  semantic: 'the two compute different things, in any precision',
  precision: 'the same computation, in another dtype or cast at another place',
  order: 'the same sums in another order: rounding, no fault',
  device: 'the same call on the same inputs, made again elsewhere, is right; the recorded output is not',
  input: 'the calls are right: they were given something else',
  parameter: 'the calls are right: their parameters differ',
};

type Figures = Record<'native' | 'float32' | 'float64' | 'floor', Numeric>;

/** The difference between the two sides' operators on the same inputs, in growing precision. */
function Lift({ lift }: { lift: Figures }) {
  return (
    <>
      {(['native', 'float32', 'float64'] as const).map((name) => (
        <span key={name} style={{ marginRight: '14px' }}>
          <span class="quiet">{t(name)}</span> <b class="mono">{short(lift[name])}</b>
        </span>
      ))}
      {lift.floor != null && <span class="quiet">({t('rounding explains')} {short(lift.floor)})</span>}
    </>
  );
}

function Diagnose() {
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState('');
  const run = async () => {
    setBusy(true);
    try {
      summary.value = await post<Summary>('diagnose', {});
    } catch (error) {
      setFault((error as Error).message);
      setBusy(false);
    }
  };
  return (
    <>
      <button class="button" disabled={busy} onClick={() => void run()} title={t('Replay the suspects from their recorded inputs, and say why they differ')}>
        {busy ? t('Working…') : t('Diagnose')}
      </button>
      {fault && <span class="error small">{fault}</span>}
    </>
  );
}

function OriginCard({ origin, row, stack }: { origin: Origin; row: number | null; stack: Summary['stack'] }) {
  const frames = stack.length
    ? stack
    : origin.source
      ? [{ file: origin.source.file, line: origin.source.line, function: origin.source.function ?? '', code: origin.source.code ?? '', user: true }]
      : [];
  const diagnosis = origin.details?.['diagnosis'] as { lift?: Figures; could_not?: string } | undefined;
  const lift = diagnosis?.lift;
  return (
    <section class="card" data-testid="origin">
      <h2>{t('Origin')}</h2>
      <div class="row">
        <span class="origin-name grow">{row === null ? origin.call : <a href={link('tensor', [row])}>{origin.call}</a>}</span>
      </div>
      <p class="said">{say(origin.reason)}</p>
      <Chain links={origin.chain ?? []} />
      <dl class="facts">
        {origin.module && <Fact name={t('module')} value={<a href={link('calls', [], queryOf({ module: origin.module }))}>{origin.module}</a>} />}
        <Fact name={t('where')} value={t('{0}, step {1}, rank {2}', t(origin.phase), origin.step, origin.rank)} />
        {origin.error?.relative != null && (
          <Fact
            name={t('error')}
            value={
              <>
                <b class="mono">{short(origin.error.relative)}</b>
                {origin.error.expected != null && (
                  <span class="quiet">
                    {' '}
                    {t('relative; rounding explains {0}', short(origin.error.expected))}
                  </span>
                )}
              </>
            }
          />
        )}
        {origin.mechanism && origin.mechanism !== 'unknown' && (
          <Fact
            name={t('mechanism')}
            value={
              <>
                <b>{t(origin.mechanism)}</b>
                <span class="quiet">: {t(MEANING[origin.mechanism] ?? '')}</span>
              </>
            }
          />
        )}
        {lift && <Fact name={t('lift')} value={<Lift lift={lift} />} />}
        {diagnosis?.could_not && <Fact name={t('diagnosis')} value={say(diagnosis.could_not)} />}
      </dl>
      {origin.repair && (
        <p class="repair">
          <b>{t('Repair')}</b> {say(origin.repair)}
        </p>
      )}
      <Stack frames={frames} most={3} />
      {row !== null && (
        <p class="row" style={{ marginTop: '14px' }}>
          <a class="button" href={link('tensor', [row])}>{t('Look at its tensors')}</a>
          {source.value?.live && comparing.value && !diagnosis && <Diagnose />}
          {source.value?.live && <a class="button" href={link('model', [], new URLSearchParams({ row: String(row) }))}>{t('Show in the model')}</a>}
          <a class="button" href={link('story', [], new URLSearchParams({ step: String(origin.step), rank: String(origin.rank) }))}>{t('Show in the story')}</a>
        </p>
      )}
    </section>
  );
}

/** From the use to its cause, a line each. */
function Chain({ links }: { links: string[] }) {
  if (!links.length) return null;
  return (
    <ol class="chain small" data-testid="chain">
      {links.slice(0, 8).map((link) => (
        <li key={link}>{say(link)}</li>
      ))}
    </ol>
  );
}

function Fact({ name, value }: { name: string; value: preact.ComponentChildren }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function Suspects({ report, rows }: { report: Report; rows: (number | null)[] }) {
  const others = report.suspects.map((suspect, i) => ({ suspect, row: rows[i] ?? null })).slice(1, 11);
  if (!others.length) return null;
  return (
    <section class="card">
      <h2>{t('Other suspects')}</h2>
      <div class="list">
        {others.map(({ suspect, row }) => (
          <div key={`${suspect.call}/${suspect.step}/${suspect.rank}`}>
            <div class="row">
              <span class="mono wrap grow">{row === null ? suspect.call : <a href={link('tensor', [row])}>{suspect.call}</a>}</span>
              <span class="mono small quiet">{short(suspect.error?.relative)}</span>
            </div>
            <div class="small quiet">{say(suspect.reason)}</div>
          </div>
        ))}
      </div>
    </section>
  );
}

/** Where to look on when nothing is wrong. */
function Largest() {
  return (
    <section class="card" data-testid="largest">
      <h2>{t('The largest differences')}</h2>
      <p class="said">{t('Rounding explains them all; these pages show where they are.')}</p>
      <p class="row" style={{ marginTop: '14px' }}>
        <a class="button" href={link('calls', [], queryOf({ sort: 'error_out', descending: true }))}>{t('Calls by error')}</a>
        <a class="button" href={link('calls', [], queryOf({ table: 'pairs', sort: 'relative_l2', descending: true }))}>{t('Tensors by error')}</a>
        <a class="button" href={link('story')}>{t('Story')}</a>
      </p>
    </section>
  );
}

function Beginning({ about }: { about: Summary }) {
  const told = about.report?.origin?.phase === 'input'; // by the origin, which is what was fed
  return (
    <section class="card" data-testid="start">
      <h2>{t('What differed at the start')}</h2>
      {told && about.start.length === 0 && <p class="quiet">{t('What the runs were fed: see the origin.')}</p>}
      {!told && about.start.length === 0 && about.differences.length === 0 && <p class="quiet">{t('Nothing: data and parameters agree, as far as they were recorded.')}</p>}
      {about.start.length > 0 && (
        <div class="list">
          {about.start.map((item) => (
            <div key={String(item['pair'])}>
              <div class="row">
                <Badge word={item['verdict']} />
                <a class="mono wrap grow" href={link('tensor', [Number(item['pair'])])}>{item['target_name'] ?? item['reference_name']}</a>
              </div>
              <div class="small quiet">{say(item['reason'])}</div>
            </div>
          ))}
        </div>
      )}
      {!told && about.start.length === 0 && about.differences.length > 0 && <p class="quiet small">{t('The data and the parameters agree; these facts of the two jobs do not:')}</p>}
      {about.differences.length > 0 && (
        <div class="scroll">
          <table class="plain">
            <thead>
              <tr>
                <th />
                <th>{t('Target')}</th>
                <th>{t('Reference')}</th>
              </tr>
            </thead>
            <tbody>
              {about.differences.map((item) => (
                <tr key={item.name}>
                  <th>{item.name}</th>
                  <td class="wrap">{shown(item.target)}</td>
                  <td class="wrap">{shown(item.reference)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function shown(value: unknown): string {
  return value === null || value === undefined ? '—' : typeof value === 'string' ? value : JSON.stringify(value);
}

function Counts({ report }: { report: Report }) {
  const total = VERDICTS.reduce((sum, word) => sum + (report.counts[word] ?? 0), 0);
  return (
    <section class="card" data-testid="counts">
      <h2>{t('Calls by verdict')}</h2>
      <div class="bar" role="img" aria-label={t('Calls by verdict')}>
        {VERDICTS.filter((word) => report.counts[word]).map((word) => (
          <span key={word} class={verdictClass(word)} style={{ flexGrow: report.counts[word]! }} />
        ))}
      </div>
      <div class="legend">
        {VERDICTS.map((word) => (
          <a key={word} class={`badge ${verdictClass(word)}`} href={link('calls', [], queryOf({ verdict: [word] }))}>
            <i aria-hidden="true">{GLYPH[word]}</i>
            {t(word)} <b>{count(report.counts[word] ?? 0)}</b>
          </a>
        ))}
      </div>
      {total > 0 && (
        <p class="small quiet" style={{ marginTop: '10px' }}>
          {report.prefix.calls > 0
            ? t('The first {0} calls are proven identical to the bit, up to {1}.', count(report.prefix.calls), report.prefix.last ?? '')
            : t('No leading call is proven identical to the bit.')}
        </p>
      )}
    </section>
  );
}

function Coverage({ report }: { report: Report }) {
  const value = (name: string) => Number(report.coverage[name] ?? 0);
  const skipped = (report.coverage['skipped'] ?? {}) as Record<string, number>;
  return (
    <section class="card" data-testid="coverage">
      <h2>{t('Coverage')}</h2>
      <dl class="facts">
        <Fact name={t('matched')} value={`${count(value('matched'))} (${ratio(value('matched'), Math.max(value('target'), value('reference')))})`} />
        <Fact name={t('calls')} value={t('{0} in the target, {1} in the reference', count(value('target')), count(value('reference')))} />
        <Fact name={t('unmatched')} value={t('{0} in the target, {1} in the reference', count(value('unmatched_target')), count(value('unmatched_reference')))} />
        <Fact name={t('tensors')} value={count(value('tensors'))} />
        {report.coverage['gradients_measured'] != null && <Fact name={t('gradients compared')} value={t('{0} by norm', ratio(value('gradients_measured'), 1))} />}
        {Object.entries(skipped).map(([reason, number]) => (
          <Fact key={reason} name={t('skipped')} value={`${count(number)}: ${reason}`} />
        ))}
      </dl>
    </section>
  );
}

const TOLD = ['framework', 'framework_version', 'devices', 'git.commit', 'git_commit', 'created', 'imported.tool', 'imported.at', 'script', 'settings.level', 'settings.keep', 'python'];
const LABEL: Record<string, string> = { created: 'captured', 'imported.tool': 'dump of', 'imported.at': 'imported' };

export function RunCard({ title, run }: { title: string; run: RunAbout }) {
  return (
    <section class="card">
      <h2>{title}</h2>
      <dl class="facts">
        <Fact name={t('path')} value={<code>{run.path}</code>} />
        {run.steps.length > 0 && <Fact name={t('steps')} value={span(run.steps)} />}
        {run.ranks.length > 0 && <Fact name={t('ranks')} value={span(run.ranks)} />}
        {TOLD.map((name) => [name, told(name, run.manifest[name])] as const).filter(([, value]) => value).map(([name, value]) => (
          <Fact key={name} name={t(LABEL[name] ?? name.split('.').pop()!.replaceAll('_', ' '))} value={value} />
        ))}
        {run.incomplete.length > 0 && <Fact name={t('not complete')} value={run.incomplete.map(([rank, step]) => t('step {0} of rank {1}', step, rank)).join(', ')} />}
        {Object.entries(run.skipped).map(([reason, number]) => (
          <Fact key={reason} name={t('skipped')} value={`${count(number)}: ${reason}`} />
        ))}
      </dl>
    </section>
  );
}

function told(name: string, value: unknown): string {
  if (value === null || value === undefined) return '';
  if (name === 'created' || name === 'imported.at') return String(value).replace('T', ' ').replace('+00:00', ' UTC');
  if (name.endsWith('commit') && typeof value === 'string') return value.slice(0, 12);
  return Array.isArray(value) ? value.map(shown).join(', ') : shown(value);
}

function span(numbers: number[]): string {
  return numbers.length > 3 ? `${numbers[0]} … ${numbers[numbers.length - 1]} (${numbers.length})` : numbers.join(', ');
}

function Overview({ about }: { about: Summary }) {
  const check = about.check;
  const found = Boolean(check?.found && check.origin);
  const measured = check?.measured !== false;
  return (
    <Main>
      <section class={`card verdict v-${found ? 'origin' : 'identical'}`} data-testid="verdict">
        <h1>
          {found
            ? t('This run has values that are not finite.')
            : measured
              ? check?.meant
                ? t('No value of this run is born non-finite.')
                : t('Every value of this run is finite.')
              : t('Nothing of this run was measured.')}
        </h1>
        <p>
          {found ? (
            <>
              {t('The first is born at')} <code>{check!.origin!.call}</code>
              {t('.')}
            </>
          ) : measured && check?.meant ? (
            t('{0} tensors hold infinities that were put there, as a mask does.', count(check.meant))
          ) : measured ? (
            t('No call gave a NaN or an infinity. Give a second run to compare it with.')
          ) : (
            t('It has names, shapes and arguments alone: capture it with keep="stats" for numbers.')
          )}
        </p>
      </section>
      <div class="columns">
        <div class="stack-y">
          {found && <OriginCard origin={check!.origin!} row={about.origin_row} stack={about.stack} />}
          {found && check!.chain.length > 0 && (
            <section class="card" data-testid="chain">
              <h2>{t('How it spread')}</h2>
              <div class="list">
                {check!.chain.slice(0, 60).map((name, i) => (
                  <div class="row" key={i}>
                    <Badge word={i === 0 ? 'origin' : 'inherited'} />
                    {check!.chain_rows?.[i] !== undefined ? <a class="mono wrap" href={link('tensor', [check!.chain_rows[i]!])}>{name}</a> : <span class="mono wrap">{name}</span>}
                  </div>
                ))}
              </div>
            </section>
          )}
          <section class="card">
            <h2>{t('Headroom')}</h2>
            <p class="said">{t('How many doublings each output is from the largest number of its dtype. Below 2 the next step may overflow.')}</p>
            <a class="button" href={link('calls', [], queryOf({ sort: 'headroom' }))}>{t('Calls with the least headroom')}</a>
          </section>
        </div>
        <div class="stack-y">
          <RunCard title={t('Run')} run={about.target} />
          <section class="card">
            <h2>{t('Recorded')}</h2>
            <dl class="facts">
              <Fact name={t('calls')} value={count(about.tables.calls.rows)} />
              <Fact name={t('tensors')} value={count(about.tables.pairs.rows)} />
            </dl>
          </section>
        </div>
      </div>
    </Main>
  );
}
