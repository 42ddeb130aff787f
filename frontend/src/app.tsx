import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { tail } from './data/format';
import { language, setLanguage, t } from './i18n';
import { again, fresh, state } from './open';
import { Answer } from './pages/answer';
import { Calls } from './pages/calls';
import { Forms } from './pages/forms';
import { Model } from './pages/model';
import { Ranks } from './pages/ranks';
import { Start } from './pages/start';
import { Story } from './pages/story';
import { Tensor } from './pages/tensor';
import { Verified } from './pages/verified';
import { Weights } from './pages/weights';
import { go, link, route } from './route';
import { answer, comparing, help, source, summary, theme, toggleTheme } from './state';

const TITLES: Record<string, string> = { answer: 'Answer', story: 'Story', calls: 'Calls', model: 'Model', ranks: 'Ranks' };

/** The pages that there are of what is open. */
function pages(): string[] {
  const several = (summary.value?.tables.calls.facets['rank'] ?? []).length > 1;
  return Object.keys(TITLES).filter((name) => (name !== 'model' || source.value?.live) && (name !== 'ranks' || several));
}

export function App() {
  useEffect(() => {
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  const page = route.value.page;
  return (
    <>
      <Top page={page} />
      {fresh.value && (
        <div class="banner" role="status">
          {t('New steps have arrived.')}
          <button class="button" onClick={() => void again()}>
            {t('Compare again')}
          </button>
        </div>
      )}
      <Page page={page} />
      <Help />
    </>
  );
}

function Page({ page }: { page: string }) {
  if (page === 'start') return <Start />;
  if (page === 'directory' || page === 'file') return <Forms which={page} />;
  const shown = answer.value;
  if (shown) return shown.format === 'numscope.weights/1' ? <Weights answer={shown} /> : <Verified answer={shown} />;
  if (!summary.value || !source.value || (source.value.live && state.value !== 'ready')) return <Start />;
  switch (page) {
    case 'story':
      return <Story />;
    case 'calls':
      return <Calls />;
    case 'model':
      if (source.value.live) return <Model />;
      break;
    case 'ranks':
      return <Ranks />;
    case 'tensor':
      return <Tensor />;
  }
  return <Answer />;
}

function Top({ page }: { page: string }) {
  const document = answer.value;
  const about = document ? null : summary.value;
  const live = source.value?.live;
  const current = page === 'tensor' ? 'calls' : page || 'answer';
  return (
    <header class="top">
      <div class="top-in">
        <a class="brand" href={link(live ? 'start' : 'answer')} title={live ? t('Open other runs') : ''}>
          <Mark />
          numscope
        </a>
        {about && (
          <nav class="tabs" aria-label={t('Pages')}>
            {pages().map((name) => (
              <a href={link(name)} aria-current={name === current ? 'page' : undefined} key={name}>
                {name === 'answer' && !comparing.value ? t('Overview') : t(TITLES[name]!)}
              </a>
            ))}
          </nav>
        )}
        <div class="runs">
          {about && (
            <span title={`${about.target.path} ${about.reference?.path ?? ''}`}>
              <b>{tail(about.target.path, 30)}</b>
              {about.reference && (
                <>
                  {' '}
                  {t('against')} <b>{tail(about.reference.path, 30)}</b>
                </>
              )}
            </span>
          )}
          {document?.format === 'numscope.weights/1' && (
            <span title={`${document.a} ${document.b}`}>
              <b>{tail(document.a, 30)}</b> {t('against')} <b>{tail(document.b, 30)}</b>
            </span>
          )}
          {document?.format === 'numscope.check/1' && <b title={document.run}>{tail(document.run, 40)}</b>}
        </div>
        <span>
          <button class="tool" onClick={() => setLanguage(language.value === 'zh' ? 'en' : 'zh')} aria-label={t('Language')}>
            {language.value === 'zh' ? 'en' : 'zh'}
          </button>
          <button class="tool" onClick={toggleTheme} aria-label={t('Light or dark')} title={t('Light or dark')}>
            {theme.value === 'dark' ? '☀' : '☾'}
          </button>
          <button class="tool" onClick={() => (help.value = true)} aria-label={t('Keyboard')} title={t('Keyboard')}>
            ?
          </button>
        </span>
      </div>
    </header>
  );
}

function Mark() {
  return (
    <svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true" fill="none" stroke-width="1.8" stroke-linecap="round">
      <path d="M2 13.5 7.5 13.5 10.5 11 18 4" stroke="var(--target)" />
      <path d="M2 13.5 7.5 13.5 10.5 14 18 15.5" stroke="var(--reference)" />
      <circle cx="8.3" cy="13.3" r="2.3" fill="var(--origin)" stroke="none" />
    </svg>
  );
}

const KEYS: [string, string][] = [
  ['1 2 3 4 5', 'go to a page'],
  ['j k', 'next and previous row'],
  ['n p', 'next and previous difference'],
  ['[ ]', 'the same call on the previous and next rank'],
  ['Enter', 'open the call'],
  ['/', 'search by name'],
  ['o', 'go to the origin'],
  ['t', 'light or dark'],
  ['Esc', 'leave the search, close this'],
  ['?', 'this list'],
];

function Help() {
  const box = useRef<HTMLDialogElement>(null);
  const open = help.value;
  useEffect(() => {
    if (open && !box.current!.open) box.current!.showModal();
    else if (!open && box.current!.open) box.current!.close();
  }, [open]);
  return (
    <dialog ref={box} onClose={() => (help.value = false)} onClick={(e) => e.target === box.current && (help.value = false)}>
      <h1>{t('Keyboard')}</h1>
      <div class="keys">
        {KEYS.map(([keys, text]) => (
          <>
            <span>
              {keys.split(' ').map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </span>
            <span>{t(text)}</span>
          </>
        ))}
      </div>
    </dialog>
  );
}

function onKey(event: KeyboardEvent): void {
  const at = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest('input, select, textarea, dialog[open]')) return;
  const about = summary.peek();
  if (event.key === '?') help.value = true;
  else if (event.key === 't') toggleTheme();
  else if (!about) return;
  else if (/^[1-5]$/.test(event.key) && pages()[Number(event.key) - 1]) go(link(pages()[Number(event.key) - 1]!));
  else if (event.key === 'o' && about.origin_row !== null) go(link('tensor', [about.origin_row]));
  else if (event.key === '/' && route.peek().page !== 'calls') {
    event.preventDefault();
    if (route.peek().page !== 'model') go(link('calls'));
    focusSearch();
  }
}

/** Put the cursor into the search field as soon as the page that has it is drawn. */
function focusSearch(frames = 120): void {
  const field = document.querySelector<HTMLInputElement>('.search input');
  if (field) field.focus();
  else if (frames > 0) requestAnimationFrame(() => focusSearch(frames - 1));
}

export function Main({ children, full }: { children: ComponentChildren; full?: boolean }) {
  return <main class={full ? 'full' : ''}>{children}</main>;
}
